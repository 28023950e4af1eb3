//! Where jobs run programs on the drop-in: in namespaces of their own, which an ordinary user can have too, and as a user who
//! may do nothing special. The jobs are `programs`, `interop` and `bench`.

use crate::process::Process;
use crate::shell::{Result, at, command, run};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The drop-in as it is installed, where any user can read it, in a folder for what programs write.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    home: PathBuf,
    root: bool,
}

/// Starts a job again, where it may make networks: in a user namespace of its own, unless root does it. It finds `--inside` in
/// front of its arguments.
pub(crate) fn run_inside(job: &str, namespaces: &[&str], arguments: &[String]) -> Result {
    let me = env::current_exe().map_err(|error| error.to_string())?;
    let me = me.to_string_lossy();
    let user: &[&str] = if is_root() { &[] } else { &["--user", "--map-root-user"] };
    let words = [user, namespaces, &["--", &me, job, "--inside"]].concat();
    let mut inner = command("unshare", &words);
    inner.args(arguments);
    run(&mut inner)
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}

impl Home {
    pub(crate) fn new(workspace: &Workspace, job: &str) -> Result<Self> {
        let folder = env::temp_dir().join(format!("ironwarp-{job}-{}", std::process::id()));
        let home = folder.join("home");
        fs::create_dir_all(&home).map_err(at(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(at(&folder))?;
        let built = workspace.target.join("dropin");
        run(&mut command("cp", &["-a", &format!("{}/.", built.display()), &home.to_string_lossy()]))?;
        Ok(Self { folder, home, root: is_root() })
    }

    /// A file beside the drop-in.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// A new folder that anybody may write to.
    pub(crate) fn room(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(at(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(at(&folder))?;
        Ok(folder)
    }

    /// What is written in front of a command that an ordinary user shall run.
    pub(crate) fn as_user(&self) -> Vec<&'static str> {
        let nobody: &[&str] = match self.root {
            true => &["--reuid=65534", "--regid=65534", "--clear-groups"],
            false => &["--bounding-set=-all"], // in a user namespace of our own, root is nobody outside
        };
        [&["setpriv", "--inh-caps=-all", "--no-new-privs"], nobody, &["--"]].concat()
    }

    /// `ironwarp run -- words`.
    pub(crate) fn ironwarp(&self, persona: &str, words: &[String]) -> Vec<String> {
        let ironwarp = self.home.join("bin/ironwarp").to_string_lossy().into_owned();
        let mut line = [&ironwarp, "run", "--persona", persona, "--"].map(String::from).to_vec();
        line.extend_from_slice(words);
        line
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
        let _ = fs::remove_dir(&self.folder); // unless something failed, and left there what it printed
    }
}

/// A network of its own, as long as the process lives that is returned.
pub(crate) fn network_host(name: &str, log: &Path) -> Result<Process> {
    let own = fs::read_link("/proc/self/ns/net").map_err(at(Path::new("/proc/self/ns/net")))?;
    let mut holder = Command::new("unshare");
    holder.args(["--net", "--", "sleep", "infinity"]);
    let mut host = Process::start(holder, name, log)?;
    host.wait_until("it has a network of its own", |host| {
        fs::read_link(format!("/proc/{}/ns/net", host.id())).is_ok_and(|theirs| theirs != own)
    })?;
    Ok(host)
}

/// What `nsenter` calls the network of a process.
pub(crate) fn network(process: &str) -> String {
    format!("--net=/proc/{process}/ns/net")
}

/// Whether anybody listens at a port, in the network that this process is in.
pub(crate) fn listens(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state == LISTEN)
}

/// Whether a connection waits to be accepted there.
pub(crate) fn is_waited_at(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, received| state == LISTEN && !received.ends_with(":00000000"))
}

/// Whether there is any connection to a port that is not closed at both ends.
pub(crate) fn serves(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state != LISTEN && state != TIME_WAIT)
}

/// States of sockets, as the kernel lists them.
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Looks for a socket at this port: in this state, with so much in its queues. Behind the colon is what was not read, or accepted.
fn has_socket(process: u32, port: u16, is_wanted: impl Fn(&str, &str) -> bool) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("net").join(file));
        table.unwrap_or_default().lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            matches!(words[..], [_, local, _, state, queues, ..] if local.ends_with(&wanted) && is_wanted(state, queues))
        })
    })
}
