//! How a C caller learns that a call failed. There are three conventions: verbs that create an object return
//! NULL and set errno, other verbs return the errno, and librdmacm returns -1 and sets errno.
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

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// For an object that the parent process created before a fork: this process cannot use it.
    pub(crate) const INHERITED: Self = Self(libc::EIO);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// For a feature that the adapter does not have. Never EINVAL: programs and tests distinguish the two.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    /// Sets the errno of this thread.
    pub(crate) fn set(self) {
        // SAFETY: the errno of this thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

thread_local! {
    /// Why the last call of this thread failed, until the call returns to C.
    static WHY: Cell<Option<(Errno, String)>> = const { Cell::new(None) };
}

impl Errno {
    /// Adds the reason, such as which argument is wrong. It is logged when the call returns to C.
    pub(crate) fn because(self, why: impl fmt::Display) -> Self {
        WHY.set(Some((self, why.to_string())));
        self
    }

    /// Prefixes the reason with what it is about.
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        match WHY.take() {
            Some((errno, why)) if errno == self => self.because(format_args!("{what}: {why}")),
            _ => self,
        }
    }

    /// A required argument is NULL.
    pub(crate) fn null(argument: &str) -> Self {
        Self::INVALID.because(format_args!("{argument} is NULL"))
    }

    /// Logs that `call` failed, with the reason if one was given.
    pub(crate) fn reported(self, call: &str) -> Self {
        let why = WHY.take().filter(|(errno, _)| *errno == self).map(|(_, why)| why);
        report::log_refused_call(call, self.0, why.as_deref());
        self
    }
}

/// The path of the function that this is used in.
macro_rules! here {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here)
    }};
}

// These macros evaluate their argument while the thread cannot be cancelled, so a call that blocks must be
// made before.

/// Returns an object, or NULL and sets errno.
macro_rules! object {
    ($result:expr $(,)?) => {{
        let here = $crate::support::errno::here!();
        $crate::support::cancel::without_cancellation(|| $crate::support::errno::answer_object(here, $result))
    }};
}

/// Returns zero, or the errno.
macro_rules! code {
    ($result:expr $(,)?) => {{
        let here = $crate::support::errno::here!();
        $crate::support::cancel::without_cancellation(|| $crate::support::errno::answer_code(here, $result))
    }};
}

/// Returns zero, or the errno, from a call that destroys an object.
macro_rules! destroyed {
    ($result:expr $(,)?) => {{
        let here = $crate::support::errno::here!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::answer_destroyed(here, $result)
        })
    }};
}

/// Returns zero, or the errno and also sets it, because callers of many verbs read it there.
macro_rules! code_and_errno {
    ($result:expr $(,)?) => {{
        let here = $crate::support::errno::here!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::answer_code_and_errno(here, $result)
        })
    }};
}

/// Returns zero, or -1 and sets errno.
macro_rules! minus_one {
    ($result:expr $(,)?) => {{
        let here = $crate::support::errno::here!();
        $crate::support::cancel::without_cancellation(|| {
            $crate::support::errno::answer_minus_one(here, $result)
        })
    }};
}

pub(crate) use {code, code_and_errno, destroyed, here, minus_one, object};

pub(crate) fn answer_object<T>(call: &str, result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.reported(call).set();
        ptr::null_mut()
    })
}

pub(crate) fn answer_code(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.reported(call).0, |()| 0)
}

/// An object inherited from the parent process belongs to the parent, so there is nothing to destroy.
pub(crate) fn answer_destroyed(call: &str, result: Result<(), Errno>) -> c_int {
    match result {
        Err(Errno::INHERITED) => 0,
        other => answer_code(call, other),
    }
}

pub(crate) fn answer_code_and_errno(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.reported(call).set();
            errno.0
        },
        |()| 0,
    )
}

pub(crate) fn answer_minus_one(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.reported(call).set();
            -1
        },
        |()| 0,
    )
}

/// Returns a number, or -1 and sets errno. For sockets over RDMA, whose failures are not logged.
pub(crate) fn number_or_minus_one(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        match Denied::find(&error) {
            Some(denied) => Self(denied.errno.raw_os_error()).because(denied),
            None => Self(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// The errno of the operating system, without a reason.
fn number_of(error: &io::Error) -> Errno {
    let denied = Denied::find(error).map(|denied| denied.errno.raw_os_error());
    Errno(denied.or(error.raw_os_error()).unwrap_or(libc::EIO))
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Self {
        let errno = match error {
            RegisterError::Full { .. } => Self::NO_MEMORY,
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

/// No reason: this is the data path, where a full queue is not an error worth logging.
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
