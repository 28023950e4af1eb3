//! Reads the files of processes, which may be hostile: their user may have written anything into them.

use crate::clock::{self, Calibration};
use crate::directory::{Directory, Place, process_of, read_at};
use crate::header::{Header, boot, exists};
use crate::ring::{
    FILE_LEN, HEADER_LEN, NAME_LEN, RECORD_LEN, RECORDS, RING_HEADER_LEN, RING_LEN, RINGS, position,
};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Maximum number of files of dead processes that are kept in a directory.
const MAX_DEAD: usize = 8;
/// How long a process may take to write the header of its file, in seconds.
const MAX_CREATION: u64 = 60;

/// The events of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording {
    /// The process ID.
    pub process: u32,
    /// The user who owns the file. Only root reads files of others.
    pub user: u32,
    /// The name of the program, in which every character may occur.
    pub program: String,
    /// Whether the process still runs; `None` if it has a PID namespace of its own, so that this is unknown.
    pub running: Option<bool>,
    /// The events, oldest first.
    pub events: Vec<Event>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The time in nanoseconds since 1970; `None` if the machine has restarted since.
    pub time: Option<u64>,
    ticks: u64,
    /// The thread ID; zero for a thread that has ended and whose ring another one uses.
    pub thread: u32,
    /// The name of the thread, in which every character may occur.
    pub thread_name: Arc<str>,
    /// The kind.
    pub kind: u8,
    /// The number of the queue pair.
    pub qp: u32,
    /// The argument.
    pub argument: u32,
}

/// A process that has died and left its file behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dead {
    /// The process ID.
    pub process: u32,
    /// The user who owns the file. Only root reads files of others.
    pub user: u32,
    /// The name of the program, in which every character may occur.
    pub program: String,
}

/// What the times of events are computed from.
#[derive(Debug)]
pub(crate) struct Snapshot {
    calibration: Option<Calibration>,
}

impl Snapshot {
    /// Returns a snapshot at this moment of a process with this header.
    pub(crate) fn now(header: &Header) -> Self {
        let calibration = Calibration {
            ticks: [header.ticks, clock::ticks()],
            nanoseconds: [header.nanoseconds, clock::nanoseconds()],
        };
        let is_same_boot = header.boot == boot() && header.boot != [0; 16];
        Self { calibration: is_same_boot.then_some(calibration) }
    }

    /// Adds the events in the bytes of a ring to `events`. `after` is what its head was after the bytes were read: events
    /// that may have been overwritten meanwhile are left out.
    pub(crate) fn read_ring(&self, ring: &[u8], after: u64, events: &mut Vec<Event>) {
        let Some((header, records)) = ring.split_at_checked(RING_HEADER_LEN) else { return };
        let (Some(head), Some(thread)) = (number(header, 0), word(header, 8)) else { return };
        let name = header.get(16..16 + NAME_LEN).unwrap_or_default();
        let name: Arc<str> = text(name).into();
        let Some(since) = number(header, 32) else { return };
        let ended: Arc<str> = "ended".into();
        let (count, added) = (head / RECORD_LEN as u64, after.saturating_sub(head) / RECORD_LEN as u64);
        // The slot after the newest event may be half written.
        let kept = (RECORDS as u64 - 1).saturating_sub(added).min(count);
        for back in (1..=kept).rev() {
            let before = head.wrapping_sub(back * RECORD_LEN as u64);
            let at = position(before) * RECORD_LEN;
            let (thread, name) = if before < since { (0, &ended) } else { (thread, &name) };
            let Some(record) = records.get(at..at + RECORD_LEN) else { continue };
            let (Some(ticks), Some(subject), Some(argument)) =
                (number(record, 0), word(record, 8), word(record, 12))
            else {
                continue;
            };
            let [qp @ .., kind] = subject.to_le_bytes();
            events.push(Event {
                time: self.calibration.and_then(|calibration| calibration.time_of(ticks)),
                ticks,
                thread,
                thread_name: Arc::clone(name),
                kind,
                qp: u32::from_le_bytes([qp[0], qp[1], qp[2], 0]),
                argument,
            });
        }
    }
}

/// Sorts events by their times.
pub(crate) fn sort(events: &mut [Event]) {
    events.sort_by_key(|event| event.ticks);
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns a name that is padded with zeros.
fn text(name: &[u8]) -> String {
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..len]).into_owned()
}

/// Reads the bytes of a file, which may be anything. `head_of` reads the head of a ring again, by the offset of the ring
/// in the file, after the bytes were read. `user` owns the file. Returns `None` if it is not a recording.
fn parse_with(bytes: &[u8], user: u32, head_of: impl Fn(usize) -> Option<u64>) -> Option<Recording> {
    let header = Header::parse(bytes)?;
    let snapshot = Snapshot::now(&header);
    let mut events = Vec::new();
    for ring in 0..RINGS {
        let at = HEADER_LEN + ring * RING_LEN;
        if let Some(ring) = bytes.get(at..at + RING_LEN) {
            snapshot.read_ring(ring, head_of(at).unwrap_or(u64::MAX), &mut events);
        }
    }
    sort(&mut events);
    let (process, running) = (header.process, header.runs(user));
    Some(Recording { process, user, program: text(&header.program), running, events })
}

/// Reads the bytes of a file of this user that does not change, which may be anything. Returns `None` if it is not a
/// recording.
pub fn parse(bytes: &[u8]) -> Option<Recording> {
    parse_with(bytes, rustix::process::geteuid().as_raw(), |at| number(bytes, at))
}

