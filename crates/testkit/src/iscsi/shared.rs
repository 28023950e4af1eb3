//! The state that the threads of a target share.

use super::disk::Disk;
use super::outbox::Outbox;
use super::script::Script;
use super::settings::Settings;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// What the threads of a target share.
pub(super) struct Shared {
    pub(super) addr: SocketAddr,
    pub(super) settings: Settings,
    pub(super) disk: Disk,
    pub(super) script: Arc<dyn Script>,
    pub(super) outboxes: Mutex<Vec<Arc<Outbox>>>,
    pub(super) violations: Mutex<Vec<String>>,
    pub(super) stopped: AtomicBool,
}
