//! Functions of the C library that take a path, and those that read directories. `compat.S` gives them their
//! names. Each calls the real function, with the path that [`map`](super::map) gives.
//!
//! They run in every program that is started with the drop-in, whether or not it uses RDMA. Other paths cost
//! a comparison, and the address of the real function is looked up once.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::answer::{
    Answer, Intent, answer, failed, file_with, followed, stream_with, stream_writes, writes,
};
use super::directory::{self, Compare, Filter};
use super::map::{Target, target};
use super::paths::{self, resolve};
use super::real::real;
use crate::objects::device;
use crate::support::errno::Errno;
use crate::support::report;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::AtomicPtr;

/// The real function of a name, as `type`.
macro_rules! real {
    ($name:expr, $type:ty) => {{
        static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        std::mem::transmute::<*mut c_void, $type>(real(&REAL, $name))
    }};
}

/// Defines functions that query a path or change to it. The path is between the arguments before and after
/// the semicolon. In brackets is the directory that a relative path starts from.
macro_rules! asking {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments of this call.
            unsafe {
                let real = real!($name, Function);
                match answer($at, path, Intent::Ask) {
                    Answer::Same => real($($before,)* path $(, $after)*),
                    Answer::Other(other) | Answer::Directory(other, _) => real($($before,)* other.as_ptr() $(, $after)*),
                    Answer::File(_) => failed(Errno(libc::ENOENT)),
                    Answer::Refused(errno) => failed(errno),
                }
            }
        }
    )*};
}

