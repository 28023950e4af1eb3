//! Finds the program to run, and checks whether its libraries can be replaced. If not, `ironwarp run` reports the
//! reason instead of starting the program, which would only report that there is no device.

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

/// Exit code for a program that cannot be executed, as of shells.
pub(super) const CANNOT_EXECUTE: u8 = 126;
/// Exit code for a program that was not found, as of shells.
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
    /// The exit code of `ironwarp run`.
    pub(super) code: u8,
    pub(super) text: String,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A user and a group.
#[derive(Clone, Copy, Debug)]
struct Identity {
    uid: u32,
    gid: u32,
}

/// A program that can be run on the adapter.
#[derive(Debug)]
pub(super) struct Program {
    /// The file to execute.
    pub(super) path: PathBuf,
    /// The ELF file that the kernel loads: the program itself, or the interpreter of a script.
    pub(super) loaded: PathBuf,
}

/// Finds a program as a shell does, and checks that it can be run on the adapter. `path_variable` is the value of PATH.
pub(super) fn find(name: &OsStr, path_variable: Option<&OsStr>) -> Result<Program, Refusal> {
    let path = search(name, path_variable)?;
    let mut subject = format!("`{}`", name.to_string_lossy());
    let mut file = path.clone();
    for _ in 0..=MAX_LEVELS {
        let interpreter = match check_file(&file).map_err(|problem| problem.refusal(&subject))? {
            None => return Ok(Program { path, loaded: file }),
            Some(Interpreter::Cleared) => return Err(Problem::Cleared.refusal(&subject)),
            Some(Interpreter::Path(next)) => next,
            Some(Interpreter::Searched(next)) => search(&next, path_variable)
                .map_err(|_| Problem::NoInterpreter(next).refusal(&subject))?
                .into(),
        };
        if !Path::new(&interpreter).exists() {
            return Err(Problem::NoInterpreter(interpreter).refusal(&subject));
        }
        subject = format!("{subject} is a script for `{}`, which", interpreter.to_string_lossy());
        file = interpreter.into();
    }
    Err(Problem::TooDeep.refusal(&format!("`{}`", name.to_string_lossy())))
}

/// Why a program cannot be run.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
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

