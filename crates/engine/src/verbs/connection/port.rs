//! What becomes of a connection while its port is down (requirement X3), or the port of its peer.
//!
//! The kernel drops what arrives, and the halves of the stream have a link that blocks. So neither end gets anything from
//! the other. Each end gives the connection up once a request has waited as long as its retries last.
//!
//! TCP alone would find a lost path later, or too early, because it also gives up a peer whose window is closed for long.
//! So the connections of logical devices check their path from time to time. Those of a device with the addresses of all
//! interfaces do not, unless their own port is down.

use super::{Connection, ConnectionOwner, PATH_TIMER};
use crate::logical::admin::any_was_down;
use crate::sys::socket::set_deaf;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two checks of the path, an eighth of the shortest time that a request may wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(625);
/// The time by which the kernel's clock may be late.
const CLOCK_STEP: Duration = Duration::from_millis(20);

impl<P: ConnectionOwner> Connection<P> {
    /// Returns whether the port of the connection was taken down.
    pub(super) fn is_port_down(&self) -> bool {
        let local = self.link.tcp().local_addr();
        local.is_ok_and(|local| self.pair.receive_cq().steering().logical().is_down_at(local.ip()))
    }

    /// Returns whether the path to the peer is checked although the port is up.
    pub(super) fn watches_path(&self) -> bool {
        !self.pair.receive_cq().steering().logical().has_all_addresses()
    }

    /// Begins to check the path, and blocks the connection if its port is down. Called when the connection is in its poll
    /// set: a thread that takes the port down later finds it there.
    pub(super) fn watch_port(self: &Arc<Self>) {
        if self.watches_path() {
            self.start_path_timer();
        }
        // Also if the port is up again: the handshake may have left the socket filtered.
        if any_was_down() {
            let device = self.pair.receive_cq().steering().logical();
            device.while_ports_are_stable(|| self.apply_port_state());
        }
    }

    /// Blocks the connection if its port is down, and unblocks it otherwise.
    pub(super) fn apply_port_state(self: &Arc<Self>) {
        let down = self.is_port_down();
        // First what arrives, so that nothing is acknowledged that the stream does not get.
        if down && let Err(error) = set_deaf(&**self.link.tcp(), true) {
            tracing::error!(%error, "failed to filter a connection");
        }
        let changed = self.qp.set_link_blocked(down);
        if !down {
            let _ = set_deaf(&**self.link.tcp(), false); // fails only if the connection is lost
            if changed {
                self.submit_drive(&self.lane());
            }
        }
        if down {
            self.start_path_timer();
        }
    }

    /// Starts to check the path, unless that is done already.
    fn start_path_timer(self: &Arc<Self>) {
        if self.timers.fetch_or(PATH_TIMER, Ordering::SeqCst) & PATH_TIMER == 0 {
            self.schedule_path_check(None);
        }
    }

    fn schedule_path_check(self: &Arc<Self>, stalled_since: Option<Instant>) {
        self.call_after(CHECK_INTERVAL, move |connection| connection.check_path(stalled_since));
    }

    /// Returns how long a request may wait for the peer: as long as the retries of the queue pair last, or, without any,
    /// as long as TCP keeps a connection.
    fn path_timeout(&self) -> Duration {
        let steering = self.pair.receive_cq().steering();
        self.qp.retries().response_timeout().unwrap_or_else(|| steering.config().user_timeout())
    }

    /// Gives the connection up if a request has waited for too long, while nothing came from the peer. Otherwise schedules
    /// the next check.
    fn check_path(self: &Arc<Self>, stalled_since: Option<Instant>) {
        if lock(&self.state).lifecycle.is_closed() {
            return;
        }
        let (now, is_down) = (Instant::now(), self.is_port_down());
        let since = (self.qp.has_work() && (is_down || self.awaits_ack())).then(|| match stalled_since {
            Some(since) if is_down || !self.was_acked_since(since, now) => since,
            _ => now,
        });
        if since.is_some_and(|since| now.duration_since(since) >= self.path_timeout()) {
            tracing::info!(qp = self.qp.id(), is_down, "no answer from the peer: retries exceeded");
            return self.abandon(QpError::Lost(libc::ETIMEDOUT));
        }
        if is_down || self.watches_path() {
            return self.schedule_path_check(since);
        }
        self.timers.fetch_and(!PATH_TIMER, Ordering::SeqCst);
        if self.is_port_down() {
            self.start_path_timer(); // it was taken down before the timer stopped
        }
    }

    /// Returns whether TCP has sent something that the peer has not acknowledged.
    fn awaits_ack(&self) -> bool {
        self.link.tcp().counters().awaits_ack
    }

    /// Returns whether the peer has acknowledged anything since this time.
    fn was_acked_since(&self, since: Instant, now: Instant) -> bool {
        self.link.tcp().counters().since_ack + CLOCK_STEP < now.duration_since(since)
    }

    /// Ends the connection without telling the peer, because nothing would reach it. If the port is down, the socket stays
    /// open until it is up: closing it would send a reset, which the kernel does not hold back.
    pub(super) fn abandon(self: &Arc<Self>, error: QpError) {
        self.qp.abort(error);
        if self.is_port_down() {
            self.pair.receive_cq().steering().logical().keep_until_up(Arc::clone(self.link.tcp()));
        } else {
            self.link.abort();
        }
        self.release();
    }
}
