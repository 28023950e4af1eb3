//! A queue pair (requirement N10): its [context](QpContext), and the two halves of its stream.
//!
//! A program posts requests. A thread of the program or a lane drives the halves. Each half has a lock, which is held
//! while the half is driven, and which no thread waits for on the data path. `context` lists the other locks.
//!
//! | file | purpose |
//! |---|---|
//! | `lifecycle` | changes the state, connects, disconnects |
//! | `post` | posts requests and receives |
//! | `drive` | drives the halves |
//! | `frozen` | takes the state out, for another function |
//! | `route` | offers shared memory, and switches to another route |

mod drive;
mod frozen;
mod lifecycle;
mod post;
mod route;

pub use self::frozen::{FrozenQp, Halves, MovedObjects, NotMovable};
pub use crate::context::{
    AlreadyConnected, Attributes, QpContext, QpInfo, Receives, RegistrationFailure, StreamDriver,
};
pub use crate::link::{Ready, Route};
pub use crate::queue::Completes;
pub use crate::retry::Retries;
pub use crate::state::{IllegalTransition, State};

use crate::context::Owner;
use crate::device::Device;
use crate::fault::Pacer;
use crate::half::Half;
use crate::link::Link;
use crate::memory::RegistrationWaiter;
use crate::parking::RoomWaiter;
use crate::queue::QueueOwner;
use crate::stream::{AdverseLink, HasContext, Rx, Tx};
use ironwarp_wire::mpa::Framing;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    context: QpContext,
    /// The sending half of the stream. `None` if there is no stream: before connecting, after the link was released,
    /// and after a panic.
    tx: Half<Option<Tx>>,
    /// The receiving half of the stream. `None` in the same cases.
    rx: Half<Option<Rx>>,
}

impl Qp {
    /// Creates a queue pair with this number.
    pub fn new(id: u32, device: &Arc<Device>, attributes: Attributes) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            context: QpContext::new(id, device, attributes, Weak::<Self>::clone(me)),
            tx: Half::new(None),
            rx: Half::new(None),
        })
    }

    /// Puts the adversary of the device between the stream with this number and its link, if there is one. `framing` is
    /// that of the receiving direction, which begins now; `None` if the stream has begun elsewhere.
    pub fn wrap_link(
        self: &Arc<Self>,
        stream: u64,
        inner: Arc<dyn Link>,
        framing: Option<Framing>,
        pacer: Arc<dyn Pacer>,
    ) -> Arc<dyn Link> {
        let Some(adversary) = self.context.device().adversary() else { return inner };
        let this: Weak<Self> = Arc::downgrade(self);
        Arc::new(AdverseLink::new(adversary, stream, inner, this, framing, pacer))
    }
}

impl HasContext for Qp {
    fn context(&self) -> &QpContext {
        &self.context
    }
}

impl Deref for Qp {
    type Target = QpContext;

    fn deref(&self) -> &QpContext {
        &self.context
    }
}

impl Owner for Qp {}

impl QueueOwner for Qp {
    fn on_unlisted(&self, srq: u32) {
        self.context.clear_listed(srq);
    }

    fn on_receive_posted(&self) {
        self.drive_rx();
        // A driver acknowledges before it goes idle, but this thread is none.
        self.acknowledge();
    }

    fn on_completion_lost(&self) {
        self.record_overrun();
    }

    fn lane(&self) -> u16 {
        QpContext::lane(self)
    }
}

impl RegistrationWaiter for Qp {
    fn on_registration_end(&self) {
        // The halves are driven by another thread, because this one has other registrations to do.
        self.schedule();
    }
}

impl RoomWaiter for Qp {
    fn on_room(&self) {
        self.schedule(); // by another thread: this one drives the stream that made room
    }
}

/// There may be 100,000 idle queue pairs, so state that few of them need is allocated when needed.
#[cfg(all(test, not(loom), target_pointer_width = "64"))]
#[test]
fn a_queue_pair_stays_small() {
    assert!(size_of::<Qp>() <= 1048, "{}", size_of::<Qp>());
}
