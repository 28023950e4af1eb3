//! Errors of system calls that a sandbox denies. An errno alone does not say which system call failed.

use rustix::io::Errno;
use std::io;

/// Error of a system call that the process may not make: usually a seccomp filter makes it fail with EPERM or ENOSYS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "system call {call} denied ({errno}): allow it in the seccomp filter or sandbox that the process runs in"
)]
pub struct Denied {
    /// Name of the system call.
    pub call: &'static str,
    /// The errno.
    pub errno: Errno,
}

impl Denied {
    /// Converts the errno of a failed system call: to an error that contains a `Denied` if the errno means that the
    /// call is denied, and to an ordinary error otherwise.
    pub fn from_errno(call: &'static str, errno: Errno) -> io::Error {
        match errno {
            Errno::PERM | Errno::NOSYS => io::Error::new(errno.kind(), Self { call, errno }),
            _ => errno.into(),
        }
    }

    /// Converts the result of a system call, its errno with [`from_errno`](Self::from_errno).
    pub(crate) fn check<T>(call: &'static str, result: Result<T, Errno>) -> io::Result<T> {
        result.map_err(|errno| Self::from_errno(call, errno))
    }

    /// Returns the `Denied` that an error contains, if any.
    pub fn find(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
