//! What connection management needs of the adapter.

use super::handshake::Handshake;
use super::handshakes::Handshakes;
use super::proof::Key;
use crate::capture::Capture;
use crate::config::Config;
use crate::reactor::command::Command;
use crate::reactor::lane::Lane;
use crate::steering::Steering;
use crate::sys::socket::Tap;
use crate::sys::tcp::Keepalive;
use ironwarp_rnic::connect::Terms;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Number of keepalive probes, and the interval between them, before the kernel gives a peer up.
const PROBES: u32 = 6;
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Connection management of an adapter. The adapter holds it, everything else refers to it weakly: no connection is made once the adapter
/// is closed.
#[derive(Debug)]
pub(crate) struct CmContext {
    config: Arc<Config>,
    steering: Arc<Steering>,
    capture: Option<Arc<Capture>>,
    /// What manually connected queue pairs must prove to know.
    cluster_key: Option<Key>,
    /// By the number of the lane.
    handshakes: Mutex<HashMap<usize, Arc<Handshakes>>>,
    alive: Arc<()>,
}

impl CmContext {
    pub(crate) fn new(
        config: &Arc<Config>,
        steering: &Arc<Steering>,
        capture: Option<Arc<Capture>>,
        cluster_key: Option<Key>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config: Arc::clone(config),
            steering: Arc::clone(steering),
            capture,
            cluster_key,
            handshakes: Mutex::default(),
            alive: Arc::default(),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// A tap for a connection that this end dials, if packets are captured.
    pub(super) fn dial_tap(&self) -> Option<Box<dyn Tap>> {
        self.capture.as_ref().map(Capture::client_tap)
    }

    pub(super) fn cluster_key(&self) -> Option<&Key> {
        self.cluster_key.as_ref()
    }

    /// Upgradable as long as the adapter is open.
    pub(super) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// What this adapter agrees to, with these depths or its own.
    pub(crate) fn terms(&self, ird: Option<u16>, ord: Option<u16>) -> Terms {
        let config = &self.config;
        let ird = ird.unwrap_or(config.ird);
        let ord = ord.unwrap_or(config.ord);
        Terms { ird, max_ird: ird.max(config.ird), ord, crc: config.crc, markers: config.markers }
    }

    pub(crate) fn keepalive(&self) -> Keepalive {
        let idle = self.config.keepalive;
        Keepalive {
            idle,
            interval: PROBE_INTERVAL,
            probes: PROBES,
            user_timeout: idle + PROBE_INTERVAL * PROBES,
        }
    }

    /// Begins a handshake, on the lane that its addresses lead to.
    pub(crate) fn begin(&self, handshake: Box<dyn Handshake>) -> io::Result<()> {
        let lane = match handshake.addresses() {
            Some((peer, local)) => self.steering.lane_by_addresses(peer, local)?,
            None => self.steering.default_lane()?,
        };
        self.handshakes(lane).begin(handshake);
        Ok(())
    }

    /// The handshakes of a lane.
    pub(super) fn handshakes(&self, lane: &Lane) -> Arc<Handshakes> {
        let mut all = lock(&self.handshakes);
        let handshakes = all.entry(lane.handle().number()).or_insert_with(|| {
            let handshakes = Handshakes::new(lane.handle());
            lane.handle().submit(Command::AddService(Arc::<Handshakes>::clone(&handshakes)));
            handshakes
        });
        Arc::clone(handshakes)
    }

    /// Calls a function on the default lane at this time, for what has no caller to report an error to.
    pub(super) fn remind(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        if let Err(error) = self.call_at(at, call) {
            tracing::error!(%error, "failed to start the lanes");
        }
    }

    /// Calls a function on the default lane at this time, or soon after.
    pub(crate) fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.steering.default_lane()?.handle().call_at(at, call);
        Ok(())
    }
}
