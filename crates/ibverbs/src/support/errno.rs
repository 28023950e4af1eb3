//! Errors of calls, with their reasons, and the conventions by which calls return them to C: verbs that create an
//! object return NULL and set errno, other verbs return the errno, and librdmacm returns -1 and sets errno.
#![expect(unsafe_code, reason = "errno belongs to the C library")]

use crate::support::report;
use ironwarp_engine::sys::denied::Denied;
use ironwarp_engine::{BringUpError, ConnectError};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::{DeregisterError, RegisterError, ReregisterError};
use ironwarp_rnic::qp::IllegalTransition;
use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr;

/// An errno, which is the error type of most functions in this crate. A text with the reason can be added
/// ([`because`](Self::because)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// For an object that the parent process created before a fork: this process cannot use it.
    pub(crate) const INHERITED: Self = Self(libc::EIO);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// For a feature that the adapter does not have. Never EINVAL: programs and tests distinguish the two.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    /// Sets the errno of this thread.
    pub(crate) fn set(self) {
        // SAFETY: the C library returns a pointer to the errno of the calling thread, which no other thread accesses.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

thread_local! {
    /// The error of the call that this thread makes, and the reason for it. Set where the error occurs, and taken
    /// when the call returns to C.
    static WHY: Cell<Option<(Errno, String)>> = const { Cell::new(None) };
}

/// Takes the error of the call that this thread makes, and the reason.
fn take_why() -> Option<(Errno, String)> {
    WHY.try_with(Cell::take).ok().flatten()
}

impl Errno {
    /// Adds a reason to an error, such as which argument is wrong. The reason is logged when the call returns to C.
    pub(crate) fn because(self, why: impl fmt::Display) -> Self {
        // Exit handlers have none: thread-local variables are destroyed before they run.
        let _ = WHY.try_with(|slot| slot.set(Some((self, why.to_string()))));
        self
    }

    /// Prefixes the reason of this error, if it has one, with what the reason is about.
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        match take_why() {
            Some((errno, why)) if errno == self => self.because(format_args!("{what}: {why}")),
            _ => self,
        }
    }

    /// Returns EINVAL for a required argument that is NULL.
    pub(crate) fn null(argument: &str) -> Self {
        Self::INVALID.because(format_args!("{argument} is NULL"))
    }

    /// Logs that `call` failed, with the reason if one was given.
    pub(crate) fn log(self, call: &str) -> Self {
        let why = take_why().filter(|(errno, _)| *errno == self).map(|(_, why)| why);
        report::log_refused_call(call, self.0, why.as_deref());
        self
    }
}

/// Evaluates to a path that begins with that of the enclosing function, from which the log derives the name of the
/// call.
macro_rules! function_path {
    () => {{
        fn inner() {}
        std::any::type_name_of_val(&inner)
    }};
}

// The following macros are the last expression of an entry point. Each evaluates a `Result`, logs an error, and
// converts the result to what C expects. Cancellation is disabled during the evaluation, so a function that blocks
// must do so before.

/// Evaluates to the pointer in a `Result`, or to NULL after setting errno.
macro_rules! object {
    ($result:expr $(,)?) => {{
        let path = $crate::support::errno::function_path!();
        $crate::support::cancel::without_cancellation(|| $crate::support::errno::into_pointer(path, $result))
    }};
}

/// Evaluates to zero, or to the errno.
macro_rules! code {
    ($result:expr $(,)?) => {{
        let path = $crate::support::errno::function_path!();
        $crate::support::cancel::without_cancellation(|| $crate::support::errno::into_code(path, $result))
    }};
}

/// Evaluates to zero or the errno, in a call that destroys an object. An inherited object is not an error.
macro_rules! destroy_code {
    ($result:expr $(,)?) => {{
        let path = $crate::support::errno::function_path!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::into_destroy_code(path, $result)
        })
    }};
}

/// Evaluates to zero, or to the errno after setting it, because callers of some verbs read errno instead.
macro_rules! code_and_errno {
    ($result:expr $(,)?) => {{
        let path = $crate::support::errno::function_path!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::into_code_and_errno(path, $result)
        })
    }};
}

/// Evaluates to zero, or to -1 after logging the failure and setting errno.
macro_rules! minus_one {
    ($result:expr $(,)?) => {{
        let path = $crate::support::errno::function_path!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::into_minus_one(path, $result)
        })
    }};
}

pub(crate) use {code, code_and_errno, destroy_code, function_path, minus_one, object};

/// Returns the pointer, or NULL after setting errno and logging that `call` failed.
pub(crate) fn into_pointer<T>(call: &str, result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.log(call).set();
        ptr::null_mut()
    })
}

