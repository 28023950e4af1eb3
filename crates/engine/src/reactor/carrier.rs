//! [`Carrier`], shared memory that carries the streams of several connections, as a poll set sees it. `shm` implements
//! it.
//!
//! The other process rings a bell, a descriptor in the epoll set of each poll set that uses the carrier, but only while
//! no thread of this process polls the carrier.

use std::fmt;
use std::os::fd::AsFd;

/// Shared memory that carries streams. Its descriptor is the bell, which is readable after the other process has rung.
pub(crate) trait Carrier: AsFd + Send + Sync + fmt::Debug {
    /// Returns whether something has arrived. Costs a few instructions.
    fn has_news(&self) -> bool;

    /// Drives the connections for which something has arrived, up to a limit. They may be in other poll sets. Returns
    /// whether large payload arrives, of which more will follow soon.
    fn serve(&self) -> bool;

    /// Takes the rings of the bell. `ended` tells that the other process has closed it: no more rings follow.
    fn hear(&self, ended: bool);

    /// Counts a poll set that polls from now on.
    fn begin_polling(&self);

    /// Counts a poll set that stops polling. If it was the last one, the other process rings from now on. Returns false
    /// if something has arrived for which it will not ring: the caller must have it served.
    fn end_polling(&self) -> bool;

    /// Declares that the lane, which has served the carrier, goes back to sleep. Returns false if something has arrived
    /// for which the other process will not ring.
    fn sleep(&self) -> bool;

    /// Returns whether the carrier carries nothing any more, and can be removed from poll sets.
    fn is_closed(&self) -> bool;
}
