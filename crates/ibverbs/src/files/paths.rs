//! Makes the paths of programs absolute. A relative path starts from the current directory or from one that is open,
//! and either may be virtual. The kernel knows a virtual directory by its path beside the library, where it exists so
//! that programs can enter it, open it, and let children inherit it. This module converts such paths to virtual ones.
#![expect(unsafe_code, reason = "asks the loader and the kernel for paths")]

use super::map::may_be_virtual;
use super::tree::{Tree, push};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether the current directory is virtual: `UNKNOWN`, `NOT_VIRTUAL` or `VIRTUAL`. Saves a system call for each
/// relative path.
static CURRENT: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The current directory may have changed, so that the next relative path queries the kernel.
const UNKNOWN: u8 = 0;
const NOT_VIRTUAL: u8 = 1;
const VIRTUAL: u8 = 2;

/// Whether a virtual directory was ever opened. Until then, no descriptor can be that of a virtual directory.
static OPENED: AtomicBool = AtomicBool::new(false);

/// Maximum length of a path.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Words of which every virtual path contains one. A relative path without them cannot lead from an ordinary
/// directory to a virtual one.
const WORDS: [&str; 3] = ["infiniband", "ironwarp", "4957:"];
/// Name of the directory beside the library.
const TREE: &str = "tree";

/// Makes a path absolute and normal if it may be virtual, or starts in a virtual directory. Returns `None` for other
/// paths. A relative path starts from the directory `at`, or from the current one if `at` is AT_FDCWD. A normal path
/// has no `.`, `..` and doubled slashes.
pub(super) fn resolve(at: c_int, path: &[u8]) -> Option<String> {
    match path.first()? {
        b'/' => may_be_virtual(path).then(|| normalize(Tree::of_process(), "/", path)).flatten(),
        _ => {
            let from_current = at == libc::AT_FDCWD;
            let start = if from_current { current_virtual_directory() } else { virtual_path_of(at) };
            if let Some(directory) = start {
                return normalize(Tree::of_process(), &directory, path);
            }
            WORDS.iter().any(|word| contains(path, word)).then_some(())?;
            let start =
                if from_current { map_current_directory(text) } else { map_descriptor_path(at, text) };
            normalize(Tree::of_process(), &start?, path).filter(|path| may_be_virtual(path.as_bytes()))
        }
    }
}

/// The virtual path of the current directory. `None` if it is not virtual.
fn current_virtual_directory() -> Option<String> {
    if CURRENT.load(Ordering::Relaxed) == NOT_VIRTUAL {
        return None;
    }
    let directory = map_current_directory(virtual_path);
    CURRENT.store(if directory.is_some() { VIRTUAL } else { NOT_VIRTUAL }, Ordering::Relaxed);
    directory
}

/// Forgets whether the current directory is virtual, after the program has changed it.
pub(super) fn forget_current_directory() {
    CURRENT.store(UNKNOWN, Ordering::Relaxed);
}

/// Records that a virtual directory was opened. From then on [`virtual_path_of`] checks descriptors.
pub(super) fn record_open_directory() {
    OPENED.store(true, Ordering::Relaxed);
}

/// The virtual path of an open directory. `None` if it is not virtual. Asks the kernel each time, because the program
/// may have duplicated or closed the descriptor.
pub(super) fn virtual_path_of(fd: RawFd) -> Option<String> {
    OPENED.load(Ordering::Relaxed).then(|| map_descriptor_path(fd, virtual_path)).flatten()
}

/// Converts a path beside the library to a virtual one. `None` if the path is not beside the library.
pub(super) fn virtual_path(path: &[u8]) -> Option<String> {
    /// The directory beside the library, without links. `None` if it does not exist.
    static REAL: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Excludes most paths without allocating memory or accessing the file system.
    contains(path, TREE).then_some(())?;
    let real = REAL.get_or_init(|| tree_directory()?.canonicalize().ok()).as_ref()?;
    let below = Path::new(OsStr::from_bytes(path)).strip_prefix(real).ok()?.to_str()?;
    Some(Tree::of_process().program_path(&format!("/{below}")))
}

