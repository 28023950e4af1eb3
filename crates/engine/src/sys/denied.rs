//! System calls that a sandbox denies: an errno alone does not say which one it was.

use rustix::io::Errno;
use std::io;

/// A system call that the process may not make: a seccomp filter answers with EPERM or ENOSYS, as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "system call {call} denied ({errno}): allow it in the seccomp filter or sandbox that the process runs in"
)]
pub struct Denied {
    /// Its name.
    pub call: &'static str,
    /// The answer.
    pub errno: Errno,
}

impl Denied {
    /// What the failure of a system call means: that it is denied, or what the errno says.
    pub fn or_failed(call: &'static str, errno: Errno) -> io::Error {
        match errno {
            Errno::PERM | Errno::NOSYS => io::Error::new(errno.kind(), Self { call, errno }),
            _ => errno.into(),
        }
    }

    /// The result of a system call, with its name if it is denied.
    pub(crate) fn name<T>(call: &'static str, result: Result<T, Errno>) -> io::Result<T> {
        result.map_err(|errno| Self::or_failed(call, errno))
    }

    /// The call that an error tells of.
    pub fn find(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
