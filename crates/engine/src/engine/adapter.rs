//! What the functions of an adapter share (requirement X1): lanes, connection management, numbers and ports.

use crate::cm::context::CmContext;
use crate::cm::manual::port::ManualPorts;
use crate::config::Config;
use crate::steering::Steering;
use crate::verbs::function::Functions;
use crate::verbs::qpn::Numbers;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An open adapter without what belongs to its functions. Each function keeps it open.
///
/// The order of the fields matters, because they are dropped in this order: connection management first, so that no
/// connection is made while the lanes stop.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cm: Arc<CmContext>,
    /// The TCP ports of manually connected queue pairs.
    pub(super) ports: ManualPorts,
    /// The queue pair numbers in use. No two functions have the same.
    pub(super) numbers: Arc<Numbers>,
    /// Number of completion queues created.
    cqs: AtomicU32,
    /// Number of shared receive queues created.
    srqs: AtomicU32,
    /// Number of queue pairs created, without connectionless ones.
    qps: AtomicU32,
    /// The functions, the adapter itself included.
    pub(super) functions: Arc<Functions>,
    pub(super) lanes: Lanes,
}

impl Shared {
    pub(super) fn new(cm: Arc<CmContext>, functions: Arc<Functions>, lanes: Lanes) -> Arc<Self> {
        Arc::new(Self {
            cm,
            ports: ManualPorts::default(),
            numbers: Numbers::new(),
            cqs: AtomicU32::new(0),
            srqs: AtomicU32::new(0),
            qps: AtomicU32::new(0),
            functions,
            lanes,
        })
    }

    /// Returns the number of completion queues and of shared receive queues that were created.
    pub(super) fn created(&self) -> [u32; 2] {
        [&self.cqs, &self.srqs].map(|count| count.load(Ordering::Relaxed))
    }

    /// Sets the number of completion queues and of shared receive queues that were created, in an adapter that moved here.
    pub(super) fn set_created(&self, [cqs, srqs]: [u32; 2]) {
        self.cqs.store(cqs, Ordering::Relaxed);
        self.srqs.store(srqs, Ordering::Relaxed);
    }

    /// Returns the number of the next completion queue.
    pub(super) fn next_cq(&self) -> u32 {
        self.cqs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of the next shared receive queue.
    pub(super) fn next_srq(&self) -> u32 {
        self.srqs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of connected queue pairs that were created before the next one.
    pub(super) fn next_qp_index(&self) -> u32 {
        self.qps.fetch_add(1, Ordering::Relaxed)
    }
}

/// The part that is shut down last. Closing loses no data: lanes end once all connections are closed, or the time in the
/// setting `close` has passed.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) config: Arc<Config>,
    pub(super) steering: Arc<Steering>,
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.steering.stop(self.config.close);
    }
}