impl Problem {
    /// Returns the refusal of `subject`, which is a program, or a script and its interpreter.
    fn refusal(self, subject: &str) -> Refusal {
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

/// Returns the path of a program. Searches it in PATH, unless its name contains a slash.
fn search(name: &OsStr, path_variable: Option<&OsStr>) -> Result<PathBuf, Refusal> {
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
    let mut found_not_executable = false;
    for directory in std::env::split_paths(path_variable.unwrap_or(DEFAULT_PATH.as_ref())) {
        let path = directory.join(name);
        let path = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { path };
        if path.is_file() {
            if access(&path, Access::EXEC_OK).is_ok() {
                return Ok(path);
            }
            found_not_executable = true;
        }
    }
    match (found_not_executable, name.is_empty()) {
        (true, _) => Err(Problem::NotExecutable.refusal(&format!("`{shown}`"))),
        (false, true) => Err(Refusal { code: NOT_FOUND, text: "the name of the program is empty".into() }),
        (false, false) => {
            let text = format!("`{shown}` not found in PATH: install it, or did you mean `./{shown}`?");
            Err(Refusal { code: NOT_FOUND, text })
        }
    }
}

/// Checks whether a file can be run on the adapter. Returns the interpreter of a script, to be checked next.
fn check_file(path: &Path) -> Result<Option<Interpreter>, Problem> {
    let unreadable = |error: io::Error| Problem::Unreadable(error.to_string());
    let metadata = path.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Problem::Directory);
    }
    if access(path, Access::EXEC_OK).is_err() {
        return Err(Problem::NotExecutable);
    }
    let file = match File::open(path) {
        Ok(file) => file,
        // A program may be executable but not readable. Then its contents cannot be checked.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return refuse_privileged(path, &metadata).map(|()| None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut first = [0; script::MAX_FIRST_LINE];
    let len = file.read_at(&mut first, 0).map_err(unreadable)?;
    let first = &first[..len];
    if let Some(interpreter) = script::parse_interpreter(first) {
        return Ok(Some(interpreter)); // Linux ignores setuid and capabilities of scripts
    }
    let Some(elf) = Elf::parse(&file).map_err(unreadable)? else {
        // A text file without `#!` is a shell script, as for shells.
        let is_text = !first.is_empty() && !first.contains(&0);
        return if is_text { Ok(Some(Interpreter::Path("/bin/sh".into()))) } else { Err(Problem::Unknown) };
    };
    check_elf(&elf, path)?;
    refuse_privileged(path, &metadata).map(|()| None)
}

/// Checks that the drop-in library can be loaded into an ELF program.
fn check_elf(elf: &Elf, path: &Path) -> Result<(), Problem> {
    if elf.machine != Machine::OURS && elf.wide {
        return Err(Problem::OtherMachine(elf.machine.name()));
    }
    if !elf.wide {
        let has_64_bit_build = ["i386", "x86_64", "arm"].contains(&&*elf.machine.name());
        return Err(if has_64_bit_build {
            Problem::Narrow
        } else {
            Problem::OtherMachine(elf.machine.name())
        });
    }
    match &elf.loader {
        // The loader itself may be run, with a program as its argument. It uses LD_PRELOAD, too.
        None if is_loader_of_glibc(path) => Ok(()),
        None => Err(Problem::Static),
        Some(loader) if is_of_another_libc(loader) => Err(Problem::OtherLibc(loader.clone())),
        Some(loader) if !Path::new(loader).exists() => Err(Problem::NoLoader(loader.clone())),
        Some(_) => Ok(()),
    }
}

/// Returns whether a file is glibc's dynamic loader.
fn is_loader_of_glibc(path: &Path) -> bool {
    let real = path.canonicalize();
    let name = real.as_deref().unwrap_or(path).file_name().unwrap_or_default();
    name.as_bytes().starts_with(b"ld-linux") || name.as_bytes().starts_with(b"ld-2.")
}

/// Returns whether a loader is that of musl, uClibc or Android. Other loaders count as glibc's, because some
/// distributions rename it.
fn is_of_another_libc(loader: &OsStr) -> bool {
    let loader = loader.to_string_lossy();
    ["ld-musl", "uClibc", "/system/bin/linker"].iter().any(|other| loader.contains(other))
}

/// Refuses programs that run with other rights than the user's. Linux sets AT_SECURE for them, so that the loader
/// ignores LD_PRELOAD.
fn refuse_privileged(path: &Path, metadata: &Metadata) -> Result<(), Problem> {
    let identity =
        Identity { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
    let nosuid = statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOSUID));
    let has_capabilities = || {
        let mut value = [0_u8; 64];
        getxattr(path, c"security.capability", &mut value).is_ok()
    };
    let owner = Identity { uid: metadata.uid(), gid: metadata.gid() };
    match privilege(metadata.mode(), owner, identity, has_capabilities).filter(|_| !nosuid) {
        Some(what) => Err(Problem::Privileged(what)),
        None => Ok(()),
    }
}

/// Returns why a program with this mode and owner would run with other rights than this user's; `None` if it would not.
fn privilege(
    mode: u32,
    owner: Identity,
    user: Identity,
    has_capabilities: impl Fn() -> bool,
) -> Option<&'static str> {
    if mode & SETUID != 0 && owner.uid != user.uid {
        Some("setuid")
    } else if mode & SETGID != 0 && mode & GROUP_EXECUTES != 0 && owner.gid != user.gid {
        Some("setgid")
    } else if user.uid != 0 && has_capabilities() {
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
        for (mode, owner, user, has_capabilities, expected) in [
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
            let found = privilege(mode, owner, user, || has_capabilities);
            assert_eq!(found, expected, "{mode:o}, {owner:?}, {user:?}, {has_capabilities}");
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