/// Reads a file.
fn read(directory: &Directory, name: &str) -> io::Result<Recording> {
    let file = directory.open_file(name, FILE_LEN)?;
    let mut bytes = vec![0; FILE_LEN];
    let len = read_at(&file, &mut bytes, 0)?;
    fence(Ordering::Acquire); // as in `Ring::head_after`
    let head_of = |at| {
        let mut head = [0; 8];
        (read_at(&file, &mut head, at).ok()? == head.len()).then(|| u64::from_le_bytes(head))
    };
    let recording = parse_with(&bytes[..len], directory.user, head_of).ok_or(io::ErrorKind::InvalidData)?;
    // The name is given by whoever may create files in the directory: its user.
    let is_named = process_of(name) == Some(recording.process);
    if is_named { Ok(recording) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Reads the header of a file.
fn read_header(directory: &Directory, name: &str) -> io::Result<Header> {
    let file = directory.open_file(name, FILE_LEN)?;
    let mut bytes = [0; HEADER_LEN];
    let len = read_at(&file, &mut bytes, 0)?;
    Header::parse(&bytes[..len]).ok_or(io::ErrorKind::InvalidData.into())
}

/// Returns the files of this user, or, for root, of all users, each with its directory.
fn files() -> impl Iterator<Item = (Rc<Directory>, String)> {
    let directories = Place::to_search().into_iter().filter_map(|place| place.open(false).ok());
    directories.flat_map(|directory| {
        let mut names = directory.names().unwrap_or_default();
        names.sort_by_key(|name| process_of(name));
        let directory = Rc::new(directory);
        names.into_iter().map(move |name| (Rc::clone(&directory), name))
    })
}

/// Returns the recordings of a process, which may have died: several, if it has replaced its program, or if processes of
/// several PID namespaces or times have its ID. Each file is read when its recording is requested, because a recording may
/// take megabytes and other users determine their number.
pub fn of_process(process: u32) -> impl Iterator<Item = Recording> {
    let of_process = files().filter(move |(_, name)| process_of(name) == Some(process));
    of_process.filter_map(|(directory, name)| read(&directory, &name).ok())
}

/// Calls `visit` with the recording of each process that may still run, one at a time like [`of_process`]. Returns the
/// processes that have died and left their files, or the first error of `visit`.
pub fn for_each_running<E>(mut visit: impl FnMut(Recording) -> Result<(), E>) -> Result<Vec<Dead>, E> {
    let mut dead = Vec::new();
    for (directory, name) in files() {
        let Ok(header) = read_header(&directory, &name) else { continue };
        if header.runs(directory.user) == Some(false) {
            dead.push(Dead { process: header.process, user: directory.user, program: text(&header.program) });
        } else if let Ok(recording) = read(&directory, &name) {
            visit(recording)?;
        }
    }
    dead.sort_by_key(|dead| dead.process);
    Ok(dead)
}

/// Removes files that this process has left behind before it replaced its program, and the oldest ones of dead processes:
/// [`MAX_DEAD`] are kept, with that of this process. Ignores errors: other processes may remove the same files, and files
/// that are left do no harm.
pub(crate) fn prune(directory: &Directory) {
    let (mut dead, user) = (Vec::new(), directory.user);
    for name in directory.names().unwrap_or_default() {
        match read_header(directory, &name) {
            Ok(header) if header.process == std::process::id() && header.runs(user) == Some(true) => {
                let _ = directory.remove(&name);
            }
            Ok(header) if header.runs(user) == Some(false) => dead.push(name),
            Err(error) if error.kind() == io::ErrorKind::InvalidData && is_abandoned(directory, &name) => {
                let _ = directory.remove(&name);
            }
            Ok(_) | Err(_) => {}
        }
    }
    if dead.len() < MAX_DEAD {
        return;
    }
    dead.sort_by_cached_key(|name| last_ticks(directory, name).unwrap_or_default());
    let surplus = dead.len() + 1 - MAX_DEAD;
    for name in dead.iter().take(surplus) {
        let _ = directory.remove(name);
    }
}

/// Returns whether no process uses a file without a valid header: neither one of another version, nor one that is about to
/// write the header, which may be in another PID namespace.
fn is_abandoned(directory: &Directory, name: &str) -> bool {
    !process_of(name).is_some_and(exists) && directory.age(name).is_ok_and(|age| age > MAX_CREATION)
}

/// Returns when the last event of a file was recorded; `None` if the machine has restarted since.
fn last_ticks(directory: &Directory, name: &str) -> Option<u64> {
    let header = read_header(directory, name).ok().filter(|header| header.boot == boot())?;
    let file = directory.open_file(name, FILE_LEN).ok()?;
    let mut last = header.ticks;
    for ring in 0..RINGS {
        let at = HEADER_LEN + ring * RING_LEN;
        let mut bytes = [0; 8];
        let mut read = |at| (read_at(&file, &mut bytes, at).ok()? == 8).then(|| u64::from_le_bytes(bytes));
        let head = read(at)?;
        if head > 0 {
            let newest = position(head.wrapping_sub(RECORD_LEN as u64)) * RECORD_LEN;
            last = last.max(read(at + RING_HEADER_LEN + newest)?);
        }
    }
    Some(last)
}

#[cfg(test)]
mod tests;
