//! Functions of the C library that take a path. `compat.S` gives them their names. Each calls the one that it stands in front
//! of, with the path that [`map`](super::map) has for the one it was given.
//!
//! They run in every program that is started with the drop-in, whether or not it uses RDMA: a path that is none of ours costs
//! a comparison, and the address of the real function is looked up once.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::map::{Target, is_ours, target};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_uint, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What to do with a path.
enum Answer {
    /// Go on with the path that was given.
    Same,
    Other(CString),
    Text(String),
}

/// # Safety
/// `path` is NULL or a string of C.
unsafe fn answer(path: *const c_char) -> Answer {
    if path.is_null() {
        return Answer::Same;
    }
    // SAFETY: the caller's word.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_ours(bytes) {
        return Answer::Same;
    }
    // Looking up what is there opens files, and must not look like the program's own failure.
    // SAFETY: the C library's own, for this thread.
    let errno = unsafe { *libc::__errno_location() };
    let answer = match std::str::from_utf8(bytes).map(target) {
        Ok(Target::Path(path)) => other(path.into()),
        Ok(Target::Tree(path)) => tree().map_or(Answer::Same, |tree| other(join(tree, &path))),
        Ok(Target::Text(text)) => Answer::Text(text),
        Ok(Target::Itself) | Err(_) => Answer::Same,
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    answer
}

fn other(path: PathBuf) -> Answer {
    CString::new(path.into_os_string().into_encoded_bytes()).map_or(Answer::Same, Answer::Other)
}

fn join(tree: &std::path::Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}

/// The folder beside the library that has what is always the same.
fn tree() -> Option<&'static PathBuf> {
    static TREE: OnceLock<Option<PathBuf>> = OnceLock::new();
    TREE.get_or_init(|| {
        // SAFETY: plain data, which dladdr fills.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address of this library.
        if unsafe { libc::dladdr(tree as *const c_void, &raw mut info) } == 0 {
            return None;
        }
        // SAFETY: the loader's own string.
        let library = unsafe { CStr::from_ptr(info.dli_fname) };
        let library = PathBuf::from(OsStr::from_bytes(library.to_bytes()));
        Some(library.parent()?.join("tree"))
    })
    .as_ref()
}

/// A path that can be asked about in place of a text: a file that anybody may read.
fn stand_in() -> Answer {
    tree().map_or(Answer::Same, |tree| other(tree.join("text")))
}

/// An open file with a text in it.
fn file_with(text: &str) -> c_int {
    let made = || -> rustix::io::Result<OwnedFd> {
        let file = memfd_create("ironwarp", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&file, text.as_bytes())?;
        seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    };
    made().map_or_else(
        |error| {
            crate::errno::Errno::from(error).set();
            -1
        },
        IntoRawFd::into_raw_fd,
    )
}

/// The function that ours stands in front of: the next of this name, or else the C library's own. The latter is for programs
/// that were linked with this library, where the C library may come first.
fn real(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name, and what the loader answers.
    let found = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if next.is_null() {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            libc::dlsym(library, name.as_ptr())
        } else {
            next
        }
    };
    cache.store(found, Ordering::Relaxed);
    found
}

/// Functions that ask about a path and leave it at that. The path is between what is before and behind the semicolon.
macro_rules! asking {
    ($($ours:ident = $name:literal ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments that ours was called with.
            unsafe {
                let real: Function = std::mem::transmute(real(&REAL, $name));
                let answer = match answer(path) {
                    Answer::Text(_) => stand_in(),
                    answer => answer,
                };
                match &answer {
                    Answer::Other(other) => real($($before,)* other.as_ptr() $(, $after)*),
                    _ => real($($before,)* path $(, $after)*),
                }
            }
        }
    )*};
}

/// Functions that open a path.
macro_rules! opening {
    ($($ours:ident = $name:literal ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, $make:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments that ours was called with.
            unsafe {
                let real: Function = std::mem::transmute(real(&REAL, $name));
                match answer(path) {
                    Answer::Same => real($($before,)* path $(, $after)*),
                    Answer::Other(other) => real($($before,)* other.as_ptr() $(, $after)*),
                    Answer::Text(text) => $make(&text),
                }
            }
        }
    )*};
}

// The mode of open is an argument that need not be there. It is passed on whatever it is: the C library reads it only if the
// flags say that it is there, and it is where any third argument is.
opening! {
    ironwarp_open = c"open" (; flags: c_int, mode: c_long) -> c_int, file_with;
    ironwarp_open64 = c"open64" (; flags: c_int, mode: c_long) -> c_int, file_with;
    ironwarp_openat = c"openat" (at: c_int; flags: c_int, mode: c_long) -> c_int, file_with;
    ironwarp_openat64 = c"openat64" (at: c_int; flags: c_int, mode: c_long) -> c_int, file_with;
    ironwarp_open_2 = c"__open_2" (; flags: c_int) -> c_int, file_with;
    ironwarp_open64_2 = c"__open64_2" (; flags: c_int) -> c_int, file_with;
    ironwarp_openat_2 = c"__openat_2" (at: c_int; flags: c_int) -> c_int, file_with;
    ironwarp_openat64_2 = c"__openat64_2" (at: c_int; flags: c_int) -> c_int, file_with;
    ironwarp_fopen = c"fopen" (; mode: *const c_char) -> *mut libc::FILE, stream_with;
    ironwarp_fopen64 = c"fopen64" (; mode: *const c_char) -> *mut libc::FILE, stream_with;
}

asking! {
    ironwarp_stat = c"stat" (; to: *mut c_void) -> c_int;
    ironwarp_stat64 = c"stat64" (; to: *mut c_void) -> c_int;
    ironwarp_lstat = c"lstat" (; to: *mut c_void) -> c_int;
    ironwarp_lstat64 = c"lstat64" (; to: *mut c_void) -> c_int;
    ironwarp_fstatat = c"fstatat" (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_fstatat64 = c"fstatat64" (at: c_int; to: *mut c_void, flags: c_int) -> c_int;
    ironwarp_statx = c"statx" (at: c_int; flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    ironwarp_xstat = c"__xstat" (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_xstat64 = c"__xstat64" (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat = c"__lxstat" (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_lxstat64 = c"__lxstat64" (version: c_int; to: *mut c_void) -> c_int;
    ironwarp_access = c"access" (; mode: c_int) -> c_int;
    ironwarp_faccessat = c"faccessat" (at: c_int; mode: c_int, flags: c_int) -> c_int;
    ironwarp_getxattr = c"getxattr" (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_lgetxattr = c"lgetxattr" (; name: *const c_char, to: *mut c_void, room: usize) -> isize;
    ironwarp_opendir = c"opendir" (;) -> *mut libc::DIR;
    ironwarp_readlink = c"readlink" (; to: *mut c_char, room: usize) -> isize;
    ironwarp_readlinkat = c"readlinkat" (at: c_int; to: *mut c_char, room: usize) -> isize;
    ironwarp_realpath = c"realpath" (; to: *mut c_char) -> *mut c_char;
    ironwarp_realpath_chk = c"__realpath_chk" (; to: *mut c_char, room: usize) -> *mut c_char;
}

/// A stream with a text in it.
fn stream_with(text: &str) -> *mut libc::FILE {
    match file_with(text) {
        -1 => std::ptr::null_mut(),
        // SAFETY: a descriptor of ours, which the stream has from now on.
        file => unsafe { libc::fdopen(file, c"r".as_ptr()) },
    }
}
