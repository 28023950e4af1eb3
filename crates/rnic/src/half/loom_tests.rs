//! Model checks of the halves with loom, which runs every interleaving of the threads. Items of work are relaxed flags,
//! so that nothing but the half itself makes them visible to its holder. `lock.rs` asserts that there are never two
//! holders.

use super::*;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// A half, and items of work for it.
struct Items<const N: usize> {
    /// Whether each item was posted.
    posted: [AtomicBool; N],
    /// How often each item was taken.
    half: Half<[u32; N]>,
    /// Maximum number of rounds of one call of `run`.
    rounds: usize,
}

impl<const N: usize> Items<N> {
    fn new(rounds: usize) -> Arc<Self> {
        let posted = std::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(Self { posted, half: Half::new([0; N]), rounds })
    }

    /// Posts an item, then drives the half as the doorbell does and, if work is left, as a lane does.
    fn post(&self, item: usize, share: usize) {
        self.posted[item].store(true, Ordering::Relaxed);
        self.drive(share);
    }

    /// Runs the half until no work is left.
    fn drive(&self, share: usize) {
        while self.half.run(self.rounds, |taken| self.round(taken, share)) == Left::Work {}
    }

    /// Takes at most `share` items. Returns whether some may be left.
    fn round(&self, taken: &mut [u32; N], share: usize) -> Left {
        for _ in 0..share {
            let is_new = |&item: &usize| taken[item] == 0 && self.posted[item].load(Ordering::Relaxed);
            let Some(item) = (0..N).find(is_new) else { return Left::Nothing };
            taken[item] += 1;
        }
        Left::Work
    }

    fn assert_all_taken(&self) {
        assert_eq!(self.half.with(|taken| *taken), ([1; N], Left::Nothing));
    }
}

/// Spawns a thread for each item from `from` on, which posts it.
fn spawn_posts<const N: usize>(items: &Arc<Items<N>>, from: usize, share: usize) -> Vec<JoinHandle<()>> {
    let post = |item| {
        let items = Arc::clone(items);
        thread::spawn(move || items.post(item, share))
    };
    (from..N).map(post).collect()
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread panicked"));
}

#[test]
fn two_post() {
    loom::model(|| {
        let items = Items::<2>::new(ROUNDS);
        let others = spawn_posts(&items, 1, 2);
        items.post(0, 2);
        join(others);
        items.assert_all_taken();
    });
}

#[test]
fn three_post() {
    loom::model(|| {
        let items = Items::<3>::new(ROUNDS);
        let others = spawn_posts(&items, 1, 3);
        items.post(0, 3);
        join(others);
        items.assert_all_taken();
    });
}

/// A round that takes fewer items than are posted must not hide items of other threads.
fn take_one_item_in_each_round(rounds: usize) {
    loom::model(move || {
        let items = Items::<2>::new(rounds);
        let others = spawn_posts(&items, 1, 1);
        items.post(0, 1);
        join(others);
        items.assert_all_taken();
    });
}

#[test]
fn rounds_take_one_item_each() {
    take_one_item_in_each_round(ROUNDS);
}

#[test]
fn turns_take_one_item_each() {
    take_one_item_in_each_round(TURN);
}

#[test]
fn control_among_posts() {
    loom::model(|| {
        let items = Items::<2>::new(ROUNDS);
        let others = spawn_posts(&items, 0, 2);
        let ((), left) = items.half.with(|_| ());
        if left == Left::Work {
            items.drive(2);
        }
        join(others);
        items.assert_all_taken();
    });
}
