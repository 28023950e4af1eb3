//! How a C caller learns that a call failed. Three conventions, one place for each: verbs that make an object return NULL and
//! set errno, other verbs return the errno itself, and librdmacm returns -1 and sets errno.
#![expect(unsafe_code, reason = "errno is a place in the C library")]

use ironwarp_engine::{BringUpError, ConnectError};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::{DeregisterError, RegisterError, ReregisterError};
use ironwarp_rnic::qp::IllegalTransition;
use std::ffi::c_int;
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

/// An object, or NULL and errno.
pub(crate) fn object<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

/// Zero, or the errno.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.0, |()| 0)
}

/// Zero, or the errno, of a call that destroys. What was inherited from a parent is the parent's: there is nothing to do.
pub(crate) fn destroyed(result: Result<(), Errno>) -> c_int {
    match result {
        Err(Errno::INHERITED) => 0,
        other => code(other),
    }
}

/// The errno is set as well: callers of many verbs look there, too.
pub(crate) fn code_and_errno(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.set();
            errno.0
        },
        |()| 0,
    )
}

/// Zero, or -1 and errno.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            errno.set();
            -1
        },
        |()| 0,
    )
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Full { .. } => Self::NO_MEMORY,
            RegisterError::Unmapped(_) => Self(libc::EFAULT),
            RegisterError::TooLong { .. } => Self(libc::E2BIG),
            _ => Self::INVALID,
        }
    }
}

impl From<DeregisterError> for Errno {
    fn from(error: DeregisterError) -> Self {
        match error {
            DeregisterError::Busy { .. } => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<ReregisterError> for Errno {
    fn from(error: ReregisterError) -> Self {
        match error {
            ReregisterError::Busy { .. } => Self::BUSY,
            ReregisterError::Register(error) => error.into(),
            _ => Self::INVALID,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full { .. } => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

impl From<IllegalTransition> for Errno {
    fn from(_: IllegalTransition) -> Self {
        Self::INVALID
    }
}

impl From<BringUpError> for Errno {
    fn from(error: BringUpError) -> Self {
        match error {
            BringUpError::System(error) => error.into(),
            _ => Self::INVALID,
        }
    }
}

impl From<&ConnectError> for Errno {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::System(error) => Self(error.raw_os_error().unwrap_or(libc::EIO)),
            ConnectError::TimedOut => Self(libc::ETIMEDOUT),
            ConnectError::Rejected { .. } | ConnectError::Closed => Self(libc::ECONNREFUSED),
            ConnectError::Misuse(_) => Self::INVALID,
            ConnectError::Connected(_) => Self(libc::EISCONN),
            _ => Self(libc::ECONNABORTED),
        }
    }
}
