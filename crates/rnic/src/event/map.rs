//! The event map (requirements I6, I8): by the code of an event and the lane that raised it, determines the
//! [event queue](super::EventQueue) that the event is written to, and the vector that wakes the queue's reader.
//!
//! | shape | one row per | one column per | an entry is |
//! |---|---|---|---|
//! | [`Shape::ByFunction`] | function | lane | a queue and a vector |
//! | [`Shape::ByCode`] | event code | lane | a queue and a vector |
//! | [`Shape::ByQueue`] | queue | | a vector; the queue follows from function and lane |
//!
//! | function | default queue | the map can send its events to |
//! |---|---|---|
//! | global, management | 0 | no other queue |
//! | RDMA objects and administrative commands | 1 | queues that the program has created, for each lane or for all |
//! | channel: the connection manager | 2 | the same |
//! | completion | one for each lane | completion handlers |
//!
//! Classes of handlers (requirement N6) would add one more column.

use super::code::{Code, Function};
use super::register::MAX_NUMBER;
use std::collections::BTreeMap;
use std::ops::Range;

/// The queue of global and management events.
pub const GLOBAL_QUEUE: u16 = 0;
/// The default queue of asynchronous events of RDMA objects and of administrative commands.
pub const ASYNC_QUEUE: u16 = 1;
/// The default queue of channel events.
pub const CHANNEL_QUEUE: u16 = 2;
/// The queues of completion handlers.
pub const HANDLER_QUEUES: Range<u16> = CHANNEL_QUEUE + 1..LANE_QUEUE + MAX_LANE_QUEUES;
/// The default queue of completion events of lane 0. The queues of the other lanes have the next numbers.
pub const LANE_QUEUE: u16 = 2048;

/// The queues that programs create for asynchronous and channel events.
pub const PROGRAM_QUEUES: Range<u16> = HANDLER_QUEUES.end..MAX_NUMBER;

/// Maximum number of default queues for completion events. If there are more lanes, several share a queue.
const MAX_LANE_QUEUES: u16 = 1024;

/// All functions, in the order of the rows.
const FUNCTIONS: [Function; 5] =
    [Function::Global, Function::Management, Function::Rdma, Function::Channel, Function::Completion];

/// An interrupt vector, which wakes the readers of event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vector {
    /// The interrupt line, shared by all queues that have no vector of their own.
    Line,
    /// The message-signalled vector with this number.
    Message(u8),
}

/// The destination of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The number of the event queue.
    pub queue: u16,
    /// The vector that wakes the reader of the queue.
    pub vector: Vector,
}

/// The meaning of the rows of an event map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One row per function.
    ByFunction,
    /// One row per event code, the finest granularity.
    ByCode,
    /// One row per event queue.
    ByQueue,
}

/// Why a route cannot be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The lane does not exist.
    #[error("lane {lane} out of range: the adapter has {lanes}")]
    NoSuchLane {
        /// The invalid lane.
        lane: usize,
        /// The number of lanes.
        lanes: usize,
    },
    /// The vector does not exist.
    #[error("vector {vector} out of range: the table has {vectors}")]
    NoSuchVector {
        /// The invalid vector.
        vector: u8,
        /// The number of vectors.
        vectors: u8,
    },
    /// Events of this code cannot go to the queue.
    #[error("events of this code cannot go to event queue {queue}")]
    WrongQueue {
        /// The number of the queue.
        queue: u16,
    },
}

/// A table that maps events to event queues and vectors.
///
/// ```
/// # use ironwarp_rnic::event::{Code as EventCode, EventMap, Route as EventRoute};
/// # use ironwarp_rnic::event::{Shape as MapShape, Vector as EventVector};
/// // Two lanes; a vector for each, and one for everything else.
/// let mut map = EventMap::new(MapShape::ByFunction, 2, 3);
/// assert_eq!(map.route(EventCode::DeviceFatal, 1), EventRoute { queue: 0, vector: EventVector::Message(0) });
/// assert_eq!(map.route(EventCode::Completion, 1).vector, EventVector::Message(2));
/// // No vectors: one line for everything.
/// assert_eq!(EventMap::new(MapShape::ByFunction, 2, 0).route(EventCode::Completion, 1).vector, EventVector::Line);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMap {
    shape: Shape,
    lanes: usize,
    vectors: u8,
    /// The entries, row by row. A map by queue has one row per function here, too, of which only the queue counts.
    cells: Vec<Route>,
    /// In a map by queue, the vector of each queue. Empty in other maps.
    queues: BTreeMap<u16, Vector>,
}

impl EventMap {
    /// Creates the default map: completion events of each lane have their own queue. The first vector is for all
    /// other events, the rest are for the completion events of the lanes; with fewer vectors than that, lanes share
    /// vectors.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{Code as EventCode, EventMap, Shape as MapShape};
    /// let map = EventMap::new(MapShape::ByQueue, 4, 3);
    /// assert_eq!(map.route(EventCode::Completion, 0).vector, map.route(EventCode::Completion, 2).vector);
    /// ```
    pub fn new(shape: Shape, lanes: usize, vectors: u8) -> Self {
        let lanes = lanes.max(1);
        let rows: &[Function] =
            if shape == Shape::ByCode { &Code::ALL.map(Code::function) } else { &FUNCTIONS };
        let cell = |(function, lane)| default_route(function, lane, vectors);
        let cells: Vec<_> =
            rows.iter().flat_map(|row| (0..lanes).map(move |lane| (*row, lane))).map(cell).collect();
        let queues = match shape {
            Shape::ByQueue => cells.iter().map(|cell| (cell.queue, cell.vector)).collect(),
            Shape::ByFunction | Shape::ByCode => BTreeMap::new(),
        };
        Self { shape, lanes, vectors, cells, queues }
    }

