//! A listening socket, and what receives the connections that peers begin there.

use super::incoming::{AskedPort, Incoming};
use crate::capture::Capture;
use crate::notify::channel::EventSink;
use crate::sys::socket::TcpLink;
use crate::sys::tcp::{Accepted, Listener as Socket};
use ironwarp_rnic::connect::Incoming as Request;
use ironwarp_wire::private::{CmHeader, CmKind, PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How a listener treats connections.
#[derive(Clone, Debug)]
pub(super) struct ListenerConfig {
    /// Receives the connections.
    pub(super) sink: Arc<dyn EventSink<Incoming>>,
    /// The RDMA port, if it is for one.
    pub(super) port: Option<RdmaPort>,
    /// Maximum number of connections that wait for a decision.
    pub(super) backlog: usize,
    /// How long a peer may take.
    pub(super) startup: Duration,
    pub(super) capture: Option<Arc<Capture>>,
    /// Gone once the adapter is closed.
    pub(super) adapter: Weak<()>,
}

/// A listening socket on a lane.
#[derive(Debug)]
pub(crate) struct ListenerSocket {
    socket: Socket,
    /// Where it listens.
    at: Option<SocketAddr>,
    pub(super) config: ListenerConfig,
    /// It does not listen any more.
    stopped: AtomicBool,
}

/// What becomes of a Request.
pub(super) enum Judgement {
    /// The program decides.
    Program(Option<AskedPort>),
    /// It is rejected with this, and the program does not learn of it.
    Rejected(CmHeader),
}

impl ListenerSocket {
    pub(super) fn new(socket: Socket, config: ListenerConfig) -> Self {
        Self { at: socket.local_addr().ok(), socket, config, stopped: AtomicBool::new(false) }
    }

    /// Decides on a Request. A plain one, from any iWARP peer, is for the TCP port that it came to.
    pub(super) fn judge(&self, request: &Request) -> Judgement {
        let Some(port) = self.config.port else { return Judgement::Program(None) };
        let data = request.private_data();
        let elsewhere = Judgement::Rejected(CmHeader::for_port(CmKind::NotListening, port));
        let kind = match CmHeader::parse(data) {
            Ok((header, rest)) => match header.kind {
                CmKind::Probe | CmKind::Port if header.port != Some(port) => return elsewhere,
                CmKind::Probe => return Judgement::Rejected(CmHeader::for_port(CmKind::Listening, port)),
                CmKind::Port => {
                    return Judgement::Program(Some(AskedPort { port, header: data.len() - rest.len() }));
                }
                CmKind::Listening | CmKind::NotListening => return elsewhere,
                kind => Some(kind),
            },
            Err(_) => None, // the program's own data, or another release's: the program decides
        };
        let space = if kind == Some(CmKind::Lookup) { PortSpace::Datagram } else { PortSpace::Stream };
        let asked = self.at.map(|at| RdmaPort { space, number: at.port() });
        if asked == Some(port) { Judgement::Program(None) } else { elsewhere }
    }

    /// Takes the next connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<Option<Accepted>> {
        let tap = || self.config.capture.as_ref().map(Capture::server_tap);
        match self.socket.accept() {
            Err(_) if self.stopped.load(Ordering::Acquire) => Ok(None),
            accepted => Ok(accepted?.map(|it| Accepted { link: it.link.with_tap(tap()), ..it })),
        }
    }

    /// Leaves the address to others at once. Peers that wait there are reset.
    pub(super) fn leave(&self) -> io::Result<()> {
        self.stopped.store(true, Ordering::Release);
        self.socket.close_now()
    }

    /// Stops at once: when this returns, another process may listen at the address. Handshakes hold this, and go on.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.socket.stop();
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The local address of a connection that was accepted here.
    pub(super) fn address_of(&self, link: &TcpLink) -> io::Result<SocketAddr> {
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
