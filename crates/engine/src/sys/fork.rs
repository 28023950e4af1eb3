//! What a child made by fork does not share with its parent, although the kernel gives it duplicates of all descriptors: a
//! connection would not close while the child has it, and the child would take its parent's events.
//!
//! In the child another file is put under each number: one that is no socket, an epoll with no members, an event counter at
//! zero. Numbers stay taken, so whoever closes an inherited object there closes nothing else.
#![expect(unsafe_code, reason = "the C library calls back when the program forks")]

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

#[cfg(test)]
mod tests;

/// A descriptor that a child does not share.
#[derive(Debug)]
pub struct Kept {
    fd: ManuallyDrop<OwnedFd>,
}

/// What is under the number in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nothing that could be read or written.
    Nothing,
    /// A set with no members.
    Epoll,
    /// A counter at zero.
    Counter,
    /// A semaphore at zero.
    Semaphore,
}

/// All of them.
static KEPT: Mutex<Option<HashMap<RawFd, Instead>>> = Mutex::new(None);

type All = MutexGuard<'static, Option<HashMap<RawFd, Instead>>>;

thread_local! {
    /// Held while this thread forks, so that no other changes the table meanwhile.
    static HELD: RefCell<Option<All>> = const { RefCell::new(None) };
}

fn all() -> All {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// From now on children do not have it.
    pub fn new(fd: OwnedFd, instead: Instead) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: three functions of ours. They are forgotten if the library is unloaded.
            unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        });
        all().get_or_insert_default().insert(fd.as_raw_fd(), instead);
        Self { fd: ManuallyDrop::new(fd) }
    }

    /// It may be shared from now on.
    pub fn into_inner(self) -> OwnedFd {
        if let Some(all) = &mut *all() {
            all.remove(&self.as_raw_fd());
        }
        let number = ManuallyDrop::new(self).as_raw_fd();
        // SAFETY: open, and given up by the one that had it.
        unsafe { OwnedFd::from_raw_fd(number) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut all = all();
        if let Some(all) = &mut *all {
            all.remove(&self.as_raw_fd());
        }
        // SAFETY: once, and it is not used after this. Under the lock: a child has it in the table, or not at all.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Kept {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

extern "C" fn before() {
    HELD.with(|held| *held.borrow_mut() = Some(all()));
}

extern "C" fn after_in_parent() {
    HELD.with(|held| drop(held.borrow_mut().take()));
}

extern "C" fn after_in_child() {
    HELD.with(|held| {
        if let Some(Some(all)) = held.borrow_mut().take().as_deref() {
            for (fd, instead) in all {
                replace(*fd, *instead);
            }
        }
    });
}

fn replace(fd: RawFd, instead: Instead) {
    // SAFETY: a number only.
    let blocks = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK == 0;
    let flags = if blocks { EventfdFlags::CLOEXEC } else { EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK };
    let made = match instead {
        Instead::Nothing | Instead::Counter => eventfd(0, flags),
        Instead::Epoll => epoll::create(epoll::CreateFlags::CLOEXEC),
        Instead::Semaphore => eventfd(0, flags | EventfdFlags::SEMAPHORE),
    };
    if let Ok(made) = made {
        // SAFETY: numbers only; the one that is replaced is in the table, so it is ours.
        unsafe { libc::syscall(libc::SYS_dup3, made.as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
}
