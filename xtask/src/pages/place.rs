//! Where the commands of a page run: in network and process namespaces of their own, so that ports do not
//! clash and no process stays, on this system or in a root directory of another one.

use super::document::{Step, Terminal, difference};
use crate::shell::{Result, at, command};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Where commands run, and as which user.
#[derive(Debug)]
pub(super) struct Place<'p> {
    /// The root directory, or `None` for this system's.
    pub(super) root: Option<&'p Path>,
    /// A system that is overlaid by `root`, and is not changed.
    pub(super) below: Option<&'p Path>,
    /// The working directory, as seen inside.
    pub(super) folder: &'p str,
    pub(super) user: User,
    pub(super) network: Network,
    pub(super) path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Root,
    Ordinary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// Only the loopback interface, and one with the address 192.0.2.1.
    Own,
    /// The network of the host, for downloads.
    Host,
}

/// A user ID that is unused in a fresh system.
pub(super) const ORDINARY: u32 = 4242;
/// Time limit of a page.
const SECONDS: &str = "300";
/// Time limit for downloading and building what a page needs.
const SECONDS_TO_FETCH: &str = "2400";

/// A script that runs first, as root, followed by the words of the command.
const OUTSIDE: &str = r#"set -eu
if [ "$NETWORK" = own ]; then
    ip link set lo up
    ip link add iw0 type veth peer name iw1
    # Link-local addresses come a second or two later: the GIDs would change while programs agree on them.
    ip link set iw0 addrgenmode none
    ip link set iw1 addrgenmode none
    ip addr add 192.0.2.1/24 dev iw0
    ip link set iw0 up
    ip link set iw1 up
fi
if [ -n "$BELOW" ]; then
    mount -t overlay overlay -o "lowerdir=$BELOW,upperdir=$ROOT,workdir=$ROOT.work" "$ROOT"
fi
if [ -n "$ROOT" ]; then
    mount -t sysfs sysfs "$ROOT/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
fi
mount -t proc proc "$ROOT/proc"
exec "$@""#;

/// The beginning of the script of the steps.
const INSIDE: &str = r#"set -eu
cd "$HOME"
listeners() { cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -c "^ *[0-9]*: [0-9A-F]*:${1:-[0-9A-F]*} [^ ]* 0A " || true; }
"#;

impl Place<'_> {
    /// Runs the steps, and reports the first that failed.
    pub(super) fn run(&self, page: &str, steps: &[Step]) -> Result {
        let folder = self.outside(self.folder);
        self.prepare(&folder, steps)?;
        let ran = self.command(&folder);
        let printed =
            |number: &str| fs::read_to_string(folder.join(format!("{number}.log"))).unwrap_or_default();
        if let Err(error) = ran {
            let number = fs::read_to_string(folder.join("at")).unwrap_or_default();
            let number = number.trim();
            let line = number.parse::<usize>().ok().and_then(|n| steps.get(n)).map_or(0, |step| step.line);
            let others: Vec<String> = (0..steps.len()).map(|n| printed(&n.to_string())).collect();
            return Err(format!("{page}:{line}: {error}\n{}", others.join("--\n")));
        }
        for (number, step) in (0..).zip(steps) {
            let printed = printed(&i32::to_string(&number));
            if let Some(why) = step.output.as_ref().and_then(|shown| difference(shown, &printed)) {
                return Err(format!("{page}:{}: {why}\nfull output:\n{printed}", step.line));
            }
        }
        Ok(())
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.root.map_or_else(|| path.into(), |root| root.join(path.trim_start_matches('/')))
    }

    fn prepare(&self, folder: &Path, steps: &[Step]) -> Result {
        fs::create_dir_all(folder).map_err(at(folder))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).map_err(at(folder))?;
        if self.user == User::Ordinary {
            chown(folder, Some(ORDINARY), Some(ORDINARY)).map_err(at(folder))?;
        }
        let script = folder.join("steps.sh");
        fs::write(&script, shell_script(steps)).map_err(at(&script))
    }

    fn command(&self, folder: &Path) -> Result {
        let (own, seconds): (&[&str], _) = match self.network {
            Network::Own => (&["--net"], SECONDS),
            Network::Host => (&[], SECONDS_TO_FETCH),
        };
        let mut words = vec!["-s", "KILL", seconds, "unshare", "--mount", "--pid", "--fork", "--kill-child"];
        words.extend(own);
        words.extend(["--", "sh", "-c", OUTSIDE, "sh"]);
        let root = self.root.map(|root| root.to_string_lossy().into_owned());
        if let Some(root) = &root {
            words.extend(["chroot", root.as_str()]);
        }
        let user = ORDINARY.to_string();
        if self.user == User::Ordinary {
            words.extend(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs"]);
        }
        let (home, path) = (format!("HOME={}", self.folder), format!("PATH={}", self.path));
        let script = format!("{}/steps.sh", self.folder);
        words.extend(["env", "-i", &home, &path, "DEBIAN_FRONTEND=noninteractive", "sh", &script]);
        let mut command = command("timeout", &words);
        command.env("ROOT", root.as_deref().unwrap_or_default());
        command.env("BELOW", self.below.unwrap_or(Path::new("")));
        command.env("NETWORK", if self.network == Network::Own { "own" } else { "host" });
        let status = command.current_dir(folder).status().map_err(|error| format!("timeout: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the commands ended with {status}")) }
    }
}

/// Joins the steps to a script. Each can change the directory and environment of the following ones, as in a
/// terminal.
fn shell_script(steps: &[Step]) -> String {
    let mut script = INSIDE.to_owned();
    for (n, Step { terminal, port, commands, .. }) in steps.iter().enumerate() {
        script += &format!("echo {n} >\"$HOME/at\"\n");
        script += &match terminal {
            Terminal::Here => format!("{{\n{commands}}} >\"$HOME/{n}.log\" 2>&1 </dev/null\n"),
            Terminal::Server | Terminal::Stays => {
                let port = port.map(|port| format!(" {port:04X}")).unwrap_or_default();
                format!(
                    "before=$(listeners{port})\n( set -e\n{commands}) >\"$HOME/{n}.log\" 2>&1 </dev/null &\nserver_{n}=$!\n\
                     until [ \"$(listeners{port})\" -gt \"$before\" ]; do kill -0 $server_{n}; sleep 0.05; done\n"
                )
            }
        };
    }
    for (n, _) in steps.iter().enumerate().filter(|(_, step)| step.terminal == Terminal::Server) {
        script += &format!("echo {n} >\"$HOME/at\"\nwait $server_{n}\n");
    }
    script
}
