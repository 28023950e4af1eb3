//! Freezes a queue pair, and restores it in another function (requirement X2, `docs/functions.md`).
//!
//! A frozen queue pair is empty: both halves of its stream and its queues are in a [`FrozenQp`]. Threads that post get an
//! error, and threads that drive the queue pair find nothing to do. The state can go back to the same queue pair, or be stored,
//! loaded, and given to a new one.

use super::{Attributes, Completes, Qp, Receives, RegistrationFailure, StreamDriver};
use crate::broken;
use crate::context::{FrozenContext, QpContext};
use crate::device::Device;
use crate::host::Span;
use crate::link::{Link, Ready};
use crate::memory::{Domain, NotCarried, Rights, Translation};
use crate::outbound::{RemoteRequest, TxObligations};
use crate::queue::{Cq, ReceiveQueue, SendQueue, SharedReceiveQueue, XrcDomain};
use crate::stream::{Rx, Tx};
use crate::sync::lock;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Readiness in both directions.
const BOTH: Ready = Ready { readable: true, writable: true, ended: false };

/// Why a queue pair cannot move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotMovable {
    /// Several queue pairs share its send queue (requirement X7).
    #[error("queue pair {0:#08x} cannot move: it uses a shared send queue")]
    SharedSendQueue(u32),
}

/// The state of a queue pair that is frozen.
#[derive(Debug, Serialize, Deserialize)]
pub struct FrozenQp {
    id: u32,
    attributes: FrozenAttributes,
    context: FrozenContext,
    sq: SendQueue,
    rq: ReceiveQueue,
    obligations: TxObligations,
    halves: Halves,
}

/// The halves of a stream. Both are empty if there is no stream.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Halves {
    tx: Option<Tx>,
    rx: Option<Rx>,
}

/// The attributes of a queue pair, with numbers in the place of objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FrozenAttributes {
    domain: Domain,
    send_cq: u32,
    receive_cq: u32,
    send_depth: usize,
    max_sges: usize,
    completes: Completes,
    registration_by_request: bool,
    registration_failure: RegistrationFailure,
    receives: FrozenReceives,
    rights: Rights,
    manual: bool,
}

/// The source of receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum FrozenReceives {
    /// Its own queue, of this depth.
    Own(usize),
    /// The shared queue with this number.
    Shared(u32),
    /// The shared queues of an XRC domain, with these numbers.
    Named(Vec<u32>),
}

/// Finds the objects of a function that a queue pair names by number.
pub trait MovedObjects {
    /// Returns the completion queue with this number.
    fn cq(&self, number: u32) -> Option<Arc<Cq>>;
    /// Returns the shared receive queue with this number.
    fn srq(&self, number: u32) -> Option<Arc<SharedReceiveQueue>>;
    /// Returns the XRC domain with these shared receive queues.
    fn xrc_domain(&self, srqs: &[u32]) -> Option<Arc<XrcDomain>>;
}

impl FrozenAttributes {
    fn new(id: u32, attributes: &Attributes) -> Result<Self, NotMovable> {
        if attributes.shared_send.is_some() {
            return Err(NotMovable::SharedSendQueue(id));
        }
        let receives = match &attributes.receives {
            Receives::Own(depth) => FrozenReceives::Own(*depth),
            Receives::Shared(queue) => FrozenReceives::Shared(queue.id()),
            Receives::Named(domain) => FrozenReceives::Named(domain.numbers()),
        };
        Ok(Self {
            domain: attributes.domain,
            send_cq: attributes.send_cq.id(),
            receive_cq: attributes.receive_cq.id(),
            send_depth: attributes.send_depth,
            max_sges: attributes.max_sges,
            completes: attributes.completes,
            registration_by_request: attributes.registration_by_request,
            registration_failure: attributes.registration_failure,
            receives,
            rights: attributes.rights,
            manual: attributes.manual,
        })
    }
}

impl Qp {
    /// Returns whether the queue pair can be [frozen](Self::freeze).
    pub fn check_movable(&self) -> Result<(), NotMovable> {
        FrozenAttributes::new(self.id(), self.attributes()).map(|_| ())
    }

    /// Takes the state out of the queue pair, in the middle of a message if need be. From then on nothing is sent,
    /// received, posted or completed. Waits for threads that drive the halves.
    pub fn freeze(&self) -> Result<FrozenQp, NotMovable> {
        let attributes = FrozenAttributes::new(self.id(), self.attributes())?;
        // Work that threads leave for an empty half is done when the state is back, or by the next function.
        let (tx, _) = self.tx.with(Option::take);
        let (rx, _) = self.rx.with(Option::take);
        let context = QpContext::freeze(self);
        let (sq, rq) = (lock(&self.sq).freeze(), lock(&self.rq).freeze());
        let obligations = std::mem::take(&mut *self.obligations.lock());
        let halves = Halves { tx, rx };
        Ok(FrozenQp { id: self.id(), attributes, context, sq, rq, obligations, halves })
    }

    /// Puts the state back, and goes on. If the program has ended the stream meanwhile, all requests are flushed.
    pub fn thaw(&self, frozen: FrozenQp) {
        let FrozenQp { sq, rq, obligations, halves: Halves { tx, rx }, .. } = frozen;
        *self.obligations.lock() = obligations;
        *lock(&self.rq) = rq;
        lock(&self.sq).thaw(sq, self.id(), self.error(), |completion| self.complete_send(completion));
        // A request that was refused may have found the queue empty.
        self.sq_used.store(true, Ordering::Relaxed);
        if self.is_linked() {
            // Drives the halves below, and so does what other threads have left.
            let ((), _) = self.rx.with(|half| *half = rx);
            let ((), _) = self.tx.with(|half| *half = tx);
        }
        self.drive(BOTH);
    }

