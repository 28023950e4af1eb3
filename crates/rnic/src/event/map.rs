//! Mapping of events to event queues and vectors (requirements I6, I8): which [queue](super::EventQueue) an
//! event goes to, and which vector wakes its reader, by the code of the event and the lane it came from.
//!
//! | shape | one row per | one column per | an entry is |
//! |---|---|---|---|
//! | [`Shape::ByFunction`] | function | lane | a queue and a vector |
//! | [`Shape::ByCode`] | event code | lane | a queue and a vector |
//! | [`Shape::ByQueue`] | queue | | a vector; the queue follows from function and lane |
//!
//! In all shapes, queue 0 gets global and management events, and queue 1 gets asynchronous events of RDMA
//! objects. The table decides on the queues of completion events, and on all vectors. Classes of handlers
//! (requirement N6) would add one more column.

use super::code::{Code, Function};
use std::collections::{BTreeMap, BTreeSet};

/// The queue of global and management events.
pub const GLOBAL_QUEUE: u16 = 0;
/// The queue of asynchronous events of RDMA objects.
pub const ASYNC_QUEUE: u16 = 1;
/// The default queue of completion events of lane 0; those of the other lanes follow.
pub const LANE_QUEUE: u16 = 2048;

/// Number of queues for completion events. If there are more lanes, they share.
const MAX_LANE_QUEUES: u16 = 1024;

const FUNCTIONS: [Function; 4] =
    [Function::Global, Function::Management, Function::Rdma, Function::Completion];

/// What wakes the reader of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vector {
    /// The line shared by all queues without a vector.
    Line,
    /// The vector with this number.
    Message(u8),
}

/// Destination of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The number of the event queue.
    pub queue: u16,
    /// What wakes its reader.
    pub vector: Vector,
}

/// What the rows of a table stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One row per function.
    ByFunction,
    /// One row per event code, the finest granularity.
    ByCode,
    /// One row per event queue.
    ByQueue,
}

/// An invalid entry for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The lane does not exist.
    #[error("lane {lane} out of range: the adapter has {lanes}")]
    NoSuchLane {
        /// The lane that was given.
        lane: usize,
        /// The number that exist.
        lanes: usize,
    },
    /// The vector does not exist.
    #[error("vector {vector} out of range: the table has {vectors}")]
    NoSuchVector {
        /// The vector that was given.
        vector: u8,
        /// The number that exist.
        vectors: u8,
    },
    /// Events of this code cannot go to the queue.
    #[error("events of this code cannot go to event queue {queue}")]
    WrongQueue {
        /// The queue that was given.
        queue: u16,
    },
}

/// The table that maps events to queues and vectors.
///
/// ```
/// use ironwarp_rnic::event::{Code, EventMap, Route, Shape, Vector};
///
/// // Two lanes; a vector for each, and one for everything else.
/// let mut map = EventMap::new(Shape::ByFunction, 2, 3);
/// assert_eq!(map.route(Code::DeviceFatal, 1), Route { queue: 0, vector: Vector::Message(0) });
/// assert_eq!(map.route(Code::Completion, 1).vector, Vector::Message(2));
/// // No vectors: one line for everything.
/// assert_eq!(EventMap::new(Shape::ByFunction, 2, 0).route(Code::Completion, 1).vector, Vector::Line);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMap {
    shape: Shape,
    lanes: usize,
    vectors: u8,
    /// Entries row by row, for functions or codes. In a table by queue, they only give the queue.
    cells: Vec<Route>,
    /// In a table by queue, its entries: the vector of each queue.
    queues: BTreeMap<u16, Vector>,
}

impl EventMap {
    /// Creates the default table: the completions of each lane have a queue of their own. The first vector is
    /// for everything but completions, the others are for the lanes; if there are too few vectors, lanes
    /// share.
    ///
    /// ```
    /// use ironwarp_rnic::event::{Code, EventMap, Shape};
    ///
    /// let map = EventMap::new(Shape::ByQueue, 4, 3);
    /// assert_eq!(map.route(Code::Completion, 0).vector, map.route(Code::Completion, 2).vector);
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

