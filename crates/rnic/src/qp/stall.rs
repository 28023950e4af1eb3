//! Requests and receives whose memory is being registered (requirement X6): this queue pair waits for it, and no other.
//!
//! The send queue stops before the request, and goes on with answers. A receive counts as not posted yet, so its message is
//! parked. When the registration is done, the queue pair's attendant drives both halves.

use super::{Qp, Receives};
use crate::error::Protocol;
use crate::memory::Stalled;
use crate::queue::{Receive, ReceiveRequest};
use crate::sync::lock;
use ironwarp_wire::Tag;
use std::sync::Weak;

impl Qp {
    /// Whether the registration of this tag is under way. If so, the halves are driven when it is done.
    pub(crate) fn stalls(&self, tag: Tag) -> bool {
        let me: Weak<Self> = Weak::clone(&self.me);
        self.device().table().stalls(tag, &(me as Weak<dyn Stalled>))
    }

    /// The receive for a message that begins, if its memory is registered.
    #[cold]
    pub(super) fn take_registered_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        let ready = |request: &ReceiveRequest| {
            request.buffers.as_slice().iter().all(|sge| sge.len == 0 || !self.stalls(sge.tag))
        };
        match &self.attributes.receives {
            Receives::Own(_) => Ok(lock(&self.rq).take_if(ready)),
            Receives::Shared(queue) => Ok(queue.take_if(ready)),
            Receives::Named(domain) => match domain.find(srq) {
                Some(queue) => Ok(queue.take_if(ready)),
                None => Err(Protocol::NoSharedQueue(srq)),
            },
        }
    }
}

impl Stalled for Qp {
    fn registered(&self) {
        // Not by this thread: it has other registrations to do.
        if let Some(attendant) = self.attendant.get() {
            attendant.call_again();
        }
    }
}
