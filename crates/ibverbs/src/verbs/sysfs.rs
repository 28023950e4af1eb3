//! Reading files of sysfs, for programs that want to know more about a device than verbs provide.
#![expect(unsafe_code, reason = "takes pointers from C")]

use crate::abi::IBV_SYSFS_PATH_MAX;
use crate::support::errno::Errno;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::OnceLock;

/// Path of sysfs: `$SYSFS_PATH`, or `/sys` if that is unset or the program runs with elevated privileges.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let own_rights = rustix::process::getuid() == rustix::process::geteuid();
        let set = std::env::var_os("SYSFS_PATH").filter(|_| own_rights);
        set.and_then(|path| CString::new(trimmed(path.into_vec())).ok()).unwrap_or_else(|| c"/sys".to_owned())
    })
    .as_ptr()
}

/// Reads a file without the newline at its end, and returns the length. Returns -1 if the file does not exist
/// or the terminating NUL does not fit. Writes nothing if the file is empty, as the real library does.
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
        return failed(Errno::INVALID);
    }
    // SAFETY: not NULL, so C strings, by the caller's contract.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let descriptor = match open(dir, file) {
        Ok(descriptor) => descriptor,
        Err(errno) => return failed(errno),
    };
    // SAFETY: the kernel checks the buffer.
    let length = unsafe { libc::read(descriptor.as_raw_fd(), buf.cast::<c_void>(), size) };
    let Ok(length) = usize::try_from(length) else { return -1 };
    // SAFETY: the kernel wrote the first `length` bytes of the buffer.
    unsafe { end(buf.cast::<u8>(), length, size) }
        .and_then(|length| c_int::try_from(length).ok())
        .unwrap_or(-1)
}

/// Puts a NUL in place of the newline, or after the text. Returns the length of the text.
///
/// # Safety
/// `buf` has room for `size` bytes, of which `length` were written.
unsafe fn end(buf: *mut u8, length: usize, size: usize) -> Option<usize> {
    let Some(last) = length.checked_sub(1) else { return Some(0) };
    // SAFETY: `last` is the last byte that was written.
    let newline = unsafe { buf.add(last).read() } == b'\n';
    let at = if newline { last } else { length };
    if at == size {
        return None;
    }
    // SAFETY: `at` is less than `size`.
    unsafe { buf.add(at).write(0) };
    Some(at)
}

fn open(dir: &CStr, file: &CStr) -> Result<OwnedFd, Errno> {
    let path = [dir.to_bytes(), file.to_bytes()].join(&b'/');
    // Through the standard library, which calls the functions of `files`.
    File::open(OsStr::from_bytes(&path)).map(OwnedFd::from).map_err(Errno::from)
}

/// Removes trailing slashes, and limits the length to that of a sysfs path.
fn trimmed(mut path: Vec<u8>) -> Vec<u8> {
    path.truncate(IBV_SYSFS_PATH_MAX);
    while path.last() == Some(&b'/') {
        path.pop();
    }
    path
}

fn failed(errno: Errno) -> c_int {
    errno.set();
    -1
}
