//! The control words of a ring: in shared memory, or atomics of loom in its tests.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "refers to atomics in shared memory"))]

#[cfg(not(loom))]
pub(crate) use shared::Words;

#[cfg(loom)]
pub(crate) use model::Words;

#[cfg(not(loom))]
mod shared {
    use crate::layout::{HEAD, ROOM_WANTED, SLEEPING, TAIL, control_offset};
    use crate::segment::Segment;
    use crate::sync::{AtomicU32, AtomicU64};
    use std::ptr::NonNull;
    use std::sync::Arc;

    /// The control page of a ring. Keeps its segment mapped.
    #[derive(Debug, Clone)]
    pub(crate) struct Words {
        page: NonNull<u8>,
        _segment: Arc<dyn Segment>,
    }

    // SAFETY: the page belongs to a segment, which is `Send` and `Sync`, and is accessed by atomics only.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Words {
        pub(crate) fn new(segment: &Arc<dyn Segment>, ring: usize) -> Self {
            // SAFETY: the control pages are within the `SEGMENT_LEN` bytes of the segment.
            let page = unsafe { segment.base().add(control_offset(ring)) };
            Self { page, _segment: Arc::clone(segment) }
        }

        /// Number of bytes published since the beginning.
        pub(crate) fn head(&self) -> &AtomicU64 {
            // SAFETY: the word is aligned and within the control page, which stays mapped while we hold the segment.
            // Both processes access it by atomics only; what a hostile peer does instead is seen as some value.
            unsafe { AtomicU64::from_ptr(self.page.add(HEAD).cast().as_ptr()) }
        }

        /// Number of bytes released since the beginning.
        pub(crate) fn tail(&self) -> &AtomicU64 {
            // SAFETY: as in `head`.
            unsafe { AtomicU64::from_ptr(self.page.add(TAIL).cast().as_ptr()) }
        }

        /// Not zero if the writer waits for room.
        pub(crate) fn room_wanted(&self) -> &AtomicU32 {
            // SAFETY: as in `head`.
            unsafe { AtomicU32::from_ptr(self.page.add(ROOM_WANTED).cast().as_ptr()) }
        }

        /// Not zero if the reader sleeps.
        pub(crate) fn sleeping(&self) -> &AtomicU32 {
            // SAFETY: as in `head`.
            unsafe { AtomicU32::from_ptr(self.page.add(SLEEPING).cast().as_ptr()) }
        }
    }
}

#[cfg(loom)]
mod model {
    use crate::segment::Segment;
    use crate::sync::{AtomicU32, AtomicU64};
    use std::sync::Arc;

    /// Words that only clones of this value share: the models clone the ends of one ring.
    #[derive(Debug, Clone)]
    pub(crate) struct Words(Arc<Atomics>);

    #[derive(Debug)]
    struct Atomics {
        head: AtomicU64,
        tail: AtomicU64,
        room_wanted: AtomicU32,
        sleeping: AtomicU32,
    }

    impl Words {
        pub(crate) fn new(_: &Arc<dyn Segment>, _: usize) -> Self {
            let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
            Self(Arc::new(Atomics {
                head,
                tail,
                room_wanted: AtomicU32::new(0),
                sleeping: AtomicU32::new(0),
            }))
        }

        pub(crate) fn head(&self) -> &AtomicU64 {
            &self.0.head
        }

        pub(crate) fn tail(&self) -> &AtomicU64 {
            &self.0.tail
        }

        pub(crate) fn room_wanted(&self) -> &AtomicU32 {
            &self.0.room_wanted
        }

        pub(crate) fn sleeping(&self) -> &AtomicU32 {
            &self.0.sleeping
        }
    }
}
