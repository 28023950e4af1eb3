//! Delivery of wakeups by the [event map](EventMap) (requirement I8). Every event queue has an interrupt, which
//! wakes the consumer of the queue and those vectors of the queue that the program has connected.
//!
//! The map may change at any time (requirement I9). A pending interrupt then moves from the old vector of its queue
//! to the new one.

use super::code::Code;
use super::map::{EventMap, Route, Shape, Vector};
use super::wake::Wake;
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The event map of an adapter, its connected vectors, and the interrupts of its event queues.
#[derive(Debug)]
pub struct Routing {
    state: Mutex<State>,
}

/// The state of a routing.
#[derive(Debug)]
struct State {
    map: EventMap,
    /// The vectors that the program has connected.
    vectors: BTreeMap<Vector, Arc<dyn Wake>>,
    /// The interrupt of each event queue, by the number of the queue.
    interrupts: BTreeMap<u16, Weak<Interrupt>>,
}

impl Routing {
    /// Creates a routing with the default map for this number of lanes: by function, one vector per lane and one for
    /// everything else.
    pub fn new(lanes: usize) -> Arc<Self> {
        let vectors = u8::try_from(lanes + 1).unwrap_or(u8::MAX);
        let map = EventMap::new(Shape::ByFunction, lanes, vectors);
        let state = State { map, vectors: BTreeMap::new(), interrupts: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Returns a copy of the current map.
    pub fn map(&self) -> EventMap {
        lock(&self.state).map.clone()
    }

    /// Returns the queue and vector of events with this code from this lane: see [`EventMap::route`].
    pub fn route(&self, code: Code, lane: usize) -> Route {
        lock(&self.state).map.route(code, lane)
    }

    /// Replaces the map. Pending interrupts move to their new vectors.
    pub fn set_map(&self, map: EventMap) {
        let mut state = lock(&self.state);
        state.map = map;
        state.apply();
    }

    /// Connects a vector to `wake`, which is then signalled once for each pending interrupt of a queue with this
    /// vector.
    pub fn connect_vector(&self, vector: Vector, wake: Arc<dyn Wake>) {
        let mut state = lock(&self.state);
        state.vectors.insert(vector, wake);
        state.apply();
    }

    /// Creates the interrupt of an event queue. `own` wakes the consumer of the queue, whatever the map says.
    pub fn create_interrupt(&self, queue: u16, own: Arc<dyn Wake>) -> Arc<Interrupt> {
        let interrupt = Arc::new(Interrupt { own, raised: Mutex::default() });
        let mut state = lock(&self.state);
        interrupt.redirect(state.wakes_of(queue));
        state.interrupts.insert(queue, Arc::downgrade(&interrupt));
        interrupt
    }
}

impl State {
    /// Returns the connected vectors of a queue.
    fn wakes_of(&self, queue: u16) -> Vec<Arc<dyn Wake>> {
        self.map.vectors_of(queue).iter().filter_map(|vector| self.vectors.get(vector).cloned()).collect()
    }

    /// Directs every interrupt to the connected vectors of its queue, after a change of the map or the vectors. Forgets
    /// interrupts of queues that were dropped.
    fn apply(&mut self) {
        self.interrupts.retain(|_, interrupt| interrupt.strong_count() > 0);
        for (queue, interrupt) in &self.interrupts {
            if let Some(interrupt) = interrupt.upgrade() {
                interrupt.redirect(self.wakes_of(*queue));
            }
        }
    }
}

/// Wakes the consumer of an event queue and the vectors that the map assigns to the queue.
#[derive(Debug)]
pub struct Interrupt {
    /// Wakes the consumer of the queue.
    own: Arc<dyn Wake>,
    raised: Mutex<Raised>,
}

/// The changing part of an interrupt.
#[derive(Debug, Default)]
struct Raised {
    /// The connected vectors of the queue.
    vectors: Vec<Arc<dyn Wake>>,
    /// Number of signals not yet consumed.
    times: u32,
}

impl Interrupt {
    /// Replaces the vectors, and moves signals that are not consumed yet from the old vectors to the new ones.
    fn redirect(&self, vectors: Vec<Arc<dyn Wake>>) {
        let mut raised = lock(&self.raised);
        for _ in 0..raised.times {
            raised.vectors.iter().for_each(Wake::consume);
            vectors.iter().for_each(Wake::signal);
        }
        raised.vectors = vectors;
    }
}

impl Wake for Interrupt {
    fn signal(&self) {
        let mut raised = lock(&self.raised);
        raised.times += 1;
        raised.vectors.iter().for_each(Wake::signal);
        self.own.signal();
    }

    fn consume(&self) {
        let mut raised = lock(&self.raised);
        raised.times -= 1;
        raised.vectors.iter().for_each(Wake::consume);
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
