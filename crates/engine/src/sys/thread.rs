//! Threads: whether one exists, its processors and processor time; spawning threads of the adapter; and putting a
//! thread of the program to sleep until a descriptor is readable.
#![expect(
    unsafe_code,
    reason = "the C library's poll and signal mask, and system calls that rustix does not have"
)]

use super::denied::Denied;
use super::fork::Creator;
use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use smallvec::SmallVec;
use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

thread_local! {
    /// The calling thread, and the process that it was determined in.
    static CURRENT: Cell<Option<(Creator, Thread)>> = const { Cell::new(None) };
}

/// A thread of this process, by its thread ID (gettid(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread(Pid);

impl Thread {
    /// Returns the calling thread. Asks the kernel once per thread, and again in a forked child.
    pub(crate) fn current() -> Self {
        match CURRENT.get() {
            Some((creator, thread)) if !creator.is_parent() => thread,
            _ => {
                let thread = Self(rustix::thread::gettid());
                CURRENT.set(Some((Creator::this(), thread)));
                thread
            }
        }
    }

    /// Returns the thread ID.
    pub(crate) fn id(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Returns whether the thread still runs. In a forked child, threads of the parent do not exist. Returns true, too,
    /// if the thread has ended and the kernel has given its ID to another thread, which takes a while.
    pub(crate) fn exists(self) -> bool {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let thread = self.id();
        // SAFETY: `tgkill` accesses no memory. With signal 0 it only checks whether the thread exists.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
    }

    /// Returns the numbers of the processors on which the thread may run.
    pub(crate) fn processors(self) -> io::Result<Vec<usize>> {
        let set = sched_getaffinity(Some(self.0))?;
        Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
    }

    /// Restricts the thread to these processors.
    pub(crate) fn set_processors(self, processors: &[usize]) -> io::Result<()> {
        let mut set = CpuSet::new();
        processors.iter().filter(|processor| **processor < CpuSet::MAX_CPU).for_each(|one| set.set(*one));
        Ok(sched_setaffinity(Some(self.0), &set)?)
    }

    /// Returns the processor time that the thread has used; zero if the thread has ended.
    pub(crate) fn processor_time(self) -> Duration {
        // The kernel's clock ID for the processor time of a thread (`MAKE_THREAD_CPUCLOCK` in its posix-timers.h): the
        // complement of the thread ID, 0b100 for a thread, and 0b010 for the time counted by the scheduler.
        // clock_getcpuclockid(3) is for processes only.
        let clock = !self.id() << 3 | 0b110;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes only to `time`.
        let succeeded = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
        let part = |value: i64| u64::try_from(value).unwrap_or_default();
        match succeeded {
            true => Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec)),
            false => Duration::ZERO,
        }
    }
}

/// Starts a thread of the adapter, in which all signals are blocked. A signal handler of the program must not run on a
/// stack of the adapter; and a program that blocks a signal in all of its threads, to read it from a signalfd, does not
/// know of the adapter's threads.
///
/// Returns once the thread runs: by then the C library no longer calls `mmap` or `munmap` for it. libfabric, which
/// monitors memory, overwrites the code of `munmap`, and expects that no other thread is calling it.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let running = Arc::new(Barrier::new(2));
    let reached = Arc::clone(&running);
    let run = move || {
        reached.wait();
        run();
    };
    // A new thread inherits the signal mask of its creator.
    // SAFETY: `sigset_t` is a set of bits, for which zero is valid. The calls access only the two sets, which outlive
    // them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        spawned
    }
    .inspect(|_| {
        running.wait();
    })
    .map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => Denied::from_errno("clone3", errno),
        None => error,
    })
}

// The C library's function is a cancellation point, unlike the system calls of the data path: a sleeping thread can be
// cancelled, and then unwinds from here.
unsafe extern "C-unwind" {
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> libc::c_int;
}

/// Maximum time that [`wait_readable`] sleeps in one `ppoll`. When a descriptor is closed, Linux does not wake threads
/// that wait for it: the next `ppoll` reports it.
const MAX_POLL: Duration = Duration::from_secs(1);

