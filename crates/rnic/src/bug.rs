//! Handling of panics. The adapter runs in the process of a program, and its threads serve many connections: a bug in
//! the adapter must end only the connection that was being served.
//!
//! A panic is caught where a half of a queue pair is driven (`qp`, `datagram`), and where a lane calls code that
//! belongs to one connection. The data of that connection may be in any state, so it is dropped and never used again.
//! Locks that were held are released, and their poison is ignored (`sync.rs`): the locks of the connection are used
//! only to end the connection, and the data behind other locks is consistent at every step.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic that was caught. The panic hook of the program has reported where it happened, to standard error by
/// default.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bug {
    /// What the adapter was doing, such as "transmitting".
    pub doing: &'static str,
    /// The message of the panic.
    pub panic: Box<str>,
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, panic } = self;
        write!(f, "bug in Ironwarp: panic while {doing}: {panic}; please report it with the log")
    }
}

/// Calls `act` and returns its result, or the panic that it raised. After a panic, the caller must drop the data that
/// `act` has used, or know that this data is consistent at every step. Under a fuzzer, which has to see panics,
/// none is caught.
#[inline]
pub fn catch<T>(doing: &'static str, act: impl FnOnce() -> T) -> Result<T, Bug> {
    if cfg!(fuzzing) {
        return Ok(act());
    }
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| Bug { doing, panic: panic_message(&*panic) })
}

/// Returns the message of a panic.
#[cold]
fn panic_message(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").into()
}
