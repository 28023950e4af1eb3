//! How a C caller learns that a call failed. Three conventions, one place for each: verbs that make an object return NULL and
//! set errno, other verbs return the errno itself, and librdmacm returns -1 and sets errno.
#![expect(unsafe_code, reason = "errno is a place in the C library")]

use crate::report;
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
    /// Of an object that a parent made before it forked: it is out of reach.
    pub(crate) const INHERITED: Self = Self(libc::EIO);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// What an adapter says that lacks something. Never EINVAL: programs and tests tell the two apart.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    /// Leaves it where C looks for it.
    pub(crate) fn set(self) {
        // SAFETY: the C library's own, for this thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

thread_local! {
    /// Why the last call of this thread failed: beside errno, as long as it takes to answer.
    static WHY: Cell<Option<(Errno, String)>> = const { Cell::new(None) };
}

impl Errno {
    /// This errno, and in words which argument is wrong, or what is in the way. Whoever answers the call says so.
    pub(crate) fn because(self, why: impl fmt::Display) -> Self {
        WHY.set(Some((self, why.to_string())));
        self
    }

    /// The same, and what it is about.
    pub(crate) fn of(self, what: impl fmt::Display) -> Self {
        match WHY.take() {
            Some((errno, why)) if errno == self => self.because(format_args!("{what}: {why}")),
            _ => self,
        }
    }

    /// An argument is missing.
    pub(crate) fn null(argument: &str) -> Self {
        Self::INVALID.because(format_args!("{argument} is NULL"))
    }

    /// An answer for C: `call` failed. It is said, with the reason if one was given.
    pub(crate) fn told(self, call: &str) -> Self {
        let why = WHY.take().filter(|(errno, _)| *errno == self).map(|(_, why)| why);
        report::refused(call, self, why.as_deref());
        self
    }
}

/// The name of the function that this is written in.
macro_rules! here {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here)
    }};
}

// The macros evaluate the call on a thread that cannot be cancelled: a call that blocks is made before.

/// An object, or NULL and errno.
macro_rules! object {
    ($result:expr $(,)?) => {{
        let here = $crate::errno::here!();
        $crate::cancel::uncancelled(|| $crate::errno::answer_object(here, $result))
    }};
}

/// Zero, or the errno.
macro_rules! code {
    ($result:expr $(,)?) => {{
        let here = $crate::errno::here!();
        $crate::cancel::uncancelled(|| $crate::errno::answer_code(here, $result))
    }};
}

/// Zero, or the errno, of a call that destroys.
macro_rules! destroyed {
    ($result:expr $(,)?) => {{
        let here = $crate::errno::here!();
        $crate::cancel::uncancelled(|| $crate::errno::answer_destroyed(here, $result))
    }};
}

/// The errno is set as well: callers of many verbs look there, too.
macro_rules! code_and_errno {
    ($result:expr $(,)?) => {{
        let here = $crate::errno::here!();
        $crate::cancel::uncancelled(|| $crate::errno::answer_code_and_errno(here, $result))
    }};
}

/// Zero, or -1 and errno.
macro_rules! minus_one {
    ($result:expr $(,)?) => {{
        let here = $crate::errno::here!();
        $crate::cancel::uncancelled(|| $crate::errno::answer_minus_one(here, $result))
    }};
}

pub(crate) use {code, code_and_errno, destroyed, here, minus_one, object};

pub(crate) fn answer_object<T>(call: &str, result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.told(call).set();
        ptr::null_mut()
    })
}

pub(crate) fn answer_code(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.told(call).0, |()| 0)
}

/// What was inherited from a parent is the parent's: there is nothing to do.
pub(crate) fn answer_destroyed(call: &str, result: Result<(), Errno>) -> c_int {
    match result {
        Err(Errno::INHERITED) => 0,
        other => answer_code(call, other),
    }
}

pub(crate) fn answer_code_and_errno(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.told(call).set();
            errno.0
        },
        |()| 0,
    )
}

pub(crate) fn answer_minus_one(call: &str, result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.told(call).set();
            -1
        },
        |()| 0,
    )
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        match Denied::find(&error) {
            Some(denied) => Self(denied.errno.raw_os_error()).because(denied),
            None => Self(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// What the operating system said, where the caller puts it in words.
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

/// No words: this is the data path, where a queue that is full is no fault.
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
            ConnectError::Misuse(_) => Self::INVALID,
            ConnectError::Connected(_) => Self(libc::EISCONN),
            _ => Self(libc::ECONNABORTED),
        };
        errno.because(error)
    }
}
