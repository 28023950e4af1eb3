//! The bytes of messages that wait for a receive: how many the peers of one function can make it keep (requirement X1).
//!
//! A stream counts what it parks. Once the function has reached its limit, it is *exhausted*: streams with parked messages
//! stop receiving, and are listed; others receive little at a time. So a stream exceeds the limit by no more than one
//! segment, or by one short call to its link. When enough was delivered or dropped, the listed streams go on.
//!
//! No stream stays behind: it is listed with the count locked, if the function is still exhausted, and the thread that ends
//! the exhaustion takes the list with the same lock held.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;

/// A stream that waits for room.
pub(crate) trait RoomWaiter: Send + Sync {
    /// Has another thread drive the stream. Must not block.
    fn on_room(&self);
}

/// The parked bytes of a function.
pub(crate) struct Parking {
    /// Whether streams with parked messages stop receiving. Changed with `count` locked.
    exhausted: AtomicBool,
    count: Mutex<Count>,
}

#[derive(Default)]
struct Count {
    /// Number of parked bytes.
    used: u64,
    limit: u64,
    /// The streams that wait for room, by their addresses, which are not used again while they are listed. Some may have
    /// been dropped.
    waiting: HashMap<usize, Weak<dyn RoomWaiter>>,
}

impl Parking {
    pub(crate) fn new(limit: u64) -> Self {
        let count = Count { limit, ..Count::default() };
        Self { exhausted: AtomicBool::new(false), count: Mutex::new(count) }
    }

    /// Returns the number of parked bytes.
    pub(crate) fn used(&self) -> u64 {
        lock(&self.count).used
    }

    /// Returns whether streams with parked messages must not receive.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Acquire)
    }

    /// Counts bytes that were parked. Calls `on_change` with the lock held if the function is exhausted from now on.
    pub(crate) fn add(&self, bytes: u64, on_change: impl Fn(bool)) {
        let mut count = lock(&self.count);
        count.used += bytes;
        if count.used >= count.limit && !self.is_exhausted() {
            self.exhausted.store(true, Ordering::Release);
            on_change(true);
        }
    }

    /// Counts bytes that are no longer parked. If there is room again, calls `on_change` with the lock held, and then has
    /// the streams that wait for it driven.
    pub(crate) fn remove(&self, bytes: u64, on_change: impl Fn(bool)) {
        self.change(on_change, |count| count.used -= bytes);
    }

    /// Lowers the limit by this many bytes, for another function. Returns false if there are not as many.
    pub(crate) fn give(&self, bytes: u64) -> bool {
        let mut count = lock(&self.count);
        let left = count.limit.checked_sub(bytes);
        count.limit = left.unwrap_or(count.limit);
        left.is_some()
    }

    /// Raises the limit by this many bytes, which another function does not need any more. Otherwise like
    /// [`remove`](Self::remove).
    pub(crate) fn take_back(&self, bytes: u64, on_change: impl Fn(bool)) {
        self.change(on_change, |count| count.limit += bytes);
    }

    /// Lists a stream that waits for room. Returns false, without effect, if there is room.
    pub(crate) fn wait_for_room(&self, stream: &Weak<dyn RoomWaiter>) -> bool {
        let mut count = lock(&self.count);
        let exhausted = self.is_exhausted();
        if exhausted {
            let waiting = &mut count.waiting;
            if waiting.len() == waiting.capacity() {
                waiting.retain(|_, known| known.strong_count() > 0); // before the map grows
            }
            waiting.insert(stream.as_ptr().addr(), Weak::clone(stream));
        }
        exhausted
    }

    /// Changes the count, and ends the exhaustion if there is room again.
    fn change(&self, on_change: impl Fn(bool), change: impl Fn(&mut Count)) {
        let mut count = lock(&self.count);
        change(&mut count);
        // An eighth must be free, so that streams do not stop again at once.
        if !self.is_exhausted() || count.used > count.limit - count.limit / 8 {
            return;
        }
        self.exhausted.store(false, Ordering::Release);
        on_change(false);
        let waiting = std::mem::take(&mut count.waiting);
        drop(count);
        waiting.values().filter_map(Weak::upgrade).for_each(|stream| stream.on_room());
    }
}

// Not derived: trait objects of waiting streams cannot be printed.
impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parking").field("exhausted", &self.is_exhausted()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod testing {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Counts how often it is driven.
    #[derive(Default)]
    pub(super) struct Stream(AtomicUsize);

    impl RoomWaiter for Stream {
        fn on_room(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    impl Stream {
        pub(super) fn new() -> (Arc<Self>, Weak<dyn RoomWaiter>) {
            let stream = Arc::<Self>::default();
            let weak: Weak<dyn RoomWaiter> = Arc::<Self>::downgrade(&stream);
            (stream, weak)
        }

        pub(super) fn driven(&self) -> usize {
            self.0.load(std::sync::atomic::Ordering::Relaxed)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::testing::Stream;
    use super::*;

    #[test]
    fn streams_wait_while_the_limit_is_reached() {
        let parking = Parking::new(80);
        let (stream, weak) = Stream::new();
        parking.add(79, |_| panic!("there is room"));
        assert!(!parking.wait_for_room(&weak));
        parking.add(11, |exhausted| assert!(exhausted));
        assert!(parking.is_exhausted());
        assert!(parking.wait_for_room(&weak) && parking.wait_for_room(&weak));
        parking.remove(19, |_| panic!("less than an eighth is free"));
        assert_eq!(stream.driven(), 0);
        parking.remove(1, |exhausted| assert!(!exhausted));
        assert_eq!((stream.driven(), parking.is_exhausted(), parking.used()), (1, false, 70));
        // It is listed again the next time.
        parking.add(10, |_| {});
        assert!(parking.wait_for_room(&weak));
        parking.remove(80, |_| {});
        assert_eq!(stream.driven(), 2);
    }

    #[test]
    fn bytes_of_another_function_are_taken_back() {
        let parking = Parking::new(100);
        assert!(!parking.give(101) && parking.give(60));
        let (stream, weak) = Stream::new();
        parking.add(40, |exhausted| assert!(exhausted));
        assert!(parking.wait_for_room(&weak));
        parking.take_back(60, |exhausted| assert!(!exhausted));
        assert_eq!((stream.driven(), parking.is_exhausted()), (1, false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::testing::Stream;
    use super::*;
    use std::sync::Arc;

    /// Whatever the order: a stream that waits is driven once the bytes of the others are gone.
    #[test]
    fn no_stream_waits_for_room_that_there_is() {
        loom::model(|| {
            let parking = Arc::new(Parking::new(8));
            let (stream, weak) = Stream::new();
            parking.add(4, |_| {});
            let other = Arc::clone(&parking);
            let thread = loom::thread::spawn(move || other.remove(4, |_| {}));
            // This stream parks, finds the function exhausted or not, and waits or goes on.
            parking.add(4, |_| {});
            let waits = parking.is_exhausted() && parking.wait_for_room(&weak);
            thread.join().unwrap();
            assert!(!parking.is_exhausted(), "four of eight bytes are parked");
            assert_eq!(stream.driven(), usize::from(waits));
        });
    }
}
