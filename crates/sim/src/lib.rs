//! Simulates everything around the device: memory, links and time.
//!
//! [`Arena`] is the memory of one program, [`SimLink`] one end of a connection, [`Clock`] the time, which advances only
//! on request, [`Alarm`] the timer of one stream, and [`Timers`] the timers of event moderation. They implement the
//! traits of `ironwarp_rnic::host`, `link`, `fault` and `event`.
//!
//! A [`World`] connects queue pairs over simulated links and drives them only when an event occurs, as the engine's
//! lanes do. [`scenario`] lets two programs do random work in a world, and checks every result. [`notification`]
//! completes millions of requests and checks the completion events. [`datagrams`] sends acknowledged datagrams over a bad
//! network. [`iscsi`] runs commands against a target that lies. [`out_of_order`] delivers segments out of order, which no
//! link does.
//!
//! All randomness comes from a seed: the same seed and the same calls yield the same result.
#![forbid(unsafe_code)]

mod arena;
mod clock;
pub mod datagrams;
pub mod iscsi;
mod link;
pub mod notification;
pub mod out_of_order;
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

/// Locks `mutex`, and panics if another thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("another thread panicked while it held this lock")
}
