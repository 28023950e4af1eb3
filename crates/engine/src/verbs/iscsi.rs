//! A queue pair in iSCSI mode (requirement M13) and its TCP socket, on which the program has logged in before. Like the
//! sockets of other queue pairs, it is in a poll set of the receive completion queue: a thread that polls the queue
//! serves it, and a lane does while no thread polls.

use super::cq::CompletionQueue;
use super::qpn::Number;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::{Member, ServedBy};
use crate::reactor::poll_set::PollSet;
use crate::sys::fork::Creator;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::iscsi::{
    CommandEnded, CommandId, CommandRequest, IscsiAttributes, IscsiDriver, IscsiQp, PduRequest,
};
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Qp, Ready, State};
use ironwarp_rnic::queue::ReceiveRequest;
use ironwarp_rnic::quota::{Place, Resource};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};

/// The attributes of a queue pair in iSCSI mode.
pub type IscsiQueuePairAttributes = IscsiAttributes<Arc<CompletionQueue>>;

/// A queue pair in iSCSI mode. Dropping it ends the connection at once, deregisters the memory of its commands, and
/// removes unpolled completions.
#[derive(Debug)]
pub struct IscsiQueuePair {
    socket: Arc<Socket>,
    set: Arc<PollSet>,
    token: u64,
    creator: Creator,
    number: Number,
    /// Its place in the quota of its function.
    _place: Place,
}

/// The socket of a queue pair, as a member of its poll set.
#[derive(Debug)]
struct Socket {
    qp: Arc<IscsiQp>,
    link: Arc<TcpLink>,
}

/// Drives the queue pair on its lane.
#[derive(Debug)]
struct Driver {
    lane: Arc<LaneHandle>,
    /// Set right after creation. Weak, because the queue pair holds the driver.
    qp: OnceLock<Weak<IscsiQp>>,
}

impl IscsiQueuePair {
    /// Creates a queue pair for a connection, and adds its socket to a poll set.
    pub(crate) fn new(
        number: Number,
        device: &Arc<Device>,
        attributes: IscsiQueuePairAttributes,
        link: TcpLink,
    ) -> io::Result<Arc<Self>> {
        let place = device.account().take(Resource::QueuePairs)?;
        let (receive_cq, link) = (&attributes.receive_cq, Arc::new(link));
        let set =
            receive_cq.find_or_create_set(&attributes.send_cq, link.peer_addr()?, link.local_addr()?)?;
        let driver = Arc::new(Driver { lane: Arc::clone(set.lane()), qp: OnceLock::new() });
        let attributes = attributes.map_cqs(|cq| Arc::clone(cq.cq()));
        let (device_link, device_driver): (Arc<dyn Link>, Arc<dyn IscsiDriver>) =
            (Arc::<TcpLink>::clone(&link), Arc::<Driver>::clone(&driver));
        let qp = IscsiQp::new(number.value(), device, attributes, device_link, device_driver);
        let _ = driver.qp.set(Arc::downgrade(&qp)); // it is not set yet
        let socket = Arc::new(Socket { qp, link });
        let token = set.lane().new_token();
        let pair = Self { socket, set, token, creator: Creator::this(), number, _place: place };
        let only = pair.set.only_member();
        let member: Arc<dyn Member> = Arc::<Socket>::clone(&pair.socket);
        pair.set.insert(token, &member)?;
        pair.set.queue_ack_of_former_only_member(only);
        // The first event may have come before the socket was in its set.
        pair.socket.qp.resume();
        Ok(Arc::new(pair))
    }

    /// Returns the queue pair number.
    pub fn id(&self) -> u32 {
        self.number.value()
    }

    /// Returns the device's queue pair.
    pub fn qp(&self) -> &Arc<IscsiQp> {
        &self.socket.qp
    }

    /// Posts commands, all or none, and returns their numbers at once.
    pub fn post_commands(&self, requests: Vec<CommandRequest>) -> Result<Vec<CommandId>, PostError> {
        self.check_process()?;
        self.qp().post_commands(requests)
    }

    /// Posts a PDU that is not a SCSI command.
    pub fn post_pdu(&self, request: PduRequest) -> Result<(), PostError> {
        self.check_process()?;
        self.qp().post_pdu(request)
    }

    /// Posts a receive.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.check_process()?;
        self.qp().post_receive(request)
    }

    /// Aborts a command: when this has returned, its memory is not accessed any more. Returns its task tag, if the target
    /// has got it.
    pub fn abort(&self, id: CommandId) -> Result<Option<u32>, CommandEnded> {
        if self.creator.is_parent() {
            return Err(CommandEnded(id)); // a forked child has no connection
        }
        self.qp().abort(id)
    }

    /// As [`abort`](Self::abort), but sends `instead` in the place of a command that the target has not got.
    pub fn abort_or_replace(&self, id: CommandId, instead: PduRequest) -> Result<Option<u32>, CommandEnded> {
        if self.creator.is_parent() {
            return Err(CommandEnded(id));
        }
        self.qp().abort_or_replace(id, Some(instead))
    }

    /// Fails in a forked child, which has neither the connection nor the buffers of its parent.
    fn check_process(&self) -> Result<(), PostError> {
        if self.creator.is_parent() { Err(PostError::Inherited) } else { Ok(()) }
    }
}

impl Drop for IscsiQueuePair {
    fn drop(&mut self) {
        if self.creator.is_parent() {
            return; // a thread of the parent may have held a lock at the fork
        }
        self.set.remove(self.token);
        self.qp().shut_down();
        let IscsiAttributes { send_cq, receive_cq, .. } = self.qp().attributes();
        send_cq.purge(self.id());
        receive_cq.purge(self.id());
    }
}

impl IscsiDriver for Driver {
    fn schedule(&self) {
        if let Some(qp) = self.qp.get().and_then(Weak::upgrade) {
            self.lane.call(move || qp.resume());
        }
    }

    fn lane(&self) -> u16 {
        self.lane.event_lane()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Member for Socket {
    fn serve(&self, ready: Ready, _by: ServedBy) -> Option<&Arc<Qp>> {
        self.qp.drive(ready);
        None
    }

    fn take_received(&self) -> bool {
        self.link.take_received()
    }

    /// Ends the connection. Returns false: the target does not close its end.
    fn disconnect(self: Arc<Self>) -> bool {
        let _ = self.qp.modify(State::Error); // always allowed
        false
    }

    fn abort(&self) {
        let _ = self.qp.modify(State::Error); // always allowed
    }
}
