//! The two kinds of dials of a search, as targets of their handshakes: to TCP port N, and to a candidate.

use super::{DialKind, PeerSocket, Search};
use crate::cm::dial::DialTarget;
use crate::cm::handshake::Target;
use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use ironwarp_rnic::connect::Reply;
use ironwarp_rnic::link::Link;
use ironwarp_wire::private::{CmHeader, CmKind};
use std::sync::Arc;

/// The target of the dial of TCP port N.
#[derive(Debug)]
pub(super) struct FirstDial(pub(super) Arc<Search>);

/// The target of the dial of a candidate.
#[derive(Debug)]
pub(super) struct CandidateDial(pub(super) Arc<Search>);

impl Target for FirstDial {
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        self.0.start(link, established, early)
    }

    fn on_failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.on_first_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl DialTarget for FirstDial {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted(DialKind::First)
    }

    fn check_reply(&self, link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        let is_elsewhere = |header: &CmHeader| header.kind == CmKind::NotListening;
        if CmHeader::parse(private_data(&reply)).is_ok_and(|(header, _)| is_elsewhere(&header)) {
            link.abort();
            return Err(ConnectError::Elsewhere);
        }
        Ok(reply)
    }

    fn claim(&self) -> bool {
        self.0.claim(DialKind::First)
    }

    /// Dials again, and probes the candidates at the same time: the peer may be another TCP server that does not know
    /// MPA.
    fn on_no_reply(self: Arc<Self>) -> bool {
        self.0.probe_candidates();
        true
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

impl Target for CandidateDial {
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        self.0.start(link, established, early)
    }

    fn on_failed(self: Arc<Self>, error: ConnectError) {
        if self.is_wanted() {
            self.0.on_candidate_failed(error);
        }
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.0.fail(error);
    }
}

impl CandidateDial {
    /// Aborts the link and fails if the candidate is not trusted: the program's data is only for the listener.
    fn check_trust(&self, link: &TcpLink, socket: PeerSocket) -> Result<(), ConnectError> {
        if self.0.is_trusted(link, socket) {
            return Ok(());
        }
        link.abort();
        Err(ConnectError::Elsewhere)
    }
}

impl DialTarget for CandidateDial {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted(DialKind::Candidate)
    }

    fn check_peer(&self, link: &TcpLink) -> Result<(), ConnectError> {
        self.check_trust(link, PeerSocket::Listening)
    }

    /// Checks that the Reply confirms the RDMA port, and removes that header from the private data.
    fn check_reply(&self, link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        if matches!(reply, Reply::Accepted { .. }) {
            // Not for a rejection: the peer has closed its socket, which has no owner any more.
            self.check_trust(link, PeerSocket::Connected)?;
        }
        let confirmed = |header: &CmHeader| header.kind == CmKind::Port && header.port == Some(self.0.port);
        let rest: Box<[u8]> = match CmHeader::parse(private_data(&reply)) {
            Ok((header, rest)) if confirmed(&header) => rest.into(),
            _ => {
                link.abort();
                return Err(ConnectError::Elsewhere);
            }
        };
        Ok(match reply {
            Reply::Accepted { agreed, consumed, .. } => {
                Reply::Accepted { agreed, private_data: rest, consumed }
            }
            Reply::Rejected { peer, .. } => Reply::Rejected { peer, private_data: rest },
        })
    }

    fn claim(&self) -> bool {
        self.0.claim(DialKind::Candidate)
    }

    /// Returns false: only Ironwarp, which knows MPA revision 2, listens at candidates.
    fn on_no_reply(self: Arc<Self>) -> bool {
        false
    }

    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

/// Returns the private data of a Reply.
fn private_data(reply: &Reply) -> &[u8] {
    let (Reply::Accepted { private_data, .. } | Reply::Rejected { private_data, .. }) = reply;
    private_data
}
