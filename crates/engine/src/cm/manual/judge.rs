//! Checks that the other end of a manual connection is the peer that the program named: its queue pair numbers and
//! address, its proof that it knows the key, its packet sequence numbers and, on the same host, its user. Both ends
//! check; neither keeps state for a stranger.
//!
//! | | dialler | | acceptor |
//! |---|---|---|---|
//! | without a key | hello | → | answer, or refusal |
//! | with one | hello, with its nonce | → | challenge, with the nonce of this attempt |
//! | | hello, with both nonces and a proof | → | answer with a proof of its own, or refusal |

use super::attempt::ManualAttempt;
use crate::cm::incoming::Incoming;
use crate::cm::proof::{Key, Nonces, Prover};
use crate::config::Users;
use crate::sys::random::random;
use crate::sys::sock_diag::socket_owner;
use crate::verbs::error::ConnectError;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Unreadable};
use std::io;
use std::net::SocketAddr;

impl ManualAttempt {
    /// Returns the key that both ends must know: the cluster key, or else the secret that their connection managers
    /// exchanged; `None` if there is neither.
    fn key(&self) -> Option<Key> {
        if let Some(key) = self.ctx.upgrade()?.cluster_key() {
            return Some(key.clone());
        }
        self.port.upgrade()?.secret(self.number()).map(Key::Secret)
    }

    /// Returns whether this end has a key.
    pub(super) fn has_key(&self) -> bool {
        self.key().is_some()
    }

    // --- The dialler ---

    /// Returns the hello to dial with. It contains a proof if the peer has answered the last dial with a challenge.
    pub(super) fn dial_hello(&self) -> io::Result<Hello> {
        let mut hello = self.hello_with_psns(HelloKind::Dial);
        if let Some(key) = self.key() {
            let dialler = random()?;
            hello.dialler_nonce = Some(dialler);
            hello.acceptor_nonce = self.progress().challenge;
            hello.proof = hello
                .acceptor_nonce
                .map(|acceptor| key.proof(Prover::Dialler, &Nonces { dialler, acceptor }, &self.ends));
        }
        Ok(hello)
    }

    /// Returns the error that a rejection means. Stores a challenge, and whether to dial again at once to answer it.
    /// `sent` is the hello that the peer rejected.
    pub(super) fn interpret_rejection(&self, sent: &[u8], reply: &[u8]) -> ConnectError {
        let proved = Hello::parse(sent).is_ok_and(|hello| hello.proof.is_some());
        let reply = match Hello::parse(reply) {
            Ok(reply) => reply,
            Err(Unreadable::Foreign | Unreadable::Malformed) => return ConnectError::NoReason,
            Err(why) => return ConnectError::OtherRelease(why),
        };
        let mut progress = self.progress();
        progress.challenge = None;
        match reply.kind {
            HelloKind::Refusal(reason) => ConnectError::Refused(reason),
            HelloKind::Challenge if reply.acceptor_nonce.is_some() => {
                progress.challenge = reply.acceptor_nonce;
                drop(progress);
                if !self.has_key() {
                    return ConnectError::Refused(Reason::KeyNeeded);
                }
                // At once after the first challenge. A challenge in reply to a proof means that the acceptor's nonce
                // has changed: then the usual pause keeps the two ends from looping.
                self.progress().redial_at_once = !proved;
                ConnectError::Unproven
            }
            _ => ConnectError::NoReason,
        }
    }

