//! Scheduling of low-latency threads, and of the other threads, which yield to them (requirement N6).
//!
//! | the process | a low-latency thread has | other threads |
//! |---|---|---|
//! | may use real-time priorities: root, or RLIMIT_RTPRIO of 1 or more | the lowest real-time priority: it runs before all ordinary threads | run as usual |
//! | may not | shorter time slices | yield after each 16 KiB that they moved |
//!
//! Since Linux 6.12, the kernel prefers a thread with a short time slice to threads with longer ones, but not if it has
//! just run: then the other threads run for some milliseconds first. So they call sched_yield(2), with which a thread
//! forfeits the rest of its time slice (since Linux 6.18; on earlier kernels it only goes to the end of the run queue).
#![expect(unsafe_code, reason = "system calls that rustix does not have")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel's `struct sched_attr`: sched_setattr(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedAttr {
    /// Size of this structure in bytes.
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The length of a time slice of an ordinary thread, in nanoseconds.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Time slice, in nanoseconds, of a low-latency thread without a real-time priority: the shortest that the kernel
/// grants.
const SHORT_SLICE: u64 = 100_000;
/// The flag SCHED_FLAG_RESET_ON_FORK: child processes and threads do not inherit the policy.
const RESET_ON_FORK: u64 = 1;
/// Number of counted bytes after which a thread yields.
const BYTES_PER_TURN: usize = 16 << 10;
/// Number of bytes that a system call counts for, in addition to the bytes it moves.
const BYTES_PER_CALL: usize = 1 << 10;

thread_local! {
    /// Whether this thread is a low-latency thread.
    static LOW_LATENCY: Cell<bool> = const { Cell::new(false) };
    /// Number of bytes counted since this thread last yielded.
    static MOVED: Cell<usize> = const { Cell::new(0) };
}

/// Whether ordinary threads must yield: this process has, or had, a low-latency thread without a real-time priority.
static MUST_YIELD: AtomicBool = AtomicBool::new(false);

/// Makes this thread a low-latency thread, or an ordinary thread again. Does nothing if the program has given the
/// thread another scheduling policy.
pub(crate) fn set_low_latency(low_latency: bool) {
    if LOW_LATENCY.replace(low_latency) == low_latency {
        return;
    }
    const LEN: u32 = 48; // the size of the structure's first version, which all kernels accept
    const { assert!(size_of::<SchedAttr>() == LEN as usize) };
    let ordinary = SchedAttr { size: LEN, policy: libc::SCHED_OTHER.cast_unsigned(), ..SchedAttr::default() };
    let real_time =
        SchedAttr { policy: libc::SCHED_RR.cast_unsigned(), flags: RESET_ON_FORK, priority: 1, ..ordinary };
    let mut current = SchedAttr::default();
    // SAFETY: thread ID 0 is the calling thread. The kernel reads or writes no more than `LEN` bytes, the size of each
    // structure, and every bit pattern is a valid `SchedAttr`.
    unsafe {
        let set = |attr: SchedAttr| libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0;
        let result = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut current, LEN, 0);
        // The policy that the thread has if only this function has ever changed it.
        let expected = if low_latency { ordinary.policy } else { real_time.policy };
        if result != 0 || !(current.policy == expected || current.runtime == SHORT_SLICE) {
            return;
        }
        let nice = current.nice;
        if !low_latency {
            set(SchedAttr { nice, ..ordinary });
        } else if !set(real_time) {
            set(SchedAttr { nice, runtime: SHORT_SLICE, ..ordinary });
            MUST_YIELD.store(true, Ordering::Relaxed);
        }
    }
}

/// Counts a system call or a copy in shared memory that moved `len` bytes, and yields to low-latency threads at the end of
/// each turn of 16 KiB. Does nothing if no thread needs that, or if this is a low-latency thread itself.
#[inline]
pub(crate) fn yield_after_moving(len: usize) {
    if MUST_YIELD.load(Ordering::Relaxed) && !LOW_LATENCY.get() && count_towards_turn(len) {
        rustix::thread::sched_yield();
    }
}

/// Counts a system call that moved `len` bytes, as `len` and [`BYTES_PER_CALL`]. Returns whether that ends the turn of
/// this thread. The count then starts at zero again.
fn count_towards_turn(len: usize) -> bool {
    let moved = MOVED.get() + BYTES_PER_CALL + len;
    let is_over = moved >= BYTES_PER_TURN;
    MOVED.set(if is_over { 0 } else { moved });
    is_over
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread yields after each large call, and after several small ones: these take time, too.
    #[test]
    fn a_thread_that_moves_much_or_often_yields() {
        let yields = |len: usize| (0..160).filter(|_| count_towards_turn(len)).count();
        assert_eq!(yields(32 << 10), 160);
        assert_eq!(yields(BYTES_PER_TURN - BYTES_PER_CALL), 160);
        assert_eq!(yields(0), 10);
        assert_eq!(yields(1 << 10), 20);
    }
}
