//! Executes the program in this process, which keeps its PID, terminal and parent, so that a waiting parent gets the
//! program's exit code.
//!
//! The standard library's `exec` clears the signal mask, but the program must inherit it.
#![expect(unsafe_code, reason = "execve and signal")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Ignores SIGPIPE, so that writing to a closed pipe returns an error. Must not be called for `run`, whose program
/// inherits it.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: only changes the disposition of the signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Executes the program in this process. Returns only on failure.
pub(super) fn exec(path: &Path, arguments: &[OsString], variables: &[(OsString, OsString)]) -> io::Error {
    match to_c_strings(path, arguments, variables) {
        Ok((path, arguments, variables)) => call_exec(&path, &arguments, &variables),
        Err(error) => error,
    }
}

/// Path, arguments and variables as C strings.
type CStrings = (CString, Vec<CString>, Vec<CString>);

/// Converts path, arguments and variables to C strings. Fails if one of them contains a NUL.
fn to_c_strings(
    path: &Path,
    arguments: &[OsString],
    variables: &[(OsString, OsString)],
) -> io::Result<CStrings> {
    let text = |text: &OsStr| Ok::<_, io::Error>(CString::new(text.as_bytes())?);
    let arguments: io::Result<_> = arguments.iter().map(|argument| text(argument)).collect();
    let variable = |(name, value): &(OsString, OsString)| {
        Ok::<_, io::Error>(CString::new([name.as_bytes(), value.as_bytes()].join(&b'='))?)
    };
    let variables: io::Result<_> = variables.iter().map(variable).collect();
    Ok((text(path.as_os_str())?, arguments?, variables?))
}

/// Calls `execvpe`. Returns only on failure.
fn call_exec(path: &CString, arguments: &[CString], variables: &[CString]) -> io::Error {
    let (arguments, variables) = (pointers(arguments), pointers(variables));
    // SAFETY: the path and all strings end with NUL, both lists end with a null pointer, and all outlive the call.
    unsafe { libc::execvpe(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

/// Returns pointers to the strings, and a null pointer.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}