/// Returns zero, or the errno after logging that `call` failed.
pub(crate) fn into_code(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.log(call).0, |()| 0)
}

/// Returns zero, or the errno after logging that `call` failed. Returns zero for an object that this process
/// inherited: the object belongs to the parent, so there is nothing to destroy.
pub(crate) fn into_destroy_code(call: &str, result: Result<(), Errno>) -> c_int {
    match result {
        Err(Errno::INHERITED) => 0,
        other => into_code(call, other),
    }
}

/// Returns zero, or the errno after setting it and logging that `call` failed.
pub(crate) fn into_code_and_errno(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.log(call).set();
            errno.0
        },
        |()| 0,
    )
}

/// Returns zero, or -1 after setting errno and logging that `call` failed.
pub(crate) fn into_minus_one(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.log(call).set();
            -1
        },
        |()| 0,
    )
}

/// Returns the number, or -1 after setting errno. Unlike the macros above, it does not log the failure: the calls of
/// rsockets that use it may fail in normal operation, such as `raccept` with EAGAIN.
pub(crate) fn number_or_minus_one(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// Adds a reason only if a sandbox denies the system call: then the errno alone would mislead.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        let errno = number_of(&error);
        match Denied::find(&error) {
            Some(denied) => errno.because(denied),
            None if error.raw_os_error().is_none() => errno.because(error), // the engine's own error
            None => errno,
        }
    }
}

/// Returns the errno of a system call that failed, or EIO if the error has none. Adds no reason: most callers have a
/// better one.
fn number_of(error: &io::Error) -> Errno {
    let denied = Denied::find(error).map(|denied| denied.errno.raw_os_error());
    // The engine's own errors, of logical devices, have a kind only.
    let by_kind = match error.kind() {
        io::ErrorKind::NetworkDown => libc::ENETDOWN,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        _ => libc::EIO,
    };
    Errno(denied.or(error.raw_os_error()).unwrap_or(by_kind))
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Self {
        let errno = match error {
            RegisterError::Full { .. }
            | RegisterError::UsedUp { .. }
            | RegisterError::Quota(_)
            | RegisterError::Injected => Self::NO_MEMORY,
            RegisterError::Unmapped(_) => Self(libc::EFAULT),
            RegisterError::TooLong { .. } => Self(libc::E2BIG),
            _ => Self::INVALID,
        };
        errno.because(error)
    }
}

impl From<DeregisterError> for Errno {
    fn from(error: DeregisterError) -> Self {
        let errno = match error {
            DeregisterError::Busy { .. } => Self::BUSY,
            _ => Self::INVALID,
        };
        errno.because(error)
    }
}

impl From<ReregisterError> for Errno {
    fn from(error: ReregisterError) -> Self {
        let errno = match error {
            ReregisterError::Busy { .. } => Self::BUSY,
            ReregisterError::Register(error) => error.into(),
            _ => Self::INVALID,
        };
        errno.because(error)
    }
}

/// Adds no reason, because callers on the data path log the error themselves, at a level that depends on the error.
impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full { .. } => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

impl From<IllegalTransition> for Errno {
    fn from(error: IllegalTransition) -> Self {
        Self::INVALID.because(error)
    }
}

impl From<BringUpError> for Errno {
    fn from(error: BringUpError) -> Self {
        let errno = match &error {
            BringUpError::System(error) => number_of(error),
            _ => Self::INVALID,
        };
        errno.because(error)
    }
}

impl From<&ConnectError> for Errno {
    fn from(error: &ConnectError) -> Self {
        let errno = match error {
            ConnectError::System(error) => number_of(error),
            ConnectError::TimedOut => Self(libc::ETIMEDOUT),
            ConnectError::Rejected { .. } | ConnectError::Closed | ConnectError::Elsewhere => {
                Self(libc::ECONNREFUSED)
            }
            ConnectError::InvalidArgument(_) => Self::INVALID,
            ConnectError::Connected(_) => Self(libc::EISCONN),
            _ => Self(libc::ECONNABORTED),
        };
        errno.because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_logical_devices_have_an_errno() {
        for (kind, errno) in [
            (io::ErrorKind::NetworkDown, libc::ENETDOWN),
            (io::ErrorKind::AddrNotAvailable, libc::EADDRNOTAVAIL),
            (io::ErrorKind::Other, libc::EIO),
        ] {
            assert_eq!(number_of(&io::Error::new(kind, "why")), Errno(errno));
        }
        assert_eq!(number_of(&io::Error::from_raw_os_error(libc::EMFILE)), Errno(libc::EMFILE));
    }
}
