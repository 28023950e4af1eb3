//! Guards and revocation with real threads: a stress test. `tests/loom_memory.rs` tries every order of
//! events.

use super::super::{Binding, Bytes, Reregistration, Scope};
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

const ROUNDS: usize = 2_000;
const READERS: usize = 2;
const READ: Rights = Rights::REMOTE_READ;

/// What the threads know about the memory of one round. Each round uses another address.
#[derive(Default)]
struct Round {
    revoked: AtomicBool,
    in_use: AtomicU32,
    uses: AtomicU32,
}

/// Stops all threads of a stress test when dropped, so that they end if one of them panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs readers that access the current tag in a tight loop, while this thread creates one tag after another with
/// `open` and revokes it with `close`. Asserts that no tag is in use after it was revoked.
fn stress(table: &Table, open: impl Fn(u64) -> Tag, close: impl Fn(Tag)) {
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| Round::default()).collect();
    let current = AtomicU32::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let _stop = StopOnDrop(&stop);
                while !stop.load(Ordering::Relaxed) {
                    read_once(table, Tag(current.load(Ordering::Relaxed)), &rounds);
                    // There may be more threads than CPUs.
                    thread::yield_now();
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        for (number, round) in rounds.iter().enumerate() {
            let tag = open(ADDR + number as u64 * LEN);
            current.store(tag.0, Ordering::Relaxed);
            while round.uses.load(Ordering::Relaxed) == 0 {
                assert!(!stop.load(Ordering::Relaxed), "a reader failed");
                thread::yield_now();
            }
            close(tag);
            round.revoked.store(true, Ordering::SeqCst);
            assert_eq!(round.in_use.load(Ordering::SeqCst), 0, "revoked while in use");
        }
    });
}

/// Accesses the memory of a tag, if the tag is valid, and asserts that it is not revoked meanwhile.
fn read_once(table: &Table, tag: Tag, rounds: &[Round]) {
    let mut spans = Spans::new();
    let Ok(guard) = table.admit_remote(STREAM, addr(tag, 0), 8, READ, &mut spans, &mut Touch::for_request())
    else {
        return;
    };
    let round = &rounds[usize::try_from((spans[0].addr - ADDR) / LEN).unwrap()];
    round.in_use.fetch_add(1, Ordering::SeqCst);
    round.uses.fetch_add(1, Ordering::Relaxed);
    // A second guard may be refused by now, but taking it never waits.
    let second = table.admit_remote(STREAM, addr(tag, 0), 8, READ, &mut spans, &mut Touch::for_request());
    assert!(!round.revoked.load(Ordering::SeqCst), "used after it was revoked");
    drop(second);
    round.in_use.fetch_sub(1, Ordering::SeqCst);
    drop(guard);
}

fn zero_based(addr: u64) -> Memory {
    let rights = Rights::LOCAL_READ | Rights::BIND | READ;
    Memory { start: 0, ..Memory::direct(addr, LEN, rights).unwrap() }
}

#[test]
fn deregistration_is_final() {
    let table = table();
    stress(
        &table,
        |addr| table.register(&ALL, HOME, zero_based(addr)).unwrap(),
        |tag| table.deregister(tag).unwrap(),
    );
    assert!(table.is_empty());
}

/// The region alternates between memory that peers may access and memory that they may not.
#[test]
fn reregistration_is_final() {
    let table = table();
    let hidden = || Memory { rights: Rights::LOCAL_READ, ..zero_based(0x1000) };
    let region = AtomicU32::new(table.register(&ALL, HOME, hidden()).unwrap().0);
    let becomes = |memory: Memory| {
        let Memory { start, len, rights, translation, .. } = memory;
        let bytes = Some(Bytes { start, len, translation });
        let to = Reregistration { bytes, rights: Some(rights), ..Reregistration::default() };
        let tag = table.reregister(&ALL, Tag(region.load(Ordering::Relaxed)), to).unwrap();
        region.store(tag.0, Ordering::Relaxed);
        tag
    };
    stress(
        &table,
        |addr| becomes(zero_based(addr)),
        |_| {
            becomes(hidden());
        },
    );
    assert_eq!(table.len(), 1);
}

#[test]
fn invalidation_is_final() {
    let table = table();
    stress(
        &table,
        |addr| {
            let tag = table.allocate(HOME).unwrap();
            table.fill(&ALL, STREAM, tag, zero_based(addr)).unwrap();
            tag
        },
        |tag| {
            table.invalidate_remotely(STREAM, tag).unwrap();
            table.deregister(tag).unwrap();
        },
    );
}

#[test]
fn a_new_binding_ends_the_old_one() {
    let table = table();
    let window = AtomicU32::new(table.allocate_window(HOME).unwrap().0);
    let region = AtomicU32::new(0);
    let bind = |region, len| {
        let binding = Binding {
            region,
            at: 0,
            len,
            rights: READ,
            one_touch: false,
            zero_based: true,
            scope: Scope::Stream,
        };
        let bound = table.bind(STREAM, Tag(window.load(Ordering::Relaxed)), binding).unwrap();
        window.store(bound.0, Ordering::Relaxed);
        bound
    };
    stress(
        &table,
        |addr| {
            let tag = table.register(&ALL, HOME, zero_based(addr)).unwrap();
            region.store(tag.0, Ordering::Relaxed);
            bind(tag, LEN)
        },
        |_| {
            bind(Tag(0), 0);
            table.deregister(Tag(region.load(Ordering::Relaxed))).unwrap();
        },
    );
}

#[test]
fn revocation_waits_for_every_guard_of_a_thread() {
    let table = table();
    let tag = register(&table, READ);
    let take =
        || table.admit_remote(STREAM, addr(tag, ADDR), 8, READ, &mut Spans::new(), &mut Touch::for_request());
    let (first, second) = (take().unwrap(), take().unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            table.deregister(tag).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        // Once the deregistration has begun, no guard is granted, and asking does not wait.
        while take().is_ok() {
            thread::yield_now();
        }
        drop(first);
        assert!(!done.load(Ordering::SeqCst));
        drop(second);
    });
    assert_eq!(table.look_up(tag), None);
}

#[test]
fn threads_may_share_a_table() {
    fn is_sync<T: Sync>() {}
    is_sync::<Table>();
}
