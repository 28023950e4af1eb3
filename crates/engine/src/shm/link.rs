//! [`RoutedLink`], the link of a connection: TCP, and shared memory once both ends have it.

use super::channel::Channel;
use crate::sys::socket::{Party, TcpLink};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// A TCP connection, whose bytes can take another route in each direction. TCP stays open: its end is the end of the
/// connection, on either route.
#[derive(Debug)]
pub(crate) struct RoutedLink {
    tcp: Arc<TcpLink>,
    /// The channel in shared memory, once there is one.
    channel: OnceLock<Arc<Channel>>,
    sends_shared: AtomicBool,
    receives_shared: AtomicBool,
    /// TCP has reported its end, which was not found yet.
    tcp_ended: AtomicBool,
    /// Number of receives that found nothing in shared memory, modulo 256.
    empty: AtomicU8,
}

impl RoutedLink {
    /// Creates a link that uses TCP.
    pub(crate) fn new(tcp: Arc<TcpLink>) -> Self {
        Self {
            tcp,
            channel: OnceLock::new(),
            sends_shared: AtomicBool::new(false),
            receives_shared: AtomicBool::new(false),
            tcp_ended: AtomicBool::new(false),
            empty: AtomicU8::new(0),
        }
    }

    /// Returns the channel in shared memory; `None` if there is none.
    #[inline]
    pub(crate) fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.get()
    }

    /// Sets the channel in shared memory. Returns false if there is one already.
    pub(crate) fn set_channel(&self, channel: &Arc<Channel>) -> bool {
        self.channel.set(Arc::clone(channel)).is_ok()
    }

    /// Records that TCP has reported the end of the connection. If the stream comes by shared memory, the next receive
    /// that finds nothing there looks for it.
    pub(crate) fn on_tcp_end(&self) {
        self.tcp_ended.store(true, Ordering::Release);
    }

    /// Returns the channel that this direction uses; `None` if it uses TCP.
    #[inline]
    fn shared(&self, direction: &AtomicBool) -> Option<&Channel> {
        if direction.load(Ordering::Relaxed) { self.channel.get().map(|channel| &**channel) } else { None }
    }

    /// Receives from shared memory. If there is nothing, looks from time to time for the end of TCP.
    fn recv_shared(&self, channel: &Channel, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        match channel.recv(host, own) {
            Ok(received) => {
                self.tcp.report_received(host, own, received);
                return Ok(received);
            }
            Err(LinkError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        let empty = self.empty.load(Ordering::Relaxed).wrapping_add(1);
        self.empty.store(empty, Ordering::Relaxed);
        if empty != 0 && !self.tcp_ended.load(Ordering::Acquire) {
            return Err(LinkError::WouldBlock);
        }
        // Cleared before TCP is asked: an end that is reported afterwards must not be forgotten.
        self.tcp_ended.store(false, Ordering::SeqCst);
        let Some(end) = self.tcp.end() else { return Err(LinkError::WouldBlock) };
        self.tcp_ended.store(true, Ordering::SeqCst); // the end comes after what is left
        // The peer has written everything to the ring before it closed TCP. The records of other connections may be in
        // the way.
        channel.carrier().drain();
        channel.recv(host, own).map_err(|_| end).inspect(|&len| self.tcp.report_received(host, own, len))
    }
}

impl Link for RoutedLink {
    #[inline]
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        match self.shared(&self.sends_shared) {
            None => self.tcp.send(pieces),
            Some(channel) => channel.send(pieces).inspect(|&len| self.tcp.report_sent(pieces, len)),
        }
    }

    #[inline]
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let received = match self.shared(&self.receives_shared) {
            Some(channel) => self.recv_shared(channel, host, own),
            None => match self.channel.get().filter(|channel| channel.has_unread()) {
                None => self.tcp.recv(host, own),
                Some(channel) => channel.recv_unread(host, own),
            },
        };
        if received.is_ok() {
            self.tcp.set_received();
        }
        received
    }

    fn arrived(&self) -> usize {
        let shared = self.channel.get().map_or(0, |channel| channel.pending() + channel.unread_len());
        shared + self.tcp.arrived()
    }

    fn lost(&self) -> Option<i32> {
        self.tcp.lost()
    }

    fn is_empty_after_short_recv(&self) -> bool {
        // A record may end in the middle of an FPDU, and unread bytes are apart from those of the socket.
        self.channel.get().is_none() && self.tcp.is_empty_after_short_recv()
    }

    fn finish(&self) {
        self.tcp.finish();
    }

    fn abort(&self) {
        self.tcp.abort();
    }

    fn segment_size(&self) -> usize {
        self.tcp.segment_size()
    }

    fn switch_send(&self, route: Route) {
        self.tcp.report_switch(Party::Local, route);
        self.sends_shared.store(route == Route::SharedMemory, Ordering::Relaxed);
    }

    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        let Some(channel) = self.channel.get() else { return false };
        if !unread.is_empty() {
            match self.receives_shared.load(Ordering::Relaxed) {
                true => channel.put_back(unread),
                false => channel.put_back_tcp(unread),
            }
        }
        self.tcp.report_switch(Party::Remote, route);
        self.receives_shared.store(route == Route::SharedMemory, Ordering::Relaxed);
        true
    }
}
