//! Low-latency threads, and other threads that yield to them (requirement N6).
//!
//! | the process | a low-latency thread has | other threads |
//! |---|---|---|
//! | may use real-time priorities: root, or RLIMIT_RTPRIO of 1 or more | the lowest real-time priority: it runs before all ordinary threads | run as usual |
//! | may not | shorter time slices | yield after each 16 KiB that they moved |
//!
//! A thread with a short time slice runs before those with long ones (Linux 6.12), unless it has just run: then the kernel lets others
//! catch up for milliseconds. A thread that yields gives up its lead over the low-latency one (6.18; before that only its
//! place in the queue).
#![expect(unsafe_code, reason = "system calls that rustix does not have")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// As the kernel has it: sched_setattr(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// In nanoseconds; for ordinary threads: the length of a time slice.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Time slice, in nanoseconds, of a low-latency thread without a priority: the shortest that the kernel grants.
const SHORT_SLICE: u64 = 100_000;
/// Children and their threads do not inherit the policy (SCHED_FLAG_RESET_ON_FORK).
const RESET_ON_FORK: u64 = 1;
/// Number of bytes after which a thread yields.
const TURN: usize = 16 << 10;
/// What a call counts for, in bytes, besides the bytes it moves.
const CALL: usize = 1 << 10;

thread_local! {
    static LOW_LATENCY: Cell<bool> = const { Cell::new(false) };
    /// Number of bytes that this thread has moved since it yielded.
    static MOVED: Cell<usize> = const { Cell::new(0) };
}

/// This process has, or had, a low-latency thread without a priority.
static MUST_YIELD: AtomicBool = AtomicBool::new(false);

/// Has this thread scheduled before others, or like others again. Does nothing to a thread with a scheduling policy of its own.
pub(crate) fn set_low_latency(low_latency: bool) {
    if LOW_LATENCY.replace(low_latency) == low_latency {
        return;
    }
    const LEN: u32 = 48; // of the first version of the structure, which all kernels know
    const { assert!(size_of::<SchedAttr>() == LEN as usize) };
    let ordinary = SchedAttr { size: LEN, policy: libc::SCHED_OTHER.cast_unsigned(), ..SchedAttr::default() };
    let urgent =
        SchedAttr { policy: libc::SCHED_RR.cast_unsigned(), flags: RESET_ON_FORK, priority: 1, ..ordinary };
    let mut now = SchedAttr::default();
    // SAFETY: zero is the calling thread; the kernel writes no more than is said, and reads no more.
    unsafe {
        let set = |attr: SchedAttr| libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0;
        let asked = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, LEN, 0);
        let ours = now.policy == if low_latency { ordinary.policy } else { urgent.policy };
        if asked != 0 || !(ours || now.runtime == SHORT_SLICE) {
            return;
        }
        let nice = now.nice;
        if !low_latency {
            set(SchedAttr { nice, ..ordinary });
        } else if !set(urgent) {
            set(SchedAttr { nice, runtime: SHORT_SLICE, ..ordinary });
            MUST_YIELD.store(true, Ordering::Relaxed);
        }
    }
}

/// This thread has made a call that moved `len` bytes. Yields to low-latency threads if that was enough.
#[inline]
pub(super) fn moved(len: usize) {
    if MUST_YIELD.load(Ordering::Relaxed) && !LOW_LATENCY.get() && is_enough(len) {
        rustix::thread::sched_yield();
    }
}

/// Whether this thread has moved as much as it may before it yields. If so, counting starts again.
fn is_enough(len: usize) -> bool {
    let all = MOVED.get() + CALL + len;
    MOVED.set(if all < TURN { all } else { 0 });
    all >= TURN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large calls each, small ones together: a thread that moves little in each call keeps the processor as well.
    #[test]
    fn a_thread_that_moves_much_or_often_yields() {
        let calls = |len: usize| (0..160).filter(|_| is_enough(len)).count();
        assert_eq!(calls(32 << 10), 160);
        assert_eq!(calls(TURN - CALL), 160);
        assert_eq!(calls(0), 10);
        assert_eq!(calls(1 << 10), 20);
    }
}
