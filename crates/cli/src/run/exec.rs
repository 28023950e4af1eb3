//! The last step: this process becomes the program. It keeps its number, its terminal and its parent; whoever waits for it gets
//! the program's exit code.
//!
//! The standard library would ignore SIGPIPE before `main`, and its own `exec` empties the signal mask. A program must get both as
//! they were: systemd, for one, ignores SIGPIPE for its services. So the C library calls [`main`] here, which also saves what
//! the standard library does for threads and deep stacks: it reads `/proc/self/maps`, a tenth of the time of a start.
#![expect(unsafe_code, reason = "execve, and the function that the C library calls first")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the C library calls. The standard library knows the arguments nevertheless: glibc hands them to it before this.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_: std::ffi::c_int, _: *const *const c_char) -> std::ffi::c_int {
    const PANICKED: i32 = 101;
    let code = std::panic::catch_unwind(crate::start).unwrap_or(PANICKED);
    std::process::exit(code) // which writes what is left to be written
}

/// For all commands but `run`: whoever writes to a closed pipe gets an error, and no signal.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: changes what the signal means to this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
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
    // SAFETY: the path and all texts end with a zero, both lists with a null pointer, and all live as long as the call.
    unsafe { libc::execvpe(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}
