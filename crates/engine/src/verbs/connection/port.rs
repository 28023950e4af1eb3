//! What becomes of a connection while its port is down (requirement X3), or the port of its peer.
//!
//! The kernel drops what arrives, and the halves of the stream have a link that blocks. So neither end gets anything from
//! the other. Each end gives the connection up once a request has waited as long as its retries last.
//!
//! TCP alone would find a lost path later, or too early, because it also gives up a peer whose window is closed for long.
//! So the connections of logical devices check their path from time to time. Those of a device with the addresses of all
//! interfaces do not, unless their own port is down.

use super::{Connection, ConnectionOwner, PATH_TIMER};
use crate::logical::admin::{self, PortObserver};
use crate::sys::socket::{TcpCounters, set_deaf};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two checks of the path, an eighth of the shortest time that a request may wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(625);
/// The time by which the kernel's clock may be late.
const CLOCK_STEP: Duration = Duration::from_millis(20);
/// How long a kernel may delay an acknowledgement, and more.
const DELAYED_ACK: Duration = Duration::from_millis(200);

/// A request waits for the peer, from which nothing comes.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Instant,
    /// Number of bytes that were acknowledged at that time.
    acknowledged: u64,
    /// Number of times that a port had gone down or up at that time.
    changes: u64,
}

impl<P: ConnectionOwner> PortObserver for Connection<P> {
    fn on_port_state(self: Arc<Self>) {
        self.apply_port_state();
    }
}

impl<P: ConnectionOwner> Connection<P> {
    /// Returns whether the port of the connection was taken down.
    pub(super) fn is_port_down(&self) -> bool {
        if !admin::any_is_down() {
            return false;
        }
        let local = self.tcp.local_addr();
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
            self.tcp.probe_often(); // the peer may have acknowledged everything when its port goes down
            self.start_path_timer();
        }
        // Also if the port is up again: the handshake may have left the socket deaf.
        if admin::changes() > 0 {
            let device = self.pair.receive_cq().steering().logical();
            device.while_ports_are_stable(|| self.apply_port_state());
        }
    }

    /// Blocks the connection if its port is down, and unblocks it otherwise.
    pub(super) fn apply_port_state(self: &Arc<Self>) {
        let down = self.is_port_down();
        let changed = self.qp.set_link_blocked(down);
        if !down {
            let _ = set_deaf(&*self.tcp, false); // fails only if the connection is lost
            if changed {
                self.submit_drive(&self.lane());
            }
            return;
        }
        self.start_path_timer();
        // The kernel would repeat what is not acknowledged, which looks like a sign of life to a peer that sends by shared
        // memory.
        let is_shared = self.qp.send_route() == Route::SharedMemory;
        if changed && is_shared && self.tcp.counters().unacknowledged > 0 {
            return self.call_after(DELAYED_ACK, |connection| {
                let device = connection.pair.receive_cq().steering().logical();
                device.while_ports_are_stable(|| connection.apply_port_state());
            });
        }
        if let Err(error) = set_deaf(&*self.tcp, true) {
            tracing::error!(%error, "failed to block a connection");
        }
    }

    /// Starts to check the path, unless that is done already.
    fn start_path_timer(self: &Arc<Self>) {
        if self.timers.fetch_or(PATH_TIMER, Ordering::SeqCst) & PATH_TIMER == 0 {
            self.schedule_path_check(None);
        }
    }

    fn schedule_path_check(self: &Arc<Self>, stalled: Option<Stalled>) {
        self.call_after(CHECK_INTERVAL, move |connection| connection.check_path(stalled));
    }

    /// Returns how long a request may wait for the peer: as long as the retries of the queue pair last, or, without any,
    /// as long as TCP keeps a connection.
    fn path_timeout(&self) -> Duration {
        let steering = self.pair.receive_cq().steering();
        self.qp.retries().response_timeout().unwrap_or_else(|| steering.config().user_timeout())
    }

    /// Gives the connection up if a request has waited for too long, while nothing came from the peer. Otherwise schedules
    /// the next check.
    fn check_path(self: &Arc<Self>, before: Option<Stalled>) {
        if lock(&self.state).lifecycle.is_closed() {
            return;
        }
        let (now, is_down) = (Instant::now(), self.is_port_down());
        let tcp = self.tcp.counters();
        let awaits_ack = tcp.unacknowledged > 0 || tcp.probes > 0;
        let stalled = (self.qp.has_work() && (is_down || awaits_ack)).then(|| match before {
            // If the port was up meanwhile, messages may have passed.
            Some(before) if is_down && before.changes == admin::changes() => before,
            Some(before) if !is_down && before.has_no_answer(&tcp, now) => before,
            _ => Stalled { since: now, acknowledged: tcp.acknowledged, changes: admin::changes() },
        });
        if stalled.is_some_and(|stalled| now.duration_since(stalled.since) >= self.path_timeout()) {
            tracing::info!(qp = self.qp.id(), is_down, "no answer from the peer: retries exceeded");
            return self.abort(QpError::Lost(libc::ETIMEDOUT));
        }
        if is_down || self.watches_path() {
            return self.schedule_path_check(stalled);
        }
        self.timers.fetch_and(!PATH_TIMER, Ordering::SeqCst);
        if self.is_port_down() {
            self.start_path_timer(); // it was taken down before the timer stopped
        }
    }

    /// Keeps the socket open until the port is up, if the port is down: closing it would send a FIN or a reset, which the
    /// kernel does not hold back.
    pub(super) fn keep_socket_while_down(&self) {
        if self.is_port_down() {
            self.pair.receive_cq().steering().logical().keep_until_up(Arc::clone(&self.tcp));
        }
    }
}

impl Stalled {
    /// Returns whether the peer has still not answered: data is not acknowledged, or probes of an idle connection are not.
    /// Acknowledgements of other data do not count, because the kernel of a peer whose port is down repeats what it sent.
    fn has_no_answer(&self, tcp: &TcpCounters, now: Instant) -> bool {
        match tcp.unacknowledged {
            0 => tcp.since_ack + CLOCK_STEP >= now.duration_since(self.since),
            _ => tcp.acknowledged == self.acknowledged,
        }
    }
}
