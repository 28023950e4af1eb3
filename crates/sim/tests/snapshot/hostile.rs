//! Snapshots that a hostile process made: each is refused, or harms nothing but its own connections.

use super::function::{Function, SCENES};
use super::{GOLDEN, Refused, load};
use ironwarp_rnic::memory::{KeyMask, TableError};
use ironwarp_rnic::snapshot::{Snapshot, SnapshotError};
use std::fs;

/// Position of the memory table: after magic number, version and the number of the next protection domain.
const TABLE: usize = 7;
/// Positions in the table: the end of its slots, two bytes; the next slot; and the free indices, four bytes each.
const END_SLOT: usize = TABLE + 17;
const NEXT_SLOT: usize = TABLE + 19;
const FREE: usize = TABLE + 24;

/// Returns the golden snapshot with these bytes at this position.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut snapshot = GOLDEN.to_vec();
    snapshot[at..at + bytes.len()].copy_from_slice(bytes);
    snapshot
}

#[test]
fn a_snapshot_that_is_cut_short_is_refused() {
    let arena = Function::new(&[]).arena;
    for len in 0..GOLDEN.len() {
        assert!(load(&GOLDEN[..len], &arena).is_err(), "{len} bytes");
    }
    let longer = [GOLDEN, &[0]].concat();
    assert_eq!(Snapshot::decode(&longer).unwrap_err(), SnapshotError::Trailing(1));
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    assert_eq!(Snapshot::decode(&with(4, &[0, 2])).unwrap_err(), SnapshotError::Version(2));
    assert_eq!(Snapshot::decode(&with(0, b"IWFM")).unwrap_err(), SnapshotError::Magic);
}

/// What is accepted can be driven: only the connection suffers that the damage belongs to.
#[test]
fn a_snapshot_with_a_damaged_byte_is_refused_or_harmless() {
    let arena = Function::new(&SCENES).arena;
    let mut accepted = 0;
    for (at, byte) in GOLDEN.iter().enumerate() {
        for flip in [0x01, 0xff] {
            if let Ok(loaded) = load(&with(at, &[byte ^ flip]), &arena) {
                loaded.drive(&arena);
                accepted += 1;
            }
        }
    }
    assert!(accepted > 100, "only {accepted} were driven");
}

/// Lengths and sizes are not believed: no memory is allocated for them before the elements were read.
#[test]
fn huge_lengths_allocate_nothing() {
    const MAX_GROWTH: u64 = 512 << 10; // KiB
    let peak = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
    };
    let arena = Function::new(&SCENES).arena;
    let before = peak();
    for huge in [[0xff_u8, 0xff, 0xff, 0xff, 0x0f].as_slice(), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        for at in NEXT_SLOT + 1..GOLDEN.len() {
            let (front, back) = GOLDEN.split_at(at);
            if let Ok(loaded) = load(&[front, huge, &back[1..]].concat(), &arena) {
                loaded.drive(&arena);
            }
        }
    }
    let growth = peak() - before;
    assert!(growth < MAX_GROWTH, "{growth} KiB were allocated");
}

/// Returns the golden snapshot after a change to its objects, stored again.
fn changed(change: impl FnOnce(&mut Snapshot, Snapshot)) -> Result<Snapshot, SnapshotError> {
    let mut snapshot = Snapshot::decode(GOLDEN).unwrap();
    change(&mut snapshot, Snapshot::decode(GOLDEN).unwrap());
    let device = Function::new(&[]).device;
    Snapshot::decode(
        &device.snapshot(&snapshot.cqs, &snapshot.srqs, &snapshot.qps, KeyMask::default()).unwrap(),
    )
}

#[test]
fn objects_that_others_name_must_exist() {
    assert!(changed(|_, _| ()).is_ok());
    let refused = |kind, id| Some(SnapshotError::Inconsistent { kind, id });
    let without_cq = changed(|snapshot, _| drop(snapshot.cqs.remove(0)));
    assert_eq!(without_cq.err(), refused("queue pair", 1));
    let without_second_cq = changed(|snapshot, _| drop(snapshot.cqs.remove(1)));
    assert_eq!(without_second_cq.err(), refused("shared receive queue", 2));
    let without_srq = changed(|snapshot, _| drop(snapshot.srqs.remove(0)));
    assert_eq!(without_srq.err(), refused("queue pair", 3));
    let without_xrc = changed(|snapshot, _| drop(snapshot.srqs.remove(1)));
    assert_eq!(without_xrc.err(), refused("queue pair", 5));
}

#[test]
fn no_two_objects_have_the_same_number() {
    let refused = |kind, id| Some(SnapshotError::Inconsistent { kind, id });
    let cqs = changed(|snapshot, mut other| snapshot.cqs.push(other.cqs.remove(1)));
    assert_eq!(cqs.err(), refused("completion queue", 2));
    let srqs = changed(|snapshot, mut other| snapshot.srqs.push(other.srqs.remove(0)));
    assert_eq!(srqs.err(), refused("shared receive queue", 1));
    let qps = changed(|snapshot, mut other| snapshot.qps.push(other.qps.remove(6)));
    assert_eq!(qps.err(), refused("queue pair", 7));
}

#[test]
fn memory_that_was_not_carried_over_is_refused() {
    let arena = Function::new(&[]).arena;
    // The address of the memory, 2^40, as a number of seven bits per byte.
    let address = [0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
    let positions: Vec<_> = GOLDEN.windows(6).enumerate().filter(|(_, bytes)| **bytes == address).collect();
    let refused = |at: usize| match load(&with(at + 5, &[0x40]), &arena) {
        Err(Refused::Table(TableError::NotCarried(error)) | Refused::NotCarried(error)) => {
            assert_eq!(error.addr, 1 << 41);
            true
        }
        _ => false,
    };
    let count = positions.iter().filter(|(at, _)| refused(*at)).count();
    assert!(count >= 2, "an entry of the table, and a request that registers memory: {count}");
}

#[test]
fn indices_are_used_once_and_within_the_slice() {
    let arena = Function::new(&[]).arena;
    let inconsistent =
        |bytes: &[u8]| matches!(load(bytes, &arena), Err(Refused::Table(TableError::Inconsistent)));
    assert!(inconsistent(&with(END_SLOT, &[0x83, 0])), "more slots are used than there are");
    assert!(inconsistent(&with(NEXT_SLOT, &[GOLDEN[NEXT_SLOT] - 1])), "an entry is outside");
    assert!(inconsistent(&with(NEXT_SLOT, &[GOLDEN[NEXT_SLOT] + 1])), "a slot is neither used nor retired");
    let first: [u8; 4] = GOLDEN[FREE..FREE + 4].try_into().unwrap();
    assert!(inconsistent(&with(FREE + 4, &first)), "an index is free twice");
    assert!(inconsistent(&with(FREE, &[first[0] ^ 1])), "an index is free and used");
}
