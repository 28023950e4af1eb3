//! Starts the recorder, gives threads their rings, and stops in forked children.

use crate::directory::{Place, remove_path};
use crate::exit::call_at_exit;
use crate::header::{Header, name_in};
use crate::map::{Map, Slot};
use crate::reader::{self, Event, Snapshot};
use crate::ring::{FILE_LEN, HEADER_LEN, NOWHERE, RINGS, Ring};
use rustix::process::Resource;
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The ring of this thread; `None` until its first event, and in a process that records nothing.
    static RING: Cell<Option<&'static Ring>> = const { Cell::new(None) };
}

/// Whether this process records.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The recorder of this process.
static RECORDER: Slot<Recorder> = Slot::new();

/// Held by the thread that starts the recorder. A forked child, in which that thread does not exist, gets a new one.
static STARTING: Slot<Mutex<()>> = Slot::new();

/// The recorder of a process.
#[derive(Debug)]
struct Recorder {
    map: Map,
    header: Header,
    path: PathBuf,
    /// The ring at which the search for the next thread's begins, so that the oldest ring is used again first.
    next: AtomicUsize,
}

/// Adds an event to the ring of this thread: its kind, the number of its queue pair, of which 24 bits are kept, and an
/// argument. Does nothing unless the recorder was started.
#[inline(always)]
pub fn record(kind: u8, qp: u32, argument: u32) {
    if is_started() {
        push(kind, qp, argument);
    }
}

/// Returns whether events are recorded.
#[inline(always)]
pub fn is_started() -> bool {
    STARTED.load(Ordering::Relaxed)
}

/// Adds an event. A function of its own, so that its callers cost the same as without it where nothing is recorded.
#[inline(never)]
fn push(kind: u8, qp: u32, argument: u32) {
    let subject = u32::from(kind) << 24 | qp & 0xff_ffff;
    match RING.get() {
        Some(ring) => ring.push(subject, argument),
        None => attach(subject, argument),
    }
}

/// Adds the first event of a thread, which gets a ring.
#[cold]
#[inline(never)]
fn attach(subject: u32, argument: u32) {
    let Some(recorder) = RECORDER.get() else { return };
    let ring = recorder.ring_for_this_thread();
    RING.set(Some(ring));
    ring.push(subject, argument);
}

impl Recorder {
    /// Creates the file of this process in the first place that can be used.
    fn new() -> io::Result<Self> {
        // A process that exceeds the maximum size of files is killed.
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|max| max < FILE_LEN as u64) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for place in Place::of_this_process() {
            match Self::create_in(&place) {
                Ok(recorder) => return Ok(recorder),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Creates the file of this process.
    fn create_in(place: &Place) -> io::Result<Self> {
        let directory = place.open(true)?;
        reader::prune(&directory);
        let header = Header::of_this_process();
        let (file, path) = directory.create(header.process)?;
        let prepare = || {
            rustix::fs::ftruncate(&file, FILE_LEN as u64)?;
            let bytes = header.to_bytes();
            debug_assert!(bytes.len() <= HEADER_LEN);
            if rustix::io::pwrite(&file, &bytes, 0)? < bytes.len() {
                return Err(io::ErrorKind::WriteZero.into());
            }
            Map::new(&file)
        };
        match prepare() {
            Ok(map) => Ok(Self { map, header, path, next: AtomicUsize::new(0) }),
            Err(error) => {
                let _ = remove_path(&path);
                Err(error)
            }
        }
    }

    /// Returns a ring for the calling thread: one that no thread has used; or else that of a thread that has ended; or else
    /// the last one, which all other threads share.
    fn ring_for_this_thread(&self) -> &'static Ring {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let rings = self.map.rings();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let exclusive = (0..RINGS - 1).map(|at| &rings[(start + at) % (RINGS - 1)]);
        let claimed = exclusive.map(|ring| (ring, ring.thread())).find(|(ring, owner)| {
            let is_free = *owner == 0 || *owner != thread && !exists(*owner);
            is_free && ring.claim(*owner, thread)
        });
        let (ring, owner) = claimed.unwrap_or_else(|| (&rings[RINGS - 1], rings[RINGS - 1].thread()));
        if owner == 0 && self.map.allocate(ring).is_err() {
            ring.release();
            return &NOWHERE;
        }
        if claimed.is_some() {
            ring.set_name(&name_in(&format!("/proc/self/task/{thread}/comm")));
        } else if ring.claim(0, u32::MAX) {
            ring.set_name(b"other threads");
        }
        ring
    }
}

/// Returns whether a thread of this process exists.
fn exists(thread: u32) -> bool {
    Path::new(&format!("/proc/self/task/{thread}")).exists()
}

/// Starts the recorder of this process, unless it runs.
pub fn start() -> io::Result<()> {
    let _starting = lock_start();
    if RECORDER.get().is_none() {
        let recorder = Recorder::new()?;
        RECORDER.get_or_init(|| recorder);
        call_at_exit(remove_at_exit);
        STARTED.store(true, Ordering::Release);
    }
    Ok(())
}

/// Waits until no other thread is starting the recorder: its file would be taken for one that this process left behind
/// before execve(2), and removed.
fn lock_start() -> MutexGuard<'static, ()> {
    STARTING.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the recorder of the parent, in a forked child, which is another process: the child starts its own. To be called
/// by the thread that has forked, before any other starts.
pub fn forget_in_child() {
    STARTING.clear();
    if let Some(recorder) = RECORDER.get() {
        recorder.map.abandon();
        RECORDER.clear();
        STARTED.store(false, Ordering::Relaxed);
        RING.set(None);
    }
}

/// Removes the file, when the process exits.
extern "C" fn remove_at_exit() {
    // Children that were created without fork handlers, by clone(2), are other processes.
    if let Some(recorder) = RECORDER.get()
        && recorder.header.process == std::process::id()
    {
        let _ = remove_path(&recorder.path);
    }
}

/// Returns the file of this process; `None` if it records nothing.
pub fn file() -> Option<&'static Path> {
    RECORDER.get().map(|recorder| &*recorder.path)
}

