//! Delivery of wakeups by the [event map](EventMap) (requirement I8). Every event queue has an interrupt, which
//! wakes the consumer of the queue, and the one vector that the map has for the event, if the program has connected it.
//!
//! The map may change at any time (requirement I9). A pending interrupt then moves from its old vector to the new one.

use super::code::{Cause, Code};
use super::map::{EventMap, Route, Shape, Vector};
use super::wake::Wake;
use crate::sync::{Mutex, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// The event map of an adapter, its connected vectors, and the interrupts of its event queues.
#[derive(Debug)]
pub struct Routing {
    state: Mutex<State>,
}

/// The state of a routing.
#[derive(Debug)]
struct State {
    /// Shared with the interrupts, and replaced when it changes.
    table: Arc<Table>,
    /// The interrupt of each event queue, by the number of the queue.
    interrupts: BTreeMap<u16, Weak<Interrupt>>,
}

/// The event map, and the vectors that the program has connected.
#[derive(Clone, Debug)]
struct Table {
    map: EventMap,
    vectors: BTreeMap<Vector, Arc<dyn Wake>>,
}

impl Table {
    /// Returns what an event in this queue wakes, besides the consumer of the queue. `None` if its vector is not
    /// connected.
    fn wake(&self, queue: u16, cause: Cause) -> Option<&Arc<dyn Wake>> {
        if self.vectors.is_empty() {
            return None; // as in most programs
        }
        self.vectors.get(&self.map.vector(queue, cause.code, cause.lane.into())?)
    }
}

impl Routing {
    /// Creates a routing with the default map for this number of lanes: by function, one vector per lane and one for
    /// everything else.
    pub fn new(lanes: usize) -> Arc<Self> {
        let vectors = u8::try_from(lanes + 1).unwrap_or(u8::MAX);
        let map = EventMap::new(Shape::ByFunction, lanes, vectors);
        let table = Arc::new(Table { map, vectors: BTreeMap::new() });
        Arc::new(Self { state: Mutex::new(State { table, interrupts: BTreeMap::new() }) })
    }

    /// Returns a copy of the current map.
    pub fn map(&self) -> EventMap {
        lock(&self.state).table.map.clone()
    }

    /// Returns the queue and vector of events with this code from this lane: see [`EventMap::route`].
    pub fn route(&self, code: Code, lane: usize) -> Route {
        lock(&self.state).table.map.route(code, lane)
    }

    /// Replaces the map. Pending interrupts move to their new vectors.
    pub fn set_map(&self, map: EventMap) {
        lock(&self.state).change(|table| table.map = map);
    }

    /// Connects a vector to `wake`, which is then signalled once for each pending interrupt with this vector.
    pub fn connect_vector(&self, vector: Vector, wake: Arc<dyn Wake>) {
        lock(&self.state).change(|table| {
            table.vectors.insert(vector, wake);
        });
    }

    /// Creates the interrupt of an event queue. `own` wakes the consumer of the queue, whatever the map says.
    pub fn create_interrupt(&self, queue: u16, own: Arc<dyn Wake>) -> Arc<Interrupt> {
        let mut state = lock(&self.state);
        let raised = Raised { table: Arc::clone(&state.table), pending: VecDeque::new() };
        let interrupt = Arc::new(Interrupt { queue, own, raised: Mutex::new(raised) });
        state.interrupts.insert(queue, Arc::downgrade(&interrupt));
        interrupt
    }
}

impl State {
    /// Changes the table, and directs every interrupt by it. Forgets interrupts of queues that were dropped.
    fn change(&mut self, change: impl FnOnce(&mut Table)) {
        change(Arc::make_mut(&mut self.table));
        self.interrupts.retain(|_, interrupt| interrupt.strong_count() > 0);
        for interrupt in self.interrupts.values().filter_map(Weak::upgrade) {
            interrupt.redirect(&self.table);
        }
    }
}

/// Wakes the consumer of an event queue, and the vector that the map has for the event.
#[derive(Debug)]
pub struct Interrupt {
    /// The number of the queue.
    queue: u16,
    /// Wakes the consumer of the queue.
    own: Arc<dyn Wake>,
    raised: Mutex<Raised>,
}

/// The changing part of an interrupt.
#[derive(Debug)]
struct Raised {
    table: Arc<Table>,
    /// The causes of signals that are not consumed yet, the oldest first, each with the vector that was signalled.
    pending: VecDeque<(Cause, Option<Arc<dyn Wake>>)>,
}

impl Interrupt {
    /// Replaces the table, and moves signals that are not consumed yet from the old vectors to the new ones.
    fn redirect(&self, table: &Arc<Table>) {
        let mut raised = lock(&self.raised);
        for (cause, signalled) in &mut raised.pending {
            let next = table.wake(self.queue, *cause).cloned();
            signalled.iter().for_each(Wake::consume);
            next.iter().for_each(Wake::signal);
            *signalled = next;
        }
        raised.table = Arc::clone(table);
    }
}

impl Wake for Interrupt {
    /// Signals for a completion event of the default lane.
    fn signal(&self) {
        self.signal_for(Cause { code: Code::Completion, lane: 0 });
    }

    fn signal_for(&self, cause: Cause) {
        let mut raised = lock(&self.raised);
        let wake = raised.table.wake(self.queue, cause).cloned();
        wake.iter().for_each(Wake::signal);
        raised.pending.push_back((cause, wake));
        self.own.signal_for(cause);
    }

    fn consume(&self) {
        let mut raised = lock(&self.raised);
        let (_, signalled) = raised.pending.pop_front().expect("there was a signal for each call");
        signalled.iter().for_each(Wake::consume);
        self.own.consume();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// A semaphore.
    #[derive(Debug, Default)]
    struct Count(AtomicI32);

    impl Wake for Count {
        fn signal(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn consume(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns the current values of the semaphores.
    fn values<const N: usize>(counts: [&Arc<Count>; N]) -> [i32; N] {
        counts.map(|count| count.0.load(Ordering::SeqCst))
    }

    #[test]
    fn an_interrupt_that_was_raised_goes_along_when_the_map_changes() {
        let routing = Routing::new(2);
        let [own, first, second] = [(); 3].map(|()| Arc::<Count>::default());
        let interrupt = routing.create_interrupt(super::super::map::LANE_QUEUE, Arc::<Count>::clone(&own));
        interrupt.signal();
        routing.connect_vector(Vector::Message(1), Arc::<Count>::clone(&first));
        routing.connect_vector(Vector::Message(2), Arc::<Count>::clone(&second));
        assert_eq!(values([&own, &first, &second]), [1, 1, 0], "raised before the vector was connected");
        let mut map = routing.map();
        let route = Route { vector: Vector::Message(2), ..map.route(Code::Completion, 0) };
        map.assign(Code::Completion, 0, route).unwrap();
        routing.set_map(map);
        assert_eq!(values([&own, &first, &second]), [1, 0, 1]);
        interrupt.consume();
        assert_eq!(values([&own, &first, &second]), [0, 0, 0]);
    }

    #[test]
    fn a_signal_goes_to_the_vector_of_its_lane_and_code_alone() {
        let routing = Routing::new(3);
        let vectors = [(); 4].map(|()| Arc::<Count>::default());
        for (number, vector) in (0..).zip(&vectors) {
            routing.connect_vector(Vector::Message(number), Arc::<Count>::clone(vector));
        }
        let shown = || vectors.each_ref().map(|vector| vector.0.load(Ordering::SeqCst));
        // All lanes have the same queue, and each has its vector.
        let mut map = EventMap::new(Shape::ByFunction, 3, 4);
        for lane in 0..3 {
            let vector = map.route(Code::Completion, lane).vector;
            map.assign(Code::Completion, lane, Route { queue: 7, vector }).unwrap();
        }
        routing.set_map(map.clone());
        let interrupt = routing.create_interrupt(7, Arc::<Count>::default());
        let cause = |lane| Cause { code: Code::Completion, lane };
        for (lane, expected) in [(0, [0, 1, 0, 0]), (1, [0, 0, 1, 0]), (2, [0, 0, 0, 1]), (3, [0, 1, 0, 0])] {
            interrupt.signal_for(cause(lane));
            assert_eq!(shown(), expected, "lane {lane}");
            interrupt.consume();
            assert_eq!(shown(), [0; 4]);
        }
        // A lane that the map sends elsewhere: the vector of the first lane that it sends here.
        map.assign(Code::Completion, 0, EventMap::new(Shape::ByFunction, 3, 4).route(Code::Completion, 0))
            .unwrap();
        routing.set_map(map);
        interrupt.signal_for(cause(0));
        assert_eq!(shown(), [0, 0, 1, 0]);
        interrupt.consume();
    }

    #[test]
    fn queues_share_a_vector_and_each_takes_its_own_away() {
        let routing = Routing::new(2);
        routing.set_map(EventMap::new(Shape::ByQueue, 2, 1));
        let vector = Arc::<Count>::default();
        routing.connect_vector(Vector::Message(0), Arc::<Count>::clone(&vector));
        let queue = |number| routing.create_interrupt(number, Arc::<Count>::default());
        let queues = [queue(0), queue(1), queue(super::super::map::LANE_QUEUE)];
        queues.iter().for_each(Wake::signal);
        assert_eq!(values([&vector]), [3]);
        queues[1].consume();
        assert_eq!(values([&vector]), [2]);
        routing.set_map(EventMap::new(Shape::ByFunction, 2, 0));
        assert_eq!(values([&vector]), [0], "the queues now share the line, which is not connected");
    }
}
