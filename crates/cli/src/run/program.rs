//! Finds the program to run, and checks whether its libraries can be replaced. If they cannot, this is reported before the
//! program starts, because it would only find no device.

use super::elf::{Elf, Machine};
use super::script::{self, Interpreter};
use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Exit codes of shells for a program that cannot be executed, and for one that was not found.
pub(super) const CANNOT_EXECUTE: u8 = 126;
pub(super) const NOT_FOUND: u8 = 127;

/// Maximum depth of nested interpreters in Linux.
const MAX_LEVELS: usize = 4;
/// The C library's default if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o0010;

/// Why a program cannot be run and what to do about it, in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u8,
    pub(super) text: String,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// User and group.
#[derive(Clone, Copy, Debug)]
struct Identity {
    uid: u32,
    gid: u32,
}

/// A program that can be run on the adapter.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The file that is loaded: the program, or the interpreter of a script.
    pub(super) loaded: PathBuf,
}

/// Finds a program like a shell, and checks that it can be run on the adapter.
pub(super) fn find(name: &OsStr, search: Option<&OsStr>) -> Result<Program, Refusal> {
    let path = look_for(name, search)?;
    let mut subject = format!("`{}`", name.to_string_lossy());
    let mut file = path.clone();
    for _ in 0..=MAX_LEVELS {
        let interpreter = match check(&file).map_err(|trouble| trouble.of(&subject))? {
            None => return Ok(Program { path, loaded: file }),
            Some(Interpreter::Cleared) => return Err(Trouble::Cleared.of(&subject)),
            Some(Interpreter::Path(next)) => next,
            Some(Interpreter::Searched(next)) => {
                look_for(&next, search).map_err(|_| Trouble::NoInterpreter(next).of(&subject))?.into()
            }
        };
        if !Path::new(&interpreter).exists() {
            return Err(Trouble::NoInterpreter(interpreter).of(&subject));
        }
        subject = format!("{subject} is a script for `{}`, which", interpreter.to_string_lossy());
        file = interpreter.into();
    }
    Err(Trouble::TooDeep.of(&format!("`{}`", name.to_string_lossy())))
}

/// Why a program cannot be run.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    Directory,
    NotExecutable,
    Unreadable(String),
    Unknown,
    Static,
    Privileged(&'static str),
    OtherLibc(OsString),
    OtherMachine(String),
    Narrow,
    NoLoader(OsString),
    NoInterpreter(OsString),
    Cleared,
    TooDeep,
}

impl Trouble {
    /// Describes the problem of a program, or of a script and its interpreter.
    fn of(self, subject: &str) -> Refusal {
        let code = match self {
            Self::NoLoader(_) | Self::NoInterpreter(_) => NOT_FOUND,
            _ => CANNOT_EXECUTE,
        };
        let ours = Machine::OURS.name();
        let why = match self {
            Self::Directory => "is a directory, not a program".to_owned(),
            Self::NotExecutable => "is not executable: run `chmod +x` on it".to_owned(),
            Self::Unreadable(error) => format!("cannot be read: {error}"),
            Self::Unknown => "is neither an ELF program nor a script".to_owned(),
            Self::Static => "is statically linked, so its libraries cannot be replaced: link it \
                dynamically (Go: with cgo)"
                .to_owned(),
            Self::Privileged(what) => format!(
                "is {what}, and Linux ignores LD_PRELOAD for such programs: run a copy without that (`cp` \
                 makes one), or run `ironwarp run` through it, as in `sudo ironwarp run -- PROGRAM`"
            ),
            Self::OtherLibc(loader) => format!(
                "is built for another C library (its loader is {}), but Ironwarp requires glibc: use a build for glibc",
                loader.to_string_lossy()
            ),
            Self::OtherMachine(machine) => {
                format!("is for {machine}, but this Ironwarp is for {ours}: use a build for {ours}")
            }
            Self::Narrow => format!("is a 32-bit program, but Ironwarp is 64-bit: use a build for {ours}"),
            Self::NoLoader(loader) => {
                format!("needs the loader {}, which does not exist", loader.to_string_lossy())
            }
            Self::NoInterpreter(interpreter) => {
                let name = interpreter.to_string_lossy();
                let foreign = name.ends_with('\r').then_some(" (it has Windows line endings)");
                format!(
                    "is a script for `{}`, which does not exist{}",
                    name.trim_end(),
                    foreign.unwrap_or("")
                )
            }
            Self::Cleared => {
                "is a script that begins with `env -i`, which removes the variables that load the library: \
                change its first line"
                    .to_owned()
            }
            Self::TooDeep => {
                format!("is a script for a script for a script: Linux allows {MAX_LEVELS} levels")
            }
        };
        Refusal { code, text: format!("{subject} {why}") }
    }
}

/// Searches a program in PATH, unless its name contains a slash.
fn look_for(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return match std::fs::metadata(name) {
            Ok(_) => Ok(name.into()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Refusal { code: CANNOT_EXECUTE, text: format!("`{shown}` is not accessible: {error}") })
            }
            Err(_) => Err(Refusal { code: NOT_FOUND, text: format!("`{shown}` does not exist") }),
        };
    }
    let mut found_one = false;
    for directory in std::env::split_paths(search.unwrap_or(DEFAULT_PATH.as_ref())) {
        let path = directory.join(name);
        let path = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { path };
        if path.is_file() {
            if access(&path, Access::EXEC_OK).is_ok() {
                return Ok(path);
            }
            found_one = true;
        }
    }
    match (found_one, name.is_empty()) {
        (true, _) => Err(Trouble::NotExecutable.of(&format!("`{shown}`"))),
        (false, true) => Err(Refusal { code: NOT_FOUND, text: "the name of the program is empty".into() }),
        (false, false) => {
            let text = format!("`{shown}` not found in PATH: install it, or did you mean `./{shown}`?");
            Err(Refusal { code: NOT_FOUND, text })
        }
    }
}

