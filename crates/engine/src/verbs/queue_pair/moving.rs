//! Moves a queue pair with its connection to another function (requirement X2).

use super::{Progress, QueuePair};
use crate::sys::socket::TcpLink;
use crate::verbs::connection::{Connection, ConnectionOwner};
use crate::verbs::cq::CompletionQueue;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::qpn::Number;
use ironwarp_rnic::connect::Agreed;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::{FrozenQp, Halves, NotMovable, Qp};
use ironwarp_rnic::sync::lock;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval of the checks whether a queue pair can move.
pub(crate) const MOVABLE_CHECK: Duration = Duration::from_millis(1);

/// Why a queue pair cannot move now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PairNotMovable {
    /// Its device's queue pair cannot.
    #[error(transparent)]
    Device(#[from] NotMovable),
    /// It is connected manually.
    #[error("queue pair {0:#08x} cannot move: it is connected manually")]
    Manual(u32),
    /// Its adapter has received bytes that it has not passed on yet.
    #[error(
        "queue pair {0:#08x} cannot move: its adapter delays what arrives, for an adversary or a logical device"
    )]
    Delayed(u32),
    /// Its handshake has not ended.
    #[error("queue pair {0:#08x} cannot move yet: it is connecting")]
    Connecting(u32),
    /// Its stream is in shared memory.
    #[error("queue pair {0:#08x} cannot move yet: its stream is in shared memory")]
    SharedMemory(u32),
}

/// What moves with a queue pair, besides the state of the device's queue pair and the socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PairImage {
    /// The number of the queue pair.
    pub(crate) number: u32,
    /// The connection, if there was one.
    established: Option<EstablishedImage>,
    is_initiator: bool,
    /// Both directions are closed.
    is_closed: bool,
    /// This end has closed its sending direction.
    is_finished: bool,
    disconnect_requested: bool,
}

/// A queue pair that is frozen, and its connection, which is in no poll set that would keep it.
#[derive(Debug)]
pub(crate) struct FrozenPair {
    pair: Arc<QueuePair>,
    connection: Option<Arc<Connection<QueuePair>>>,
}

/// An established connection.
#[derive(Debug, Serialize, Deserialize)]
struct EstablishedImage {
    private_data: Box<[u8]>,
    agreed: Agreed,
    peer: SocketAddr,
    local: SocketAddr,
}

/// A queue pair that was restored, and is not served yet.
#[derive(Debug)]
pub(crate) struct RestoredPair {
    pub(crate) pair: Arc<QueuePair>,
    /// The connection, and the terms of its handshake.
    connection: Option<(Arc<Connection<QueuePair>>, Agreed)>,
}

impl QueuePair {
    /// Returns whether the queue pair can move now.
    pub(crate) fn check_movable(&self) -> Result<(), PairNotMovable> {
        let (qp, id) = (self.qp(), self.id());
        qp.check_movable()?;
        if self.number.port().is_some() || qp.attributes().manual {
            return Err(PairNotMovable::Manual(id));
        }
        if qp.is_linked() && self.delays_arrivals() {
            return Err(PairNotMovable::Delayed(id));
        }
        // A closed stream does not matter. One that is being closed will be closed soon.
        if qp.is_linked() && !qp.is_on_tcp() {
            return Err(PairNotMovable::SharedMemory(id));
        }
        match self.connection() {
            Some(connection) if !connection.is_started() => Err(PairNotMovable::Connecting(id)),
            None if qp.is_linked() => Err(PairNotMovable::Connecting(id)),
            _ => Ok(()),
        }
    }

    /// Returns whether links of the connection may hold bytes that have arrived.
    fn delays_arrivals(&self) -> bool {
        let cq = self.receive_cq();
        let shaper = cq.steering().logical().shaper();
        self.device().adversary().is_some() || shaper.is_some_and(|shaper| !shaper.delay.is_zero())
    }

    /// Waits until the queue pair can move, at most until the deadline.
    pub(crate) fn wait_until_movable(&self, deadline: Instant) -> Result<(), PairNotMovable> {
        loop {
            match self.check_movable() {
                Err(PairNotMovable::Connecting(_)) if Instant::now() < deadline => {
                    std::thread::sleep(MOVABLE_CHECK);
                }
                checked => return checked,
            }
        }
    }

    /// Returns the socket of the connection, if there is one.
    pub(crate) fn socket(&self) -> Option<Arc<TcpLink>> {
        self.connection().map(|connection| Arc::clone(connection.tcp()))
    }

