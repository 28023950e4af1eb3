//! Resolves the path that a program gives. A relative path starts from the current directory or from one that
//! is open, and either may be virtual. Virtual directories are real ones beside the library, so that they can
//! be entered, opened and inherited by children. This module converts their paths to those that programs
//! know.
#![expect(unsafe_code, reason = "asks the loader and the kernel for paths")]

use super::map::is_ours;
use super::tree;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What is known about the current directory. The kernel is asked again only after it changes.
static CURRENT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const OUTSIDE: u8 = 1;
const INSIDE: u8 = 2;

/// Whether a virtual directory was opened. Only then are descriptors looked at, which the program may have
/// duplicated.
static OPENED: AtomicBool = AtomicBool::new(false);

/// Maximum length of a path.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Every virtual path contains one of these words. A relative path may lead there from a directory above.
const WORDS: [&str; 2] = ["infiniband", "ironwarp"];
/// Name of the directory beside the library.
const TREE: &str = "tree";

/// Resolves a path that is virtual, or starts in a virtual directory. The result is absolute, without `.`,
/// `..` and doubled slashes.
pub(super) fn resolve(at: c_int, path: &[u8]) -> Option<String> {
    match path.first()? {
        b'/' => is_ours(path).then(|| absolute("/", path)).flatten(),
        _ => {
            let here = at == libc::AT_FDCWD;
            if let Some(directory) = if here { current() } else { open_directory(at) } {
                return absolute(&directory, path);
            }
            WORDS.iter().any(|word| contains(path, word)).then_some(())?;
            let directory = if here { working_directory(text) } else { descriptor_path(at, text) };
            absolute(&directory?, path).filter(|path| is_ours(path.as_bytes()))
        }
    }
}

/// The current directory as programs know it, if it is virtual.
fn current() -> Option<String> {
    if CURRENT.load(Ordering::Relaxed) == OUTSIDE {
        return None;
    }
    let directory = working_directory(virtual_path);
    CURRENT.store(if directory.is_some() { INSIDE } else { OUTSIDE }, Ordering::Relaxed);
    directory
}

/// The program has changed its directory.
pub(super) fn moved() {
    CURRENT.store(UNKNOWN, Ordering::Relaxed);
}

/// A virtual directory was opened.
pub(super) fn opened() {
    OPENED.store(true, Ordering::Relaxed);
}

/// The path of an open virtual directory.
pub(super) fn open_directory(fd: RawFd) -> Option<String> {
    OPENED.load(Ordering::Relaxed).then(|| descriptor_path(fd, virtual_path)).flatten()
}

/// Converts a path beside the library to the one that programs know.
pub(super) fn virtual_path(path: &[u8]) -> Option<String> {
    static REAL: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Rules out most paths without allocating memory or accessing the file system.
    contains(path, TREE).then_some(())?;
    let real = REAL.get_or_init(|| tree_directory()?.canonicalize().ok()).as_ref()?;
    let below = Path::new(OsStr::from_bytes(path)).strip_prefix(real).ok()?.to_str()?;
    Some(tree::program_path(&format!("/{below}")))
}

fn contains(path: &[u8], word: &str) -> bool {
    path.windows(word.len()).any(|part| part == word.as_bytes())
}

/// The directory beside the library that contains the virtual directories.
pub(super) fn tree_directory() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            // SAFETY: plain data, which dladdr fills in.
            let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
            // SAFETY: an address of this library.
            if unsafe { libc::dladdr(tree_directory as *const c_void, &raw mut info) } == 0 {
                return None;
            }
            // SAFETY: a string of the loader.
            let library = unsafe { CStr::from_ptr(info.dli_fname) };
            let library = PathBuf::from(OsStr::from_bytes(library.to_bytes()));
            Some(library.parent()?.join(TREE))
        })
        .as_ref()
}

/// Calls `of` with the path of the current directory.
fn working_directory(of: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let mut path = [0_u8; PATH_MAX];
    // SAFETY: the kernel writes at most that many bytes, and returns the length including the NUL.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) };
    of(path.get(..usize::try_from(len).ok()?.checked_sub(1)?)?)
}

/// Calls `of` with the path of an open descriptor.
fn descriptor_path(fd: RawFd, of: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let path = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok()?;
    of(path.as_bytes())
}

fn text(path: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(path).ok()?.to_owned())
}

/// Makes a path absolute, without `.`, `..` and links, except for a link at its end.
fn absolute(directory: &str, path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let mut whole = String::new();
    for part in directory.split('/').chain(path.split('/')) {
        if let Some(target) = tree::follow(&whole) {
            whole = target.to_owned();
        }
        match part {
            "" | "." => {}
            ".." => whole.truncate(whole.rfind('/').unwrap_or(0)),
            part => whole.extend(["/", part]),
        }
    }
    Some(if whole.is_empty() { "/".to_owned() } else { whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let absolute = |directory, path: &str| absolute(directory, path.as_bytes()).unwrap();
        assert_eq!(absolute("/sys/class", "infiniband//a/./b/"), "/sys/class/infiniband/a/b");
        assert_eq!(absolute("/sys/class/infiniband/a", "../b"), "/sys/class/infiniband/b");
        assert_eq!(absolute("/", "../../x"), "/x");
        assert_eq!(absolute("/a", "/"), "/a");
        assert_eq!(absolute("/", ".."), "/");
        let device = "/sys/class/infiniband/ironwarp0/device";
        assert_eq!(absolute("/", device), device, "the link itself");
        for (below, is) in [("/", ""), ("/.", ""), ("/vendor", "/vendor"), ("/../ironwarp/net", "/net")] {
            assert_eq!(
                absolute("/", &format!("{device}{below}")),
                format!("/sys/devices/platform/ironwarp{is}")
            );
        }
    }

    #[test]
    fn other_paths_are_ignored() {
        for path in ["/etc/passwd", "/sys/class/net", "Cargo.toml", "", "."] {
            assert_eq!(resolve(libc::AT_FDCWD, path.as_bytes()), None, "{path}");
        }
        let root = std::fs::File::open("/").unwrap();
        let root = std::os::fd::AsRawFd::as_raw_fd(&root);
        assert_eq!(resolve(root, b"sys/class/infiniband"), Some("/sys/class/infiniband".into()));
        assert_eq!(resolve(root, b"sys/class/net"), None);
        assert_eq!(
            resolve(libc::AT_FDCWD, b"/sys/class/infiniband/../net/lo"),
            Some("/sys/class/net/lo".into())
        );
    }
}
