//! One error type for functions that call several methods of this crate.

use crate::completion::{Overrun, RequestError, TooSmall};
use crate::config::ConfigError;
use crate::connection::{BringUpError, ConnectError};
use crate::control::ControlError;
use crate::event::SetMapError;
use crate::function::QuotaExceeded;
use crate::memory::{AccessError, AllocateError, ChangeError, DeregisterError, OutOfMemory, RegisterError};
use crate::queue::{CreateError, IllegalTransition, PostError};
use crate::steering::{MoveError, NoSuchLane};
use crate::wait::WaitError;
use std::io;

/// Any error of this crate.
///
/// Each method returns an error type of its own, which lists exactly what can go wrong. All of them convert to this
/// type, so that a function that calls several methods can return it.
///
/// ```
/// use ironwarp::prelude::*;
///
/// fn buffer() -> ironwarp::Result<MemoryRegion> {
///     let domain = Adapter::new()?.protection_domain();       // std::io::Error
///     let buffer = Buffer::new(4096)?;                        // OutOfMemory
///     Ok(domain.register(buffer, Access::LOCAL_WRITE)?)       // RegisterError
/// }
/// # buffer().map(drop)?;
/// # Ok::<(), ironwarp::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a resource or an operation.
    Io(#[from] io::Error),
    /// A setting is invalid.
    Config(#[from] ConfigError),
    /// A buffer could not be allocated.
    OutOfMemory(#[from] OutOfMemory),
    /// A buffer with options could not be allocated.
    Allocate(#[from] AllocateError),
    /// Memory could not be registered.
    Register(#[from] RegisterError),
    /// A region could not be changed.
    Change(#[from] ChangeError),
    /// A region could not be deregistered.
    Deregister(#[from] DeregisterError),
    /// A range of a region could not be accessed.
    Access(#[from] AccessError),
    /// A queue could not be created.
    Create(#[from] CreateError),
    /// A connection was not established.
    Connect(#[from] ConnectError),
    /// A manual connection could not be started.
    BringUp(#[from] BringUpError),
    /// A queue pair cannot change its state in this way.
    Transition(#[from] IllegalTransition),
    /// A request could not be posted.
    Post(#[from] PostError),
    /// An operation could not be posted to a control queue.
    Control(#[from] ControlError),
    /// A wait for a completion, an event or a connection request ended without one.
    Wait(#[from] WaitError),
    /// A completion queue has overflowed.
    Overrun(#[from] Overrun),
    /// The new capacity of a completion queue is too small.
    TooSmall(#[from] TooSmall),
    /// A request failed.
    Request(#[from] RequestError),
    /// The event map could not be changed.
    EventMap(#[from] SetMapError),
    /// A function has reached a quota.
    Quota(#[from] QuotaExceeded),
    /// A queue pair could not be moved to another lane.
    Move(#[from] MoveError),
    /// A redirection table names a lane that does not exist.
    NoSuchLane(#[from] NoSuchLane),
    /// An asynchronous request failed.
    #[cfg(feature = "tokio")]
    Asynchronous(#[from] crate::tokio::Error),
}

#[cfg(feature = "tokio")]
impl<B> From<crate::tokio::Refused<B>> for Error {
    fn from(refused: crate::tokio::Refused<B>) -> Self {
        Self::Asynchronous(refused.error)
    }
}

#[cfg(feature = "tokio")]
impl<B> From<crate::tokio::Failed<B>> for Error {
    fn from(failed: crate::tokio::Failed<B>) -> Self {
        Self::Asynchronous(failed.error)
    }
}

/// The result of a function that returns [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
