//! The event queues of an adapter, by function and by lane, and the vectors that wake who reads them (requirements I6, I8). The table
//! is the device's ([`EventMap`]); here are the queues and descriptors that it leads to.

use crate::class::Class;
use crate::cq::CompletionQueue;
use crate::engine::Engine;
use crate::event::EventFdWake;
use crate::handler::CompletionHandler;
use crate::set::lock;
use crate::steering::NoSuchLane;
use ironwarp_rnic::event::{Code, EventMap, LANE_QUEUE, Vector};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A map that the adapter cannot go by. What was in force stays so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetMapError {
    /// It is for another number of lanes.
    #[error("the map is for {map} lanes, and there are {lanes}")]
    Lanes {
        /// For how many it is.
        map: usize,
        /// How many there are.
        lanes: usize,
    },
    /// It leads to an event queue that there is not.
    #[error("there is no completion handler with the number {0}")]
    NoSuchQueue(u16),
    /// The operating system says no.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What the map of an adapter leads to.
#[derive(Debug, Default)]
pub(crate) struct EventQueues(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    /// Completion handlers, by the numbers of their event queues.
    handlers: BTreeMap<u16, Weak<CompletionHandler>>,
    /// Those of lanes, which stay.
    of_lanes: Vec<Arc<CompletionHandler>>,
    /// Completion queues whose events go where the map leads for a lane.
    followers: Vec<(Weak<CompletionQueue>, usize)>,
    vectors: BTreeMap<Vector, EventFdWake>,
}

impl EventQueues {
    /// How urgent it is what the handler with this event queue tells.
    pub(crate) fn class(&self, queue: u16) -> Option<Class> {
        Some(lock(&self.0).handlers.get(&queue)?.upgrade()?.class())
    }
}

impl Engine {
    /// Which events go to which event queues, and which vectors wake who reads those.
    pub fn event_map(&self) -> EventMap {
        self.device().routing().map()
    }

    /// Changes that while events flow (requirement I9): none is lost or doubled.
    pub fn set_event_map(&self, map: EventMap) -> Result<(), SetMapError> {
        let lanes = self.steering().lanes();
        if map.lanes() != lanes {
            return Err(SetMapError::Lanes { map: map.lanes(), lanes });
        }
        let mut queues = self.queues();
        let numbers = (0..lanes).map(|lane| map.route(Code::Completion, lane).queue);
        let handlers =
            numbers.map(|number| self.numbered(&mut queues, number)).collect::<Result<Vec<_>, _>>()?;
        self.device().routing().set_map(map);
        queues.followers.retain(|(cq, _)| cq.strong_count() > 0);
        for (cq, lane) in &queues.followers {
            if let Some(cq) = cq.upgrade() {
                cq.set_handler(Some(&handlers[*lane]));
            }
        }
        Ok(())
    }

    /// A descriptor that is readable while any event queue with this vector has something. It has nothing to take: that is done at
    /// the queues.
    pub fn vector(&self, vector: Vector) -> io::Result<EventFdWake> {
        let mut queues = self.queues();
        if let Some(known) = queues.vectors.get(&vector) {
            return Ok(known.clone());
        }
        let wake = EventFdWake::new()?;
        queues.vectors.insert(vector, wake.clone());
        self.device().routing().connect(vector, Arc::new(wake.clone()));
        Ok(wake)
    }

    /// The completion handler that the map has for a lane.
    pub fn lane_handler(&self, lane: usize) -> Result<Arc<CompletionHandler>, SetMapError> {
        self.known_lane(lane)?;
        let mut queues = self.queues();
        self.numbered(&mut queues, self.event_map().route(Code::Completion, lane).queue)
    }

    /// From now on the events of a completion queue go where the map leads for a lane, now and when it is changed.
    pub fn follow_map(&self, cq: &Arc<CompletionQueue>, lane: usize) -> Result<(), SetMapError> {
        self.known_lane(lane)?;
        let mut queues = self.queues();
        let number = self.event_map().route(Code::Completion, lane).queue;
        cq.set_handler(Some(&self.numbered(&mut queues, number)?));
        queues.forget(cq);
        queues.followers.push((Arc::downgrade(cq), lane));
        Ok(())
    }

    /// From now on a completion queue has the handler that it is given, whatever the map says.
    pub fn leave_map(&self, cq: &Arc<CompletionQueue>, handler: Option<&Arc<CompletionHandler>>) {
        let mut queues = self.queues();
        queues.forget(cq);
        cq.set_handler(handler);
    }

    pub(crate) fn know_handler(&self, handler: &Arc<CompletionHandler>) {
        self.queues().handlers.insert(handler.id().0, Arc::downgrade(handler));
    }

    fn known_lane(&self, lane: usize) -> io::Result<()> {
        let lanes = self.steering().lanes();
        if lane < lanes { Ok(()) } else { Err(io::Error::other(NoSuchLane { lane, lanes })) }
    }

    /// The handler with the event queue of this number. Those of lanes are made when they are first needed.
    fn numbered(&self, queues: &mut Queues, number: u16) -> Result<Arc<CompletionHandler>, SetMapError> {
        if let Some(handler) = queues.handlers.get(&number).and_then(Weak::upgrade) {
            return Ok(handler);
        }
        let lane = number.checked_sub(LANE_QUEUE).filter(|lane| usize::from(*lane) < self.steering().lanes());
        let lane = lane.ok_or(SetMapError::NoSuchQueue(number))?;
        let wake = EventFdWake::new()?;
        let inner = self.device().create_lane_handler(lane, Box::new(wake.clone()));
        let handler = CompletionHandler::new(inner, wake);
        queues.handlers.insert(number, Arc::downgrade(&handler));
        queues.of_lanes.push(Arc::clone(&handler));
        Ok(handler)
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        lock(&self.event_queues().0)
    }
}

impl Queues {
    fn forget(&mut self, cq: &Arc<CompletionQueue>) {
        self.followers
            .retain(|(known, _)| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq)));
    }
}
