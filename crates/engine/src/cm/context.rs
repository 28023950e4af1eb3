//! The state of an adapter's connection management: its settings, and the handshakes of all lanes.

use super::handshake::Handshake;
use super::handshakes::Handshakes;
use super::proof::Key;
use crate::capture::Capture;
use crate::config::{Config, PROBE_INTERVAL, PROBES};
use crate::logical::LogicalDevice;
use crate::logical::admin::PortObserver;
use crate::reactor::command::Command;
use crate::reactor::lane::Lane;
use crate::reactor::member::Member;
use crate::steering::Steering;
use crate::sys::socket::Tap;
use crate::sys::tcp::Keepalive;
use ironwarp_rnic::connect::Terms;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// The connection management of an adapter. Only the adapter holds it; all other references are weak, so that no
/// connection is made after the adapter is closed.
#[derive(Debug)]
pub(crate) struct CmContext {
    config: Arc<Config>,
    steering: Arc<Steering>,
    /// Records packets; `None` if packets are not captured.
    capture: Option<Arc<Capture>>,
    /// The key that both ends of a manual connection must know; `None` if none is set.
    cluster_key: Option<Key>,
    /// The handshakes of each lane, by the number of the lane.
    handshakes: Mutex<HashMap<usize, Arc<Handshakes>>>,
    /// Dropped when the adapter is closed. Listeners hold weak references, to learn whether it still exists.
    open_marker: Arc<()>,
}

impl PortObserver for CmContext {
    fn on_port_state(self: Arc<Self>) {
        for set in self.steering.all_lanes().flat_map(|lane| lane.sets()) {
            set.members().into_iter().for_each(Member::apply_port_state);
        }
        for handshakes in lock(&self.handshakes).values() {
            handshakes.apply_port_state(self.logical());
        }
    }
}

/// Returns the TCP keepalive and user timeout settings of connections.
pub(crate) fn keepalive(config: &Config) -> Keepalive {
    let idle = config.keepalive;
    Keepalive { idle, interval: PROBE_INTERVAL, probes: PROBES, user_timeout: config.user_timeout() }
}

impl CmContext {
    /// Creates the connection management of an adapter, without handshakes.
    pub(crate) fn new(
        config: &Arc<Config>,
        steering: &Arc<Steering>,
        capture: Option<Arc<Capture>>,
        cluster_key: Option<Key>,
    ) -> Arc<Self> {
        let context = Arc::new(Self {
            config: Arc::clone(config),
            steering: Arc::clone(steering),
            capture,
            cluster_key,
            handshakes: Mutex::default(),
            open_marker: Arc::default(),
        });
        let observer: Weak<dyn PortObserver> = Arc::<Self>::downgrade(&context);
        steering.logical().observe(observer);
        context
    }

    /// Returns the settings.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the logical device, whose addresses connections have.
    pub(crate) fn logical(&self) -> &Arc<LogicalDevice> {
        self.steering.logical()
    }

    /// Returns the steering of the adapter.
    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// Returns the packet capture; `None` if packets are not captured.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Returns a tap for a connection that this end dials; `None` if packets are not captured.
    pub(super) fn dial_tap(&self) -> Option<Box<dyn Tap>> {
        self.capture.as_ref().map(Capture::client_tap)
    }

    /// Returns the key that both ends of a manual connection must know, if one is set.
    pub(super) fn cluster_key(&self) -> Option<&Key> {
        self.cluster_key.as_ref()
    }

    /// Returns a reference that can be upgraded as long as the adapter is open.
    pub(super) fn open_marker(&self) -> Weak<()> {
        Arc::downgrade(&self.open_marker)
    }

    /// Returns the terms of a handshake, with these depths or, for `None`, those of the settings.
    pub(crate) fn terms(&self, ird: Option<u16>, ord: Option<u16>) -> Terms {
        let config = &self.config;
        let ird = ird.unwrap_or(config.ird);
        let ord = ord.unwrap_or(config.ord);
        Terms { ird, max_ird: ird.max(config.ird), ord, crc: config.crc, markers: config.markers }
    }

    /// Returns the TCP keepalive and user timeout settings of connections.
    pub(crate) fn keepalive(&self) -> Keepalive {
        keepalive(&self.config)
    }

    /// Begins a handshake on the lane that its addresses select, or on the default lane if they are unknown.
    pub(crate) fn begin_handshake(&self, handshake: Box<dyn Handshake>) -> io::Result<()> {
        let lane = match handshake.addresses() {
            Some((peer, local)) => self.steering.lane_by_addresses(peer, local)?,
            None => self.steering.default_lane()?,
        };
        self.handshakes(lane).begin(handshake);
        Ok(())
    }

    /// Returns the handshakes of a lane. Creates the registry when it is first needed.
    pub(super) fn handshakes(&self, lane: &Lane) -> Arc<Handshakes> {
        let mut all = lock(&self.handshakes);
        let handshakes = all.entry(lane.handle().number()).or_insert_with(|| {
            let handshakes = Handshakes::new(lane.handle());
            lane.handle().submit(Command::AddService(Arc::<Handshakes>::clone(&handshakes)));
            handshakes
        });
        Arc::clone(handshakes)
    }

    /// Calls a function on the default lane at this time, or soon after. If the lanes fail to start, logs the error
    /// instead: for callers that cannot report it.
    pub(super) fn call_at_or_log(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        if let Err(error) = self.call_at(at, call) {
            tracing::error!(%error, "failed to start the lanes");
        }
    }

    /// Calls a function on the default lane at this time, or soon after. Fails if the lanes fail to start.
    pub(crate) fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.steering.default_lane()?.handle().call_at(at, call);
        Ok(())
    }
}
