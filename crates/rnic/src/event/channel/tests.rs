//! Unit tests of channels, with one thread and with several.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A semaphore whose count can be read.
#[derive(Clone, Debug, Default)]
struct Semaphore(Arc<AtomicUsize>);

impl Wake for Semaphore {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

/// Creates a channel, and a function that returns the number of its signals.
fn channel<E>() -> (Channel<E>, impl Fn() -> usize) {
    let semaphore = Semaphore::default();
    let channel = Channel::new(Box::new(semaphore.clone()));
    (channel, move || semaphore.0.load(Ordering::Relaxed))
}

#[test]
fn events_come_in_order_each_with_its_signal() {
    let (channel, signals) = channel();
    assert_eq!((channel.try_next(), signals()), (None, 0));
    channel.push('a');
    channel.push('b');
    assert_eq!(signals(), 2);
    assert_eq!((channel.try_next(), signals()), (Some('a'), 1));
    assert_eq!((channel.try_next(), signals()), (Some('b'), 0));
    assert_eq!((channel.try_next(), signals()), (None, 0));
}

#[test]
fn events_are_taken_back_with_their_signals() {
    let (channel, signals) = channel();
    for cq in [1, 2, 1, 3] {
        channel.push(cq);
    }
    assert_eq!(channel.revoke(|&event| event == 1), 2);
    assert_eq!(signals(), 2);
    assert_eq!(channel.revoke(|&event| event == 1), 0);
    assert_eq!([channel.try_next(), channel.try_next()], [Some(2), Some(3)]);
    assert_eq!((channel.try_next(), signals()), (None, 0));
}

#[test]
fn each_event_goes_to_one_thread() {
    const EACH: usize = 5_000;
    let (channel, signals) = channel();
    let taken = AtomicUsize::new(0);
    let take = || {
        let mut mine = Vec::new();
        while taken.load(Ordering::Relaxed) < 2 * EACH {
            let before = mine.len();
            mine.extend(channel.try_next());
            taken.fetch_add(mine.len() - before, Ordering::Relaxed);
        }
        mine
    };
    let mut all = thread::scope(|scope| {
        for pusher in 0..2 {
            let channel = &channel;
            scope.spawn(move || (0..EACH).for_each(|event| channel.push(pusher * EACH + event)));
        }
        let takers = [scope.spawn(take), scope.spawn(take)];
        takers.map(|taker| taker.join().unwrap()).concat()
    });
    all.sort_unstable();
    assert!(all.into_iter().eq(0..2 * EACH));
    assert_eq!(signals(), 0);
}