    /// Creates a queue pair with the state of one that was frozen, and returns it with the halves of its stream, if it
    /// has one. Nothing happens until [`resume`](Self::resume) is called. Returns `None` if an object does not exist that the
    /// queue pair names.
    pub fn restore(
        device: &Arc<Device>,
        frozen: FrozenQp,
        objects: &dyn MovedObjects,
    ) -> Option<(Arc<Self>, Option<Halves>)> {
        let FrozenQp { id, attributes, context, mut sq, rq, obligations, mut halves } = frozen;
        let cq = |number| objects.cq(number);
        let loaded = halves.rx.as_mut().and_then(Rx::receive_in_use).into_iter().chain(sq.receive_to_flush());
        if !loaded.into_iter().all(|receive| receive.resolve_cq(&cq)) {
            return None;
        }
        let (send_cq, receive_cq) = (cq(attributes.send_cq)?, cq(attributes.receive_cq)?);
        let receives = match attributes.receives {
            FrozenReceives::Own(depth) => Receives::Own(depth),
            FrozenReceives::Shared(number) => Receives::Shared(objects.srq(number)?),
            FrozenReceives::Named(srqs) => Receives::Named(objects.xrc_domain(&srqs)?),
        };
        let attributes = Attributes {
            domain: attributes.domain,
            send_cq,
            receive_cq,
            send_depth: attributes.send_depth,
            shared_send: None,
            max_sges: attributes.max_sges,
            completes: attributes.completes,
            registration_by_request: attributes.registration_by_request,
            registration_failure: attributes.registration_failure,
            receives,
            rights: attributes.rights,
            manual: attributes.manual,
        };
        let qp = Self::new(id, device, attributes);
        QpContext::restore(&qp, context);
        lock(&qp.sq).restore(sq);
        *lock(&qp.rq) = rq;
        *qp.obligations.lock() = obligations;
        let has_stream = halves.tx.is_some() || halves.rx.is_some();
        Some((qp, has_stream.then_some(halves)))
    }

    /// Continues the stream of a restored queue pair on this link. The caller drives the queue pair afterwards.
    pub fn resume(&self, mut halves: Halves, link: &Arc<dyn Link>, driver: Arc<dyn StreamDriver>) {
        self.set_driver(driver);
        halves.rx.iter_mut().for_each(|rx| {
            rx.set_link(link);
            rx.count_parked(self.shared_device());
        });
        halves.tx.iter_mut().for_each(|tx| tx.set_link(link));
        // The caller drives the halves.
        let ((), _) = self.rx.with(|half| *half = halves.rx);
        let ((), _) = self.tx.with(|half| *half = halves.tx);
    }
}

impl FrozenQp {
    /// The number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The numbers of the completion queues, for sends and for receives.
    pub fn cqs(&self) -> [u32; 2] {
        [self.attributes.send_cq, self.attributes.receive_cq]
    }

    /// The numbers of the shared receive queues that the queue pair uses.
    pub fn srqs(&self) -> &[u32] {
        match &self.attributes.receives {
            FrozenReceives::Own(_) => &[],
            FrozenReceives::Shared(number) => std::slice::from_ref(number),
            FrozenReceives::Named(numbers) => numbers,
        }
    }

    /// Makes the queue pair one of another domain, with these completion queues for sends and receives.
    pub fn rehome(&mut self, domain: Domain, [send_cq, receive_cq]: [u32; 2]) {
        (self.attributes.domain, self.attributes.send_cq, self.attributes.receive_cq) =
            (domain, send_cq, receive_cq);
        self.rq.set_domain(domain);
        let in_use = self.halves.rx.as_mut().and_then(Rx::receive_in_use).into_iter();
        in_use.chain(self.sq.receive_to_flush()).for_each(|receive| receive.domain = domain);
    }

    /// Returns whether the queue pair has a stream.
    pub fn has_stream(&self) -> bool {
        self.halves.tx.is_some() || self.halves.rx.is_some()
    }

    /// Adds what was in the buffers of the link when it was dumped to be made again at another host: bytes that had arrived,
    /// and bytes that it had taken and not sent.
    pub fn carry(&mut self, received: &[u8], unsent: Vec<u8>) {
        self.halves.rx.iter_mut().for_each(|rx| rx.carry(received));
        if let Some(tx) = &mut self.halves.tx {
            tx.carry(unsent);
        }
    }

    /// Relocates the memory that requests register: see [`Translation::relocate`].
    pub(crate) fn relocate(
        &mut self,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<(), NotCarried> {
        self.sq.relocate(relocate)
    }

    /// Returns whether the state, which was loaded, is one that a queue pair can have.
    pub(crate) fn is_consistent(&self) -> bool {
        let Halves { tx, rx } = &self.halves;
        self.context.is_consistent()
            && self.rq.is_consistent()
            && self.sq.is_consistent(tx.as_ref().map(Tx::position))
            && tx.as_ref().is_none_or(|tx| tx.is_consistent(&self.sq, &self.obligations))
            && rx.as_ref().is_none_or(Rx::is_consistent)
    }

    /// Forgets a part of the state, in a build that must be found to lose it.
    pub(crate) fn forget(&mut self) {
        self.halves.tx.iter_mut().for_each(Tx::forget);
        self.halves.rx.iter_mut().for_each(Rx::forget);
        if broken::is("responses") {
            self.obligations.responses.clear();
            self.obligations.inbound_reads = 0;
        }
        if broken::is("result") {
            for response in &mut self.obligations.responses {
                if let RemoteRequest::AtomicDone { original, .. } = &mut response.request {
                    *original = 0;
                }
            }
        }
        if broken::is("unanswered") {
            self.sq.forget_reads();
        }
        if broken::is("receives") {
            self.rq.clear();
        }
    }
}
