//! Every order of events. Items are relaxed flags, so that nothing but the half itself makes them visible to its holder.
//! That there are never two holders is asserted in `lock.rs`.

use super::*;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// A half, and a flag for each item that is posted.
struct Items<const N: usize> {
    posted: [AtomicBool; N],
    half: Half<[u32; N]>,
    /// How often a thread goes round.
    rounds: usize,
}

impl<const N: usize> Items<N> {
    fn new(rounds: usize) -> Arc<Self> {
        let posted = std::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(Self { posted, half: Half::new([0; N]), rounds })
    }

    /// Posts an item, then does what the doorbell and, if something is left, a lane would do.
    fn post(&self, item: usize, share: usize) {
        self.posted[item].store(true, Ordering::Relaxed);
        self.drive(share);
    }

    fn drive(&self, share: usize) {
        while self.half.run(self.rounds, |taken| self.round(taken, share)) == Left::Work {}
    }

    /// Takes at most `share` items.
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

fn spawn_posts<const N: usize>(items: &Arc<Items<N>>, from: usize, share: usize) -> Vec<JoinHandle<()>> {
    let post = |item| {
        let items = Arc::clone(items);
        thread::spawn(move || items.post(item, share))
    };
    (from..N).map(post).collect()
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("it passed"));
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

/// A round that stops early must not hide what others published.
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
