//! The objects of a function that have to end when it is shut down, or move with it to another process.

use super::control::{self, ControlQueue};
use super::cq::CompletionQueue;
use super::datagram::DatagramQueuePair;
use super::iscsi::IscsiQueuePair;
use super::queue_pair::QueuePair;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::SharedReceiveQueue;
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// The objects of a function to which requests are posted.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pairs: List<QueuePair>,
    completion_queues: List<CompletionQueue>,
    datagram_pairs: List<DatagramQueuePair>,
    iscsi_pairs: List<IscsiQueuePair>,
    shared_receive_queues: List<SharedReceiveQueue>,
    control_queues: List<control::Shared>,
}

/// Objects that the program may have dropped.
#[derive(Debug)]
struct List<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> List<T> {
    fn add(&self, object: &Arc<T>) {
        let mut list = lock(&self.0);
        if list.len() == list.capacity() {
            list.retain(|known| known.strong_count() > 0); // before the list grows
        }
        list.push(Arc::downgrade(object));
    }

    fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    fn for_each(&self, act: impl FnMut(&Arc<T>)) {
        self.all().iter().for_each(act);
    }
}

impl Objects {
    pub(crate) fn add_pair(&self, pair: &Arc<QueuePair>) {
        self.pairs.add(pair);
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CompletionQueue>) {
        self.completion_queues.add(cq);
    }

    /// Returns all queue pairs but the connectionless ones.
    pub(crate) fn pairs(&self) -> Vec<Arc<QueuePair>> {
        self.pairs.all()
    }

    /// Returns all completion queues.
    pub(crate) fn completion_queues(&self) -> Vec<Arc<CompletionQueue>> {
        self.completion_queues.all()
    }

    /// Returns all shared receive queues.
    pub(crate) fn shared_receive_queues(&self) -> Vec<Arc<SharedReceiveQueue>> {
        self.shared_receive_queues.all()
    }

    /// Returns whether there are connectionless queue pairs.
    pub(crate) fn has_datagram_pairs(&self) -> bool {
        !self.datagram_pairs.all().is_empty()
    }

    /// Returns whether there are queue pairs in iSCSI mode.
    pub(crate) fn has_iscsi_pairs(&self) -> bool {
        !self.iscsi_pairs.all().is_empty()
    }

    pub(crate) fn add_iscsi_pair(&self, pair: &Arc<IscsiQueuePair>) {
        self.iscsi_pairs.add(pair);
    }

    /// Returns whether there are control queues.
    pub(crate) fn has_control_queues(&self) -> bool {
        !self.control_queues.all().is_empty()
    }

    pub(crate) fn add_datagram_pair(&self, pair: &Arc<DatagramQueuePair>) {
        self.datagram_pairs.add(pair);
    }

    pub(crate) fn add_srq(&self, srq: &Arc<SharedReceiveQueue>) {
        self.shared_receive_queues.add(srq);
    }

    pub(crate) fn add_control_queue(&self, queue: &ControlQueue) {
        self.control_queues.add(queue.shared());
    }

    /// Closes all connections in order, and waits until they are closed, or until `deadline`.
    pub(crate) fn close(&self, deadline: Instant) {
        self.pairs.for_each(|pair| pair.disconnect());
        self.pairs.for_each(|pair| {
            if pair.connection().is_some() {
                pair.wait_closed(deadline.saturating_duration_since(Instant::now()));
            }
        });
    }

    /// Ends all connections at once, without telling the peers why, and flushes what was posted.
    pub(crate) fn abort(&self) {
        self.pairs.for_each(|pair| {
            if let Some(connection) = pair.connection() {
                connection.abort(QpError::Stopped);
            }
        });
        self.datagram_pairs.for_each(|pair| {
            let _ = pair.qp().modify(State::Error); // refused after a reset, when there is nothing to flush
        });
        self.iscsi_pairs.for_each(|pair| {
            let _ = pair.qp().modify(State::Error); // always allowed
        });
    }

    /// Ends all objects: requests that have not completed are flushed, and further ones refused. All completions can be polled. Control queues execute
    /// their operations until `deadline`.
    pub(crate) fn shut_down(&self, deadline: Instant) {
        self.control_queues.for_each(|queue| queue.shut_down(deadline));
        self.pairs.for_each(|pair| pair.shut_down());
        self.datagram_pairs.for_each(|pair| pair.qp().shut_down());
        self.iscsi_pairs.for_each(|pair| pair.qp().shut_down());
        self.shared_receive_queues.for_each(|queue| queue.shut_down());
        self.completion_queues.for_each(|queue| queue.cq().release_held());
    }
}
