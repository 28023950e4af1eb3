//! Small files of the kernel, for programs that read more about a device than verbs tell.
#![expect(unsafe_code, reason = "takes pointers from C")]

use crate::abi::IBV_SYSFS_PATH_MAX;
use crate::errno::Errno;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::OnceLock;

/// Where sysfs is: `$SYSFS_PATH`, unless the program runs with rights that its user has not, or `/sys`.
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

/// Reads a file into the buffer, less the newline at its end, and returns the length; or -1 if it is not there, or leaves no
/// room for the NUL behind it. Of an empty file nothing is written, as in the real library.
///
/// # Safety
/// Both names are NULL or strings of C, and `size` bytes are at `buf`.
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
    // SAFETY: not NULL, so strings, as the caller promises.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let descriptor = match open(dir, file) {
        Ok(descriptor) => descriptor,
        Err(errno) => return failed(errno),
    };
    // SAFETY: the kernel checks the buffer.
    let length = unsafe { libc::read(descriptor.as_raw_fd(), buf.cast::<c_void>(), size) };
    let Ok(length) = usize::try_from(length) else { return -1 };
    // SAFETY: the kernel wrote the first `length` bytes of `size` that the caller promises to be there.
    unsafe { end(buf.cast::<u8>(), length, size) }
        .and_then(|length| c_int::try_from(length).ok())
        .unwrap_or(-1)
}

/// Puts a NUL where the newline is, or behind the text, and returns how long it is then.
///
/// # Safety
/// `length` bytes were written to `buf`, and `size` may be.
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
    // By the standard library, whose calls find our files, too.
    File::open(OsStr::from_bytes(&path)).map(OwnedFd::from).map_err(Errno::from)
}

/// A path without slashes at its end, and no longer than names of sysfs may be.
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
