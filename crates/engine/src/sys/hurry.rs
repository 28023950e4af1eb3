//! Threads in a hurry, and threads that give way to them (requirement N6).
//!
//! | the process may | a thread in a hurry has | other threads |
//! |---|---|---|
//! | give itself a priority: root, or RLIMIT_RTPRIO of 1 or more | the lowest priority of real time: it runs before all ordinary threads | go on |
//! | not | shorter turns at the processor | give way after each 16 KiB that they moved |
//!
//! Who has short turns runs before who has long ones (Linux 6.12), unless it has just run: then the kernel lets others catch up, for
//! milliseconds. A thread that yields gives up its lead over the one in a hurry (6.18; before that only its place in the row).
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
    /// In nanoseconds; for ordinary threads: how long a turn is.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// A turn of a thread in a hurry that may not have a priority, in nanoseconds: the shortest that the kernel grants.
const SHORT_TURN: u64 = 100_000;
/// Children and their threads do not inherit it (SCHED_FLAG_RESET_ON_FORK).
const RESET_ON_FORK: u64 = 1;
/// Who has moved so many bytes gives way.
const TURN: usize = 16 << 10;
/// A call costs as much as so many bytes, however few it moves.
const CALL: usize = 1 << 10;

thread_local! {
    static IN_A_HURRY: Cell<bool> = const { Cell::new(false) };
    /// How many bytes this thread has moved since it gave way.
    static MOVED: Cell<usize> = const { Cell::new(0) };
}

/// A thread of this process is in a hurry, or was, and has no priority.
static GIVE_WAY: AtomicBool = AtomicBool::new(false);

/// From now on this thread runs as soon as it has something to do, or like others again. Threads with a policy of their own are
/// left alone.
pub(crate) fn hurry(hurry: bool) {
    if IN_A_HURRY.replace(hurry) == hurry {
        return;
    }
    const LEN: u32 = 48; // of the structure's first version, which all kernels know
    const { assert!(size_of::<SchedAttr>() == LEN as usize) };
    let ordinary = SchedAttr { size: LEN, policy: libc::SCHED_OTHER.cast_unsigned(), ..SchedAttr::default() };
    let urgent =
        SchedAttr { policy: libc::SCHED_RR.cast_unsigned(), flags: RESET_ON_FORK, priority: 1, ..ordinary };
    let mut now = SchedAttr::default();
    // SAFETY: zero is the calling thread; the kernel writes no more than is said, and reads no more.
    unsafe {
        let set = |attr: SchedAttr| libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0;
        let asked = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, LEN, 0);
        let ours = now.policy == if hurry { ordinary.policy } else { urgent.policy };
        if asked != 0 || !(ours || now.runtime == SHORT_TURN) {
            return;
        }
        let nice = now.nice;
        if !hurry {
            set(SchedAttr { nice, ..ordinary });
        } else if !set(urgent) {
            set(SchedAttr { nice, runtime: SHORT_TURN, ..ordinary });
            GIVE_WAY.store(true, Ordering::Relaxed);
        }
    }
}

/// This thread has made a call that moved so many bytes. Lets who is in a hurry run now, if that was enough.
#[inline]
pub(super) fn moved(len: usize) {
    if GIVE_WAY.load(Ordering::Relaxed) && !IN_A_HURRY.get() && is_enough(len) {
        rustix::thread::sched_yield();
    }
}

/// Whether this thread has moved as much as it may before it gives way, with these bytes. Then it begins anew.
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
    fn who_moves_much_or_often_gives_way() {
        let calls = |len: usize| (0..160).filter(|_| is_enough(len)).count();
        assert_eq!(calls(32 << 10), 160);
        assert_eq!(calls(TURN - CALL), 160);
        assert_eq!(calls(0), 10);
        assert_eq!(calls(1 << 10), 20);
    }
}
