//! A listening socket, and its decision which Requests the program gets to see.

use super::incoming::{Incoming, RequestedPort};
use crate::capture::Capture;
use crate::logical::{self, LogicalDevice};
use crate::notify::channel::EventSink;
use crate::sys::socket::{TcpLink, set_deaf};
use crate::sys::tcp::{Accepted, Listener as Socket};
use ironwarp_rnic::connect::Incoming as Request;
use ironwarp_wire::private::{CmHeader, CmKind, PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The settings of a listener.
#[derive(Clone, Debug)]
pub(super) struct ListenerConfig {
    /// Receives the connections that the program decides on.
    pub(super) sink: Arc<dyn EventSink<Incoming>>,
    /// The RDMA port at which it listens; `None` if Requests are not checked for a port.
    pub(super) port: Option<RdmaPort>,
    /// The device of the adapter.
    pub(super) device: Arc<LogicalDevice>,
    /// Connections to addresses of other devices are accepted, too: the program checks whose they are.
    pub(super) for_all_devices: bool,
    /// Maximum number of connections that wait for a decision.
    pub(super) backlog: usize,
    /// How long a peer may take to send its Request, and to receive the Reply.
    pub(super) startup: Duration,
    /// Records packets; `None` if packets are not captured.
    pub(super) capture: Option<Arc<Capture>>,
    /// Dangling once the adapter is closed.
    pub(super) adapter: Weak<()>,
}

/// A listening socket on a lane.
#[derive(Debug)]
pub(crate) struct ListenerSocket {
    socket: Socket,
    /// The address of the socket; `None` if the kernel did not tell it.
    at: Option<SocketAddr>,
    pub(super) config: ListenerConfig,
    /// The socket does not listen any more: errors of `accept` are expected.
    stopped: AtomicBool,
    /// Stopping the listener closes the port. Otherwise another process listens at the same socket (requirement X2).
    owned: AtomicBool,
}

/// What to do with a Request.
pub(super) enum Judgement {
    /// Let the program decide. Contains the RDMA port that the Request names, if any.
    AskProgram(Option<RequestedPort>),
    /// Reject the Request with this header, without asking the program.
    Reject(CmHeader),
}

impl ListenerSocket {
    /// Creates a listener for a socket that listens already.
    pub(super) fn new(socket: Socket, config: ListenerConfig) -> Self {
        let (stopped, owned) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { at: socket.local_addr().ok(), socket, config, stopped, owned }
    }

    /// Creates a listener for a socket that another process owns until this one [acquires](Self::acquire) it.
    pub(super) fn not_owned(socket: Socket, config: ListenerConfig) -> Self {
        Self { owned: AtomicBool::new(false), ..Self::new(socket, config) }
    }

    /// Becomes the owner of the socket. Returns false if the listener was stopped.
    pub(super) fn acquire(&self) -> bool {
        self.owned.store(true, Ordering::Release);
        !self.stopped.load(Ordering::Acquire)
    }

    /// Closes this copy of the socket, because another process owns it.
    pub(super) fn surrender(&self) -> io::Result<()> {
        self.owned.store(false, Ordering::Release);
        self.stopped.store(true, Ordering::Release);
        self.socket.surrender()
    }

    /// Decides whether the program gets to see a Request. A Request without a header of the private protocol, which any
    /// iWARP peer may send, is for the RDMA port with the number of the TCP port that it was sent to.
    pub(super) fn judge(&self, request: &Request) -> Judgement {
        let Some(port) = self.config.port else { return Judgement::AskProgram(None) };
        let data = request.private_data();
        let elsewhere = Judgement::Reject(CmHeader::for_port(CmKind::NotListening, port));
        let kind = match CmHeader::parse(data) {
            Ok((header, rest)) => match header.kind {
                CmKind::Probe | CmKind::Port if header.port != Some(port) => return elsewhere,
                CmKind::Probe => return Judgement::Reject(CmHeader::for_port(CmKind::Listening, port)),
                CmKind::Port => {
                    return Judgement::AskProgram(Some(RequestedPort {
                        port,
                        header_len: data.len() - rest.len(),
                    }));
                }
                CmKind::Listening | CmKind::NotListening => return elsewhere,
                kind => Some(kind),
            },
            Err(_) => None, // private data of the program, or a header of another release
        };
        let space = if kind == Some(CmKind::Lookup) { PortSpace::Datagram } else { PortSpace::Stream };
        let implied = self.at.map(|at| RdmaPort { space, number: at.port() });
        if implied == Some(port) { Judgement::AskProgram(None) } else { elsewhere }
    }

    /// Accepts the next connection; `None` if none waits, or if the listener was stopped.
    pub(super) fn accept(&self) -> io::Result<Option<Accepted>> {
        let tap = || self.config.capture.as_ref().map(Capture::server_tap);
        match self.socket.accept() {
            Err(_) if self.stopped.load(Ordering::Acquire) => Ok(None),
            accepted => Ok(accepted?.map(|it| Accepted { link: it.link.with_tap(tap()), ..it })),
        }
    }

    /// Closes the socket at once, so that others can use the address. Connections that were not accepted yet are reset.
    pub(super) fn close_now(&self) -> io::Result<()> {
        self.stopped.store(true, Ordering::Release);
        self.socket.close_now()
    }

    /// Stops listening at once: when this returns, another process may listen at the address. Handshakes in progress
    /// continue. If another process owns the socket, that goes on listening: a shutdown would act on its copy, too.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        if self.owned.load(Ordering::Acquire) {
            self.socket.stop();
        }
    }

    /// Returns the address of the socket.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns whether connections to this address belong to the device of the listener (requirement X3).
    pub(super) fn serves(&self, local: &SocketAddr) -> bool {
        self.config.for_all_devices || self.config.device.owns(local.ip())
    }

    /// Returns whether the port with this address was taken down.
    pub(super) fn is_down_at(&self, local: &SocketAddr) -> bool {
        let device = &self.config.device;
        if device.owns(local.ip()) { device.is_down_at(local.ip()) } else { logical::is_down_at(local.ip()) }
    }

    /// Makes the kernel drop requests for connections while the port of the listener is down. A listener at several ports
    /// [rejects](Self::is_down_at) them instead.
    pub(super) fn apply_port_state(&self) {
        let Some(at) = self.at.filter(|at| !at.ip().is_unspecified()) else { return };
        if let Err(error) = set_deaf(&self.socket, self.is_down_at(&at)) {
            tracing::error!(%error, "failed to block a listener");
        }
    }

    /// Returns the local address of a connection that was accepted here. Asks the link only if the listener has a
    /// wildcard address.
    pub(super) fn local_addr_of(&self, link: &TcpLink) -> io::Result<SocketAddr> {
        match self.at {
            Some(at) if !at.ip().is_unspecified() => Ok(at),
            _ => link.local_addr(),
        }
    }
}

impl AsFd for ListenerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
