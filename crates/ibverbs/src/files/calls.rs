//! Functions of the C library that take a path, and those that read folders. `compat.S` gives them their names. Each calls the
//! one that it stands in front of, with the path that [`map`](super::map) has for the one it was given.
//!
//! They run in every program that is started with the drop-in, whether or not it uses RDMA: a path that is none of ours costs
//! a comparison, and the address of the real function is looked up once.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::folder::{self, Compare, Filter};
use super::map::{Target, target};
use super::place::{self, meant, tree_folder};
use super::{text, tree};
use crate::errno::Errno;
use crate::report;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What to do with a path.
enum Answer {
    /// Go on with the path that was given.
    Same,
    Other(CString),
    /// A folder beside the library, and what programs call it.
    Folder(CString, String),
    /// A file with this text in it; or one that can be opened, and refuses to be read.
    File(Result<String, Errno>),
    /// There is none such.
    Refused(Errno),
}

/// What the program wants with a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Ask,
    Open,
}

/// # Safety
/// `path` is NULL or a string of C.
unsafe fn answer(at: c_int, path: *const c_char, wish: Wish) -> Answer {
    if path.is_null() {
        return Answer::Same;
    }
    // SAFETY: the caller's word.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    // Looking up what is there opens files, and must not look like the program's own failure.
    // SAFETY: the C library's own, for this thread.
    let errno = unsafe { *libc::__errno_location() };
    let answer = meant(at, bytes).map_or(Answer::Same, |path| answer_of(path, wish));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    answer
}

fn answer_of(path: String, wish: Wish) -> Answer {
    match target(&path) {
        Target::Itself => other(path.into()),
        Target::Path(path) => other(path.into()),
        Target::Folder => match on_disk(&path) {
            Answer::Other(folder) => Answer::Folder(folder, followed(path)),
            answer => answer,
        },
        Target::File if wish == Wish::Open => Answer::File(text::of(&path)),
        Target::File => beside("text"),
        Target::Management => {
            report::no_management(&path);
            Answer::Refused(Errno(libc::ENOENT))
        }
        Target::Nothing => Answer::Refused(Errno(libc::ENOENT)),
    }
}

fn other(path: PathBuf) -> Answer {
    let path = CString::new(path.into_os_string().into_encoded_bytes());
    path.map_or(Answer::Refused(Errno(libc::ENOENT)), Answer::Other)
}

/// What a folder is called that may be named by a link.
fn followed(path: String) -> String {
    tree::follow(&path).map_or(path, str::to_owned)
}

/// A folder of ours, beside the library.
fn on_disk(path: &str) -> Answer {
    tree::in_list(path)
        .map_or(Answer::Refused(Errno(libc::ENOENT)), |path| beside(path.trim_start_matches('/')))
}

/// `text` is a file that anybody may read: what can be asked about it holds for every file of ours.
fn beside(path: &str) -> Answer {
    tree_folder().map_or(Answer::Refused(Errno(libc::ENOENT)), |tree| other(tree.join(path)))
}

