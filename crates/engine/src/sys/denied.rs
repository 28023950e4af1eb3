//! System calls that a sandbox denies: an errno alone does not say which one it was.

use rustix::io::Errno;
use std::io;

/// A system call that the process may not make: usually a seccomp filter answers with EPERM or ENOSYS.
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
    /// Interprets the failure of a system call: it is denied, or failed with this errno.
    pub fn from_errno(call: &'static str, errno: Errno) -> io::Error {
        match errno {
            Errno::PERM | Errno::NOSYS => io::Error::new(errno.kind(), Self { call, errno }),
            _ => errno.into(),
        }
    }

    /// Adds the name of a system call to its result, if it is denied.
    pub(crate) fn check<T>(call: &'static str, result: Result<T, Errno>) -> io::Result<T> {
        result.map_err(|errno| Self::from_errno(call, errno))
    }

    /// The denied call that an error contains.
    pub fn find(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
