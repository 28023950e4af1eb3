//! Which path a program means: relative ones start in the current folder, or in one that is open, and either may be one of ours.
//! Ours are real folders, beside the library, so that they can be entered and opened, and children find themselves in them.
//! Here their paths become what programs call them.
#![expect(unsafe_code, reason = "asks the loader and the kernel for paths")]

use super::map::is_ours;
use super::tree;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What is known of the current folder. Nobody asks the kernel twice unless it changes.
static CURRENT: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const OUTSIDE: u8 = 1;
const INSIDE: u8 = 2;

/// A folder of ours was opened. Only then descriptors are looked at: the program may have duplicated it.
static OPENED: AtomicBool = AtomicBool::new(false);

/// The kernel knows no longer path.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// One of them is in every path of ours, and a relative path may get there from a folder above.
const WORDS: [&str; 2] = ["infiniband", "ironwarp"];
/// What the folder beside the library is called.
const TREE: &str = "tree";

/// The path that a program means, if it is one of ours, or starts in one: absolute, without `.`, `..` and doubled slashes.
pub(super) fn meant(at: c_int, path: &[u8]) -> Option<String> {
    match path.first()? {
        b'/' => is_ours(path).then(|| absolute("/", path)).flatten(),
        _ => {
            let here = at == libc::AT_FDCWD;
            if let Some(folder) = if here { current() } else { folder(at) } {
                return absolute(&folder, path);
            }
            WORDS.iter().any(|word| contains(path, word)).then_some(())?;
            let folder = if here { working_directory(text) } else { named(at, text) };
            absolute(&folder?, path).filter(|path| is_ours(path.as_bytes()))
        }
    }
}

/// The current folder as programs call it, if it is one of ours.
fn current() -> Option<String> {
    if CURRENT.load(Ordering::Relaxed) == OUTSIDE {
        return None;
    }
    let folder = working_directory(called);
    CURRENT.store(if folder.is_some() { INSIDE } else { OUTSIDE }, Ordering::Relaxed);
    folder
}

/// The program has gone elsewhere.
pub(super) fn moved() {
    CURRENT.store(UNKNOWN, Ordering::Relaxed);
}

/// A folder of ours was opened.
pub(super) fn opened() {
    OPENED.store(true, Ordering::Relaxed);
}

/// What a descriptor is called, if it is a folder of ours.
pub(super) fn folder(fd: RawFd) -> Option<String> {
    OPENED.load(Ordering::Relaxed).then(|| named(fd, called)).flatten()
}

/// A path beside the library as programs call it.
pub(super) fn called(path: &[u8]) -> Option<String> {
    static REAL: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Most paths are told by this, without memory or a look at the file system.
    contains(path, TREE).then_some(())?;
    let real = REAL.get_or_init(|| tree_folder()?.canonicalize().ok()).as_ref()?;
    let below = Path::new(OsStr::from_bytes(path)).strip_prefix(real).ok()?.to_str()?;
    Some(tree::as_called(&format!("/{below}")))
}

fn contains(path: &[u8], word: &str) -> bool {
    path.windows(word.len()).any(|part| part == word.as_bytes())
}

/// The folder beside the library that has ours.
pub(super) fn tree_folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            // SAFETY: plain data, which dladdr fills.
            let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
            // SAFETY: an address of this library.
            if unsafe { libc::dladdr(tree_folder as *const c_void, &raw mut info) } == 0 {
                return None;
            }
            // SAFETY: the loader's own string.
            let library = unsafe { CStr::from_ptr(info.dli_fname) };
            let library = PathBuf::from(OsStr::from_bytes(library.to_bytes()));
            Some(library.parent()?.join(TREE))
        })
        .as_ref()
}

/// What `of` makes of the path of the current folder.
fn working_directory(of: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let mut path = [0_u8; PATH_MAX];
    // SAFETY: the kernel writes no more than there is room for, and returns how much, with the zero behind it.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) };
    of(path.get(..usize::try_from(len).ok()?.checked_sub(1)?)?)
}

/// What `of` makes of the path of what a descriptor is open for.
fn named(fd: RawFd, of: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let path = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok()?;
    of(path.as_bytes())
}

fn text(path: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(path).ok()?.to_owned())
}

/// A path from a folder, with nothing in it that leads back or elsewhere, but for a link at its end.
fn absolute(folder: &str, path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let mut whole = String::new();
    for part in folder.split('/').chain(path.split('/')) {
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
    fn a_path_is_what_is_left_of_it() {
        let absolute = |folder, path: &str| absolute(folder, path.as_bytes()).unwrap();
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
    fn paths_of_others_are_not_looked_at() {
        for path in ["/etc/passwd", "/sys/class/net", "Cargo.toml", "", "."] {
            assert_eq!(meant(libc::AT_FDCWD, path.as_bytes()), None, "{path}");
        }
        let root = std::fs::File::open("/").unwrap();
        let root = std::os::fd::AsRawFd::as_raw_fd(&root);
        assert_eq!(meant(root, b"sys/class/infiniband"), Some("/sys/class/infiniband".into()));
        assert_eq!(meant(root, b"sys/class/net"), None);
        assert_eq!(
            meant(libc::AT_FDCWD, b"/sys/class/infiniband/../net/lo"),
            Some("/sys/class/net/lo".into())
        );
    }
}
