//! Threads of the program: whether they exist, and how they sleep; and threads of the adapter.
#![expect(
    unsafe_code,
    reason = "the C library's poll and signal mask, and system calls that rustix does not have"
)]

use super::denied::Denied;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::ptr;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread(Pid);

impl Thread {
    pub(crate) fn current() -> Self {
        Self(rustix::thread::gettid())
    }

    /// Its number in /proc.
    pub(crate) fn number(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Whether it still runs. (Numbers are reused, but not soon.) In a forked child, threads of the parent do not exist.
    pub(crate) fn exists(self) -> bool {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let thread = self.number();
        // SAFETY: numbers only, and signal zero is not sent.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
    }
}

impl Thread {
    /// The processors on which it may run.
    pub(crate) fn processors(self) -> io::Result<Vec<usize>> {
        let set = sched_getaffinity(Some(self.0))?;
        Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
    }

    /// Restricts it to these processors.
    pub(crate) fn set_processors(self, processors: &[usize]) -> io::Result<()> {
        let mut set = CpuSet::new();
        processors.iter().filter(|processor| **processor < CpuSet::MAX_CPU).for_each(|one| set.set(*one));
        Ok(sched_setaffinity(Some(self.0), &set)?)
    }

    /// Processor time that it has used; zero if it does not run any more.
    pub(crate) fn processor_time(self) -> Duration {
        // As the kernel derives it from the number of a thread (clock_getcpuclockid(3) is for processes only): the complement, and the bits
        // for the scheduled time of a thread.
        let clock = !self.0.as_raw_nonzero().get() << 3 | 0b110;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a number, and memory of ours that the call may write to.
        let known = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
        let part = |value: i64| u64::try_from(value).unwrap_or_default();
        match known {
            true => Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec)),
            false => Duration::ZERO,
        }
    }
}

/// Starts a thread that receives no signals of the program: its handlers must not run on a stack of the adapter, and a program that
/// blocks a signal everywhere, to read it from a descriptor, does not know of the adapter's threads.
///
/// Returns when the thread runs. The C library has mapped and unmapped everything for the new thread by then: libfabric, which monitors
/// memory, overwrites the code of `munmap` while its caller has no other threads as far as it knows.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let up = Arc::new(Barrier::new(2));
    let begun = Arc::clone(&up);
    let run = move || {
        begun.wait();
        run();
    };
    // SAFETY: a set of bits, which the next call fills; then memory of this function. A new thread inherits the mask of its creator.
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
        up.wait();
    })
    .map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => Denied::from_errno("clone3", errno),
        None => error,
    })
}

// The C library's function: unlike the calls of the data path, this is a cancellation point, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> libc::c_int;
}

/// Upper bound on one call of [`wait_readable`]. Linux does not wake a thread that waits for a descriptor when another thread closes it.
const LONGEST_BLOCK: Duration = Duration::from_secs(1);

/// Sleeps until one of these is readable, a signal was caught, the timeout expires, or `over` returns true, which is checked once a second.
/// The caller finds out which. An error: one of them is not open any more.
pub(crate) fn wait_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    over: impl Fn() -> bool,
) -> io::Result<()> {
    let poll = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut list: Vec<_> = fds.iter().map(poll).collect();
    // A timeout beyond the range of the clock is the same as none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.unwrap_or(LONGEST_BLOCK).min(LONGEST_BLOCK);
        let tv_sec = libc::time_t::try_from(time.as_secs()).unwrap_or_default();
        let time = libc::timespec { tv_sec, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: the list is as long as said, the timeout is valid, and both outlive the call.
        let ready =
            unsafe { ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, &raw const time, ptr::null()) };
        if ready > 0 && list.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if ready != 0 || over() || left.is_some_and(|left| left <= LONGEST_BLOCK) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;

    /// A thread names itself, after everything that the C library does for it.
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
