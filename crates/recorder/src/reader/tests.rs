//! Reads what this process records, and what nobody would record.

use super::*;
use crate::{RECORDS, file, last_events, record, start};
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::{Barrier, Mutex};

/// Number of events that a ring keeps.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const KEPT: u32 = RECORDS as u32;

/// Held by tests that use many rings, of which there is one set per process.
static MANY: Mutex<()> = Mutex::new(());

/// Starts the recorder, and returns what it has recorded of a queue pair, from the file.
fn recorded(qp: u32) -> Vec<Event> {
    let ours: Vec<_> = of_process(std::process::id()).collect();
    let [ours] = &ours[..] else { panic!("{} recordings of this process", ours.len()) };
    assert_eq!(ours.running, Some(true));
    ours.events.iter().filter(|event| event.qp == qp).cloned().collect()
}

#[test]
fn events_are_read_while_the_process_runs() {
    start().unwrap();
    let before = clock::nanoseconds();
    record(3, 0x0100_0123, 7);
    record(4, 0x123, u32::MAX);
    let events = recorded(0x123);
    let numbers: Vec<_> = events.iter().map(|event| (event.kind, event.argument)).collect();
    assert_eq!(numbers, [(3, 7), (4, u32::MAX)]);
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    assert!(events.iter().all(|event| event.thread == thread && !event.thread_name.is_empty()));
    for event in &events {
        // Two clocks, of which one was calibrated by the other over a short time.
        let late = i128::from(event.time.unwrap()) - i128::from(before);
        assert!((-50_000_000..60_000_000_000).contains(&late), "{late} ns");
    }
    assert_eq!(last_events(0x123, 9).len(), 2);
    assert_eq!(last_events(0x123, 1)[0].kind, 4);
    assert!(last_events(0x124, 9).is_empty());
}

#[test]
fn a_ring_keeps_the_newest() {
    start().unwrap();
    let count = KEPT * 2 + 5;
    (0..count).for_each(|number| record(1, 0x200, number));
    let arguments: Vec<_> = recorded(0x200).iter().map(|event| event.argument).collect();
    // One less than there is room for: the slot of the next one may be half written.
    let expected: Vec<_> = (count + 1 - KEPT..count).collect();
    assert_eq!(arguments, expected);
}

#[test]
fn threads_have_rings_of_their_own_and_leave_them_to_others() {
    let _many = MANY.lock().unwrap();
    start().unwrap();
    // More than there are rings, one after the other.
    for round in 0..5 {
        let barrier = Barrier::new(20);
        std::thread::scope(|scope| {
            for thread in 0..20 {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    (0..100).for_each(|number| record(1, 0x300 + round, thread << 8 | number));
                });
            }
        });
        let events = recorded(0x300 + round);
        let distinct: BTreeSet<_> = events.iter().map(|event| event.argument).collect();
        assert_eq!((events.len(), distinct.len()), (2000, 2000), "round {round}");
        let threads: BTreeSet<_> = events.iter().map(|event| event.thread).collect();
        assert!((1..=20).contains(&threads.len()), "some may have ended before others began");
        for thread in threads.into_iter().filter(|thread| *thread != 0) {
            let of_thread = events.iter().filter(|event| event.thread == thread);
            assert_eq!(of_thread.map(|event| event.argument >> 8).collect::<BTreeSet<_>>().len(), 1);
        }
    }
}

#[test]
fn more_threads_than_rings_share_one() {
    let _many = MANY.lock().unwrap();
    start().unwrap();
    let barrier = Barrier::new(RINGS + 10);
    std::thread::scope(|scope| {
        for _ in 0..RINGS + 10 {
            scope.spawn(|| {
                record(1, 0x400, 1);
                barrier.wait();
                record(2, 0x400, 2);
                barrier.wait();
            });
        }
    });
    let events = recorded(0x400);
    assert!(events.len() >= RINGS, "{} events", events.len());
    assert!(events.iter().any(|event| &*event.thread_name == "other threads"));
}

#[test]
fn only_the_user_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    start().unwrap();
    let metadata = fs::metadata(file().unwrap()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.len()), (0o600, FILE_LEN as u64));
    let directory = fs::metadata(file().unwrap().parent().unwrap()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
}

/// A runtime directory of its own for a test.
fn directory(name: &str) -> (std::path::PathBuf, Directory) {
    let parent = std::env::temp_dir().join(format!("recorder-reader-{}-{name}", std::process::id()));
    fs::create_dir(&parent).unwrap();
    let place = Place::of(geteuid().as_raw(), Some(parent.as_os_str())).remove(0);
    let directory = place.open(true).unwrap();
    (parent, directory)
}

