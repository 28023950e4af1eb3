//! Reads files of sysfs, for programs that need more properties of a device than verbs return.
#![expect(unsafe_code, reason = "takes pointers from C")]

use crate::abi::IBV_SYSFS_PATH_MAX;
use crate::support::errno::Errno;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::OnceLock;

/// Returns the path of sysfs: `$SYSFS_PATH`, or `/sys` if the variable is unset or the program runs with elevated
/// privileges.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let is_privileged = rustix::process::getuid() != rustix::process::geteuid();
        let path = std::env::var_os("SYSFS_PATH").filter(|_| !is_privileged);
        path.and_then(|path| CString::new(trim(path.into_vec())).ok()).unwrap_or_else(|| c"/sys".to_owned())
    })
    .as_ptr()
}

/// Reads a file without the newline at its end, appends a NUL, and returns the length of the text. Returns -1 if the
/// file does not exist or the NUL does not fit. Writes nothing if the file is empty, like the real library.
///
/// # Safety
/// Both names are NULL or C strings, and `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() {
        return fail(Errno::INVALID);
    }
    // SAFETY: neither is NULL, so both are C strings by the caller's contract.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let descriptor = match open(dir, file) {
        Ok(descriptor) => descriptor,
        Err(errno) => return fail(errno),
    };
    // SAFETY: `buf` has room for `size` bytes, by the caller's contract.
    let length = unsafe { libc::read(descriptor.as_raw_fd(), buf.cast::<c_void>(), size) };
    let Ok(length) = usize::try_from(length) else { return -1 };
    // SAFETY: `buf` has room for `size` bytes, and the kernel wrote the first `length` of them.
    unsafe { terminate(buf.cast::<u8>(), length, size) }
        .and_then(|length| c_int::try_from(length).ok())
        .unwrap_or(-1)
}

/// Replaces the newline at the end of a text by a NUL, or appends the NUL if there is none. Returns the length of the
/// text, or `None` if the NUL does not fit.
///
/// # Safety
/// `buf` has room for `size` bytes, of which the first `length` are the text.
unsafe fn terminate(buf: *mut u8, length: usize, size: usize) -> Option<usize> {
    let Some(last) = length.checked_sub(1) else { return Some(0) };
    // SAFETY: `last` is less than `length`, so this byte was written.
    let has_newline = unsafe { buf.add(last).read() } == b'\n';
    let at = if has_newline { last } else { length };
    if at == size {
        return None;
    }
    // SAFETY: `at` is less than `size`, for which `buf` has room.
    unsafe { buf.add(at).write(0) };
    Some(at)
}

/// Opens a file for reading.
fn open(dir: &CStr, file: &CStr) -> Result<OwnedFd, Errno> {
    let path = [dir.to_bytes(), file.to_bytes()].join(&b'/');
    // The standard library calls `open` of the C library, which the module `files` replaces for paths of the device.
    File::open(OsStr::from_bytes(&path)).map(OwnedFd::from).map_err(Errno::from)
}

/// Limits a path to the length of a sysfs path, and removes trailing slashes.
fn trim(mut path: Vec<u8>) -> Vec<u8> {
    path.truncate(IBV_SYSFS_PATH_MAX);
    while path.last() == Some(&b'/') {
        path.pop();
    }
    path
}

/// Sets errno and returns -1.
fn fail(errno: Errno) -> c_int {
    errno.set();
    -1
}