    /// Takes the connection out of its poll set, and the state out of the device's queue pair.
    pub(crate) fn freeze(self: &Arc<Self>) -> Result<(FrozenPair, FrozenQp, PairImage), PairNotMovable> {
        let connection = self.connection();
        if connection.as_ref().is_some_and(|connection| !connection.freeze()) {
            return Err(PairNotMovable::Connecting(self.id()));
        }
        let frozen = self.qp().freeze().inspect_err(|_| {
            if let Some(connection) = &connection {
                connection.thaw();
            }
        })?;
        let progress = lock(&self.progress);
        let established = match &progress.outcome {
            Some(Ok(established)) => Some(EstablishedImage {
                private_data: established.private_data.clone(),
                agreed: established.agreed,
                peer: established.peer,
                local: established.local,
            }),
            _ => None,
        };
        let image = PairImage {
            number: self.id(),
            established,
            is_initiator: connection.as_ref().is_some_and(|connection| connection.is_initiator()),
            is_closed: progress.closed,
            is_finished: connection.as_ref().is_some_and(|connection| connection.tcp().is_finished()),
            disconnect_requested: self.is_disconnect_requested(),
        };
        drop(progress);
        if frozen.has_stream() && (connection.is_none() || !image.is_established()) {
            // A thread is between connecting the device's queue pair and reporting that.
            FrozenPair { pair: Arc::clone(self), connection }.thaw(frozen);
            return Err(PairNotMovable::Connecting(self.id()));
        }
        Ok((FrozenPair { pair: Arc::clone(self), connection }, frozen, image))
    }

    /// Returns the number for the queue pair that takes the place of this one.
    pub(crate) fn pass_number_on(&self) -> Number {
        self.number.pass_on()
    }

    /// Creates a queue pair with the state of another one. Nothing happens until it is [activated](RestoredPair::activate).
    pub(crate) fn restore(
        number: Number,
        creation_index: u32,
        device: &Arc<Device>,
        (qp, halves): (Arc<Qp>, Option<Halves>),
        cqs: [Arc<CompletionQueue>; 2],
        image: PairImage,
        socket: Option<Arc<TcpLink>>,
    ) -> Result<RestoredPair, ConnectError> {
        let pair = Arc::new(Self::with_qp(number, creation_index, device, qp, cqs, None));
        pair.disconnect_requested.store(image.disconnect_requested, Ordering::SeqCst);
        let established = image.established.map(|established| Established {
            private_data: established.private_data,
            agreed: established.agreed,
            peer: established.peer,
            local: established.local,
        });
        let connection = match (&established, halves, socket) {
            (Some(Established { agreed, peer, local, .. }), Some(halves), Some(link)) => {
                let restored =
                    Connection::restore(&pair, &link, halves, image.is_initiator, (*peer, *local))?;
                Some((restored, *agreed))
            }
            _ => None,
        };
        let outcome = established.map(|established| Ok(Arc::new(established)));
        *lock(&pair.progress) = Progress { outcome, closed: image.is_closed };
        Ok(RestoredPair { pair, connection })
    }
}

impl FrozenPair {
    /// Returns the socket of the connection, if there is one.
    pub(crate) fn socket(&self) -> Option<Arc<TcpLink>> {
        self.connection.as_ref().map(|connection| Arc::clone(connection.tcp()))
    }

    /// Puts the state back, and goes on.
    pub(crate) fn thaw(&self, frozen: FrozenQp) {
        self.pair.qp().thaw(frozen);
        if let Some(connection) = &self.connection {
            connection.thaw();
        }
    }

    /// Ends the queue pair, which continues elsewhere. Nothing is sent.
    pub(crate) fn surrender(&self) {
        match &self.connection {
            Some(connection) => connection.surrender(),
            None => self.pair.qp().abort(QpError::HandedOver),
        }
    }
}

impl PairImage {
    /// Returns whether the queue pair has, or had, a connection.
    pub(crate) fn is_established(&self) -> bool {
        self.established.is_some()
    }

    /// Returns whether this end has closed its sending direction.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }
}

impl RestoredPair {
    /// Begins to serve the connection.
    pub(crate) fn activate(&self) {
        if let Some((connection, agreed)) = &self.connection {
            connection.activate(agreed);
        }
    }

    /// Drops the connection without acting on its socket, which another process owns.
    pub(crate) fn discard(&self) {
        if let Some((connection, _)) = &self.connection {
            connection.surrender();
        }
    }
}