/// How a function of the C library says that it failed.
trait Failed {
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

fn failed<T: Failed>(errno: Errno) -> T {
    errno.set();
    T::FAILED
}

/// An open file with a text in it, or one that cannot be read. An epoll instance is one: the kernel answers EINVAL.
fn file_with(text: Result<String, Errno>) -> c_int {
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

/// The same as a stream.
fn stream_with(text: Result<String, Errno>) -> *mut libc::FILE {
    match file_with(text) {
        -1 => std::ptr::null_mut(),
        // SAFETY: a descriptor of ours, which the stream has from now on.
        file => unsafe { libc::fdopen(file, c"r".as_ptr()) },
    }
}

/// Files of sysfs that nobody may write say so when they are opened.
fn writes(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// # Safety
/// `mode` is a string of C.
unsafe fn stream_writes(mode: *const c_char) -> bool {
    // SAFETY: the caller's word.
    !unsafe { CStr::from_ptr(mode) }.to_bytes().starts_with(b"r")
}

/// The function that ours stands in front of: the next of this name, or else the C library's own. The latter is for programs
/// that were linked with this library, where the C library may come first.
pub(crate) fn real(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
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

/// The real function of a name, as `type`.
macro_rules! real {
    ($name:expr, $type:ty) => {{
        static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        std::mem::transmute::<*mut c_void, $type>(real(&REAL, $name))
    }};
}

/// Functions that ask about a path and leave it at that, or go there. The path is between what is before and behind the
/// semicolon; in brackets is the folder that it starts in, if it is relative.
macro_rules! asking {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments that ours was called with.
            unsafe {
                let real = real!($name, Function);
                match answer($at, path, Wish::Ask) {
                    Answer::Same => real($($before,)* path $(, $after)*),
                    Answer::Other(other) | Answer::Folder(other, _) => real($($before,)* other.as_ptr() $(, $after)*),
                    Answer::File(_) => failed(Errno(libc::ENOENT)),
                    Answer::Refused(errno) => failed(errno),
                }
            }
        }
    )*};
}

/// Functions that open a path. Behind the result: whether the file would be written, and how one with a text is opened.
macro_rules! opening {
    ($($ours:ident = $name:literal [$at:expr] ($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, $writes:expr, $make:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $ours($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the real function of this name, with the arguments that ours was called with.
            unsafe {
                let real = real!($name, Function);
                match answer($at, path, Wish::Open) {
                    Answer::Same => real($($before,)* path $(, $after)*),
                    Answer::Other(other) => real($($before,)* other.as_ptr() $(, $after)*),
                    Answer::Folder(folder, _) => {
                        place::opened();
                        real($($before,)* folder.as_ptr() $(, $after)*)
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

// The mode of open is an argument that need not be there. It is passed on whatever it is: the C library reads it only if the
// flags say that it is there, and it is where any third argument is.
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
    // SAFETY: as ours was called.
    let went = unsafe { ironwarp_chdir_to(path) };
    place::moved();
    went
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_fchdir(fd: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the real function of this name, as ours was called.
    let went = unsafe { real!(c"fchdir", Function)(fd) };
    place::moved();
    went
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd(to: *mut c_char, room: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function of this name, as ours was called.
    unsafe { cwd_as_called(real!(c"getcwd", Function)(to, room), to, room) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_getcwd_chk(to: *mut c_char, room: usize, size: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize, usize) -> *mut c_char;
    // SAFETY: the real function of this name, as ours was called.
    unsafe { cwd_as_called(real!(c"__getcwd_chk", Function)(to, room, size), to, room) }
}

/// # Safety
/// `found` is what getcwd returned for the other two.
unsafe fn cwd_as_called(found: *mut c_char, to: *mut c_char, room: usize) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: a path, as getcwd returns it.
    let Some(called) = place::called(unsafe { CStr::from_ptr(found) }.to_bytes()) else { return found };
    // SAFETY: as getcwd has them. Without room to write to, or a size, what was found is of the C library's own making.
    unsafe {
        if to.is_null() && room == 0 {
            libc::free(found.cast());
            return copied(&called, std::ptr::null_mut());
        }
        if called.len() >= room {
            return failed(Errno(libc::ERANGE));
        }
        copied(&called, found)
    }
}

/// A text with a zero behind it, in the caller's memory or in memory for it to free.
///
/// # Safety
/// `to` is NULL or has room for it.
unsafe fn copied(text: &str, to: *mut c_char) -> *mut c_char {
    // SAFETY: room for the text and the zero, or NULL; the caller has it otherwise.
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
    // SAFETY: the real function of this name, as ours was called.
    unsafe { real_path(path, to, |path| real!(c"realpath", Function)(path, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_realpath_chk(
    path: *const c_char,
    to: *mut c_char,
    size: usize,
) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    // SAFETY: the real function of this name, as ours was called.
    unsafe { real_path(path, to, |path| real!(c"__realpath_chk", Function)(path, to, size)) }
}

/// A path that is there is the real one, unless it is a link.
///
/// # Safety
/// As of realpath.
unsafe fn real_path(
    path: *const c_char,
    to: *mut c_char,
    real: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: NULL or a string.
    let ours = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let Some(ours) = ours.and_then(|path| meant(HERE, path.to_bytes())) else { return real(path) };
    let elsewhere = match target(&ours) {
        // SAFETY: the caller's room, which is for the longest path.
        Target::Folder | Target::File => return unsafe { copied(&followed(ours), to) },
        Target::Itself => ours,
        Target::Path(path) => path,
        Target::Management | Target::Nothing => return failed(Errno(libc::ENOENT)),
    };
    CString::new(elsewhere).map_or_else(|_| failed(Errno(libc::ENOENT)), |path| real(path.as_ptr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_opendir(path: *const c_char) -> *mut libc::DIR {
    type Function = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    // SAFETY: the real function of this name, as ours was called.
    unsafe {
        let real = real!(c"opendir", Function);
        match answer(HERE, path, Wish::Ask) {
            Answer::Same => real(path),
            Answer::Other(other) => real(other.as_ptr()),
            Answer::Folder(other, called) => {
                let stream = real(other.as_ptr());
                if !stream.is_null() {
                    place::opened();
                    folder::opened(stream, &called);
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
    // SAFETY: the real function of this name, as ours was called.
    let stream = unsafe { real!(c"fdopendir", Function)(fd) };
    if !stream.is_null()
        && let Some(called) = place::folder(fd)
    {
        folder::opened(stream, &called);
    }
    stream
}

// On systems of 64 bits both entries are the same.
type ReadFolder = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function of this name, as ours was called.
    folder::next(stream).unwrap_or_else(|| unsafe { real!(c"readdir", ReadFolder)(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_readdir64(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    // SAFETY: the real function of this name, as ours was called.
    folder::next(stream).unwrap_or_else(|| unsafe { real!(c"readdir64", ReadFolder)(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_rewinddir(stream: *mut libc::DIR) {
    type Function = unsafe extern "C" fn(*mut libc::DIR);
    folder::rewound(stream);
    // SAFETY: the real function of this name, as ours was called.
    unsafe { real!(c"rewinddir", Function)(stream) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_closedir(stream: *mut libc::DIR) -> c_int {
    type Function = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
    folder::closed(stream);
    // SAFETY: the real function of this name, as ours was called.
    unsafe { real!(c"closedir", Function)(stream) }
}

/// scandir(3), which reads the folder inside of the C library.
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
            // SAFETY: the real function of this name, as ours was called.
            unsafe {
                let real = real!($name, Function);
                match answer(HERE, path, Wish::Ask) {
                    Answer::Same => real(path, list, filter, compare),
                    Answer::Other(other) => real(other.as_ptr(), list, filter, compare),
                    Answer::Folder(_, called) => folder::scan(&called, list, filter, compare),
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

/// Programs that ask the kernel for its RDMA devices (`rdma link`) do not find this one, and learn why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        report::no_netlink();
    }
    // SAFETY: the real function of this name, as ours was called.
    unsafe { real!(c"socket", Function)(domain, kind, protocol) }
}
