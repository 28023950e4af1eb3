//! Accepting connections, and evicting handshakes when there are too many of them. `admission.rs` has the rules.

use super::admission::{Limits, Party};
use super::answer::{Answer, Ends};
use super::handshakes::{State, Timeout, survive_handshake};
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

/// Maximum number of connections that a listener accepts in one round of its lane. Streams are served in between.
const ACCEPTS: usize = 32;
/// How long a listener waits that can neither accept connections nor reject them.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Minimum interval between log lines about evictions: a peer that causes them must not fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl State {
    /// Peers have connected. If some are left after this, epoll reports the listener again.
    pub(super) fn accept(&mut self, token: u64, listener: &Arc<ListenerSocket>) {
        let limits = Limits::now();
        if self.spare.is_none() {
            self.spare = EventFd::counter().ok();
        }
        let mut may_evict = true;
        for _ in 0..ACCEPTS {
            match listener.accept() {
                Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                Ok(None) => return,
                // Usually there is no descriptor left. Whatever it is, one eviction must be enough.
                Err(error) => {
                    if std::mem::take(&mut may_evict) && self.evict_least_missed() {
                        continue;
                    }
                    match self.accept_with_spare(listener, &error) {
                        Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                        Ok(None) => return,
                        Err(_) => {
                            let _ = self.lane.epoll().modify(&**listener, token, Interest::Disarmed);
                            self.timers.add(Instant::now() + ACCEPT_AGAIN, Timeout::Listener(token));
                            return;
                        }
                    }
                }
            }
        }
    }

    /// A connection was accepted: its handshake begins.
    fn admit(&mut self, listening: u64, listener: &Arc<ListenerSocket>, accepted: Accepted, limits: &Limits) {
        let Accepted { link, peer, same_host } = accepted;
        if limits.is_reserved(link.as_fd().as_raw_fd()) && !self.evict_least_missed() {
            self.log_eviction("no descriptors left: rejecting connections; raise the limit (ulimit -n)");
            return link.abort();
        }
        let Ok(local) = listener.address_of(&link) else { return };
        let ends = Ends { peer, local, same_host };
        // Most peers send their Request at once. Those that have need not wait for another round, nor evict others.
        let answer = Box::new(Answer::new(link, listener, ends, &self.lane, Weak::clone(&self.this)));
        let Some(Some(answer)) = survive_handshake(None, || answer.progress()) else { return };
        let token = answer.token();
        if let Err(error) = self.lane.epoll().add(&**answer.link(), token, Interest::Edges) {
            return answer.failed(error.into());
        }
        let party = Party::new(peer, local, same_host);
        self.admission.admit(token, listening, party, answer.stage(), answer.deadline());
        self.answers.insert(token, answer);
        self.make_room(token, limits);
    }

    /// A handshake goes on.
    pub(super) fn progress_answer(&mut self, token: u64) {
        let Some(answer) = self.answers.remove(&token) else { return };
        let link = Arc::clone(answer.link());
        if let Some(Some(answer)) = survive_handshake(answer.target(), || answer.progress()) {
            let changed = self.admission.update(token, answer.stage(), answer.deadline());
            self.answers.insert(token, answer);
            if changed {
                self.make_room(token, &Limits::now()); // another stage has other limits
            }
            return;
        }
        self.admission.forget(token);
        // A stream is in the poll set of its completion queue, and nowhere else.
        let _ = self.lane.epoll().delete(&*link);
    }

    /// The program has decided on a handshake.
    pub(super) fn decide(&mut self, token: u64, decision: Decision) {
        match self.answers.get_mut(&token) {
            Some(answer) => {
                answer.decide(decision);
                self.progress_answer(token);
            }
            None => decision.failed(ConnectError::Closed),
        }
    }

    /// Evicts handshakes for which there is no room since this one came to its stage.
    fn make_room(&mut self, token: u64, limits: &Limits) {
        let Some(answer) = self.answers.get(&token) else { return };
        let backlog = answer.backlog();
        while let Some(victim) = self.admission.excess(token, limits, backlog) {
            self.log_eviction("too many handshakes: closing the oldest of the peer with the most");
            self.evict(victim);
        }
    }

    /// Frees a descriptor. Returns false if there is no handshake to evict.
    fn evict_least_missed(&mut self) -> bool {
        let Some(victim) = self.admission.least_missed() else { return false };
        self.log_eviction("no descriptors left: closing handshakes; raise the limit (ulimit -n)");
        self.evict(victim);
        true
    }

    /// Evicts handshakes that took too long.
    pub(super) fn evict_overdue(&mut self, now: Instant) {
        while let Some(token) = self.admission.overdue(now) {
            self.evict(token);
        }
    }

    fn evict(&mut self, token: u64) {
        self.admission.forget(token);
        if let Some(answer) = self.answers.remove(&token) {
            catch_panic("evicting a handshake", || answer.evict());
        }
    }

    /// Accepts connections with the spare descriptor, and resets them, so that their peers know. Returns a connection that can be served
    /// once there is a descriptor again. The kernel reports that there is none before it checks whether a connection waits.
    fn accept_with_spare(
        &mut self,
        listener: &ListenerSocket,
        error: &io::Error,
    ) -> io::Result<Option<Accepted>> {
        for _ in 0..ACCEPTS {
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

    fn log_eviction(&mut self, why: &str) {
        let evicted = self.lane.counters().evicted.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        if self.last_log.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last_log = Some(now);
            tracing::warn!(evicted, "{why}");
        }
    }
}
