//! The last step: this process becomes the program. It keeps its number, its terminal and its parent; whoever waits for it gets
//! the program's exit code.
//!
//! Rust changes how SIGPIPE is dealt with before `main`, and the standard library's own `exec` empties the signal mask. A
//! program must get both as they were: systemd, for one, ignores SIGPIPE for its services.
#![expect(unsafe_code, reason = "execve, and the disposition of a signal before Rust changed it")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when this process began.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// The loader calls it before `main`, so before Rust ignores SIGPIPE.
#[used]
// SAFETY: the section holds functions that the C library calls without needing their result, as this one is.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_sigpipe;

extern "C" fn look_at_sigpipe() {
    // SAFETY: it is asked for, not changed, and there is room for the answer; zeroes are a valid one.
    let ignored = unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    };
    SIGPIPE_IGNORED.store(ignored, Ordering::Relaxed);
}

/// Becomes the program. Returns only if that fails.
pub(super) fn exec(path: &Path, arguments: &[OsString], variables: &[(OsString, OsString)]) -> io::Error {
    match prepared(path, arguments, variables) {
        Ok((path, arguments, variables)) => become_program(&path, &arguments, &variables),
        Err(error) => error,
    }
}

type Prepared = (CString, Vec<CString>, Vec<CString>);

fn prepared(path: &Path, arguments: &[OsString], variables: &[(OsString, OsString)]) -> io::Result<Prepared> {
    let text = |text: &OsStr| Ok::<_, io::Error>(CString::new(text.as_bytes())?);
    let arguments: io::Result<_> = arguments.iter().map(|argument| text(argument)).collect();
    let variable = |(name, value): &(OsString, OsString)| {
        Ok::<_, io::Error>(CString::new([name.as_bytes(), value.as_bytes()].join(&b'='))?)
    };
    let variables: io::Result<_> = variables.iter().map(variable).collect();
    Ok((text(path.as_os_str())?, arguments?, variables?))
}

fn become_program(path: &CString, arguments: &[CString], variables: &[CString]) -> io::Error {
    let (arguments, variables) = (pointers(arguments), pointers(variables));
    if !SIGPIPE_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: gives the signal the meaning that it had.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: the path and all texts end with a zero, both lists with a null pointer, and all live as long as the call.
    unsafe { libc::execvpe(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}
