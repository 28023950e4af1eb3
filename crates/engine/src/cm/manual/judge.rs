//! Whether the other end is the peer that a queue pair was told: by its numbers and address, its proof that it knows the key, its
//! user if it is on this host, and its packet sequence numbers. Both ends judge; neither keeps state for a stranger.
//!
//! | | dialler | | acceptor |
//! |---|---|---|---|
//! | without a key | hello | → | answer, or refusal |
//! | with one | hello, with its nonce | → | challenge, with the nonce of this attempt |
//! | | hello, with both nonces and a proof | → | answer with a proof of its own, or refusal |

use super::attempt::ManualAttempt;
use crate::cm::incoming::Incoming;
use crate::cm::proof::{By, Key};
use crate::config::Users;
use crate::sys::random::random;
use crate::sys::sock_diag::socket_owner;
use crate::verbs::error::ConnectError;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Unreadable};
use std::io;
use std::net::SocketAddr;

impl ManualAttempt {
    /// The key that both ends must know: the cluster's, or the secret that their connection managers exchanged.
    fn key(&self) -> Option<Key> {
        if let Some(key) = self.ctx.upgrade()?.cluster_key() {
            return Some(key.clone());
        }
        self.port.upgrade()?.secret(self.number()).map(Key::Secret)
    }

    pub(super) fn has_key(&self) -> bool {
        self.key().is_some()
    }

    // --- The dialler ---

    /// The hello to dial with, and a proof if the peer has asked for one.
    pub(super) fn dial_hello(&self) -> io::Result<Hello> {
        let mut hello = self.hello_with_psns(HelloKind::Dial);
        if let Some(key) = self.key() {
            let nonce = random()?;
            hello.dialler_nonce = Some(nonce);
            hello.acceptor_nonce = self.progress().challenge;
            hello.proof =
                hello.acceptor_nonce.map(|other| key.proof(By::Dialler, (&nonce, &other), &self.ends));
        }
        Ok(hello)
    }

    /// The peer rejected a connection. Returns why, and notes whether to dial again at once.
    pub(super) fn rejected(&self, sent: &[u8], reply: &[u8]) -> ConnectError {
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
                // A peer asks once.
                self.progress().at_once = !proved;
                ConnectError::Unproven
            }
            _ => ConnectError::NoReason,
        }
    }

    /// Checks that the end that accepted is the peer.
    pub(super) fn check_answer(
        &self,
        sent: &[u8],
        reply: &[u8],
        (peer, local): (SocketAddr, SocketAddr),
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
                key.verify(&proof, By::Acceptor, (&dialler, &acceptor), &self.ends)
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

    /// Judges the end that dialled. Returns the answer for the peer, or the reply for any other.
    pub(super) fn judge(&self, hello: &Hello, incoming: &Incoming) -> Result<Hello, Hello> {
        let refusal = |reason| Hello::new(HelloKind::Refusal(reason), hello.source, hello.destination);
        if !self.expects(hello, incoming) {
            return Err(refusal(Reason::NotExpected));
        }
        if !self.is_connection_wanted() {
            return Err(refusal(Reason::Busy));
        }
        let mut answer = self.hello_with_psns(HelloKind::Answer);
        answer.proof = self.check_proof(hello).map_err(|kind| {
            let mut reply = Hello { kind, ..refusal(Reason::Busy) };
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

    /// Returns the proof of this end, if there is a key and the dialler's proof is valid.
    fn check_proof(&self, hello: &Hello) -> Result<Option<[u8; 16]>, HelloKind> {
        let refused = |reason, line: &str| {
            self.warn_once(self.remote, &line);
            Err(HelloKind::Refusal(reason))
        };
        let (key, nonces) = match (self.key(), hello.dialler_nonce) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let line = "it has a cluster key and this end has none: set the same key on both ends";
                return refused(Reason::NoKey, line);
            }
            // Its hello may be older than the secret.
            (Some(Key::Secret(_)), None) => return Err(HelloKind::Refusal(Reason::KeyNeeded)),
            (Some(Key::Cluster(_)), None) => {
                let line = "it has no cluster key and this end has one: set the same key on both ends";
                return refused(Reason::KeyNeeded, line);
            }
            (Some(key), Some(dialler)) => (key, (dialler, self.progress().nonce)),
        };
        match hello.proof {
            Some(proof) if hello.acceptor_nonce == Some(nonces.1) => {
                let nonces = (&nonces.0, &nonces.1);
                if !key.verify(&proof, By::Dialler, nonces, &self.ends) {
                    let line = "it has a different cluster key: set the same key on both ends";
                    return refused(Reason::WrongProof, line);
                }
                Ok(Some(key.proof(By::Acceptor, nonces, &self.ends)))
            }
            _ => Err(HelloKind::Challenge),
        }
    }

    // --- Both ---

    fn hello_with_psns(&self, kind: HelloKind) -> Hello {
        let (receive_psn, send_psn) = (self.options.receive_psn, self.progress().send_psn);
        Hello { kind, receive_psn, send_psn, ..self.hello }
    }

    /// Whether each program expects the packet sequence number of the other, as far as both have set any. The numbers are visible on the
    /// path, and prove nothing: this finds mistakes, such as a number of an earlier run.
    fn psns_match(&self, peer: &Hello) -> bool {
        let equal = |one: Option<u32>, other| one.zip(other).is_none_or(|(one, other)| one == other);
        equal(self.options.receive_psn, peer.send_psn) && equal(self.progress().send_psn, peer.receive_psn)
    }

    /// On one host, the kernel knows which user owns the other end. Fails if the settings do not accept that user.
    fn check_user(&self, peer: SocketAddr, local: SocketAddr) -> io::Result<()> {
        let Some(ctx) = self.ctx.upgrade() else { return Ok(()) };
        let users = &ctx.config().users;
        if *users == Users::Any {
            return Ok(());
        }
        let denied = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        let own = rustix::process::geteuid().as_raw();
        match socket_owner(peer, local) {
            Ok(None) => Ok(()), // another host
            Ok(Some(uid)) if users.accept(own, uid) => Ok(()),
            Ok(Some(uid)) => denied(format!(
                "the socket at {peer} belongs to user {uid} and this process to user {own}: if that is intended, set IRONWARP_USERS={uid} here and IRONWARP_USERS={own} there"
            )),
            Err(error) => denied(format!(
                "failed to find the owner of the socket at {peer}: {error}; IRONWARP_USERS=any turns the check off"
            )),
        }
    }

    /// Logs why an end that looks like the peer was refused. Once: a stranger must not fill the log.
    fn warn_once(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.progress().warned, true) {
            let qp = format_args!("{:#08x}", self.number());
            tracing::warn!(%qp, %peer, "refused the peer: {why}");
        }
    }
}
