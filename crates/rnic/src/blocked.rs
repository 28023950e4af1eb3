//! [`BlockedLink`], which takes the place of a link while the port of the device is down (requirement X3): nothing is
//! sent or received. The halves of a stream hold it instead of the real link, so that the data path has nothing to check.
//! Also [`NoLink`], for halves that have no link yet.

use crate::host::Span;
use crate::link::{Link, LinkError, Piece, Route, replace_link};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use std::sync::Arc;

/// A link on which nothing is sent or received.
#[derive(Debug)]
struct BlockedLink {
    /// The real link.
    inner: Mutex<Arc<dyn Link>>,
    /// The sending direction is to be closed when the link is not blocked any more.
    finishes: AtomicBool,
}

/// Blocks the link of a half, or puts the real link back. Returns false if nothing had to be done.
pub(crate) fn set_blocked(link: &mut Arc<dyn Link>, blocked: bool) -> bool {
    match (link.unblocked(), blocked) {
        (None, true) => {
            *link = Arc::new(BlockedLink {
                inner: Mutex::new(Arc::clone(link)),
                finishes: AtomicBool::new(false),
            });
            true
        }
        (Some((inner, finishes)), false) => {
            if finishes {
                inner.finish();
            }
            *link = inner;
            true
        }
        _ => false,
    }
}

impl BlockedLink {
    fn inner(&self) -> Arc<dyn Link> {
        Arc::clone(&lock(&self.inner))
    }
}

impl Link for BlockedLink {
    fn send(&self, _: &[Piece<'_>]) -> Result<usize, LinkError> {
        Err(LinkError::WouldBlock)
    }

    fn recv(&self, _: &[Span], _: &mut [u8]) -> Result<usize, LinkError> {
        Err(LinkError::WouldBlock)
    }

    fn arrived(&self) -> usize {
        0
    }

    fn lost(&self) -> Option<i32> {
        self.inner().lost()
    }

    fn switch_send(&self, route: Route) {
        self.inner().switch_send(route);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        self.inner().switch_recv(route, unread)
    }

    fn finish(&self) {
        self.finishes.store(true, Ordering::Release);
    }

    fn abort(&self) {
        self.inner().abort();
    }

    fn segment_size(&self) -> usize {
        self.inner().segment_size()
    }

    fn replace_inner(&self, link: &Arc<dyn Link>) -> bool {
        replace_link(&mut lock(&self.inner), link);
        true
    }

    fn unblocked(&self) -> Option<(Arc<dyn Link>, bool)> {
        Some((self.inner(), self.finishes.load(Ordering::Acquire)))
    }
}

/// The link of a half that was loaded from a snapshot (requirement X2), until the half gets the real one. Nothing is sent
/// or received.
#[derive(Debug)]
pub(crate) struct NoLink;

impl NoLink {
    /// Creates the link.
    pub(crate) fn shared() -> Arc<dyn Link> {
        Arc::new(Self)
    }
}

impl Link for NoLink {
    fn send(&self, _: &[Piece<'_>]) -> Result<usize, LinkError> {
        Err(LinkError::WouldBlock)
    }

    fn recv(&self, _: &[Span], _: &mut [u8]) -> Result<usize, LinkError> {
        Err(LinkError::WouldBlock)
    }

    fn arrived(&self) -> usize {
        0
    }

    fn finish(&self) {}

    fn abort(&self) {}

    fn segment_size(&self) -> usize {
        0
    }
}
