//! A world in which the device runs with nothing real around it: memory, links and time are all made up.
//!
//! [`Arena`] is the memory of one program, [`SimLink`] one end of a connection, [`Clock`] the time, which moves only when
//! it is told to, [`Alarm`] the timer of one stream, [`Timers`] those of moderation. They are what `ironwarp_rnic::host`,
//! `link`, `fault` and `event` ask for.
//! A [`World`] connects queue pairs over such links and drives them by events alone, as lanes do.
//! [`notification`] completes requests by the million, and looks who is told of them. [`overtaking`] delivers segments out of
//! order, as no link of the device does.
//! Everything that looks random comes from a seed: the same seed and the same calls end in the same way.
#![forbid(unsafe_code)]

mod arena;
mod clock;
mod link;
pub mod notification;
pub mod overtaking;
mod ranges;
pub mod scenario;
mod tags;
mod trace;
mod world;

pub use arena::Arena;
pub use clock::{Alarm, Clock, Timers};
pub use link::{Path, Ready, SimLink};
pub use ranges::Ranges;
pub use tags::tag_cipher;
pub use trace::Trace;
pub use world::{End, World};

use std::sync::{Mutex, MutexGuard};

/// Locks `mutex`. A test that panicked is over: nobody needs what it left behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("another thread panicked while it held this lock")
}
