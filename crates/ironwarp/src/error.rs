//! What a caller can do wrong, and what a completion says went wrong. Errors of connections and posts are the device's,
//! and re-exported.

use ironwarp_rnic::queue::{Completion, Status};

/// Memory that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of memory cannot be had: ask for less")]
pub struct OutOfMemory {
    /// How many bytes were asked for.
    pub len: usize,
}

/// Bytes of a region that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// They are not all in the region.
    #[error("{len} bytes at {at} are not all in the region, which has {size}: ask for what is inside")]
    OutOfBounds {
        /// The first byte.
        at: usize,
        /// How many bytes.
        len: usize,
        /// How many bytes the region has.
        size: usize,
    },
    /// One element of a list names at most 4 GiB.
    #[error("{len} bytes are too many for one element of a list: use several")]
    TooLong {
        /// How many bytes.
        len: usize,
    },
    /// The program unmapped or write-protected memory that it registered by address.
    #[error("the program unmapped or write-protected this memory: keep it as it was while it is registered")]
    Unmapped,
}

/// Why a queue pair cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A completion queue is another adapter's.
    #[error("a completion queue is of another adapter than the protection domain: take all from one adapter")]
    OtherAdapter,
}

/// A request that failed, from its completion.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{:?} request {} failed: {}{}", .0.opcode, .0.wr_id, .0.status, why(.0))]
pub struct RequestError(pub Completion);

/// What `?` needs of a completion.
pub trait CompletionExt: Sized {
    /// The completion, if its request succeeded; otherwise what went wrong, in words and as data.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::{CompletionExt, WorkRequest};
    /// # use std::time::Duration;
    ///
    /// client.qp.post_send(WorkRequest::write_inline(1, b"hello", server.region.place(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    fn success(self) -> Result<Completion, RequestError>;
}

impl CompletionExt for Completion {
    fn success(self) -> Result<Completion, RequestError> {
        if self.status == Status::Success { Ok(self) } else { Err(RequestError(self)) }
    }
}

fn why(completion: &Completion) -> String {
    completion.cause.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"))
}
