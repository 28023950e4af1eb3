//! Loom tests of the memory table: all interleavings of accesses, revocations and other changes.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p ironwarp-rnic --release -- loom`
//!
//! The memory itself is a cell whose accesses loom tracks. A test fails if two accesses are concurrent and one of them
//! is a write, or if a write is not ordered after an earlier access.
//!
//! loom's reader-writer lock cannot be locked twice by one thread: `src/memory/tests/threads.rs` has the test of a thread
//! with two guards.
#![cfg(loom)]

use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::memory::{
    Binding, Bytes, Check, DeregisterError, Domain, Limits, Memory, Reregistration, Rights, Scope, Spans,
    Stream, Table, TagCipher, Touch, next_tag,
};
use ironwarp_wire::{RemoteAddr, Tag};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::sync::LazyLock;

const HOME: Domain = Domain(1);
const STREAM: Stream = Stream { domain: HOME, qp: 7 };
/// The address of the memory that is registered first.
const OLD: u64 = 0x1000;
/// The address of other memory.
const NEW: u64 = 0x2000;
/// Created once for all runs, because creating it takes longer than a run.
static CIPHER: LazyLock<std::sync::Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));

#[derive(Debug)]
struct AllMapped;

impl Host for AllMapped {
    fn gather(&self, _: &[Span], _: &mut [u8]) -> Result<(), Unmapped> {
        Ok(())
    }

