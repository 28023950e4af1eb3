//! Finds the real functions of the C library that are interposed.
#![expect(unsafe_code, reason = "asks the loader for functions")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Finds the real function of a name: the next one after this library in the search order, or else that of the C
/// library. The latter is for programs that were linked with this library, where the C library may come first. The
/// result is stored in `cache`, for the next call.
pub(crate) fn real(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: C strings. `dlopen` only returns the C library, which is loaded already; `dlsym` accepts its result, even
    // NULL.
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