/// Writes the file of a process that is dead, whose last event has this time.
fn leave_file(directory: &Directory, process: u32, time: u64) -> std::path::PathBuf {
    let header = Header { process, started: 1, ..Header::of_this_process() };
    let mut bytes = header.to_bytes();
    bytes.resize(FILE_LEN, 0);
    bytes[HEADER_LEN..][..8].copy_from_slice(&(RECORD_LEN as u64).to_le_bytes());
    bytes[HEADER_LEN + RING_HEADER_LEN..][..8].copy_from_slice(&(header.ticks + time).to_le_bytes());
    let (file, path) = directory.create(process).unwrap();
    drop(file);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_of_dead_processes_are_pruned_the_oldest_first() {
    let (parent, directory) = directory("prune");
    // The last are of the future, which makes them the newest, but none of them runs.
    let paths: Vec<_> =
        (0..12).map(|number| leave_file(&directory, 4_000_000 + number, u64::from(number) * 1000)).collect();
    let running = directory.create(std::process::id() + 1).unwrap().1;
    let header = Header { namespace: 1, process: std::process::id() + 1, ..Header::of_this_process() };
    let mut bytes = header.to_bytes();
    bytes.resize(FILE_LEN, 0);
    fs::write(&running, bytes).unwrap();
    let stranger = parent.join("ironwarp/4000000-note.txt");
    fs::write(&stranger, "kept").unwrap();
    prune(&directory);
    let left: Vec<_> = paths.iter().map(|path| path.exists()).collect();
    let expected: Vec<_> = (0..12).map(|number| number >= 12 - (MAX_DEAD - 1)).collect();
    assert_eq!(left, expected);
    assert!(running.exists() && stranger.exists(), "a process that may run, and a file that is no recording");
    fs::remove_dir_all(parent).unwrap();
}

#[test]
fn a_file_left_by_the_program_before_is_replaced() {
    let (parent, directory) = directory("exec");
    let (_, path) = directory.create(std::process::id()).unwrap();
    let mut bytes = Header::of_this_process().to_bytes();
    bytes.resize(FILE_LEN, 0);
    fs::write(&path, &bytes).unwrap();
    prune(&directory);
    assert!(!path.exists());
    fs::remove_dir_all(parent).unwrap();
}

#[test]
fn a_file_without_a_header_is_pruned_unless_its_process_exists() {
    let (parent, directory) = directory("unreadable");
    let own = format!("{}-00000000.events", std::process::id()); // as of another version, whose length differs
    let [abandoned, recent, link] =
        ["5000000-00000000.events", "5000001-00000000.events", "5000002-00000000.events"];
    let path = |name: &str| parent.join("ironwarp").join(name);
    for name in [&own, abandoned, recent] {
        fs::write(path(name), "").unwrap();
    }
    symlink("nowhere", path(link)).unwrap();
    let past = Timespec { tv_sec: 0, tv_nsec: 0 };
    let times = Timestamps { last_access: past, last_modification: past };
    for name in [&own, abandoned, link] {
        rustix::fs::utimensat(CWD, path(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    prune(&directory);
    let left: BTreeSet<_> = directory.names().unwrap().into_iter().collect();
    assert_eq!(left, BTreeSet::from([&own, recent, link].map(str::to_owned)));
    fs::remove_dir_all(parent).unwrap();
}

#[test]
fn a_file_of_another_process_or_length_is_refused() {
    let (parent, directory) = directory("length");
    let path = leave_file(&directory, 4_000_001, 0);
    let name = path.file_name().unwrap().to_str().unwrap();
    assert_eq!(read(&directory, name).unwrap().events.len(), 1);
    fs::rename(&path, path.with_file_name("4000002-00000000.events")).unwrap();
    read(&directory, "4000002-00000000.events").unwrap_err();
    let bytes = fs::read(path.with_file_name("4000002-00000000.events")).unwrap();
    for bytes in [&bytes[..FILE_LEN - 1], &[&bytes[..], &[0]].concat()] {
        fs::write(&path, bytes).unwrap();
        read(&directory, name).unwrap_err();
    }
    fs::remove_dir_all(parent).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Whatever a file contains, it is read without a panic, and into no more events than a file has room for.
    #[test]
    fn any_bytes_can_be_read(
        seed in any::<u64>(),
        heads in prop::collection::vec(any::<u64>(), RINGS),
        ticks in any::<u64>(),
        nanoseconds in any::<u64>(),
        len in 0..=FILE_LEN,
    ) {
        let header = Header { ticks, nanoseconds, ..Header::of_this_process() };
        let mut bytes = header.to_bytes();
        let mut state = seed | 1;
        while bytes.len() < FILE_LEN {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend(state.to_le_bytes());
        }
        bytes.truncate(FILE_LEN);
        for (ring, head) in heads.iter().enumerate() {
            bytes[HEADER_LEN + ring * RING_LEN..][..8].copy_from_slice(&head.to_le_bytes());
        }
        for bytes in [&bytes[..], &bytes[..len]] {
            if let Some(recording) = parse(bytes) {
                prop_assert!(recording.events.len() <= RINGS * RECORDS);
                prop_assert!(recording.events.is_sorted_by_key(|event| event.ticks));
            }
        }
        prop_assert_eq!(parse(&bytes[1..]), None);
    }
}

#[test]
fn events_that_were_overwritten_meanwhile_are_left_out() {
    let header = Header::of_this_process();
    let mut ring = vec![0; RING_LEN];
    let full = (RECORDS * RECORD_LEN) as u64;
    ring[..8].copy_from_slice(&full.to_le_bytes());
    let count = |added: u64| {
        let mut events = Vec::new();
        Snapshot::now(&header).read_ring(&ring, full + added * RECORD_LEN as u64, &mut events);
        events.len()
    };
    assert_eq!(
        (count(0), count(1), count(2), count(3)),
        (RECORDS - 1, RECORDS - 2, RECORDS - 3, RECORDS - 4)
    );
    assert_eq!((count(RECORDS as u64 - 1), count(RECORDS as u64), count(u64::MAX >> 5)), (0, 0, 0));
}
