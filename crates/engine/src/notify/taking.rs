//! Events that threads are about to take themselves, so that they need not make a descriptor readable.

/// Events that were signalled while threads were about to take them. The owner protects it with a lock, and has a
/// descriptor that counts all other events.
#[derive(Debug, Default)]
pub struct HeldEvents {
    /// Number of threads that are about to take events.
    takers: usize,
    /// Number of events that the descriptor does not count.
    events: u64,
}

impl HeldEvents {
    /// Records that a thread is about to take events.
    pub fn begin_take(&mut self) {
        self.takers += 1;
    }

    /// Records that a thread has taken what it wanted. Returns the number of events that are left, and that the descriptor
    /// has to count from now on: zero while other threads are about to take them.
    pub fn end_take(&mut self) -> u64 {
        self.takers -= 1;
        if self.takers == 0 { std::mem::take(&mut self.events) } else { 0 }
    }

    /// Holds a new event. Returns false if no thread is about to take it: then the descriptor has to count it.
    pub fn hold(&mut self) -> bool {
        let is_held = self.takers > 0;
        if is_held {
            self.events += 1;
        }
        is_held
    }

    /// Takes an event. Returns false if none is held: then the descriptor counts it.
    pub fn take(&mut self) -> bool {
        let was_held = self.events > 0;
        if was_held {
            self.events -= 1;
        }
        was_held
    }
}
