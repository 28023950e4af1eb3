//! What both processes have done, in a file that they share. A record is appended as a whole, so the order is exact.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

/// Who has done something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Source,
    Target,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The process begins to act on the connection.
    Begin,
    /// It has acted.
    End,
    /// It has received a wrong byte.
    Wrong,
    /// The source has sent its offer.
    Offered,
    /// The source has told the target that it keeps the function.
    Refused,
    /// The source runs again.
    Thawed,
    /// The target has sent TAKEN.
    Taken,
}

const WHAT: [What; 7] =
    [What::Begin, What::End, What::Wrong, What::Offered, What::Refused, What::Thawed, What::Taken];

#[derive(Debug)]
pub(crate) struct Log {
    file: File,
}

impl Log {
    pub(crate) fn new() -> Self {
        let file = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        Self { file: file.into() }
    }

    pub(crate) fn of(file: OwnedFd) -> Self {
        Self { file: file.into() }
    }

    pub(crate) fn add(&self, who: Who, what: What) {
        let what = WHAT.iter().position(|it| *it == what).unwrap();
        (&self.file).write_all(&[u8::from(who == Who::Target) << 4 | u8::try_from(what).unwrap()]).unwrap();
    }

    pub(crate) fn records(&self) -> Vec<(Who, What)> {
        let mut bytes = vec![0; usize::try_from(self.file.metadata().unwrap().len()).unwrap()];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        let who = |byte: u8| if byte >> 4 == 0 { Who::Source } else { Who::Target };
        bytes.into_iter().map(|byte| (who(byte), WHAT[usize::from(byte & 15)])).collect()
    }

    /// Panics if there were two owners: at once, or one after the other and then the first again.
    pub(crate) fn assert_one_owner(&self, context: &str) {
        let mut acting = None;
        let mut target_has_acted = false;
        for (at, record) in self.records().into_iter().enumerate() {
            match record {
                (who, What::Begin) => {
                    assert_eq!(acting, None, "{context}: {who:?} acts as well, at record {at}");
                    acting = Some(who);
                    target_has_acted |= who == Who::Target;
                    assert!(
                        !target_has_acted || who == Who::Target,
                        "{context}: the source acts after the target, at record {at}"
                    );
                }
                (who, What::End) => {
                    assert_eq!(acting, Some(who), "{context}, at record {at}");
                    acting = None;
                }
                (who, What::Wrong) => panic!("{context}: {who:?} received a wrong byte"),
                _ => {}
            }
        }
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
