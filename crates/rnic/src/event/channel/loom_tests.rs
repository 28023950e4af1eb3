//! Loom tests of channels: all interleavings of threads, with a semaphore in place of the file descriptor.

use super::*;
use crate::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;

#[derive(Debug)]
struct Semaphore(Arc<AtomicUsize>);

impl Wake for Semaphore {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

/// Creates a channel, and the number of its signals.
fn channel() -> (Arc<Channel<u32>>, Arc<AtomicUsize>) {
    let signals = Arc::new(AtomicUsize::new(0));
    (Arc::new(Channel::new(Box::new(Semaphore(signals.clone())))), signals)
}

/// Spawns a thread that appends an event.
fn spawn_pusher(channel: &Arc<Channel<u32>>, event: u32) -> thread::JoinHandle<()> {
    let channel = channel.clone();
    thread::spawn(move || channel.push(event))
}

/// A thread that finds the descriptor readable gets an event, and there is one signal for each event that is left.
#[test]
fn a_signal_finds_its_event() {
    loom::model(|| {
        let (channel, signals) = channel();
        let pushers = [spawn_pusher(&channel, 1), spawn_pusher(&channel, 2)];
        let mut taken = 0;
        if signals.load(Ordering::Acquire) > 0 {
            assert!(channel.try_next().is_some());
            taken += 1;
        }
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        assert_eq!(signals.load(Ordering::Acquire), 2 - taken);
    });
}

/// Threads take events without waiting for the signal.
#[test]
fn each_event_goes_to_one_of_two() {
    loom::model(|| {
        let (channel, signals) = channel();
        let pusher = spawn_pusher(&channel, 1);
        let other = channel.clone();
        let other = thread::spawn(move || other.try_next().is_some());
        let taken = usize::from(channel.try_next().is_some()) + usize::from(other.join().unwrap());
        pusher.join().unwrap();
        let left = usize::from(channel.try_next().is_some());
        assert_eq!((taken + left, signals.load(Ordering::Acquire)), (1, 0));
    });
}

#[test]
fn revoke_against_next() {
    loom::model(|| {
        let (channel, signals) = channel();
        let pusher = spawn_pusher(&channel, 2);
        channel.push(1);
        let other = channel.clone();
        let other = thread::spawn(move || usize::from(other.try_next().is_some()));
        let revoked = channel.revoke(|&event| event == 1);
        let taken = other.join().unwrap();
        pusher.join().unwrap();
        assert_eq!(signals.load(Ordering::Acquire), 2 - revoked - taken);
    });
}
