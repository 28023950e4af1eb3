//! Whether a thread is in the checker.

use std::cell::Cell;

thread_local! {
    /// Whether this thread is in the checker, whose own memory is not checked.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as being in the checker, until dropped.
#[derive(Debug)]
pub(super) struct Inside(bool);

impl Inside {
    /// Returns whether the calling thread is in the checker.
    pub(super) fn is_entered() -> bool {
        INSIDE.get()
    }

    /// Enters the checker.
    pub(super) fn enter() -> Self {
        Self(INSIDE.replace(true))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}