/// Defines functions that open a path. After the result: whether the file is opened for writing, and how a
/// file with content is opened.
macro_rules! opening {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, $writes:expr, $make:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments of this call.
            unsafe {
                let real = real!($name, Function);
                match answer($at, path, Intent::Open) {
                    Answer::Same => real($($before,)* path $(, $after)*),
                    Answer::Other(other) => real($($before,)* other.as_ptr() $(, $after)*),
                    Answer::Directory(directory, _) => {
                        paths::opened();
                        real($($before,)* directory.as_ptr() $(, $after)*)
                    }
                    Answer::File(_) if $writes => failed(Errno(libc::EACCES)),
                    Answer::File(text) => $make(text),
                    Answer::Refused(errno) => failed(errno),
                }
            }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;

// The mode of open is optional. It is passed on in any case: the C library reads it only if the flags require
// it, and it has the place of any third argument.
opening! {
    ironwarp_open = c"open" [HERE] (; flags: c_int, mode: c_long) -> c_int, writes(flags), file_with;
    ironwarp_open64 = c"open64" [HERE] (; flags: c_int, mode: c_long) -> c_int, writes(flags), file_with;
    ironwarp_openat = c"openat" [at] (at: c_int; flags: c_int, mode: c_long) -> c_int, writes(flags), file_with;
    ironwarp_openat64 = c"openat64" [at] (at: c_int; flags: c_int, mode: c_long) -> c_int, writes(flags), file_with;
    ironwarp_open_2 = c"__open_2" [HERE] (; flags: c_int) -> c_int, writes(flags), file_with;
    ironwarp_open64_2 = c"__open64_2" [HERE] (; flags: c_int) -> c_int, writes(flags), file_with;
    ironwarp_openat_2 = c"__openat_2" [at] (at: c_int; flags: c_int) -> c_int, writes(flags), file_with;
    ironwarp_openat64_2 = c"__openat64_2" [at] (at: c_int; flags: c_int) -> c_int, writes(flags), file_with;
    ironwarp_fopen = c"fopen" [HERE] (; mode: *const c_char) -> *mut libc::FILE, stream_writes(mode), stream_with;
    ironwarp_fopen64 = c"fopen64" [HERE] (; mode: *const c_char) -> *mut libc::FILE, stream_writes(mode), stream_with;
}

asking! {
    ironwarp_stat = c"stat" [HERE] (; to: *mut c_void) -> c_int;
    ironwarp_stat64 = c"stat64" [HERE] (; to: *mut c_void) -> c_int;
    ironwarp_lstat = c"lstat" [HERE] (; to: *mut c_void) -> c_int;
    ironwarp_lstat64 = c"lstat64" [HERE] (; to: *mut c_void) -> c_int;
    ironwarp_fstatat = c"fstatat" [at] (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_fstatat64 = c"fstatat64" [at] (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_statx = c"statx" [at] (at: c_int; flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    ironwarp_xstat = c"__xstat" [HERE] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_xstat64 = c"__xstat64" [HERE] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat = c"__lxstat" [HERE] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat64 = c"__lxstat64" [HERE] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_access = c"access" [HERE] (; mode: c_int) -> c_int;
    ironwarp_faccessat = c"faccessat" [at] (at: c_int; mode: c_int, flags: c_int) -> c_int;
    ironwarp_getxattr = c"getxattr" [HERE] (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_lgetxattr = c"lgetxattr" [HERE] (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_readlink = c"readlink" [HERE] (; to: *mut c_char, room: usize) -> isize;
    ironwarp_readlinkat = c"readlinkat" [at] (at: c_int; to: *mut c_char, room: usize) -> isize;
    ironwarp_chdir_to = c"chdir" [HERE] (;) -> c_int;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_chdir(path: *const c_char) -> c_int {
    // SAFETY: with the arguments of this call.
    let went = unsafe { ironwarp_chdir_to(path) };
    paths::moved();
    went
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_fchdir(fd: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the real function of this name, with the arguments of this call.
    let went = unsafe { real!(c"fchdir", Function)(fd) };
    paths::moved();
    went
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd(to: *mut c_char, room: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { cwd_as_called(real!(c"getcwd", Function)(to, room), to, room) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd_chk(to: *mut c_char, room: usize, size: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize, usize) -> *mut c_char;
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { cwd_as_called(real!(c"__getcwd_chk", Function)(to, room, size), to, room) }
}

/// # Safety
/// `found` is what getcwd returned for the other two.
unsafe fn cwd_as_called(found: *mut c_char, to: *mut c_char, room: usize) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: a path that getcwd returned.
    let Some(virtual_path) = paths::virtual_path(unsafe { CStr::from_ptr(found) }.to_bytes()) else {
        return found;
    };
    // SAFETY: the arguments of getcwd. Without a buffer or a size, the C library allocated `found`.
    unsafe {
        if to.is_null() && room == 0 {
            libc::free(found.cast());
            return copied(&virtual_path, std::ptr::null_mut());
        }
        if virtual_path.len() >= room {
            return failed(Errno(libc::ERANGE));
        }
        copied(&virtual_path, found)
    }
}

/// Copies a string with its NUL into the caller's buffer, or into memory that the caller frees.
///
/// # Safety
/// `to` is NULL or has room for it.
unsafe fn copied(text: &str, to: *mut c_char) -> *mut c_char {
    // SAFETY: new memory of this length or NULL, or guaranteed by the caller.
    unsafe {
        let to = if to.is_null() { libc::malloc(text.len() + 1).cast() } else { to };
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
            to.add(text.len()).write(0);
        }
        to
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { real_path(path, to, |path| real!(c"realpath", Function)(path, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_realpath_chk(
    path: *const c_char,
    to: *mut c_char,
    size: usize,
) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { real_path(path, to, |path| real!(c"__realpath_chk", Function)(path, to, size)) }
}

/// A virtual path is its own real path, unless it is a link.
///
/// # Safety
/// As for realpath.
unsafe fn real_path(
    path: *const c_char,
    to: *mut c_char,
    real: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: NULL or a C string.
    let ours = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let Some(ours) = ours.and_then(|path| resolve(HERE, path.to_bytes())) else { return real(path) };
    let elsewhere = match target(&ours) {
        // SAFETY: the caller's buffer has room for the longest path.
        Target::Directory | Target::File => return unsafe { copied(&followed(ours), to) },
        Target::Itself => ours,
        Target::Path(path) => path,
        Target::Management | Target::Nothing => return failed(Errno(libc::ENOENT)),
    };
    CString::new(elsewhere).map_or_else(|_| failed(Errno(libc::ENOENT)), |path| real(path.as_ptr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_opendir(path: *const c_char) -> *mut libc::DIR {
    type Function = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe {
        let real = real!(c"opendir", Function);
        match answer(HERE, path, Intent::Ask) {
            Answer::Same => real(path),
            Answer::Other(other) => real(other.as_ptr()),
            Answer::Directory(other, virtual_path) => {
                let stream = real(other.as_ptr());
                if !stream.is_null() {
                    paths::opened();
                    directory::opened(stream, &virtual_path);
                }
                stream
            }
            Answer::File(_) => failed(Errno(libc::ENOTDIR)),
            Answer::Refused(errno) => failed(errno),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_fdopendir(fd: c_int) -> *mut libc::DIR {
    type Function = unsafe extern "C" fn(c_int) -> *mut libc::DIR;
    // SAFETY: the real function of this name, with the arguments of this call.
    let stream = unsafe { real!(c"fdopendir", Function)(fd) };
    if !stream.is_null()
        && let Some(virtual_path) = paths::open_directory(fd)
    {
        directory::opened(stream, &virtual_path);
    }
    stream
}

// On 64-bit systems both kinds of entries are the same.
type ReadDirectory = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function of this name, with the arguments of this call.
    directory::next(stream).unwrap_or_else(|| unsafe { real!(c"readdir", ReadDirectory)(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir64(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function of this name, with the arguments of this call.
    directory::next(stream).unwrap_or_else(|| unsafe { real!(c"readdir64", ReadDirectory)(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_rewinddir(stream: *mut libc::DIR) {
    type Function = unsafe extern "C" fn(*mut libc::DIR);
    directory::rewound(stream);
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { real!(c"rewinddir", Function)(stream) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_closedir(stream: *mut libc::DIR) -> c_int {
    type Function = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
    directory::closed(stream);
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { real!(c"closedir", Function)(stream) }
}

/// Defines scandir(3), which reads the directory inside the C library.
macro_rules! scanning {
    ($($ours:ident = $name:literal;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours(
            path: *const c_char,
            list: *mut *mut *mut libc::dirent64,
            filter: Option<Filter>,
            compare: Option<Compare>,
        ) -> c_int {
            type Function = unsafe extern "C" fn(*const c_char, *mut *mut *mut libc::dirent64, Option<Filter>, Option<Compare>) -> c_int;
            // SAFETY: the real function of this name, with the arguments of this call.
            unsafe {
                let real = real!($name, Function);
                match answer(HERE, path, Intent::Ask) {
                    Answer::Same => real(path, list, filter, compare),
                    Answer::Other(other) => real(other.as_ptr(), list, filter, compare),
                    Answer::Directory(_, virtual_path) => directory::scan(&virtual_path, list, filter, compare),
                    Answer::File(_) => failed(Errno(libc::ENOTDIR)),
                    Answer::Refused(errno) => failed(errno),
                }
            }
        }
    )*};
}

scanning! {
    ironwarp_scandir = c"scandir";
    ironwarp_scandir64 = c"scandir64";
}

/// Tells programs that ask the kernel for its RDMA devices (`rdma link`) why they do not find this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        report::log_no_netlink(device::is_used());
    }
    // SAFETY: the real function of this name, with the arguments of this call.
    unsafe { real!(c"socket", Function)(domain, kind, protocol) }
}
