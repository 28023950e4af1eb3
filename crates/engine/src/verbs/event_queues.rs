//! The event queues of a function and the vectors that wake their readers (requirements I6, I8). The device's
//! [`EventMap`] decides by event code and lane which events go to which queue; this file has the queues and descriptors
//! that the map refers to by number.

use super::cq::CompletionQueue;
use crate::notify::channel::EventFdWake;
use crate::notify::end::EndSignal;
use crate::notify::handler::CompletionHandler;
use crate::steering::NoSuchLane;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{AdminCommand, AsyncEvent, Code, EventMap, LANE_QUEUE, PROGRAM_QUEUES, Vector};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

/// Why an event map was refused. The previous map stays in force.
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
    #[error("no completion handler or event queue with the number {0}")]
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
    /// The end of the adapter, for threads that wait at handlers.
    end: Arc<EndSignal>,
}

/// The part that changes, under one lock.
#[derive(Debug, Default)]
struct Queues {
    /// Completion handlers, by the numbers of their event queues. Some may have been dropped.
    handlers: BTreeMap<u16, Weak<CompletionHandler>>,
    /// Keeps the handlers of lanes alive as long as the adapter.
    lane_handlers: Vec<Arc<CompletionHandler>>,
    /// The completion queues that follow the map. Some may have been dropped.
    followers: Vec<Weak<CompletionQueue>>,
    /// The descriptors of vectors that the program has asked for.
    vectors: BTreeMap<Vector, EventFdWake>,
}

impl EventQueues {
    /// Creates the event queues of a device, without handlers.
    pub(crate) fn new(device: &Arc<Device>, end: &Arc<EndSignal>) -> Self {
        Self { device: Arc::clone(device), queues: Mutex::default(), end: Arc::clone(end) }
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
        let handlers = self.lane_handlers(&mut queues, &map)?;
        self.check_program_queues(&map)?;
        self.device.routing().set_map(map);
        queues.followers.retain(|follower| follower.strong_count() > 0);
        for cq in queues.followers.iter().filter_map(Weak::upgrade) {
            cq.set_lane_handlers(&handlers);
        }
        drop(queues);
        self.device.raise(AsyncEvent::AdminCommand(AdminCommand::SetEventMap));
        Ok(())
    }

    /// Returns a descriptor that becomes readable for events with this vector, and stays readable until they are taken. The
    /// program does not read from the descriptor: it takes events from the queues.
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

    /// Returns the completion handler to which the map assigns the completion events of a lane. Creates it if the
    /// map names the lane's own handler, and that does not exist yet.
    pub fn lane_handler(&self, lane: usize) -> Result<Arc<CompletionHandler>, SetMapError> {
        self.check_lane(lane)?;
        let mut queues = lock(&self.queues);
        self.find_or_create_handler(&mut queues, self.map().route(Code::Completion, lane).queue)
    }

    /// Has the events of a completion queue follow the map, now and whenever it changes: each goes to the handler that the
    /// map has for the lane that it belongs to (requirement I8).
    pub fn follow_map(&self, cq: &Arc<CompletionQueue>) -> Result<(), SetMapError> {
        let mut queues = lock(&self.queues);
        let handlers = self.lane_handlers(&mut queues, &self.map())?;
        cq.set_lane_handlers(&handlers);
        queues.remove_follower(cq);
        queues.followers.push(Arc::downgrade(cq));
        Ok(())
    }

    /// Gives a completion queue this handler, or none. From now on the queue does not follow the map.
    pub fn leave_map(&self, cq: &Arc<CompletionQueue>, handler: Option<&Arc<CompletionHandler>>) {
        let mut queues = lock(&self.queues);
        queues.remove_follower(cq);
        cq.set_handler(handler);
    }

    /// Adds a handler that the program has created.
    pub(crate) fn add_handler(&self, handler: &Arc<CompletionHandler>) {
        if let Some(number) = handler.id().event_queue() {
            lock(&self.queues).handlers.insert(number, Arc::downgrade(handler));
        }
    }

    /// Returns the handler with this event queue; `None` if there is no such handler.
    pub(crate) fn handler(&self, queue: u16) -> Option<Arc<CompletionHandler>> {
        lock(&self.queues).handlers.get(&queue)?.upgrade()
    }

    /// Returns the number of lanes, which is the same for every map.
    fn lanes(&self) -> usize {
        self.map().lanes()
    }

    /// Fails if the adapter has no lane with this number.
    fn check_lane(&self, lane: usize) -> io::Result<()> {
        let lanes = self.lanes();
        if lane < lanes { Ok(()) } else { Err(io::Error::other(NoSuchLane { lane, lanes })) }
    }

    /// Fails if a map sends events to a queue that the program has not created, or has dropped.
    fn check_program_queues(&self, map: &EventMap) -> Result<(), SetMapError> {
        let open: Vec<_> = self.device.events().program_queues().iter().map(|queue| queue.number()).collect();
        let of_code = |code| (0..map.lanes()).map(move |lane| map.route(code, lane).queue);
        let mut named =
            Code::ALL.into_iter().flat_map(of_code).filter(|queue| PROGRAM_QUEUES.contains(queue));
        named.find(|queue| !open.contains(queue)).map_or(Ok(()), |queue| Err(SetMapError::NoSuchQueue(queue)))
    }

    /// Returns the handler that a map has for the completion events of each lane.
    fn lane_handlers(
        &self,
        queues: &mut Queues,
        map: &EventMap,
    ) -> Result<Vec<Arc<CompletionHandler>>, SetMapError> {
        let numbers = (0..map.lanes()).map(|lane| map.route(Code::Completion, lane).queue);
        numbers.map(|number| self.find_or_create_handler(queues, number)).collect()
    }

    /// Returns the handler whose event queue has this number. Numbers from [`LANE_QUEUE`] on belong to the lanes:
    /// creates the handler of a lane when it is first needed. Fails if there is no handler with a lower number.
    fn find_or_create_handler(
        &self,
        queues: &mut Queues,
        number: u16,
    ) -> Result<Arc<CompletionHandler>, SetMapError> {
        if let Some(handler) = queues.handlers.get(&number).and_then(Weak::upgrade) {
            return Ok(handler);
        }
        let lane = number.checked_sub(LANE_QUEUE).filter(|lane| usize::from(*lane) < self.lanes());
        let lane = lane.ok_or(SetMapError::NoSuchQueue(number))?;
        let wake = EventFdWake::new()?;
        let inner = self.device.create_lane_handler(lane, Box::new(wake.clone()));
        let handler = CompletionHandler::new(inner, wake, &self.end, None);
        queues.handlers.insert(number, Arc::downgrade(&handler));
        queues.lane_handlers.push(Arc::clone(&handler));
        Ok(handler)
    }
}

impl Queues {
    /// Removes a completion queue, and those that have been dropped, from the followers of the map.
    fn remove_follower(&mut self, cq: &Arc<CompletionQueue>) {
        self.followers
            .retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq)));
    }
}