    /// Returns the meaning of the rows.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape as MapShape};
    /// assert_eq!(EventMap::new(MapShape::ByCode, 2, 3).shape(), MapShape::ByCode);
    /// ```
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of lanes.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape as MapShape};
    /// assert_eq!(EventMap::new(MapShape::ByCode, 2, 3).lanes(), 2);
    /// ```
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Returns the number of vectors.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape as MapShape};
    /// assert_eq!(EventMap::new(MapShape::ByCode, 2, 3).vectors(), 3);
    /// ```
    pub fn vectors(&self) -> u8 {
        self.vectors
    }

    /// Returns the destination of events with this code from this lane. For events that no lane raises, such as global
    /// events, pass lane 0. Lanes that are out of range wrap around, so that this cannot fail.
    ///
    /// The adapter calls this for each asynchronous event. For completion events, it does so when it creates the
    /// completion handler of a lane and when the map changes, not for each event.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{Code as EventCode, EventMap, Shape as MapShape};
    /// assert_eq!(EventMap::new(MapShape::ByCode, 2, 3).route(EventCode::QpFatal, 0).queue, 1);
    /// ```
    pub fn route(&self, code: Code, lane: usize) -> Route {
        let cell = self.cells[self.cell_index(code, lane % self.lanes)];
        match self.shape {
            Shape::ByFunction | Shape::ByCode => cell,
            Shape::ByQueue => Route { queue: cell.queue, vector: self.queues[&cell.queue] },
        }
    }

    /// Returns the one vector that wakes the reader of a queue for an event with this code from this lane. `None` if no
    /// event goes to the queue.
    ///
    /// A program may have assigned a completion queue to a handler to which the map sends the events of other lanes only.
    /// The vector is then that of the first of those lanes.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{Code as EventCode, EventMap, Shape as MapShape, Vector as EventVector};
    /// let map = EventMap::new(MapShape::ByCode, 2, 3);
    /// assert_eq!(map.vector(1, EventCode::QpFatal, 0), Some(EventVector::Message(0)));
    /// assert_eq!(map.vector(7, EventCode::Completion, 0), None);
    /// ```
    pub fn vector(&self, queue: u16, code: Code, lane: usize) -> Option<Vector> {
        let of_code = |code| (0..self.lanes).map(move |lane| self.route(code, lane));
        let others = of_code(code).chain(Code::ALL.into_iter().flat_map(of_code));
        let mut routes = std::iter::once(self.route(code, lane)).chain(others);
        Some(routes.find(|route| route.queue == queue)?.vector)
    }

    /// Changes the destination of events with this code and lane. In a map by function, the change applies to all
    /// codes of the function; in a map by queue, the vector applies to all events that go to the queue. Completion
    /// events can go to any completion handler. Asynchronous events of RDMA objects, and channel events, can go to a
    /// queue that the program has created. Other events stay in their queue.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{Code as EventCode, EventMap, Shape as MapShape, Vector as EventVector};
    /// let mut map = EventMap::new(MapShape::ByFunction, 2, 3);
    /// let mut route = map.route(EventCode::Completion, 1);
    /// route.vector = EventVector::Line;
    /// map.assign(EventCode::Completion, 1, route)?;
    /// assert_eq!(map.route(EventCode::Completion, 1), route);
    /// # Ok::<(), ironwarp_rnic::event::MapError>(())
    /// ```
    pub fn assign(&mut self, code: Code, lane: usize, route: Route) -> Result<(), MapError> {
        if lane >= self.lanes {
            return Err(MapError::NoSuchLane { lane, lanes: self.lanes });
        }
        if let Vector::Message(vector) = route.vector
            && vector >= self.vectors
        {
            return Err(MapError::NoSuchVector { vector, vectors: self.vectors });
        }
        let is_default = route.queue == default_route(code.function(), lane, self.vectors).queue;
        let fits = match code.function() {
            Function::Global | Function::Management => is_default,
            Function::Rdma | Function::Channel => is_default || PROGRAM_QUEUES.contains(&route.queue),
            Function::Completion => HANDLER_QUEUES.contains(&route.queue),
        };
        if !fits {
            return Err(MapError::WrongQueue { queue: route.queue });
        }
        let cell = self.cell_index(code, lane);
        self.cells[cell] = route;
        if self.shape == Shape::ByQueue {
            self.queues.insert(route.queue, route.vector);
        }
        Ok(())
    }

    /// Returns the index in `cells` of the entry for this code and lane.
    fn cell_index(&self, code: Code, lane: usize) -> usize {
        let row = match self.shape {
            Shape::ByCode => Code::ALL.iter().position(|known| *known == code),
            Shape::ByFunction | Shape::ByQueue => {
                FUNCTIONS.iter().position(|known| *known == code.function())
            }
        };
        row.expect("every code and function is listed") * self.lanes + lane
    }
}

/// Returns the route of events of this function and lane in a default map with this number of vectors.
fn default_route(function: Function, lane: usize, vectors: u8) -> Route {
    let lane = u16::try_from(lane).unwrap_or(u16::MAX) % MAX_LANE_QUEUES;
    let queue = match function {
        Function::Global | Function::Management => GLOBAL_QUEUE,
        Function::Rdma => ASYNC_QUEUE,
        Function::Channel => CHANNEL_QUEUE,
        Function::Completion => LANE_QUEUE + lane,
    };
    let vector = match (vectors, function) {
        (0, _) => Vector::Line,
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of vectors")]
        (2.., Function::Completion) => Vector::Message(1 + (lane % (u16::from(vectors) - 1)) as u8),
        _ => Vector::Message(0),
    };
    Route { queue, vector }
}

#[cfg(all(test, not(loom)))]
mod tests;