/// Returns the last events of a queue pair of this process, at most `max`, oldest first.
pub fn last_events(qp: u32, max: usize) -> Vec<Event> {
    let Some(recorder) = RECORDER.get() else { return Vec::new() };
    let mut events = Vec::new();
    let snapshot = Snapshot::now(&recorder.header);
    for ring in recorder.map.rings().iter().filter(|ring| ring.thread() != 0) {
        let bytes = ring.to_bytes();
        snapshot.read_ring(&bytes, ring.head_after(), &mut events);
    }
    events.retain(|event| event.qp == qp & 0xff_ffff);
    reader::sort(&mut events);
    events.split_off(events.len().saturating_sub(max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Barrier;
    use std::time::SystemTime;

    #[test]
    fn a_child_forked_while_the_recorder_starts_can_start_its_own() {
        const ALONE: &str = "IRON_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            // In a process of its own, because other tests need the recorder of this one.
            let name = "recorder::tests::a_child_forked_while_the_recorder_starts_can_start_its_own";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            assert!(alone.args([name, "--exact"]).env(ALONE, "").status().unwrap().success());
            return;
        }
        let _of_parent = lock_start();
        forget_in_child();
        assert!(STARTING.get_or_init(Mutex::default).try_lock().is_ok());
        start().unwrap();
        assert!(file().unwrap().exists());
    }

    /// A place in a directory of its own for a test, and that directory.
    fn place(name: &str) -> (Place, PathBuf) {
        let parent = std::env::temp_dir().join(format!("recorder-start-{}-{name}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let user = rustix::process::geteuid().as_raw();
        (Place::of(user, Some(parent.as_os_str())).remove(0), parent)
    }

    #[test]
    fn a_file_that_cannot_be_removed_does_not_prevent_recording() {
        let (place, parent) = place("irremovable");
        place.open(true).unwrap();
        let irremovable = parent.join("ironwarp/5000000-00000000.events");
        std::fs::create_dir(&irremovable).unwrap();
        std::fs::File::open(&irremovable).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        Recorder::create_in(&place).unwrap();
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn files_that_others_remove_do_not_prevent_recording() {
        let (place, parent) = place("vanish");
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    // Each takes the files of the others for leftovers of this process, and removes them.
                    (0..20).for_each(|_| drop(Recorder::create_in(&place).unwrap()));
                });
            }
        });
        std::fs::remove_dir_all(parent).unwrap();
    }
}