    fn scatter(&self, _: &[u8], _: &[Span]) -> Result<(), Unmapped> {
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

/// A table, and the cell that stands for the memory at `OLD`.
struct World {
    table: Table,
    cell: UnsafeCell<()>,
}

/// Runs a model. The cipher is created first: that needs more stack than loom's threads have.
fn model(test: impl Fn() + Sync + Send + 'static) {
    LazyLock::force(&CIPHER);
    loom::model(test);
}

fn world(entries: usize) -> Arc<World> {
    world_within(Limits::new(entries))
}

fn world_within(limits: Limits) -> Arc<World> {
    let table = Table::new(limits, std::sync::Arc::clone(&CIPHER));
    Arc::new(World { table, cell: UnsafeCell::new(()) })
}

fn memory(addr: u64) -> Memory {
    let rights = Rights::LOCAL_READ | Rights::REMOTE_READ | Rights::BIND;
    Memory { start: 0, ..Memory::direct(addr, 8, rights).expect("valid memory") }
}

impl World {
    fn register(&self, addr: u64) -> Tag {
        self.table.register(&AllMapped, HOME, memory(addr)).expect("free entry")
    }

    /// Registers the memory at `OLD` as by a send-queue request.
    fn allocate_and_fill(&self) -> Tag {
        let tag = self.table.allocate(HOME).expect("free entry");
        self.table.fill(&AllMapped, STREAM, tag, memory(OLD)).expect("an idle entry");
        tag
    }

    /// Accesses memory as a stream does: check, read, drop the guard. `tag` must be invalid or name the memory at
    /// `OLD`.
    fn use_old(&self, tag: Tag) {
        let mut spans = Spans::new();
        let addr = RemoteAddr { tag, offset: 0 };
        if let Ok(guard) = self.table.admit_remote(
            STREAM,
            addr,
            8,
            Rights::REMOTE_READ,
            &mut spans,
            &mut Touch::for_request(),
        ) {
            assert_eq!(*spans, [Span::new(OLD, 8)]);
            self.cell.with(|_| ());
            drop(guard);
        }
    }

    /// Writes the memory at `OLD`, as a program may after deregistering it.
    fn reuse_memory(&self) {
        self.cell.with_mut(|_| ());
    }

    /// Describes a binding to a whole region.
    fn binding(&self, region: Tag) -> Binding {
        Binding {
            region,
            at: 0,
            len: 8,
            rights: Rights::REMOTE_READ,
            one_touch: false,
            zero_based: true,
            scope: Scope::Stream,
        }
    }
}

fn spawn(world: &Arc<World>, action: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || action(&world))
}

#[test]
fn loom_deregistration_is_final() {
    model(|| {
        let world = world(1);
        let tag = world.register(OLD);
        let readers = [(); 2].map(|()| spawn(&world, move |world| world.use_old(tag)));
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn loom_an_old_tag_never_leads_to_new_memory() {
    model(|| {
        let world = world(1);
        let tag = world.register(OLD);
        let reader = spawn(&world, move |world| {
            world.use_old(tag);
            world.use_old(tag);
        });
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        let new = world.register(NEW);
        assert_eq!(new, next_tag(tag), "the test relies on the same index");
        reader.join().unwrap();
    });
}

#[test]
fn loom_a_new_binding_ends_the_old_one() {
    model(|| {
        let world = world(3);
        let (old, new) = (world.register(OLD), world.register(NEW));
        let window = world.table.allocate_window(HOME).unwrap();
        let window = world.table.bind(STREAM, window, world.binding(old)).unwrap();
        let reader = spawn(&world, move |world| world.use_old(window));
        world.table.bind(STREAM, window, world.binding(new)).unwrap();
        world.reuse_memory();
        reader.join().unwrap();
        world.table.deregister(old).unwrap();
    });
}

#[test]
fn loom_a_peer_invalidates_while_the_program_deregisters() {
    model(|| {
        let world = world(1);
        let tag = world.allocate_and_fill();
        let reader = spawn(&world, move |world| world.use_old(tag));
        let peer = spawn(&world, move |world| {
            if let Err(denied) = world.table.invalidate_remotely(STREAM, tag) {
                assert_eq!(denied.check, Check::Valid);
            }
        });
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        assert!(world.table.is_empty());
        for thread in [reader, peer] {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_a_tag_is_given_back_once() {
    model(|| {
        let world = world(1);
        let tag = world.register(OLD);
        let other = spawn(&world, move |world| {
            let result = world.table.deregister(tag);
            assert!(matches!(result, Ok(()) | Err(DeregisterError::Unknown(_))));
        });
        let result = world.table.deregister(tag);
        other.join().unwrap();
        assert!(matches!(result, Ok(()) | Err(DeregisterError::Unknown(_))));
        assert!(world.table.is_empty());
        assert_eq!(world.register(NEW), next_tag(tag));
        assert!(world.table.allocate(HOME).is_err());
    });
}

#[test]
fn loom_a_region_does_not_go_from_under_a_window() {
    model(|| {
        let world = world(2);
        let region = world.register(OLD);
        let window = world.table.allocate_window(HOME).unwrap();
        let binder = spawn(&world, move |world| {
            match world.table.bind(STREAM, window, world.binding(region)) {
                Ok(bound) => {
                    // No other thread unbinds the window.
                    assert_eq!(
                        world.table.deregister(region),
                        Err(DeregisterError::Busy { tag: region, windows: 1 })
                    );
                    world.use_old(bound);
                }
                Err(denied) => assert_eq!(denied.check, Check::Valid),
            }
        });
        if world.table.deregister(region).is_ok() {
            world.reuse_memory();
        }
        binder.join().unwrap();
    });
}

#[test]
fn loom_windows_of_one_region_come_and_go_together() {
    model(|| {
        let world = world(3);
        let region = world.register(OLD);
        let windows = [(); 2].map(|()| world.table.allocate_window(HOME).unwrap());
        let threads = windows.map(|window| {
            spawn(&world, move |world| {
                let bound = world.table.bind(STREAM, window, world.binding(region)).unwrap();
                world.table.invalidate(STREAM, bound).unwrap();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        world.table.deregister(region).unwrap();
    });
}

#[test]
fn loom_reregistration_is_final() {
    model(|| {
        let world = world(2);
        let tag = world.register(OLD);
        let reader = spawn(&world, move |world| {
            world.use_old(tag);
            world.use_old(tag);
        });
        let Memory { start, len, translation, .. } = memory(NEW);
        let bytes = Some(Bytes { start, len, translation });
        let to = Reregistration { bytes, ..Reregistration::default() };
        let new = world.table.reregister(&AllMapped, tag, to).unwrap();
        world.reuse_memory();
        reader.join().unwrap();
        assert!(world.table.look_up(tag).is_none() && world.table.look_up(new).is_some());
    });
}

// --- One-touch ---

impl World {
    fn one_touch_memory() -> Memory {
        Memory { rights: Rights::LOCAL_READ | Rights::REMOTE_READ, one_touch: true, ..memory(OLD) }
    }

    /// Processes a remote message of one segment. Two such messages must exclude each other, so the access counts as a
    /// write for loom.
    fn process_message(&self, tag: Tag) -> Result<(), Check> {
        let (mut spans, mut touch) = (Spans::new(), Touch::for_request());
        let addr = RemoteAddr { tag, offset: 0 };
        let guard = self.table.admit_remote(STREAM, addr, 8, Rights::REMOTE_READ, &mut spans, &mut touch);
        let guard = guard.map_err(|denied| denied.check)?;
        self.cell.with_mut(|_| ());
        drop(guard);
        assert!(touch.is_complete());
        self.table.end_touch(touch);
        Ok(())
    }
}

#[test]
fn loom_one_of_two_messages_touches() {
    model(|| {
        let world = world(1);
        let tag = world.table.register(&AllMapped, HOME, World::one_touch_memory()).unwrap();
        let other = Arc::clone(&world);
        let other = thread::spawn(move || other.process_message(tag));
        let results = [world.process_message(tag), other.join().unwrap()];
        let refused = |result: &Result<(), Check>| matches!(result, Err(Check::Touched | Check::Valid));
        assert!(results.contains(&Ok(())) && results.iter().any(refused), "{results:?}");
        assert!(!world.table.look_up(tag).unwrap().valid);
        world.table.deregister(tag).unwrap();
    });
}

#[test]
fn loom_a_message_touches_while_the_program_deregisters() {
    model(|| {
        let world = world(1);
        let tag = world.table.register(&AllMapped, HOME, World::one_touch_memory()).unwrap();
        let peer = spawn(&world, move |world| {
            let result = world.process_message(tag);
            assert!(matches!(result, Ok(()) | Err(Check::Valid | Check::Instance)), "{result:?}");
        });
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        let new = world.register(NEW);
        assert_eq!(new, next_tag(tag), "the test relies on the same index");
        peer.join().unwrap();
        assert!(world.table.look_up(new).unwrap().valid, "the end of the message ended other memory");
    });
}

#[test]
fn loom_a_second_message_comes_while_the_program_deregisters() {
    model(|| {
        let world = world(1);
        let tag = world.table.register(&AllMapped, HOME, World::one_touch_memory()).unwrap();
        let peers = [(); 2].map(|()| {
            spawn(&world, move |world| {
                let _ = world.process_message(tag);
            })
        });
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        for peer in peers {
            peer.join().unwrap();
        }
        assert!(world.table.is_empty());
    });
}

#[test]
fn loom_a_window_is_touched_while_its_region_wants_to_go() {
    model(|| {
        let world = world(2);
        let region = world.register(OLD);
        let window = world.table.allocate_window(HOME).unwrap();
        let once = Binding { one_touch: true, ..world.binding(region) };
        let window = world.table.bind(STREAM, window, once).unwrap();
        let peer = spawn(&world, move |world| world.process_message(window).unwrap());
        match world.table.deregister(region) {
            Ok(()) => world.reuse_memory(),
            Err(error) => assert_eq!(error, DeregisterError::Busy { tag: region, windows: 1 }),
        }
        peer.join().unwrap();
    });
}

/// A request whose access fails any check but `Check::Pending` fails for good. An access that races with the end of a
/// registration must therefore never fail `Check::Valid` (requirement X6).
#[test]
fn loom_an_access_is_admitted_or_deferred_while_a_registration_ends() {
    model(|| {
        let world = world(1);
        let tag = world.table.begin_registration(HOME).unwrap();
        let request = spawn(&world, move |world| {
            match world.table.admit_local(HOME, tag, 0, 8, Rights::LOCAL_READ, &mut Spans::new()) {
                Ok(_) => {}
                Err(denied) => assert_eq!(denied.check, Check::Pending),
            }
        });
        world.table.finish_registration(HOME, tag, memory(OLD), Ok(())).unwrap();
        request.join().unwrap();
    });
}

/// The storage of a retired index is given to another, while a thread looks the old tag up (requirement M4).
#[test]
fn loom_storage_of_a_retired_index_changes_hands() {
    model(|| {
        let world = world_within(Limits { instances: 1, ..Limits::new(1) });
        let tag = world.register(OLD);
        let reader = spawn(&world, move |world| world.use_old(tag));
        world.table.deregister(tag).unwrap();
        world.reuse_memory();
        // A chunk has two entries under loom: when both are retired, the next index gets the storage of the first.
        let second = world.register(NEW);
        world.table.deregister(second).unwrap();
        let third = world.register(NEW);
        assert_eq!(world.table.look_up(tag), None);
        world.table.look_up(third).expect("registered");
        reader.join().unwrap();
    });
}

/// A binding moves a window to another index, while a thread uses the old tag and another looks for the window.
#[test]
fn loom_a_window_moves_to_another_index() {
    model(|| {
        let world = world_within(Limits { instances: 2, ..Limits::new(3) });
        let (old, new) = (world.register(OLD), world.register(NEW));
        let window = world.table.allocate_window(HOME).unwrap();
        let window = world.table.bind(STREAM, window, world.binding(old)).unwrap();
        let next = world.table.reserve_next_tag(window).unwrap();
        let reader = spawn(&world, move |world| world.use_old(window));
        let seeker = spawn(&world, move |world| {
            let found = world.table.current_tag(next);
            assert!(found == Some(window) || found == Some(next), "{found:?}");
        });
        assert_eq!(world.table.bind(STREAM, window, world.binding(new)), Ok(next));
        world.reuse_memory();
        reader.join().unwrap();
        seeker.join().unwrap();
    });
}
