//! Panics. The adapter lives in somebody else's process, and its threads serve many connections: a mistake of its own ends the
//! connection that it was busy with, and neither the process nor its neighbours.
//!
//! A panic is caught where a half of a queue pair is driven (`qp`, `datagram`), and where a lane calls something that belongs to one
//! connection. What was in use then may be in any state, so it is dropped and never used again. Locks that were held are
//! released, and whoever takes them next goes on (`sync.rs`): those of the connection only end it, and what is behind
//! the others is consistent at every step.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic that was caught. The panic hook, which is the program's, has reported where it happened: to standard error by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bug {
    /// What the adapter was doing.
    pub doing: &'static str,
    /// What the panic said.
    pub panic: Box<str>,
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, panic } = self;
        write!(f, "a bug in Ironwarp: it panicked while {doing}: {panic}; please report it with the log")
    }
}

/// Does `act`, which ends at a panic. The caller drops what `act` has used, or knows that it is consistent at every step. A fuzzer
/// is to see panics, and none is caught for it.
#[inline]
pub fn catch<T>(doing: &'static str, act: impl FnOnce() -> T) -> Result<T, Bug> {
    if cfg!(fuzzing) {
        return Ok(act());
    }
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| Bug { doing, panic: said(&*panic) })
}

#[cold]
fn said(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").into()
}
