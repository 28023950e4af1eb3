//! Decides what an interposed function does with a path: call the real function with the same or another path, open
//! generated content, or fail.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::content;
use super::map::{Target, target};
use super::paths::{resolve, tree_directory};
use super::tree::Tree;
use crate::support::errno::Errno;
use crate::support::report;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;

/// What an interposed function does with a path.
pub(super) enum Action {
    /// Use the path of the program.
    UseSame,
    /// Use this path instead.
    UsePath(CString),
    /// Use a directory beside the library.
    UseDirectory {
        on_disk: CString,
        /// Path of the directory as the program knows it, after following a link.
        virtual_path: String,
    },
    /// Open a file with this content. With `Err(EINVAL)`, open one whose reads fail with that error; with other
    /// errors, fail.
    OpenContent(Result<String, Errno>),
    /// Fail with this error.
    Fail(Errno),
}

/// The purpose for which the program passes a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// Query the attributes of the file, or enter or list the directory.
    Query,
    /// Open the file.
    Open,
}

/// Decides what to do with a path. A relative path starts from the directory `at`, or from the current one if `at` is
/// AT_FDCWD. Leaves errno unchanged.
///
/// # Safety
/// `path` is NULL or a C string.
pub(super) unsafe fn action_for(at: c_int, path: *const c_char, intent: Intent) -> Action {
    // SAFETY: by the caller's contract.
    let action = unsafe { with_resolved(at, path, |path| Some(action_for_resolved(path, intent))) };
    action.unwrap_or(Action::UseSame)
}

/// Returns the text of a virtual link. `None` if the path is not that of one. Leaves errno unchanged.
///
/// # Safety
/// `path` is NULL or a C string.
pub(super) unsafe fn link_text(at: c_int, path: *const c_char) -> Option<String> {
    // SAFETY: by the caller's contract.
    unsafe { with_resolved(at, path, |path| Tree::of_process().find(&path)?.link_text()) }
}

/// Resolves a path, and calls `use_path` with the result if the path may be virtual. Leaves errno unchanged.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn with_resolved<T>(
    at: c_int,
    path: *const c_char,
    use_path: impl FnOnce(String) -> Option<T>,
) -> Option<T> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not NULL, and a C string by the caller's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    // Resolving the path makes system calls, which change errno.
    // SAFETY: `__errno_location` returns a valid pointer, to the errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let result = resolve(at, bytes).and_then(use_path);
    // SAFETY: `__errno_location` returns a valid pointer, to the errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Decides what to do with `path`, as [`resolve`] returned it: absolute and without `.` and `..`. It may be virtual,
/// but need not be.
fn action_for_resolved(path: String, intent: Intent) -> Action {
    match target(Tree::of_process(), &path) {
        Target::Itself => use_path(path.into()),
        Target::Path(other) => use_path(other.into()),
        Target::Directory(entry) => match use_beside_library(&entry.on_disk()) {
            Action::UsePath(on_disk) => Action::UseDirectory { on_disk, virtual_path: follow_link(path) },
            failure => failure,
        },
        Target::File(entry) if intent == Intent::Open => Action::OpenContent(content::read(&entry)),
        // An ordinary file that stands for every virtual file in stat, access and the like. It is readable by everyone,
        // and as long as files in sysfs appear to be.
        Target::File(_) => use_beside_library("text"),
        Target::Management => {
            report::log_no_management(&path);
            Action::Fail(Errno(libc::ENOENT))
        }
        Target::Nothing => Action::Fail(Errno(libc::ENOENT)),
    }
}

/// Returns the action that uses this path, or that fails with ENOENT if the path contains a NUL.
fn use_path(path: PathBuf) -> Action {
    let path = CString::new(path.into_os_string().into_encoded_bytes());
    path.map_or(Action::Fail(Errno(libc::ENOENT)), Action::UsePath)
}

/// Returns the target of a virtual path that is a link, and other paths unchanged.
fn follow_link(path: String) -> String {
    Tree::of_process().follow(&path).unwrap_or(path)
}

/// Returns the action that uses a path relative to the directory beside the library, or that fails with ENOENT if that
/// directory was not found.
fn use_beside_library(path: &str) -> Action {
    tree_directory().map_or(Action::Fail(Errno(libc::ENOENT)), |tree| use_path(tree.join(path)))
}

/// The value with which a function of the C library reports a failure.
pub(super) trait FailureValue {
    const FAILURE: Self;
}

impl FailureValue for c_int {
    const FAILURE: Self = -1;
}

impl FailureValue for isize {
    const FAILURE: Self = -1;
}

impl<T> FailureValue for *mut T {
    const FAILURE: Self = std::ptr::null_mut();
}

/// Sets errno, and returns the value that reports a failure.
pub(super) fn fail<T: FailureValue>(errno: Errno) -> T {
    errno.set();
    T::FAILURE
}

/// Opens a file with this content, and returns its descriptor, or -1 with errno set. For `Err(EINVAL)`, opens a file
/// that cannot be read: an epoll instance, whose reads fail with EINVAL.
pub(super) fn open_content(text: Result<String, Errno>) -> c_int {
    let file_with = |text: String| -> rustix::io::Result<OwnedFd> {
        let file = memfd_create("ironwarp", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&file, text.as_bytes())?;
        seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    };
    let file = match text {
        Ok(text) => file_with(text),
        Err(Errno::INVALID) => epoll::create(epoll::CreateFlags::CLOEXEC),
        Err(errno) => return fail(errno),
    };
    file.map_or_else(|error| fail(error.into()), IntoRawFd::into_raw_fd)
}

/// Opens a C stream with this content, like [`open_content`]. Returns NULL with errno set on failure.
pub(super) fn open_content_stream(text: Result<String, Errno>) -> *mut libc::FILE {
    match open_content(text) {
        -1 => std::ptr::null_mut(),
        // SAFETY: a new descriptor, which the stream owns from now on, and a constant mode.
        file => unsafe { libc::fdopen(file, c"r".as_ptr()) },
    }
}

/// Returns whether the flags of open(2) are for writing, which fails for virtual files as for read-only files of sysfs.
pub(super) fn is_for_writing(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Returns whether the mode of fopen(3) is for writing.
///
/// # Safety
/// `mode` is a C string.
pub(super) unsafe fn is_mode_for_writing(mode: *const c_char) -> bool {
    // SAFETY: a C string, by the caller's contract.
    !unsafe { CStr::from_ptr(mode) }.to_bytes().starts_with(b"r")
}
