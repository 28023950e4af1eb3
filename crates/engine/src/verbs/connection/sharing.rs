//! Moves a connection to shared memory, if both of its ends are on one host, and back to TCP for good.
//!
//! The initiator of the connection offers shared memory once the peer has announced that it can use it and a message was
//! sent. The other end asks for a channel (`shm`). Then each end switches its direction.
//!
//! A connection that leaves shared memory gets no channel any more. If it has one, both ends exchange signals first
//! (`Qp::leave_shared_memory`), and then drop it: neither has anything in it.

use super::{Connection, ConnectionOwner};
use crate::reactor::carrier::Carrier;
use crate::shm::channel::{Channel, ChannelOwner, Refusal};
use crate::shm::link::RoutedLink;
use crate::shm::{OFFER_LEN, SharedMemory, TIMEOUT};
use crate::sys::tcp::is_local;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::link::{Link, Route};
use ironwarp_rnic::qp::Ready;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Capabilities;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The peer can use shared memory.
const PEER_CAN: u8 = 1;
/// Messages are sent on the connection.
const IN_USE: u8 = 2;
/// An offer was made.
const OFFERED: u8 = 4;
/// The connection leaves shared memory, or has left it: there are no more offers and no channel. Set under the lock of
/// the state, so that no channel comes afterwards.
const LEAVES: u8 = 8;
/// Position of the [`Refusal`], if there was one.
const REFUSAL_SHIFT: u32 = 4;
/// Time from the end of a carrier to that of the TCP connections that use it. The kernel closes all sockets of a process
/// that has died, in any order.
const TCP_END: Duration = Duration::from_secs(1);
/// How often a connection that has left looks whether it has consumed what its channel holds.
const UNREAD_CHECK: Duration = Duration::from_millis(1);

impl<P: ConnectionOwner> Connection<P> {
    /// Records whether the peer can use shared memory.
    pub(super) fn on_peer_capabilities(self: &Arc<Self>, peer: Capabilities) {
        if peer.contains(Capabilities::SHARED_MEMORY) {
            self.offer_if_due(PEER_CAN);
        }
    }

    /// Records that messages are sent. A connection that is never used has no channel, which needs memory.
    pub(super) fn on_traffic(self: &Arc<Self>) {
        self.offer_if_due(IN_USE);
    }

    /// Offers shared memory once, when the peer can use it and messages are sent, if this end initiated the connection.
    fn offer_if_due(self: &Arc<Self>, news: u8) {
        let known = self.sharing.fetch_or(news, Ordering::AcqRel) & (PEER_CAN | IN_USE);
        if self.is_initiator && known != PEER_CAN | IN_USE && known | news == PEER_CAN | IN_USE {
            self.with_shared_memory(Self::offer);
        }
    }

    /// Asks for a channel in the memory that the peer offers.
    pub(super) fn on_offer(self: &Arc<Self>, offer: &[u8; OFFER_LEN]) {
        let offer = *offer;
        self.with_shared_memory(move |connection, memory| {
            if connection.may_share(memory) {
                memory.answer(&offer, &connection.as_channel_owner(), &connection.lane());
            }
        });
    }