    /// What the rows stand for.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).shape(), Shape::ByCode);
    /// ```
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of lanes.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).lanes(), 2);
    /// ```
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Number of vectors.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).vectors(), 3);
    /// ```
    pub fn vectors(&self) -> u8 {
        self.vectors
    }

    /// Looks up the destination of an event of this lane. Events without a lane, such as global ones, use
    /// lane 0.
    ///
    /// ```
    /// use ironwarp_rnic::event::{ASYNC_QUEUE, Code, EventMap, Shape};
    ///
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).route(Code::QpFatal, 0).queue, ASYNC_QUEUE);
    /// ```
    pub fn route(&self, code: Code, lane: usize) -> Route {
        let cell = self.cells[self.cell(code, lane % self.lanes)];
        match self.shape {
            Shape::ByFunction | Shape::ByCode => cell,
            Shape::ByQueue => Route { queue: cell.queue, vector: self.queues[&cell.queue] },
        }
    }

    /// The vectors that wake the reader of a queue: those of all events that go there, none if no event does.
    /// One wakeup announces everything in the queue, so the reader has to be woken whichever of its events
    /// comes first.
    ///
    /// ```
    /// use ironwarp_rnic::event::{ASYNC_QUEUE, EventMap, Shape, Vector};
    ///
    /// let map = EventMap::new(Shape::ByCode, 2, 3);
    /// assert_eq!(map.vectors_of(ASYNC_QUEUE).into_iter().collect::<Vec<_>>(), [Vector::Message(0)]);
    /// assert!(map.vectors_of(7).is_empty());
    /// ```
    pub fn vectors_of(&self, queue: u16) -> BTreeSet<Vector> {
        let of_code = |code| (0..self.lanes).map(move |lane| self.route(code, lane));
        let routes = Code::ALL.iter().flat_map(|code| of_code(*code));
        routes.filter(|route| route.queue == queue).map(|route| route.vector).collect()
    }

    /// Changes the destination of events of this code and lane. In a table by function, this applies to all
    /// codes of the function; in a table by queue, the vector applies to everything that goes to the queue.
    ///
    /// ```
    /// use ironwarp_rnic::event::{Code, EventMap, Shape, Vector};
    ///
    /// let mut map = EventMap::new(Shape::ByFunction, 2, 3);
    /// let mut route = map.route(Code::Completion, 1);
    /// route.vector = Vector::Line;
    /// map.assign(Code::Completion, 1, route)?;
    /// assert_eq!(map.route(Code::Completion, 1), route);
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
        let fits = match code.function() {
            Function::Completion => route.queue > ASYNC_QUEUE,
            function => route.queue == default_route(function, lane, self.vectors).queue,
        };
        if !fits {
            return Err(MapError::WrongQueue { queue: route.queue });
        }
        let cell = self.cell(code, lane);
        self.cells[cell] = route;
        if self.shape == Shape::ByQueue {
            self.queues.insert(route.queue, route.vector);
        }
        Ok(())
    }

    fn cell(&self, code: Code, lane: usize) -> usize {
        let row = match self.shape {
            Shape::ByCode => Code::ALL.iter().position(|known| *known == code),
            Shape::ByFunction | Shape::ByQueue => {
                FUNCTIONS.iter().position(|known| *known == code.function())
            }
        };
        row.expect("every code and function is listed") * self.lanes + lane
    }
}

fn default_route(function: Function, lane: usize, vectors: u8) -> Route {
    let lane = u16::try_from(lane).unwrap_or(u16::MAX) % MAX_LANE_QUEUES;
    let queue = match function {
        Function::Global | Function::Management => GLOBAL_QUEUE,
        Function::Rdma => ASYNC_QUEUE,
        Function::Completion => LANE_QUEUE + lane,
    };
    let vector = match (vectors, function) {
        (0, _) => Vector::Line,
        (1, _) | (_, Function::Global | Function::Management | Function::Rdma) => Vector::Message(0),
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of vectors")]
        (several, Function::Completion) => Vector::Message(1 + (lane % (u16::from(several) - 1)) as u8),
    };
    Route { queue, vector }
}

#[cfg(all(test, not(loom)))]
mod tests;
