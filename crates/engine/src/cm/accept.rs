//! Accepts connections on a lane, and evicts handshakes when there are too many. `admission.rs` has the rules.

use super::admission::{Limits, Party};
use super::answer::{Answer, Endpoints};
use super::handshakes::{State, Timeout, catch_handshake_panic};
use super::incoming::Decision;
use super::listener::ListenerSocket;
use crate::reactor::thread::catch_panic;
use crate::sys::poller::{EventFd, Interest};
use crate::sys::tcp::Accepted;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::link::Link;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum number of connections that a listener accepts in one round of its lane, which serves streams between rounds.
const MAX_ACCEPTS: usize = 32;
/// Time until a listener that can neither accept nor reset connections tries again.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Minimum interval between log lines about evictions: a peer that causes them must not fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl State {
    /// Accepts connections that wait at a listener, and begins their handshakes. If some are left, epoll reports the
    /// listener again.
    pub(super) fn accept(&mut self, token: u64, listener: &Arc<ListenerSocket>) {
        let limits = Limits::now();
        if self.spare.is_none() {
            self.spare = EventFd::counter().ok();
        }
        let mut may_evict = true;
        for _ in 0..MAX_ACCEPTS {
            match listener.accept() {
                Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                Ok(None) => return,
                // Usually no descriptor is left. Evicts once per call only: if that does not help, the cause is
                // another.
                Err(error) => {
                    if std::mem::take(&mut may_evict) && self.evict_for_descriptor() {
                        continue;
                    }
                    match self.accept_with_spare(listener, &error) {
                        Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                        Ok(None) => return,
                        Err(_) => {
                            let _ = self.lane.epoll().modify(&**listener, token, Interest::Disarmed);
                            self.timers.add(Instant::now() + ACCEPT_RETRY, Timeout::Listener(token));
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Begins the handshake of an accepted connection. `listening` is the token of the listener.
    fn admit(&mut self, listening: u64, listener: &Arc<ListenerSocket>, accepted: Accepted, limits: &Limits) {
        let Accepted { link, peer, same_host } = accepted;
        if limits.is_reserved(link.as_fd().as_raw_fd()) && !self.evict_for_descriptor() {
            self.log_eviction("no descriptors left: rejecting connections; raise the limit (ulimit -n)");
            return link.abort();
        }
        let Ok(local) = listener.local_addr_of(&link) else { return };
        if !listener.serves(&local) || listener.is_down_at(&local) {
            return link.abort();
        }
        let endpoints = Endpoints { peer, local, same_host };
        // The Request of most peers is there already: then this call finishes the first stage, and no other handshake
        // is evicted for it.
        let answer = Box::new(Answer::new(link, listener, endpoints, &self.lane, Weak::clone(&self.this)));
        let Some(Some(answer)) = catch_handshake_panic(None, || answer.progress()) else { return };
        let token = answer.token();
        if let Err(error) = self.lane.epoll().add(&**answer.link(), token, Interest::Edges) {
            return answer.fail(error.into());
        }
        let party = Party::new(peer, local, same_host);
        self.admission.admit(token, listening, party, answer.stage(), answer.deadline());
        self.answers.insert(token, answer);
        self.make_room(token, limits);
    }

    /// Continues a handshake that a peer began.
    pub(super) fn progress_answer(&mut self, token: u64) {
        let Some(answer) = self.answers.remove(&token) else { return };
        let link = Arc::clone(answer.link());
        if let Some(Some(answer)) = catch_handshake_panic(answer.target(), || answer.progress()) {
            let changed = self.admission.update(token, answer.stage(), answer.deadline());
            self.answers.insert(token, answer);
            if changed {
                self.make_room(token, &Limits::now()); // another stage has other limits
            }
            return;
        }
        self.admission.remove(token);
        // The handshake has ended. If the link has a stream now, its socket is in a poll set of its completion queue.
        let _ = self.lane.epoll().delete(&*link);
    }

    /// Applies a decision to a handshake, and continues it. Reports a failure to the target if the handshake has ended.
    pub(super) fn decide(&mut self, token: u64, decision: Decision) {
        match self.answers.get_mut(&token) {
            Some(answer) => {
                answer.apply_decision(decision);
                self.progress_answer(token);
            }
            None => decision.fail(ConnectError::Closed),
        }
    }

    /// Evicts handshakes that exceed the limits of the stage that this handshake has reached.
    fn make_room(&mut self, token: u64, limits: &Limits) {
        let Some(answer) = self.answers.get(&token) else { return };
        let backlog = answer.backlog();
        while let Some(victim) = self.admission.find_excess(token, limits, backlog) {
            self.log_eviction("too many handshakes: closing the oldest of the peer with the most");
            self.evict(victim);
        }
    }

    /// Evicts one handshake, to free its descriptor. Returns false if there is none.
    fn evict_for_descriptor(&mut self) -> bool {
        let Some(victim) = self.admission.find_for_descriptor() else { return false };
        self.log_eviction("no descriptors left: closing handshakes; raise the limit (ulimit -n)");
        self.evict(victim);
        true
    }

    /// Evicts handshakes whose deadline is over.
    pub(super) fn evict_overdue(&mut self, now: Instant) {
        while let Some(token) = self.admission.find_overdue(now) {
            self.evict(token);
        }
    }

    /// Evicts a handshake.
    fn evict(&mut self, token: u64) {
        self.admission.remove(token);
        if let Some(answer) = self.answers.remove(&token) {
            catch_panic("evicting a handshake", || answer.evict());
        }
    }

    /// Accepts connections with the spare descriptor, and resets them, so that their peers do not wait. As soon as a
    /// descriptor is free again, returns the connection without resetting it. Returns `None` if no connection waits:
    /// `accept` reports missing descriptors even then.
    fn accept_with_spare(
        &mut self,
        listener: &ListenerSocket,
        error: &io::Error,
    ) -> io::Result<Option<Accepted>> {
        for _ in 0..MAX_ACCEPTS {
            drop(self.spare.take());
            let accepted = listener.accept();
            self.spare = EventFd::counter().ok();
            match accepted? {
                Some(accepted) if self.spare.is_some() => return Ok(Some(accepted)),
                Some(Accepted { link, peer, .. }) => {
                    tracing::debug!(%error, %peer, "connection reset");
                    self.log_eviction(
                        "failed to accept connections, resetting them: raise the limit (ulimit -n)",
                    );
                    link.abort();
                }
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Counts an eviction, and logs the reason at most once per [`LOG_INTERVAL`].
    fn log_eviction(&mut self, why: &str) {
        let evicted = self.lane.counters().evicted.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        if self.last_log.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last_log = Some(now);
            tracing::warn!(evicted, "{why}");
        }
    }
}
