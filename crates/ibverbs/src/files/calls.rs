//! Interposed functions of the C library: those that take a path, and those that read directories. `compat.S` gives
//! them the names of the real functions. Each performs the [`Action`] for its path.
//!
//! They run in every program that is started with the drop-in, whether or not it uses RDMA. A path that is not virtual
//! costs a comparison, and the address of each real function is looked up once.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::action::{
    Action, Intent, action_for, fail, is_for_writing, is_mode_for_writing, link_text, open_content,
    open_content_stream,
};
use super::directory::{self, Compare, Filter};
use super::map::{Target, target};
use super::paths::{self, resolve};
use super::real::real;
use super::tree::Tree;
use crate::objects::device;
use crate::support::errno::Errno;
use crate::support::report;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::AtomicPtr;

/// Finds the real function of a name, and converts it to the function type `type`.
macro_rules! real {
    ($name:expr, $type:ty) => {{
        static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        std::mem::transmute::<*mut c_void, $type>(real(&REAL, $name))
    }};
}

/// Defines functions that query a path or change to it: `our_name = "real name" [directory] (arguments; arguments) ->
/// result`. The directory is the one that a relative path starts from. The path argument replaces the semicolon.
macro_rules! query_functions {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function has this type, and gets the arguments of this call. A path that replaces that
            // of the program is a C string.
            unsafe {
                let real = real!($name, Function);
                match action_for($at, path, Intent::Query) {
                    Action::UseSame => real($($before,)* path $(, $after)*),
                    Action::UsePath(other) | Action::UseDirectory { on_disk: other, .. } => {
                        real($($before,)* other.as_ptr() $(, $after)*)
                    }
                    Action::OpenContent(_) => fail(Errno(libc::ENOENT)), // only for Intent::Open
                    Action::Fail(errno) => fail(errno),
                }
            }
        }
    )*};
}

/// Defines functions that open a path, written like those of [`query_functions`]. Two expressions follow the result:
/// whether the file is opened for writing, and the function that opens generated content.
macro_rules! open_functions {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, $for_writing:expr, $open_content:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function has this type, and gets the arguments of this call. A path that replaces that
            // of the program is a C string.
            unsafe {
                let real = real!($name, Function);
                match action_for($at, path, Intent::Open) {
                    Action::UseSame => real($($before,)* path $(, $after)*),
                    Action::UsePath(other) => real($($before,)* other.as_ptr() $(, $after)*),
                    Action::UseDirectory { on_disk, .. } => {
                        paths::record_open_directory();
                        real($($before,)* on_disk.as_ptr() $(, $after)*)
                    }
                    Action::OpenContent(_) if $for_writing => fail(Errno(libc::EACCES)),
                    Action::OpenContent(text) => $open_content(text),
                    Action::Fail(errno) => fail(errno),
                }
            }
        }
    )*};
}

const CWD: c_int = libc::AT_FDCWD;

// The mode of open is optional in C (`...`). It is always passed on, because it is passed like any third argument,
// and the C library reads it only if the flags require it.
open_functions! {
    ironwarp_open = c"open" [CWD] (; flags: c_int, mode: c_long) -> c_int, is_for_writing(flags), open_content;
    ironwarp_open64 = c"open64" [CWD] (; flags: c_int, mode: c_long) -> c_int, is_for_writing(flags), open_content;
    ironwarp_openat = c"openat" [at] (at: c_int; flags: c_int, mode: c_long) -> c_int, is_for_writing(flags), open_content;
    ironwarp_openat64 = c"openat64" [at] (at: c_int; flags: c_int, mode: c_long) -> c_int, is_for_writing(flags), open_content;
    ironwarp_open_2 = c"__open_2" [CWD] (; flags: c_int) -> c_int, is_for_writing(flags), open_content;
    ironwarp_open64_2 = c"__open64_2" [CWD] (; flags: c_int) -> c_int, is_for_writing(flags), open_content;
    ironwarp_openat_2 = c"__openat_2" [at] (at: c_int; flags: c_int) -> c_int, is_for_writing(flags), open_content;
    ironwarp_openat64_2 = c"__openat64_2" [at] (at: c_int; flags: c_int) -> c_int, is_for_writing(flags), open_content;
    ironwarp_fopen = c"fopen" [CWD] (; mode: *const c_char) -> *mut libc::FILE, is_mode_for_writing(mode), open_content_stream;
    ironwarp_fopen64 = c"fopen64" [CWD] (; mode: *const c_char) -> *mut libc::FILE, is_mode_for_writing(mode), open_content_stream;
}

