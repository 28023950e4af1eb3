//! Runs programs on the drop-in in namespaces of their own, which unprivileged users can also create, and as
//! an unprivileged user. For the jobs `programs`, `interop` and `bench`.

use crate::shell::{Result, at, command, run};
use crate::workspace::Workspace;
use ironwarp_testkit::process::Process;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An installation of the drop-in that every user can read, in a folder for the output of programs.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    home: PathBuf,
    root: bool,
}

/// Starts a job again where it can create network namespaces: in a user namespace, unless we are root. Its
/// first argument is then `--inside`.
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

    /// A file next to the drop-in.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Creates a folder that every user can write to.
    pub(crate) fn room(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(at(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(at(&folder))?;
        Ok(folder)
    }

    /// The command that runs another one as an unprivileged user.
    pub(crate) fn as_user(&self) -> Vec<&'static str> {
        let nobody: &[&str] = match self.root {
            true => &["--reuid=65534", "--regid=65534", "--clear-groups"],
            false => &["--bounding-set=-all"], // root of our user namespace has no rights outside
        };
        [&["setpriv", "--inh-caps=-all", "--no-new-privs"], nobody, &["--"]].concat()
    }

    /// `ironwarp run -- words`.
    pub(crate) fn ironwarp(&self, persona: &str, words: &[String]) -> Vec<String> {
        self.ironwarp_with(persona, &[], words)
    }

    /// `ironwarp run OPTIONS -- words`.
    pub(crate) fn ironwarp_with(&self, persona: &str, options: &[String], words: &[String]) -> Vec<String> {
        let ironwarp = self.home.join("bin/ironwarp").to_string_lossy().into_owned();
        let mut line = [&ironwarp, "run", "--persona", persona].map(String::from).to_vec();
        line.extend_from_slice(options);
        line.push("--".to_owned());
        line.extend_from_slice(words);
        line
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
        let _ = fs::remove_dir(&self.folder); // stays if a program failed and left its output there
    }
}

/// Creates a network namespace that exists as long as the returned process.
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

/// The option with which `nsenter` enters the network of a process.
pub(crate) fn network(process: &str) -> String {
    format!("--net=/proc/{process}/ns/net")
}
