//! Executes the program in this process, which keeps its PID, terminal and parent, so that a waiting parent gets the program's
//! exit code.
//!
//! The standard library's `exec` clears the signal mask, but the program must inherit it.
#![expect(unsafe_code, reason = "execve and signal")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Ignores SIGPIPE, so that writing to a closed pipe returns an error. For all commands except `run`.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: only changes the disposition of the signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Executes the program. Returns only on failure.
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
    // SAFETY: the path and all strings end with NUL, both lists end with a null pointer, and all outlive the call.
    unsafe { libc::execvpe(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}
