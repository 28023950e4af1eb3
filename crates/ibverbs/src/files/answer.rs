//! What an interposed function does with a path.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::map::{Target, target};
use super::paths::{resolve, tree_directory};
use super::{content, tree};
use crate::support::errno::Errno;
use crate::support::report;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;

/// What to do with a path.
pub(super) enum Answer {
    /// Use the path as it is.
    Same,
    Other(CString),
    /// A directory beside the library, and its path as the program knows it.
    Directory(CString, String),
    /// A file with this content, or one that can be opened and fails to be read.
    File(Result<String, Errno>),
    /// The file does not exist.
    Refused(Errno),
}

/// What the program wants to do with a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Ask,
    Open,
}

/// # Safety
/// `path` is NULL or a C string.
pub(super) unsafe fn answer(at: c_int, path: *const c_char, intent: Intent) -> Answer {
    if path.is_null() {
        return Answer::Same;
    }
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    // Resolving the path opens files, which must not change errno.
    // SAFETY: the errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let answer = resolve(at, bytes).map_or(Answer::Same, |path| answer_of(path, intent));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    answer
}

pub(super) fn answer_of(path: String, intent: Intent) -> Answer {
    match target(&path) {
        Target::Itself => other(path.into()),
        Target::Path(path) => other(path.into()),
        Target::Directory => match on_disk(&path) {
            Answer::Other(directory) => Answer::Directory(directory, followed(path)),
            answer => answer,
        },
        Target::File if intent == Intent::Open => Answer::File(content::of(&path)),
        Target::File => beside("text"),
        Target::Management => {
            report::log_no_management(&path);
            Answer::Refused(Errno(libc::ENOENT))
        }
        Target::Nothing => Answer::Refused(Errno(libc::ENOENT)),
    }
}

pub(super) fn other(path: PathBuf) -> Answer {
    let path = CString::new(path.into_os_string().into_encoded_bytes());
    path.map_or(Answer::Refused(Errno(libc::ENOENT)), Answer::Other)
}

/// The path of a directory, after following a link.
pub(super) fn followed(path: String) -> String {
    tree::follow(&path).map_or(path, str::to_owned)
}

/// A directory beside the library.
pub(super) fn on_disk(path: &str) -> Answer {
    tree::listed_path(path)
        .map_or(Answer::Refused(Errno(libc::ENOENT)), |path| beside(path.trim_start_matches('/')))
}

/// The file `text` is readable by everyone: stat, access and the like on it are right for every virtual file.
pub(super) fn beside(path: &str) -> Answer {
    tree_directory().map_or(Answer::Refused(Errno(libc::ENOENT)), |tree| other(tree.join(path)))
}

/// The value by which a function of the C library reports a failure.
pub(super) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

pub(super) fn failed<T: Failed>(errno: Errno) -> T {
    errno.set();
    T::FAILED
}

/// Opens a file with this content, or one that cannot be read: reading an epoll instance fails with EINVAL.
pub(super) fn file_with(text: Result<String, Errno>) -> c_int {
    let with = |text: String| -> rustix::io::Result<OwnedFd> {
        let file = memfd_create("ironwarp", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&file, text.as_bytes())?;
        seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    };
    let file = match text {
        Ok(text) => with(text),
        Err(Errno::INVALID) => epoll::create(epoll::CreateFlags::CLOEXEC),
        Err(errno) => return failed(errno),
    };
    file.map_or_else(|error| failed(error.into()), IntoRawFd::into_raw_fd)
}

/// Opens a stream with this content.
pub(super) fn stream_with(text: Result<String, Errno>) -> *mut libc::FILE {
    match file_with(text) {
        -1 => std::ptr::null_mut(),
        // SAFETY: a new descriptor, which the stream owns from now on.
        file => unsafe { libc::fdopen(file, c"r".as_ptr()) },
    }
}

/// Whether a file is opened for writing, which sysfs refuses for files that are read-only.
pub(super) fn writes(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// # Safety
/// `mode` is a C string.
pub(super) unsafe fn stream_writes(mode: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    !unsafe { CStr::from_ptr(mode) }.to_bytes().starts_with(b"r")
}
