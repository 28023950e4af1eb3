//! Send requests of a connectionless queue pair, each with its destination (requirement P2), and the send queue.

use super::{DatagramLink, Grh};
use crate::error::PostError;
use crate::gid::Gid;
use crate::queue::{Completion, Data, Operation, WorkRequest};
use std::collections::VecDeque;

/// The path to a remote port. A program creates an address handle once and uses it in many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle {
    /// The local address that datagrams are sent from.
    pub source: Gid,
    /// The remote address that datagrams are sent to.
    pub destination: Gid,
    /// Service level, 4 bits. Reported in the receiver's completion.
    pub service_level: u8,
    /// Traffic class for the receiver's GRH.
    pub traffic_class: u8,
    /// Flow label for the receiver's GRH, 20 bits.
    pub flow_label: u32,
    /// Hop limit for the receiver's GRH.
    pub hop_limit: u8,
}

impl AddressHandle {
    /// Creates a path from a local address to a remote address, with default attributes.
    ///
    /// ```
    /// # use ironwarp_rnic::datagram::AddressHandle;
    /// // A source address other than the one that routing would choose.
    /// let path = AddressHandle::new("127.0.0.2".parse()?, "127.0.0.1".parse()?);
    /// let urgent = AddressHandle { traffic_class: 0xb8, ..path };
    /// # let _ = urgent;
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub const fn new(source: Gid, destination: Gid) -> Self {
        let (service_level, traffic_class, flow_label, hop_limit) = (0, 0, 0, 64);
        Self { source, destination, service_level, traffic_class, flow_label, hop_limit }
    }

    /// Creates the path back to the sender of a received datagram, from its GRH and completion
    /// (`ibv_create_ah_from_wc`). Returns `None` if the completion does not belong to a received datagram.
    ///
    /// ```
    /// # use ironwarp_rnic::datagram::{AddressHandle, Grh};
    /// # use ironwarp_rnic::queue::{Completion, Opcode, Sender};
    /// # let (source, destination) = ("10.0.0.1".parse()?, "10.0.0.2".parse()?);
    /// # let grh = Grh { traffic_class: 0, flow_label: 0, payload_len: 0, hop_limit: 64, source, destination };
    /// # let mut received = Completion::succeeded(1, Opcode::Receive, 2, 45);
    /// # received.sender = Some(Sender::new(1, 3));
    /// let back = AddressHandle::from_completion(&grh, &received).expect("the completion of a datagram");
    /// assert_eq!((back.destination, back.service_level), (grh.source, 3));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn from_completion(grh: &Grh, completion: &Completion) -> Option<Self> {
        Some(Self {
            source: grh.destination,
            destination: grh.source,
            service_level: completion.sender?.service_level,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
        })
    }
}

/// The queue pair that a datagram is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The path to the port of the queue pair.
    pub address: AddressHandle,
    /// The number of the queue pair.
    pub qpn: u32,
    /// The Q_Key. If its top bit is set, the datagram carries the Q_Key of the sending queue pair instead, as in
    /// verbs, where only a privileged program may choose a Q_Key with that bit.
    pub qkey: u32,
}

/// A request for the send queue of a connectionless queue pair.
#[derive(Clone, Debug)]
pub struct DatagramRequest {
    /// The request, which must be a Send.
    pub request: WorkRequest,
    /// The queue pair to send to.
    pub destination: Destination,
}

impl DatagramRequest {
    /// Checks the request when it is posted. Its memory is checked when it is sent.
    fn check(&self, link: &dyn DatagramLink, max_sges: usize) -> Result<(), PostError> {
        if !matches!(self.request.operation, Operation::Send { invalidate: None }) {
            return Err(PostError::Connectionless);
        }
        if let Data::Memory(sges) = &self.request.data
            && sges.as_slice().len() > max_sges
        {
            return Err(PostError::TooManySges { have: sges.as_slice().len(), limit: max_sges });
        }
        let Destination { address: AddressHandle { source, destination, .. }, qpn, .. } = self.destination;
        if qpn >> 24 != 0 {
            return Err(PostError::NoNumber(qpn));
        }
        if !link.has_path(source, destination) {
            return Err(PostError::NoPath { from: source, to: destination });
        }
        Ok(())
    }
}

/// The send queue: requests that the link has not taken yet, in order. Requests that wait for an acknowledgement are kept
/// elsewhere, but count towards the capacity.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Maximum number of requests.
    capacity: usize,
    /// Maximum number of scatter/gather elements per request.
    max_sges: usize,
    /// The sequence number of the oldest request.
    first: u64,
    posted: VecDeque<DatagramRequest>,
    /// Number of requests that [`take_posted`](Self::take_posted) has returned and that have not ended.
    taken: usize,
}

impl SendQueue {
    /// Creates an empty queue.
    pub(super) fn new(capacity: usize, max_sges: usize) -> Self {
        Self { capacity, max_sges, first: 0, posted: VecDeque::new(), taken: 0 }
    }

    /// Checks and appends all of `requests`, or none.
    pub(super) fn post(
        &mut self,
        link: &dyn DatagramLink,
        requests: Vec<DatagramRequest>,
    ) -> Result<(), PostError> {
        if self.posted.len() + self.taken + requests.len() > self.capacity {
            return Err(PostError::Full { capacity: self.capacity });
        }
        for request in &requests {
            request.check(link, self.max_sges)?;
        }
        self.posted.extend(requests);
        Ok(())
    }

    /// Returns the sequence number and a copy of the oldest request, which stays in the queue until
    /// [`pop`](Self::pop).
    pub(super) fn front(&self) -> Option<(u64, DatagramRequest)> {
        self.posted.front().map(|request| (self.first, request.clone()))
    }

    /// Removes and returns the oldest request, which has this sequence number. `None` if another thread has emptied
    /// the queue meanwhile.
    pub(super) fn pop(&mut self, seq: u64) -> Option<DatagramRequest> {
        if seq != self.first {
            return None;
        }
        let request = self.posted.pop_front()?;
        self.first += 1;
        Some(request)
    }

    /// Removes and returns all requests, which keep their places in the queue until they end.
    pub(super) fn take_posted(&mut self) -> VecDeque<DatagramRequest> {
        self.taken += self.posted.len();
        self.first += self.posted.len() as u64;
        std::mem::take(&mut self.posted)
    }

    /// Frees the places of requests that [`take_posted`](Self::take_posted) has returned.
    pub(super) fn free(&mut self, requests: usize) {
        self.taken = self.taken.saturating_sub(requests);
    }

    /// Removes and returns all requests, and frees all places.
    pub(super) fn take_all(&mut self) -> VecDeque<DatagramRequest> {
        self.taken = 0;
        self.first += self.posted.len() as u64;
        std::mem::take(&mut self.posted)
    }
}