/// Checks whether a file can be run on the adapter. Returns the interpreter of a script, to be checked next.
fn check(path: &Path) -> Result<Option<Interpreter>, Trouble> {
    let unreadable = |error: io::Error| Trouble::Unreadable(error.to_string());
    let metadata = path.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Trouble::Directory);
    }
    if access(path, Access::EXEC_OK).is_err() {
        return Err(Trouble::NotExecutable);
    }
    let file = match File::open(path) {
        Ok(file) => file,
        // A program may be executable but not readable. Then nothing can be checked.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return refuse_privileged(path, &metadata).map(|()| None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut first = [0; script::LOOKED_AT];
    let len = file.read_at(&mut first, 0).map_err(unreadable)?;
    let first = &first[..len];
    if let Some(interpreter) = script::interpreter(first) {
        return Ok(Some(interpreter)); // Linux ignores setuid and capabilities of scripts
    }
    let Some(elf) = Elf::parse(&file).map_err(unreadable)? else {
        // Like shells: a text file is a shell script.
        let is_text = !first.is_empty() && !first.contains(&0);
        return if is_text { Ok(Some(Interpreter::Path("/bin/sh".into()))) } else { Err(Trouble::Unknown) };
    };
    check_elf(&elf, path)?;
    refuse_privileged(path, &metadata).map(|()| None)
}

fn check_elf(elf: &Elf, path: &Path) -> Result<(), Trouble> {
    if elf.machine != Machine::OURS && elf.wide {
        return Err(Trouble::OtherMachine(elf.machine.name()));
    }
    if !elf.wide {
        let of_ours = ["i386", "x86_64", "arm"].contains(&&*elf.machine.name());
        return Err(if of_ours { Trouble::Narrow } else { Trouble::OtherMachine(elf.machine.name()) });
    }
    match &elf.loader {
        // The loader may be run with a program as its argument, and uses our variables.
        None if is_loader_of_glibc(path) => Ok(()),
        None => Err(Trouble::Static),
        Some(loader) if is_of_another_libc(loader) => Err(Trouble::OtherLibc(loader.clone())),
        Some(loader) if !Path::new(loader).exists() => Err(Trouble::NoLoader(loader.clone())),
        Some(_) => Ok(()),
    }
}

fn is_loader_of_glibc(path: &Path) -> bool {
    let real = path.canonicalize();
    let name = real.as_deref().unwrap_or(path).file_name().unwrap_or_default();
    name.as_bytes().starts_with(b"ld-linux") || name.as_bytes().starts_with(b"ld-2.")
}

/// Whether a loader is that of musl, uClibc or Android. Unknown loaders are accepted, because some distributions rename glibc's.
fn is_of_another_libc(loader: &OsStr) -> bool {
    let loader = loader.to_string_lossy();
    ["ld-musl", "uClibc", "/system/bin/linker"].iter().any(|other| loader.contains(other))
}

/// Rejects programs that run with other rights than the user: Linux sets AT_SECURE for them, so the loader ignores LD_PRELOAD.
fn refuse_privileged(path: &Path, metadata: &Metadata) -> Result<(), Trouble> {
    let identity =
        Identity { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
    let ignored = statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOSUID));
    let capable = || {
        let mut value = [0_u8; 64];
        getxattr(path, c"security.capability", &mut value).is_ok()
    };
    let owned = Identity { uid: metadata.uid(), gid: metadata.gid() };
    match privileged(metadata.mode(), owned, identity, capable).filter(|_| !ignored) {
        Some(what) => Err(Trouble::Privileged(what)),
        None => Ok(()),
    }
}

fn privileged(mode: u32, owned: Identity, by: Identity, capable: impl Fn() -> bool) -> Option<&'static str> {
    if mode & SETUID != 0 && owned.uid != by.uid {
        Some("setuid")
    } else if mode & SETGID != 0 && mode & GROUP_EXECUTES != 0 && owned.gid != by.gid {
        Some("setgid")
    } else if by.uid != 0 && capable() {
        Some("given file capabilities")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Identity = Identity { uid: 0, gid: 0 };
    const USER: Identity = Identity { uid: 1000, gid: 1000 };

    #[test]
    fn programs_with_other_rights_than_their_user_are_found() {
        for (mode, owned, by, capable, expected) in [
            (0o755, ROOT, USER, false, None),
            (0o4755, ROOT, USER, false, Some("setuid")),
            (0o4755, USER, USER, false, None),
            (0o4755, ROOT, ROOT, false, None),
            (0o4755, USER, ROOT, false, Some("setuid")),
            (0o2755, ROOT, USER, false, Some("setgid")),
            (0o2745, ROOT, USER, false, None), // formerly mandatory locking
            (0o2755, USER, USER, false, None),
            (0o755, ROOT, USER, true, Some("given file capabilities")),
            (0o755, ROOT, ROOT, true, None),
        ] {
            let found = privileged(mode, owned, by, || capable);
            assert_eq!(found, expected, "{mode:o}, {owned:?}, {by:?}, {capable}");
        }
    }

    #[test]
    fn loaders_are_distinguished() {
        for (loader, other) in [
            ("/lib64/ld-linux-x86-64.so.2", false),
            ("/nix/store/x-glibc-2.39/lib/ld-linux-x86-64.so.2", false),
            ("/lib/ld-musl-x86_64.so.1", true),
            ("/lib/ld64-uClibc.so.0", true),
            ("/lib/ld-uClibc.so.0", true),
            ("/system/bin/linker64", true),
        ] {
            assert_eq!(is_of_another_libc(loader.as_ref()), other, "{loader}");
        }
    }
}
