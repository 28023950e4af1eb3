//! The lock of a half: a mutex, and for loom a model of it.

#[cfg(loom)]
pub(super) use modelled::{Guard, Lock};
#[cfg(not(loom))]
pub(super) use plain::{Guard, Lock};

#[cfg(not(loom))]
mod plain {
    use crate::sync::{Mutex, lock};
    use std::sync::TryLockError;

    pub(in crate::half) use crate::sync::MutexGuard as Guard;

    /// A mutex.
    #[derive(Debug)]
    pub(in crate::half) struct Lock<T>(Mutex<T>);

    impl<T> Lock<T> {
        pub(in crate::half) fn new(state: T) -> Self {
            Self(Mutex::new(state))
        }

        /// Locks, waiting for the holder.
        pub(in crate::half) fn lock(&self) -> Guard<'_, T> {
            lock(&self.0)
        }

        /// Locks without waiting. Returns `None` if another thread holds the lock. Ignores poison: after a
        /// panic, `qp` drops the state of the half.
        pub(in crate::half) fn try_lock(&self) -> Option<Guard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::WouldBlock) => None,
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            }
        }
    }
}

/// Models the mutex with an atomic and the orderings of the standard library's mutex. loom's own mutex would hide a
/// lost wakeup: loom never switches threads just before its mutex is released, and its mutex orders more memory
/// accesses than the standard library guarantees.
#[cfg(loom)]
mod modelled {
    use crate::sync::atomic::{AtomicBool, Ordering};
    use std::ops::{Deref, DerefMut};
    use std::sync::{Mutex, MutexGuard};

    /// The model of a mutex.
    #[derive(Debug)]
    pub(in crate::half) struct Lock<T> {
        /// Whether a thread holds the lock.
        held: AtomicBool,
        /// Gives access to the state. Never contended, because `held` decides which thread may lock it.
        state: Mutex<T>,
    }

    /// Access to the state until dropped.
    #[derive(Debug)]
    pub(in crate::half) struct Guard<'a, T> {
        held: &'a AtomicBool,
        /// `None` only while the guard is dropped.
        state: Option<MutexGuard<'a, T>>,
    }

    impl<T> Lock<T> {
        pub(in crate::half) fn new(state: T) -> Self {
            Self { held: AtomicBool::new(false), state: Mutex::new(state) }
        }

        /// Locks, waiting for the holder.
        pub(in crate::half) fn lock(&self) -> Guard<'_, T> {
            loop {
                match self.try_lock() {
                    Some(guard) => return guard,
                    None => loom::thread::yield_now(),
                }
            }
        }

        /// Locks without waiting. Returns `None` if another thread holds the lock.
        pub(in crate::half) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
            let state = self.state.try_lock().expect("there are never two holders");
            Some(Guard { held: &self.held, state: Some(state) })
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.state = None; // before `held`: the next holder locks `state`
            self.held.store(false, Ordering::Release);
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.state.as_deref().expect("the guard is not dropped")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.state.as_deref_mut().expect("the guard is not dropped")
        }
    }
}