    /// Calls a function with the shared memory of the adapter, if that is not off. On the lane: the caller drives a half
    /// of the queue pair.
    fn with_shared_memory(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>, &SharedMemory) + Send + 'static) {
        let Some(memory) = self.pair.receive_cq().steering().shared_memory().cloned() else { return };
        let this = Arc::downgrade(self);
        self.lane().call(move || {
            if let Some(connection) = this.upgrade() {
                connection.catch_panic("setting up shared memory", || act(&connection, &memory));
            }
        });
    }

    /// Offers shared memory.
    fn offer(self: &Arc<Self>, memory: &SharedMemory) {
        if !self.may_share(memory) {
            return;
        }
        self.sharing.fetch_or(OFFERED, Ordering::Relaxed);
        match memory.offer(&self.as_channel_owner(), &self.lane()) {
            Ok(offer) if lock(&self.state).lifecycle.is_in_set() => self.qp.offer(offer),
            Ok(_) => memory.withdraw(std::ptr::from_ref(&**self).cast()), // the connection is closed
            Err(error) => self.on_refused(Refusal::SetUp, &error.to_string()),
        }
    }

    /// Returns whether the connection can use shared memory: the peer may be on this host, since it has a local address or a
    /// directory is shared with others, and sockets do not wake the program faster than a lane does.
    fn may_share(&self, memory: &SharedMemory) -> bool {
        if memory.is_off() || self.sharing.load(Ordering::Relaxed) & LEAVES != 0 {
            return false;
        }
        if self.pair.receive_cq().is_in_event_loop() {
            self.on_refused(Refusal::EventLoop, "");
            return false;
        }
        let is_local = self.tcp.peer_addr().is_ok_and(|peer| is_local(peer.ip()));
        let reachable = is_local || memory.has_directory();
        if !reachable {
            self.on_refused(Refusal::OtherHost, "");
        }
        reachable
    }

    fn as_channel_owner(self: &Arc<Self>) -> Weak<dyn ChannelOwner> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Drives the queue pair after something has happened in shared memory.
    fn drive_shared(&self, ready: Ready) {
        self.catch_panic("serving shared memory", || {
            self.qp.drive(ready);
            if ready.readable {
                let set = Arc::clone(&lock(&self.state).set);
                set.queue_owed_ack(&self.qp);
            }
        });
    }

    /// Returns how the stream travels, for a status: in each direction by shared memory, or why it does not.
    pub(super) fn describe_route(&self) -> String {
        let shared = |route| route == Route::SharedMemory;
        let known = self.sharing.load(Ordering::Relaxed);
        let refusal = usize::from(known >> REFUSAL_SHIFT).checked_sub(1).and_then(|at| Refusal::ALL.get(at));
        match (shared(self.qp.send_route()), shared(self.qp.recv_route()), refusal) {
            (true, true, _) => "shm".to_owned(),
            (true, false, _) => "shm out, tcp in".to_owned(),
            (false, true, _) => "tcp out, shm in".to_owned(),
            (false, false, _) if known & LEAVES != 0 => "tcp: left shared memory".to_owned(),
            (false, false, Some(refusal)) => format!("tcp: {refusal}"),
            (false, false, None) if self.pair.receive_cq().steering().shared_memory().is_none() => {
                "tcp: shm is off".to_owned()
            }
            (false, false, None) if known & IN_USE == 0 => "tcp: not used yet".to_owned(),
            (false, false, None) if known & PEER_CAN == 0 => "tcp: the peer has no shm".to_owned(),
            (false, false, None) => "tcp".to_owned(),
        }
    }

    /// Gives the channel back, or withdraws the offer of one, because the connection is closed.
    pub(super) fn stop_sharing(&self) {
        match self.take_channel() {
            Some((channel, _)) => self.remove_channel(&channel),
            None => self.withdraw_offer(),
        }
    }

    /// Withdraws the offer, if one was made.
    fn withdraw_offer(&self) {
        if self.sharing.load(Ordering::Relaxed) & OFFERED != 0
            && let Some(memory) = self.pair.receive_cq().steering().shared_memory()
        {
            memory.withdraw(std::ptr::from_ref(self).cast());
        }
    }

    /// Gives the channel back.
    fn remove_channel(&self, channel: &Channel) {
        if channel.carrier().remove_channel(channel) {
            let carrier = Arc::downgrade(channel.carrier());
            self.lane().call_at(Instant::now() + TIMEOUT, move || {
                carrier.upgrade().iter().for_each(|carrier| carrier.close_if_idle());
            });
        }
        if let Some(memory) = self.pair.receive_cq().steering().shared_memory() {
            memory.notify_left();
        }
    }

    /// Takes the channel, and returns it with a link that has none; `None` if there is no channel. Only one thread can give
    /// the channel back, whose number may then be used again.
    fn take_channel(&self) -> Option<(Arc<Channel>, Arc<RoutedLink>)> {
        let mut state = lock(&self.state);
        let channel = Arc::clone(state.link.channel()?);
        state.link = Arc::new(RoutedLink::new(Arc::clone(&self.tcp)));
        Some((channel, Arc::clone(&state.link)))
    }

    /// Returns the channel in shared memory; `None` if there is none.
    pub(super) fn channel(&self) -> Option<Arc<Channel>> {
        lock(&self.state).link.channel().cloned()
    }

    // --- Leaving ---

    /// Begins to leave shared memory for good (requirement X2): from now on there are no offers and no new channel. If there
    /// is a channel, has both ends send by TCP. Returns false, and does nothing, if there is one and the peer does not know
    /// the request.
    pub(crate) fn leave_shared_memory(self: &Arc<Self>) -> bool {
        {
            let state = lock(&self.state);
            if state.link.channel().is_some() && !self.qp.can_leave_shared_memory() {
                return false;
            }
            self.sharing.fetch_or(LEAVES, Ordering::Relaxed);
        }
        self.withdraw_offer();
        self.qp.leave_shared_memory(); // without a channel, it does not matter whether the peer knows the request
        true
    }

    /// Returns whether the connection has no channel: it has left shared memory, was never there, or is closed.
    pub(crate) fn has_left_shared_memory(&self) -> bool {
        self.channel().is_none()
    }

    /// Follows the peer, which leaves shared memory, or drops the channel when both ends have left it. On the lane: the
    /// caller drives a half of the queue pair.
    pub(super) fn on_leaving(self: &Arc<Self>, has_left: bool) {
        {
            let _state = lock(&self.state);
            self.sharing.fetch_or(LEAVES, Ordering::Relaxed);
        }
        let connection = Arc::clone(self);
        self.lane().call(move || {
            connection.catch_panic("leaving shared memory", || {
                connection.withdraw_offer();
                if has_left {
                    connection.drop_channel();
                }
            });
        });
    }

    /// Drops the channel, which neither end uses any more, once the bytes of TCP that it holds are consumed.
    fn drop_channel(self: &Arc<Self>) {
        if self.channel().is_some_and(|channel| channel.has_unread()) {
            return self.call_after(UNREAD_CHECK, Self::drop_channel);
        }
        let Some((channel, link)) = self.take_channel() else { return };
        let link: Arc<dyn Link> = link;
        self.qp.replace_link(&link);
        tracing::info!(qp = self.qp.id(), "connection has left shared memory");
        self.remove_channel(&channel);
    }
}