query_functions! {
    ironwarp_stat = c"stat" [CWD] (; to: *mut c_void) -> c_int;
    ironwarp_stat64 = c"stat64" [CWD] (; to: *mut c_void) -> c_int;
    ironwarp_lstat = c"lstat" [CWD] (; to: *mut c_void) -> c_int;
    ironwarp_lstat64 = c"lstat64" [CWD] (; to: *mut c_void) -> c_int;
    ironwarp_fstatat = c"fstatat" [at] (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_fstatat64 = c"fstatat64" [at] (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_statx = c"statx" [at] (at: c_int; flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    ironwarp_xstat = c"__xstat" [CWD] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_xstat64 = c"__xstat64" [CWD] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat = c"__lxstat" [CWD] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat64 = c"__lxstat64" [CWD] (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_access = c"access" [CWD] (; mode: c_int) -> c_int;
    ironwarp_faccessat = c"faccessat" [at] (at: c_int; mode: c_int, flags: c_int) -> c_int;
    ironwarp_getxattr = c"getxattr" [CWD] (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_lgetxattr = c"lgetxattr" [CWD] (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_readlink_other = c"readlink" [CWD] (; to: *mut c_char, room: usize) -> isize;
    ironwarp_readlinkat_other = c"readlinkat" [at] (at: c_int; to: *mut c_char, room: usize) -> isize;
    ironwarp_chdir_to = c"chdir" [CWD] (;) -> c_int;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readlink(path: *const c_char, to: *mut c_char, room: usize) -> isize {
    // SAFETY: the arguments of this call, whose contract is the same.
    unsafe { read_link(CWD, path, to, room).unwrap_or_else(|| ironwarp_readlink_other(path, to, room)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readlinkat(
    at: c_int,
    path: *const c_char,
    to: *mut c_char,
    room: usize,
) -> isize {
    // SAFETY: the arguments of this call, whose contract is the same.
    unsafe { read_link(at, path, to, room).unwrap_or_else(|| ironwarp_readlinkat_other(at, path, to, room)) }
}

/// Implements readlinkat(2) for virtual links. `None` for other paths.
///
/// # Safety
/// As for readlinkat.
unsafe fn read_link(at: c_int, path: *const c_char, to: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: NULL or a C string, by the caller's contract.
    let text = unsafe { link_text(at, path) }?;
    let len = text.len().min(room); // a longer text is truncated
    // SAFETY: `to` has `room` bytes by the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len) };
    isize::try_from(len).ok()
}

/// Changes the current directory, by `ironwarp_chdir_to`. The cached state of the current directory becomes unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_chdir(path: *const c_char) -> c_int {
    // SAFETY: the argument of this call, whose contract is the same.
    let result = unsafe { ironwarp_chdir_to(path) };
    paths::forget_current_directory();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_fchdir(fd: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    let result = unsafe { real!(c"fchdir", Function)(fd) };
    paths::forget_current_directory();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd(to: *mut c_char, room: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { to_virtual_cwd(real!(c"getcwd", Function)(to, room), to, room) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd_chk(to: *mut c_char, room: usize, size: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize, usize) -> *mut c_char;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { to_virtual_cwd(real!(c"__getcwd_chk", Function)(to, room, size), to, room) }
}

/// Replaces the result of getcwd, if it is a directory beside the library, by the virtual path of that directory. Fails
/// with ERANGE if the virtual path does not fit.
///
/// # Safety
/// `found` is the result of getcwd for the arguments `to` and `room`.
unsafe fn to_virtual_cwd(found: *mut c_char, to: *mut c_char, room: usize) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: not NULL, so getcwd succeeded and returned a C string.
    let Some(virtual_path) = paths::virtual_path(unsafe { CStr::from_ptr(found) }.to_bytes()) else {
        return found;
    };
    // SAFETY: if both arguments were zero, getcwd allocated `found` with the length of the path. Otherwise `found` has
    // `room` bytes: it is the caller's buffer, or was allocated with that size.
    unsafe {
        if to.is_null() && room == 0 {
            libc::free(found.cast());
            return copy_string(&virtual_path, std::ptr::null_mut());
        }
        if virtual_path.len() >= room {
            return fail(Errno(libc::ERANGE));
        }
        copy_string(&virtual_path, found)
    }
}

/// Copies a string, with a NUL at its end, to `to`. If that is NULL, allocates memory, which the caller frees.
///
/// # Safety
/// `to` is NULL or has room for the string and the NUL.
unsafe fn copy_string(text: &str, to: *mut c_char) -> *mut c_char {
    // SAFETY: `to` has room by the caller's contract, or is new memory of the same length.
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
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { real_path(path, to, |path| real!(c"realpath", Function)(path, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_realpath_chk(
    path: *const c_char,
    to: *mut c_char,
    size: usize,
) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { real_path(path, to, |path| real!(c"__realpath_chk", Function)(path, to, size)) }
}

/// Implements realpath(3) for virtual paths. `real` is called for all other paths.
///
/// # Safety
/// As for realpath.
unsafe fn real_path(
    path: *const c_char,
    to: *mut c_char,
    real: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: not NULL, and a C string by the contract of realpath.
    let given = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let Some(resolved) = given.and_then(|path| resolve(CWD, path.to_bytes())) else { return real(path) };
    let tree = Tree::of_process();
    let other = match target(tree, &resolved) {
        Target::Directory(_) | Target::File(_) => {
            // SAFETY: by the contract of realpath, `to` is NULL or has PATH_MAX bytes. Virtual paths are shorter.
            return unsafe { copy_string(&tree.real_path(&resolved), to) };
        }
        Target::Itself => resolved,
        Target::Path(path) => path,
        Target::Management | Target::Nothing => return fail(Errno(libc::ENOENT)),
    };
    CString::new(other).map_or_else(|_| fail(Errno(libc::ENOENT)), |path| real(path.as_ptr()))
}

/// Opens a directory. The stream of a virtual directory is that of a directory beside the library, and is recorded, so
/// that `ironwarp_readdir` returns the virtual entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_opendir(path: *const c_char) -> *mut libc::DIR {
    type Function = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe {
        let real = real!(c"opendir", Function);
        match action_for(CWD, path, Intent::Query) {
            Action::UseSame => real(path),
            Action::UsePath(other) => real(other.as_ptr()),
            Action::UseDirectory { on_disk, virtual_path } => {
                let stream = real(on_disk.as_ptr());
                if !stream.is_null() {
                    paths::record_open_directory(); // the program can get the descriptor of the stream (dirfd)
                    directory::add_stream(stream, &virtual_path);
                }
                stream
            }
            Action::OpenContent(_) => fail(Errno(libc::ENOTDIR)), // only for Intent::Open
            Action::Fail(errno) => fail(errno),
        }
    }
}

/// Opens a stream for an open directory, and records the stream if the directory is virtual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_fdopendir(fd: c_int) -> *mut libc::DIR {
    type Function = unsafe extern "C" fn(c_int) -> *mut libc::DIR;
    // SAFETY: the real function has this type, and gets the arguments of this call.
    let stream = unsafe { real!(c"fdopendir", Function)(fd) };
    if !stream.is_null()
        && let Some(virtual_path) = paths::virtual_path_of(fd)
    {
        directory::add_stream(stream, &virtual_path);
    }
    stream
}

// On 64-bit systems `dirent` and `dirent64` are the same.
type ReadDirectory = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function has this type, and gets the arguments of this call.
    directory::next_entry(stream).unwrap_or_else(|| unsafe { real!(c"readdir", ReadDirectory)(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir64(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function has this type, and gets the arguments of this call.
    directory::next_entry(stream).unwrap_or_else(|| unsafe { real!(c"readdir64", ReadDirectory)(stream) })
}

/// Rewinds a stream: the virtual entries, if it has any, and the real stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_rewinddir(stream: *mut libc::DIR) {
    type Function = unsafe extern "C" fn(*mut libc::DIR);
    directory::rewind(stream);
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { real!(c"rewinddir", Function)(stream) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_closedir(stream: *mut libc::DIR) -> c_int {
    type Function = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
    directory::remove_stream(stream);
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { real!(c"closedir", Function)(stream) }
}

/// Defines scandir(3). It needs a version of its own, because the real one does not read directories with the
/// interposed functions.
macro_rules! scan_functions {
    ($($ours:ident = $name:literal;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours(
            path: *const c_char,
            list: *mut *mut *mut libc::dirent64,
            filter: Option<Filter>,
            compare: Option<Compare>,
        ) -> c_int {
            type Function = unsafe extern "C" fn(*const c_char, *mut *mut *mut libc::dirent64, Option<Filter>, Option<Compare>) -> c_int;
            // SAFETY: the real function has this type, and gets the arguments of this call. A path that replaces that
            // of the program is a C string.
            unsafe {
                let real = real!($name, Function);
                match action_for(CWD, path, Intent::Query) {
                    Action::UseSame => real(path, list, filter, compare),
                    Action::UsePath(other) => real(other.as_ptr(), list, filter, compare),
                    Action::UseDirectory { virtual_path, .. } => directory::scan(&virtual_path, list, filter, compare),
                    Action::OpenContent(_) => fail(Errno(libc::ENOTDIR)), // only for Intent::Open
                    Action::Fail(errno) => fail(errno),
                }
            }
        }
    )*};
}

scan_functions! {
    ironwarp_scandir = c"scandir";
    ironwarp_scandir64 = c"scandir64";
}

/// Opens a socket, with the real function. If the program opens the socket to query the kernel for RDMA devices, as
/// `rdma link` does, logs that the kernel does not know the device of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        report::log_no_netlink(device::is_used());
    }
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe { real!(c"socket", Function)(domain, kind, protocol) }
}