    /// Checks that the end that accepted is the peer. `sent` is the hello of this end, `reply` the answer.
    pub(super) fn check_answer(
        &self,
        sent: &[u8],
        reply: &[u8],
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Result<(), ConnectError> {
        self.progress().challenge = None;
        let sent = Hello::parse(sent)?;
        let reply = Hello::parse(reply)?;
        if (reply.kind, reply.source) != (HelloKind::Answer, sent.destination) {
            return Err(ConnectError::NoReason);
        }
        if let Some(key) = self.key() {
            let nonces = sent.dialler_nonce.zip(sent.acceptor_nonce);
            let proven = nonces.zip(reply.proof).is_some_and(|((dialler, acceptor), proof)| {
                key.verify(&proof, Prover::Acceptor, &Nonces { dialler, acceptor }, &self.ends)
            });
            if !proven {
                return Err(ConnectError::Unproven);
            }
        }
        if !self.psns_match(&reply) {
            return Err(ConnectError::Refused(Reason::Psn));
        }
        Ok(self.check_user(peer, local)?)
    }

    // --- The acceptor ---

    /// Checks that the end that dialled is the peer. Returns the answer to accept the peer with, or the refusal or
    /// challenge to reject the connection with.
    pub(super) fn check_hello(&self, hello: &Hello, incoming: &Incoming) -> Result<Hello, Hello> {
        let refusal = |reason| Hello::new(HelloKind::Refusal(reason), hello.source, hello.destination);
        if !self.is_expected(hello, incoming) {
            return Err(refusal(Reason::NotExpected));
        }
        if !self.is_connecting() {
            return Err(refusal(Reason::Busy));
        }
        let mut answer = self.hello_with_psns(HelloKind::Answer);
        answer.proof = self.check_proof(hello).map_err(|kind| {
            let mut reply = Hello::new(kind, hello.source, hello.destination);
            if kind == HelloKind::Challenge {
                reply.acceptor_nonce = Some(self.progress().nonce);
            }
            reply
        })?;
        if !self.psns_match(hello) {
            self.warn_once(
                incoming.peer(),
                &"packet sequence numbers do not match: rq_psn must equal the sq_psn of the peer",
            );
            return Err(refusal(Reason::Psn));
        }
        if let Err(error) = self.check_user(incoming.peer(), incoming.local()) {
            self.warn_once(incoming.peer(), &error);
            return Err(refusal(Reason::OtherUser));
        }
        Ok(answer)
    }

    /// Checks the dialler's proof. Returns the proof of this end, or `None` if neither end has a key. The error is the
    /// kind of the hello to reject the connection with: a challenge if the hello has no proof for the current nonce.
    fn check_proof(&self, hello: &Hello) -> Result<Option<[u8; 16]>, HelloKind> {
        let warn_and_refuse = |reason, line: &str| {
            self.warn_once(self.remote, &line);
            Err(HelloKind::Refusal(reason))
        };
        let (key, nonces) = match (self.key(), hello.dialler_nonce) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let line = "it has a cluster key and this end has none: set the same key on both ends";
                return warn_and_refuse(Reason::NoKey, line);
            }
            // No warning: the dialler may have sent the hello before it had the secret.
            (Some(Key::Secret(_)), None) => return Err(HelloKind::Refusal(Reason::KeyNeeded)),
            (Some(Key::Cluster(_)), None) => {
                let line = "it has no cluster key and this end has one: set the same key on both ends";
                return warn_and_refuse(Reason::KeyNeeded, line);
            }
            (Some(key), Some(dialler)) => (key, Nonces { dialler, acceptor: self.progress().nonce }),
        };
        match hello.proof {
            Some(proof) if hello.acceptor_nonce == Some(nonces.acceptor) => {
                if !key.verify(&proof, Prover::Dialler, &nonces, &self.ends) {
                    let line = "it has a different cluster key: set the same key on both ends";
                    return warn_and_refuse(Reason::WrongProof, line);
                }
                Ok(Some(key.proof(Prover::Acceptor, &nonces, &self.ends)))
            }
            _ => Err(HelloKind::Challenge),
        }
    }

    // --- Both ---

    /// Returns a hello of this end with the packet sequence numbers that the program has set.
    fn hello_with_psns(&self, kind: HelloKind) -> Hello {
        let (receive_psn, send_psn) = (self.options.receive_psn, self.progress().send_psn);
        Hello { kind, receive_psn, send_psn, ..self.hello }
    }

    /// Returns whether each program expects the packet sequence number of the other. A number that one of them has not
    /// set matches. The numbers are visible on the network and prove nothing: the check finds mistakes, such as a
    /// number of an earlier run.
    fn psns_match(&self, peer: &Hello) -> bool {
        let equal = |one: Option<u32>, other| one.zip(other).is_none_or(|(one, other)| one == other);
        equal(self.options.receive_psn, peer.send_psn) && equal(self.progress().send_psn, peer.receive_psn)
    }

    /// Fails if the other end is on this host and belongs to a user that the settings do not accept.
    fn check_user(&self, peer: SocketAddr, local: SocketAddr) -> io::Result<()> {
        let Some(ctx) = self.ctx.upgrade() else { return Ok(()) };
        let users = &ctx.config().users;
        if *users == Users::Any {
            return Ok(());
        }
        let denied = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        let own = rustix::process::geteuid().as_raw();
        match socket_owner(peer, local) {
            Ok(None) => Ok(()), // the other end is on another host
            Ok(Some(uid)) if users.accept(own, uid) => Ok(()),
            Ok(Some(uid)) => denied(format!(
                "the socket at {peer} belongs to user {uid} and this process to user {own}: if that is intended, set IRONWARP_USERS={uid} here and IRONWARP_USERS={own} there"
            )),
            Err(error) => denied(format!(
                "failed to find the owner of the socket at {peer}: {error}; IRONWARP_USERS=any turns the check off"
            )),
        }
    }

    /// Logs why an end that looks like the peer was refused, but only the first time: a stranger must not fill the log.
    fn warn_once(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.progress().warned, true) {
            let qp = format_args!("{:#08x}", self.number());
            tracing::warn!(%qp, %peer, "refused the peer: {why}");
        }
    }
}