/// Number of pauses of the processor between two looks of a thread that spins.
const SPINS: usize = 32;

/// Pauses for a fraction of a microsecond, between two looks of a thread that spins.
pub(crate) fn pause() {
    (0..SPINS).for_each(|_| std::hint::spin_loop());
}

/// A descriptor that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    fd: RawFd,
    /// Whether the adapter may close the descriptor while the thread waits, which ends the wait within a second.
    may_close: bool,
}

impl Awaited {
    /// A descriptor that becomes readable, and must stay open.
    pub(crate) fn readable(fd: impl AsFd) -> Self {
        Self { fd: fd.as_fd().as_raw_fd(), may_close: false }
    }

    /// A socket that becomes readable, or that the adapter closes.
    pub(crate) fn socket(socket: impl AsFd) -> Self {
        Self { may_close: true, ..Self::readable(socket) }
    }
}

impl AsRawFd for Awaited {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

/// Returns the entries of poll(2) for a few descriptors.
fn entries(fds: &[Awaited]) -> SmallVec<[libc::pollfd; 4]> {
    fds.iter().map(|it| libc::pollfd { fd: it.fd, events: libc::POLLIN, revents: 0 }).collect()
}

/// Fails with EBADF if the program has closed a descriptor that must stay open.
fn check_open(fds: &[Awaited], entries: &[libc::pollfd]) -> io::Result<()> {
    let is_lost =
        |(fd, entry): (&Awaited, &libc::pollfd)| entry.revents & libc::POLLNVAL != 0 && !fd.may_close;
    match fds.iter().zip(entries).any(is_lost) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(()),
    }
}

/// Sleeps until one of the descriptors is ready, a signal was caught, the timeout expires, or `is_over` returns
/// true, which is checked once a second. Does not return which of these happened: the caller checks its own conditions.
/// Fails with EBADF if the program has closed a descriptor that must stay open.
pub(crate) fn wait_readable(
    fds: &[Awaited],
    timeout: Option<Duration>,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let mut list = entries(fds);
    // A timeout beyond the range of the clock is treated as no timeout.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.unwrap_or(MAX_POLL).min(MAX_POLL);
        let tv_sec = libc::time_t::try_from(time.as_secs()).unwrap_or_default();
        let time = libc::timespec { tv_sec, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: `list` has `list.len()` elements, and `list` and `time` outlive the call. A null mask leaves the
        // signal mask unchanged.
        let ready =
            unsafe { ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, &raw const time, ptr::null()) };
        if ready > 0 {
            check_open(fds, &list)?;
        }
        // `ready` is negative after a signal. If the time left was no longer than MAX_POLL, it has passed by now.
        if ready != 0 || is_over() || left.is_some_and(|left| left <= MAX_POLL) {
            return Ok(());
        }
    }
}

/// Sleeps until one of the descriptors is ready, a signal was caught, or the timeout expires. Unlike
/// [`wait_readable`], not a cancellation point. Fails with EBADF if the program has closed a descriptor that must stay open.
pub(crate) fn wait_readable_briefly(fds: &[Awaited], timeout: Duration) -> io::Result<()> {
    let mut list = entries(fds);
    let tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    let mut time = libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() };
    let mask = ptr::null::<libc::sigset_t>();
    // SAFETY: as in `wait_readable`. The system call itself, unlike the function of the C library, stores the time left.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, list.as_mut_ptr(), list.len(), &raw mut time, mask, 0_usize)
    };
    if ready > 0 { check_open(fds, &list) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;

    /// The name in /proc shows that the thread runs: it sets its name itself, after everything that the C library does
    /// for it.
    #[test]
    fn a_thread_runs_when_it_was_started() {
        for round in 0..200 {
            let name = format!("thread-{round}");
            let (stop, stopped) = mpsc::channel::<()>();
            let thread = spawn(&name, move || {
                let _ = stopped.recv();
            })
            .unwrap();
            let tasks = fs::read_dir("/proc/self/task").unwrap();
            let named = tasks
                .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
                .any(|comm| comm.trim() == name);
            drop(stop);
            thread.join().unwrap();
            assert!(named, "{name} has not begun");
        }
    }
}
