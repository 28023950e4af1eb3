//! Message-vector mapping (requirements I6, I8): which event queue an event goes to, and which vector wakes who reads it, by the event's
//! code and the lane that it came from. Before this: whoever found that an event is due; after: that [queue](super::EventQueue).
//!
//! | shape | a row for each | a column for each | an entry is |
//! |---|---|---|---|
//! | [`Shape::ByFunction`] | function | lane | a queue and a vector |
//! | [`Shape::ByCode`] | event code | lane | a queue and a vector |
//! | [`Shape::ByQueue`] | queue | | a vector; the queue follows from function and lane |
//!
//! In all of them global and management events go to queue 0 and asynchronous events of RDMA objects to queue 1. The table
//! decides on completion events, and on all vectors. A class of handlers (requirement N6) would be one more column.

use super::code::Code;
use std::collections::{BTreeMap, BTreeSet};

/// The queue of global and management events.
pub const GLOBAL_QUEUE: u16 = 0;
/// The queue of asynchronous events of RDMA objects.
pub const ASYNC_QUEUE: u16 = 1;
/// The queue of completion events of lane 0, unless the table says otherwise; those of the other lanes follow.
pub const LANE_QUEUE: u16 = 2048;

/// So many of these numbers there are; if there are more lanes, they share.
const MOST_LANE_QUEUES: u16 = 1024;

/// The part of the adapter that an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// The adapter as a whole.
    Global,
    /// Its port.
    Management,
    /// A queue pair, a completion queue, a shared receive queue: outside of any request.
    Rdma,
    /// A completion queue has what it was armed for.
    Completion,
}

const FUNCTIONS: [Function; 4] =
    [Function::Global, Function::Management, Function::Rdma, Function::Completion];

/// What wakes the reader of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vector {
    /// The line that all queues without a vector share.
    Line,
    /// A vector of this number.
    Message(u8),
}

/// Where an event goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The number of the event queue.
    pub queue: u16,
    /// What wakes its reader.
    pub vector: Vector,
}

/// What a table has rows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Functions.
    ByFunction,
    /// Event codes: functions are split as finely as can be.
    ByCode,
    /// Event queues.
    ByQueue,
}

/// An entry that the table cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// There are not so many lanes.
    #[error("there are {lanes} lanes, and none has the number {lane}")]
    NoSuchLane {
        /// The lane that was given.
        lane: usize,
        /// How many there are.
        lanes: usize,
    },
    /// There are not so many vectors.
    #[error("there are {vectors} vectors, and none has the number {vector}")]
    NoSuchVector {
        /// The vector that was given.
        vector: u8,
        /// How many there are.
        vectors: u8,
    },
    /// The queue is for others.
    #[error("events of this code cannot go to event queue {queue}")]
    WrongQueue {
        /// The queue that was given.
        queue: u16,
    },
}

/// The table.
///
/// ```
/// use ironwarp_rnic::event::{Code, EventMap, Route, Shape, Vector};
///
/// // Two lanes, and a vector for each and for all else.
/// let mut map = EventMap::new(Shape::ByFunction, 2, 3);
/// assert_eq!(map.route(Code::DeviceFatal, 1), Route { queue: 0, vector: Vector::Message(0) });
/// assert_eq!(map.route(Code::Completion, 1).vector, Vector::Message(2));
/// // No vector at all: one line for everything.
/// assert_eq!(EventMap::new(Shape::ByFunction, 2, 0).route(Code::Completion, 1).vector, Vector::Line);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMap {
    shape: Shape,
    lanes: usize,
    vectors: u8,
    /// Row by row, of functions or codes; in a table by queue, what leads to the queue.
    cells: Vec<Route>,
    /// In a table by queue, its entries.
    queues: BTreeMap<u16, Vector>,
}

impl EventMap {
    /// The usual table for so many lanes, with so many vectors: each lane's completions have a queue of their own. The first vector is
    /// for all that is not a completion, the others are the lanes'; where there are fewer than that, lanes share.
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
        let cell = |(function, lane)| usual(function, lane, vectors);
        let cells: Vec<_> =
            rows.iter().flat_map(|row| (0..lanes).map(move |lane| (*row, lane))).map(cell).collect();
        let queues = match shape {
            Shape::ByQueue => cells.iter().map(|cell| (cell.queue, cell.vector)).collect(),
            Shape::ByFunction | Shape::ByCode => BTreeMap::new(),
        };
        Self { shape, lanes, vectors, cells, queues }
    }

    /// What it has rows for.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).shape(), Shape::ByCode);
    /// ```
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// For how many lanes it is.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).lanes(), 2);
    /// ```
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// How many vectors it has.
    ///
    /// ```
    /// # use ironwarp_rnic::event::{EventMap, Shape};
    /// assert_eq!(EventMap::new(Shape::ByCode, 2, 3).vectors(), 3);
    /// ```
    pub fn vectors(&self) -> u8 {
        self.vectors
    }

    /// Where an event of this lane goes. What comes from none, as global events do, is lane 0's.
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

    /// What wakes the reader of a queue: all vectors of events that go there, none if no event does. A reader is woken once for all that it
    /// finds, so that it has to be woken whichever of its events came first.
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

    /// Changes where events of this code and lane go: with them, in a table by function, those of its other codes, and in a table by
    /// queue the vector of all that goes to that queue.
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
            function => route.queue == usual(function, lane, self.vectors).queue,
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
        row.expect("all are listed") * self.lanes + lane
    }
}

fn usual(function: Function, lane: usize, vectors: u8) -> Route {
    let lane = u16::try_from(lane).unwrap_or(u16::MAX) % MOST_LANE_QUEUES;
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
