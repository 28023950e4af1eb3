//! The functions of the C library that are interposed.
#![expect(unsafe_code, reason = "asks the loader for functions")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The real function: the next one of this name, or else that of the C library. The latter is for programs
/// that were linked with this library, where the C library may come first.
pub(crate) fn real(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name, and results of the loader.
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
