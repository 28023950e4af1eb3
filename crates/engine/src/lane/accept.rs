//! A lane's listeners: accepting connections, and evicting some of those in the making when there are too many. `admission.rs` has the
//! rules, `setup.rs` the connections.

use super::{Due, Running, survive, survive_setup};
use crate::admission::{Limits, Party};
use crate::setup::{Answer, ListenerCore, Setup};
use crate::sys::poller::{EventFd, Interest};
use crate::sys::setup::Accepted;
use ironwarp_rnic::link::Link;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Connections that a listener accepts in one turn of its lane. Streams have their turns in between.
const ACCEPTS: usize = 32;
/// How long a listener waits that can neither accept nor turn away.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Evictions are logged once in this time: whoever causes them shall not fill the log, too.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Running {
    pub(super) fn listen(&mut self, listener: Arc<ListenerCore>) {
        let token = self.lane.token();
        match self.lane.epoll.add(&*listener, token, Interest::Readable) {
            Ok(()) => {
                self.listeners.insert(token, listener);
            }
            Err(error) => tracing::error!(%error, "failed to add a listener to epoll"),
        }
    }

    /// Peers have connected. Some of them are accepted; if more are left, epoll reports the listener again.
    pub(super) fn accept(&mut self, token: u64, listener: &Arc<ListenerCore>) {
        let limits = Limits::now();
        if self.spare.is_none() {
            self.spare = EventFd::counter().ok();
        }
        let mut may_evict = true;
        for _ in 0..ACCEPTS {
            match listener.accept() {
                Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                Ok(None) => return,
                // No descriptor, as a rule: the program has them all. Whatever it is, it is not tried by evicting one after the other.
                Err(error) => {
                    if std::mem::take(&mut may_evict) && self.evict_least_missed() {
                        continue;
                    }
                    match self.accept_with_spare(listener, &error) {
                        Ok(Some(accepted)) => self.admit(token, listener, accepted, &limits),
                        Ok(None) => return,
                        Err(_) => {
                            let _ = self.lane.epoll.modify(&**listener, token, Interest::Disarmed);
                            self.timers.add(Instant::now() + ACCEPT_AGAIN, Due::Accept(token));
                            return;
                        }
                    }
                }
            }
        }
    }

    /// A connection was accepted, and is in the making from now on.
    fn admit(&mut self, listening: u64, listener: &Arc<ListenerCore>, accepted: Accepted, limits: &Limits) {
        let Accepted { link, peer, same_host } = accepted;
        if limits.is_reserved(link.as_fd().as_raw_fd()) && !self.evict_least_missed() {
            self.log_eviction("no descriptors left for connections: raise the limit (ulimit -n)");
            return link.abort();
        }
        let Ok(local) = listener.address_of(&link) else { return };
        // Most peers send their Request at once. Those that have need not wait for another turn, nor make others go.
        let answer = Answer::new(link, listener, &self.lane, (peer, local, same_host));
        let Some(Setup::Answer(answer)) = survive_setup(Setup::Answer(answer), Setup::progress) else {
            return;
        };
        let token = answer.token();
        if let Err(error) = self.lane.epoll.add(&**answer.link(), token, Interest::Edges) {
            return answer.failed(error.into());
        }
        let party = Party::new(peer, local, same_host);
        self.admission.admit(token, listening, party, answer.stage(), answer.deadline());
        self.setups.insert(token, Setup::Answer(answer));
        self.make_room(token, limits);
    }

    /// A connection has made progress. In another stage there are other limits.
    pub(super) fn progressed(&mut self, token: u64) {
        let Some(Setup::Answer(answer)) = self.setups.get(&token) else { return };
        if self.admission.update(token, answer.stage(), answer.deadline()) {
            self.make_room(token, &Limits::now());
        }
    }

    /// Evicts those for which there is no room since this connection came to its stage.
    fn make_room(&mut self, token: u64, limits: &Limits) {
        let Some(Setup::Answer(answer)) = self.setups.get(&token) else { return };
        let backlog = answer.backlog();
        while let Some(victim) = self.admission.excess(token, limits, backlog) {
            self.log_eviction(
                "too many connections in the making: the oldest of the peer with the most are closed",
            );
            self.evict(victim);
        }
    }

    /// Frees a descriptor. False: there is no connection in the making.
    fn evict_least_missed(&mut self) -> bool {
        let Some(victim) = self.admission.least_missed() else { return false };
        self.log_eviction(
            "no descriptors left: connections in the making are closed; raise the limit (ulimit -n)",
        );
        self.evict(victim);
        true
    }

    /// Evicts those that had their time.
    pub(super) fn evict_overdue(&mut self, now: Instant) {
        while let Some(token) = self.admission.overdue(now) {
            self.evict(token);
        }
    }

    fn evict(&mut self, token: u64) {
        self.admission.forget(token);
        if let Some(Setup::Answer(answer)) = self.setups.remove(&token) {
            survive("closing a connection in the making", || answer.evict());
        }
    }

    /// Accepts connections with the descriptor that is kept for this, and resets them: their peers know, and others have their turn. Returns
    /// one that can be served, since there is a descriptor again. The kernel says that there is none before it looks whether somebody waits.
    fn accept_with_spare(
        &mut self,
        listener: &ListenerCore,
        error: &io::Error,
    ) -> io::Result<Option<Accepted>> {
        for _ in 0..ACCEPTS {
            drop(self.spare.take());
            let accepted = listener.accept();
            self.spare = EventFd::counter().ok();
            match accepted? {
                Some(accepted) if self.spare.is_some() => return Ok(Some(accepted)),
                Some(Accepted { link, peer, .. }) => {
                    tracing::debug!(%error, %peer, "a connection is turned away");
                    self.log_eviction(
                        "connections cannot be accepted and are reset: raise the limit (ulimit -n)",
                    );
                    link.abort();
                }
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn log_eviction(&mut self, why: &str) {
        let evicted = self.lane.evicted.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        if self.last_log.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last_log = Some(now);
            tracing::warn!(evicted, "{why}");
        }
    }
}
