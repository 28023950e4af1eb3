//! Tells loom of accesses to the data of a ring, so that its tests find those that are not ordered. Empty otherwise.

#[cfg(not(loom))]
pub(crate) use nothing::Accesses;

#[cfg(loom)]
pub(crate) use model::Accesses;

#[cfg(not(loom))]
mod nothing {
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Accesses {}

    impl Accesses {
        #[inline]
        pub(crate) fn note_write(&self, _: u64) {}

        #[inline]
        pub(crate) fn note_read(&self, _: u64) {}
    }
}

#[cfg(loom)]
mod model {
    use crate::layout::{MAX_RECORD, RING_LEN, place};
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    /// A cell for every part of the data of `MAX_RECORD` bytes. Models write records that fill such parts exactly.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Accesses(Arc<[UnsafeCell<()>; RING_LEN / MAX_RECORD]>);

    impl Accesses {
        pub(crate) fn note_write(&self, position: u64) {
            self.0[place(position) / MAX_RECORD].with_mut(|_| ());
        }

        pub(crate) fn note_read(&self, position: u64) {
            self.0[place(position) / MAX_RECORD].with(|_| ());
        }
    }
}
