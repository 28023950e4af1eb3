//! The event queues of an adapter, by function and by lane, and the vectors that wake their readers (requirements I6, I8). The table
//! is the device's ([`EventMap`]); here are the queues and descriptors that it names.

use super::cq::CompletionQueue;
use crate::notify::channel::EventFdWake;
use crate::notify::handler::CompletionHandler;
use crate::reactor::class::Class;
use crate::steering::NoSuchLane;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{Code, EventMap, LANE_QUEUE, Vector};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

/// Why an event map was refused. The map before it stays in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetMapError {
    /// The map is for another number of lanes.
    #[error("the map is for {map} lanes, but the adapter has {lanes}")]
    Lanes {
        /// Number of lanes of the map.
        map: usize,
        /// Number of lanes of the adapter.
        lanes: usize,
    },
    /// The map names an event queue that does not exist.
    #[error("no completion handler with the number {0}")]
    NoSuchQueue(u16),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The event queues of an adapter.
#[derive(Debug)]
pub struct EventQueues {
    device: Arc<Device>,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Completion handlers, by the numbers of their event queues.
    handlers: BTreeMap<u16, Weak<CompletionHandler>>,
    /// The handlers of lanes, which stay.
    of_lanes: Vec<Arc<CompletionHandler>>,
    /// Completion queues whose handler is the one that the map has for a lane.
    followers: Vec<(Weak<CompletionQueue>, usize)>,
    vectors: BTreeMap<Vector, EventFdWake>,
}

impl EventQueues {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), queues: Mutex::default() }
    }

    /// Returns the map: which events go to which event queues, and which vectors wake their readers.
    pub fn map(&self) -> EventMap {
        self.device.routing().map()
    }

    /// Changes the map while events flow (requirement I9): no event is lost or doubled.
    pub fn set_map(&self, map: EventMap) -> Result<(), SetMapError> {
        let lanes = self.lanes();
        if map.lanes() != lanes {
            return Err(SetMapError::Lanes { map: map.lanes(), lanes });
        }
        let mut queues = lock(&self.queues);
        let numbers = (0..lanes).map(|lane| map.route(Code::Completion, lane).queue);
        let handlers =
            numbers.map(|number| self.numbered(&mut queues, number)).collect::<Result<Vec<_>, _>>()?;
        self.device.routing().set_map(map);
        queues.followers.retain(|(cq, _)| cq.strong_count() > 0);
        for (cq, lane) in &queues.followers {
            if let Some(cq) = cq.upgrade() {
                cq.set_handler(Some(&handlers[*lane]));
            }
        }
        Ok(())
    }

    /// Returns a descriptor that is readable while any event queue with this vector has an event. Nothing is read from it: events are
    /// taken from the queues.
    pub fn vector(&self, vector: Vector) -> io::Result<EventFdWake> {
        let mut queues = lock(&self.queues);
        if let Some(known) = queues.vectors.get(&vector) {
            return Ok(known.clone());
        }
        let wake = EventFdWake::new()?;
        queues.vectors.insert(vector, wake.clone());
        self.device.routing().connect_vector(vector, Arc::new(wake.clone()));
        Ok(wake)
    }

    /// Returns the completion handler that the map has for a lane.
    pub fn lane_handler(&self, lane: usize) -> Result<Arc<CompletionHandler>, SetMapError> {
        self.check_lane(lane)?;
        let mut queues = lock(&self.queues);
        self.numbered(&mut queues, self.map().route(Code::Completion, lane).queue)
    }

    /// Gives a completion queue the handler that the map has for a lane, now and whenever the map changes.
    pub fn follow_map(&self, cq: &Arc<CompletionQueue>, lane: usize) -> Result<(), SetMapError> {
        self.check_lane(lane)?;
        let mut queues = lock(&self.queues);
        let number = self.map().route(Code::Completion, lane).queue;
        cq.set_handler(Some(&self.numbered(&mut queues, number)?));
        queues.forget(cq);
        queues.followers.push((Arc::downgrade(cq), lane));
        Ok(())
    }

    /// Gives a completion queue this handler, whatever the map says.
    pub fn leave_map(&self, cq: &Arc<CompletionQueue>, handler: Option<&Arc<CompletionHandler>>) {
        let mut queues = lock(&self.queues);
        queues.forget(cq);
        cq.set_handler(handler);
    }

    pub(crate) fn add_handler(&self, handler: &Arc<CompletionHandler>) {
        lock(&self.queues).handlers.insert(handler.id().0, Arc::downgrade(handler));
    }

    /// The class of the handler with this event queue.
    pub(crate) fn class(&self, queue: u16) -> Option<Class> {
        Some(lock(&self.queues).handlers.get(&queue)?.upgrade()?.class())
    }

    /// Number of lanes, which every map has.
    fn lanes(&self) -> usize {
        self.map().lanes()
    }

    fn check_lane(&self, lane: usize) -> io::Result<()> {
        let lanes = self.lanes();
        if lane < lanes { Ok(()) } else { Err(io::Error::other(NoSuchLane { lane, lanes })) }
    }

    /// The handler with the event queue of this number. Those of lanes are created when they are first needed.
    fn numbered(&self, queues: &mut Queues, number: u16) -> Result<Arc<CompletionHandler>, SetMapError> {
        if let Some(handler) = queues.handlers.get(&number).and_then(Weak::upgrade) {
            return Ok(handler);
        }
        let lane = number.checked_sub(LANE_QUEUE).filter(|lane| usize::from(*lane) < self.lanes());
        let lane = lane.ok_or(SetMapError::NoSuchQueue(number))?;
        let wake = EventFdWake::new()?;
        let inner = self.device.create_lane_handler(lane, Box::new(wake.clone()));
        let handler = CompletionHandler::new(inner, wake);
        queues.handlers.insert(number, Arc::downgrade(&handler));
        queues.of_lanes.push(Arc::clone(&handler));
        Ok(handler)
    }
}

impl Queues {
    fn forget(&mut self, cq: &Arc<CompletionQueue>) {
        self.followers
            .retain(|(known, _)| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq)));
    }
}