impl<P: ConnectionOwner> ChannelOwner for Connection<P> {
    fn on_readable(&self) -> bool {
        self.drive_shared(Ready { readable: true, writable: false, ended: false });
        self.qp.receives_bulk()
    }

    fn on_writable(&self) {
        self.drive_shared(Ready { readable: false, writable: true, ended: false });
    }

    fn on_attached(&self) {
        tracing::info!(qp = self.qp.id(), "connection uses shared memory");
        self.qp.switch_route(Route::SharedMemory);
    }

    fn on_refused(&self, refusal: Refusal, details: &str) {
        self.sharing.fetch_or((refusal as u8) << REFUSAL_SHIFT, Ordering::Relaxed);
        tracing::info!(qp = self.qp.id(), details, "connection stays with TCP: {refusal}");
    }

    fn on_carrier_end(self: Arc<Self>, errno: i32) {
        let wait = if errno == libc::ECONNRESET { TCP_END } else { Duration::ZERO };
        let this = Arc::downgrade(&self);
        Self::lane(&self).call_at(Instant::now() + wait, move || {
            let Some(connection) = this.upgrade() else { return };
            let uses_it =
                [connection.qp.send_route(), connection.qp.recv_route()].contains(&Route::SharedMemory);
            if uses_it && lock(&connection.state).lifecycle.is_in_set() {
                connection.abort(QpError::Lost(errno));
            }
        });
    }

    fn use_carrier(&self, carrier: &Arc<dyn Carrier>) -> bool {
        let state = lock(&self.state);
        state.lifecycle.is_in_set() && state.set.add_carrier(carrier).is_ok()
    }

    fn bind(&self, channel: &Arc<Channel>) -> bool {
        let memory = self.pair.receive_cq().steering().shared_memory();
        let state = lock(&self.state);
        if self.sharing.load(Ordering::Relaxed) & LEAVES != 0 || memory.is_none_or(|memory| memory.is_off()) {
            return false;
        }
        let carrier = Arc::clone(channel.carrier()).as_carrier();
        state.link.set_channel(channel)
            && state.lifecycle.is_in_set()
            && state.set.add_carrier(&carrier).is_ok()
    }
}
