//! The functions of an adapter (requirement X1): each owns a device, event queues and objects, and ends with them. Number 0
//! is the adapter itself.

use super::event_queues::EventQueues;
use super::objects::Objects;
use crate::notify::end::EndSignal;
use crate::steering::Steering;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{Routing, Stop};
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// A listener, as far as its function knows it.
pub(crate) trait StopListening: Send + Sync + fmt::Debug {
    /// Stops listening at once. Handshakes in progress continue.
    fn stop(&self);

    /// Returns the listener as one that can move to another process; `None` if it cannot (requirement X2).
    fn as_movable(self: Arc<Self>) -> Option<Arc<dyn MovableListener>>;
}

/// A listener that can move to another process (requirement X2).
pub(crate) trait MovableListener: Send + Sync + fmt::Debug {
    /// Returns its number, which no other listener of this process has.
    fn number(&self) -> u32;

    /// Returns its socket.
    fn socket(&self) -> Arc<dyn AsFd + Send + Sync>;

    /// Has its lane stop accepting connections, which wait in the kernel's backlog from then on. Handshakes in progress
    /// continue.
    fn pause(&self);

    /// Returns its handshakes, as of some time after [`pause`](Self::pause) was done. `None` if the lane does not answer
    /// until the deadline.
    fn pending(&self, deadline: Instant) -> Option<PendingHandshakes>;

    /// Accepts connections, again or for the first time. From now on, stopping the listener closes its port.
    fn resume(&self);

    /// Closes this copy of the socket, at which another process listens.
    fn surrender(&self);
}

/// The number of handshakes of a listener that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingHandshakes {
    /// The peer has not sent its Request.
    pub(crate) without_request: usize,
    /// The program has not decided, or the Reply is not sent.
    pub(crate) with_request: usize,
}

/// What a function owns.
#[derive(Debug)]
pub(crate) struct Function {
    device: Arc<Device>,
    event_queues: EventQueues,
    /// The objects that a shutdown ends.
    objects: Objects,
    /// The listeners that a shutdown ends. Some may have been dropped.
    listeners: Mutex<Vec<Weak<dyn StopListening>>>,
    /// Tells waiting threads that the function was shut down.
    end: Arc<EndSignal>,
    /// Whether the function was shut down. Locked while it is.
    shut_down: Mutex<bool>,
}

impl Function {
    /// Creates a function without objects.
    pub(crate) fn new(device: Arc<Device>) -> Arc<Self> {
        let end = Arc::<EndSignal>::default();
        Arc::new(Self {
            event_queues: EventQueues::new(&device, &end),
            device,
            objects: Objects::default(),
            listeners: Mutex::default(),
            end,
            shut_down: Mutex::new(false),
        })
    }

    /// Prepares the device for the lanes of its adapter.
    pub(crate) fn set_lanes(&self, lanes: usize) {
        self.device.routing().set_map(Routing::new(lanes).map()); // the device did not know the number of lanes
    }

    /// Ends the connections of this function alone when its device fails, for example because one of its event queues has
    /// overflowed (requirement I5).
    pub(crate) fn stop_alone(self: &Arc<Self>, steering: &Arc<Steering>) {
        let (function, steering) = (Arc::downgrade(self), Arc::downgrade(steering));
        self.device.events().set_stop(Box::new(AbortFunction { function, steering }));
    }

    /// Returns the number of the function. The adapter itself has number 0.
    pub(crate) fn number(&self) -> u32 {
        self.device.account().function()
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn event_queues(&self) -> &EventQueues {
        &self.event_queues
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn end(&self) -> &Arc<EndSignal> {
        &self.end
    }

    /// Adds a listener to those that a shutdown ends, and stops it at once if the function was shut down.
    pub(crate) fn add_listener(&self, listener: Weak<dyn StopListening>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Weak::clone(&listener));
        drop(listeners);
        // After it was added: of this thread and the one that shuts the function down, at least one stops it.
        if self.device.is_shut_down() {
            listener.upgrade().iter().for_each(|listener| listener.stop());
        }
    }

    /// Returns the listeners that can move to another process.
    pub(crate) fn movable_listeners(&self) -> Vec<Arc<dyn MovableListener>> {
        lock(&self.listeners).iter().filter_map(|listener| listener.upgrade()?.as_movable()).collect()
    }

    /// Stops all listeners.
    pub(crate) fn stop_listening(&self) {
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.stop());
    }

    /// Calls `close`, which closes the connections, and ends the function: everything that was posted has completed or is
    /// flushed, and nobody waits any more. Does nothing but wait if another thread ends it, or has ended it.
    pub(crate) fn end_after(&self, deadline: Instant, close: impl FnOnce()) {
        let mut is_done = lock(&self.shut_down);
        if *is_done {
            return;
        }
        close();
        self.stop_listening();
        self.objects.shut_down(deadline);
        self.device.shut_down();
        self.end.end();
        *is_done = true;
    }
}

impl Drop for Function {
    /// Ends notification. By now every posted request has completed or was flushed, or nothing is left to tell about it.
    fn drop(&mut self) {
        self.device.shut_down();
    }
}

/// The functions of an adapter, the adapter itself first. Some may have been dropped.
#[derive(Debug, Default)]
pub(crate) struct Functions(Mutex<Vec<Weak<Function>>>);

impl Functions {
    pub(crate) fn add(&self, function: &Arc<Function>) {
        let mut functions = lock(&self.0);
        functions.retain(|known| known.strong_count() > 0);
        functions.push(Arc::downgrade(function));
    }

    /// Returns those that exist.
    pub(crate) fn all(&self) -> Vec<Arc<Function>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

/// Aborts the connections of a function whose device has failed. Both references are weak, because the device holds
/// this, and both hold the device.
#[derive(Debug)]
struct AbortFunction {
    function: Weak<Function>,
    steering: Weak<Steering>,
}

impl Stop for AbortFunction {
    /// Has a lane abort the connections. Without lanes, there are none.
    fn stop(&self) {
        if let Some(steering) = self.steering.upgrade()
            && let Some(lane) = steering.running_lanes().first()
        {
            let function = Weak::clone(&self.function);
            lane.handle().call(move || function.upgrade().iter().for_each(|it| it.objects.abort()));
        }
    }
}