fn contains(path: &[u8], word: &str) -> bool {
    path.windows(word.len()).any(|part| part == word.as_bytes())
}

/// The directory beside the library that contains the virtual directories.
pub(super) fn tree_directory() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            // SAFETY: the structure has only pointers, for which zeros are valid.
            let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
            // SAFETY: dladdr accepts any address, and `info` is local. This function is part of the library.
            if unsafe { libc::dladdr(tree_directory as *const c_void, &raw mut info) } == 0 {
                return None;
            }
            // SAFETY: dladdr succeeded, so the name is a C string, which lives as long as the library is loaded.
            let library = unsafe { CStr::from_ptr(info.dli_fname) };
            let library = PathBuf::from(OsStr::from_bytes(library.to_bytes()));
            Some(library.parent()?.join(TREE))
        })
        .as_ref()
}

/// Calls `map` with the path of the current directory. Makes a bare system call, because getcwd is interposed.
fn map_current_directory(map: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let mut path = [0_u8; PATH_MAX];
    // SAFETY: the kernel writes at most `path.len()` bytes to `path`. It returns the length including the NUL.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) };
    map(path.get(..usize::try_from(len).ok()?.checked_sub(1)?)?)
}

/// Calls `map` with the path of an open descriptor.
fn map_descriptor_path(fd: RawFd, map: impl FnOnce(&[u8]) -> Option<String>) -> Option<String> {
    let path = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok()?;
    map(path.as_bytes())
}

/// Copies a path. `None` if it is not UTF-8, as all virtual paths are.
fn text(path: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(path).ok()?.to_owned())
}

/// Appends a path to a directory, and removes `.`, `..`, doubled slashes and virtual links. A link at the end of the
/// path stays. `None` if the path is not UTF-8.
fn normalize(tree: Tree<'_>, directory: &str, path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let mut whole = String::new();
    for part in directory.split('/').chain(path.split('/')) {
        // Before the next part, so that the last part is not followed.
        if let Some(target) = tree.follow(&whole) {
            whole = target;
        }
        push(&mut whole, part);
    }
    Some(if whole.is_empty() { "/".to_owned() } else { whole })
}

#[cfg(test)]
mod tests {
    use super::super::tree::described;
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let devices = described("all; 2");
        let normalize =
            |directory, path: &str| super::normalize(Tree::of(&devices), directory, path.as_bytes()).unwrap();
        assert_eq!(normalize("/sys/class", "infiniband//a/./b/"), "/sys/class/infiniband/a/b");
        assert_eq!(normalize("/sys/class/infiniband/a", "../b"), "/sys/class/infiniband/b");
        assert_eq!(normalize("/", "../../x"), "/x");
        assert_eq!(normalize("/a", "/"), "/a");
        assert_eq!(normalize("/", ".."), "/");
        let device = "/sys/class/infiniband/ironwarp0/device";
        assert_eq!(normalize("/", device), device, "the link itself");
        for (below, is) in [("/", ""), ("/.", ""), ("/vendor", "/vendor"), ("/../ironwarp/net", "/net")] {
            assert_eq!(
                normalize("/", &format!("{device}{below}")),
                format!("/sys/devices/platform/ironwarp{is}")
            );
        }
        let pci = "/sys/devices/pci4957:00/4957:00:03.0/4957:03:00.0";
        let lid = format!("{pci}/infiniband/ironwarp2/ports/./1/lid");
        assert_eq!(normalize("/", &lid), "/sys/class/infiniband/ironwarp2/ports/1/lid");
        for path in [
            "/sys/class/infiniband/ironwarp2/device/.",
            "/sys/class/infiniband/ironwarp2/device/../4957:03:00.0",
            "/sys/class/infiniband_verbs/uverbs2/device/",
            "/sys/bus/pci/devices/4957:03:00.0/",
            "/sys/class/pci_bus/4957:03/../../4957:03:00.0", // as NCCL finds a device
        ] {
            assert_eq!(normalize("/", path), pci, "{path}");
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
