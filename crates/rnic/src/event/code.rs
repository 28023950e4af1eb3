//! The events in an event queue: each is a code, and the number of an object.

/// An event in an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub code: Code,
    /// The number of the queue pair, completion queue, shared receive queue, port or event queue that the event is
    /// about. Zero for events of the adapter as a whole.
    pub object: u32,
}

/// The part of the adapter that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// The adapter as a whole.
    Global,
    /// The port of the adapter.
    Management,
    /// A queue pair, a completion queue or a shared receive queue; the event is not the result of a work request.
    Rdma,
    /// A completion queue that has the completions it was armed for.
    Completion,
}

/// The code of an event: what happened. Values below 16 are reserved for markers in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// A completion queue has the completions that it was armed for.
    Completion = 16,
    /// A queue pair failed because of a local error.
    QpFatal,
    /// The peer of a queue pair sent an invalid message.
    QpRequestError,
    /// The peer of a queue pair accessed memory that it may not use.
    QpAccessError,
    /// The first message arrived for a queue pair that was ready to receive.
    Established,
    /// All requests that were started on a draining send queue are complete.
    SqDrained,
    /// A queue pair takes no more receives from its shared receive queue.
    LastWqeReached,
    /// A completion queue overran.
    CqError,
    /// A shared receive queue has fewer receives left than its limit.
    SrqLimitReached,
    /// A shared receive queue failed.
    SrqError,
    /// A port became usable.
    PortActive,
    /// A port became unusable.
    PortError,
    /// The addresses of a port changed.
    GidChange,
    /// An event queue is full and has reached its maximum size.
    EventQueueOverflow,
    /// The adapter has stopped.
    DeviceFatal,
}

impl Code {
    /// All codes, in order.
    pub const ALL: [Self; 15] = [
        Self::Completion,
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::Established,
        Self::SqDrained,
        Self::LastWqeReached,
        Self::CqError,
        Self::SrqLimitReached,
        Self::SrqError,
        Self::PortActive,
        Self::PortError,
        Self::GidChange,
        Self::EventQueueOverflow,
        Self::DeviceFatal,
    ];

    /// Returns the part of the adapter that events with this code are about (requirement I6).
    ///
    /// ```
    /// # use ironwarp_rnic::event::{Code as EventCode, Function as EventFunction};
    /// assert_eq!(EventCode::PortError.function(), EventFunction::Management);
    /// ```
    pub const fn function(self) -> Function {
        match self {
            Self::DeviceFatal | Self::EventQueueOverflow => Function::Global,
            Self::PortActive | Self::PortError | Self::GidChange => Function::Management,
            Self::Completion => Function::Completion,
            Self::QpFatal
            | Self::QpRequestError
            | Self::QpAccessError
            | Self::Established
            | Self::SqDrained
            | Self::LastWqeReached
            | Self::CqError
            | Self::SrqLimitReached
            | Self::SrqError => Function::Rdma,
        }
    }
}

impl Event {
    /// Encodes the event: the code in the upper half, the object in the lower.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.code as u32) << 32 | u64::from(self.object)
    }

    /// Decodes an event that [`to_word`](Self::to_word) has encoded.
    pub(super) fn from_word(word: u64) -> Self {
        let index = (word >> 32).checked_sub(Code::Completion as u64);
        let code = index.and_then(|index| Code::ALL.get(usize::try_from(index).ok()?));
        let code = *code.expect("a ring contains only events");
        #[expect(clippy::cast_possible_truncation, reason = "the object is the lower half")]
        let object = word as u32;
        Self { code, object }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_ring() {
        for code in Code::ALL {
            let event = Event { code, object: u32::MAX - 1 };
            assert_eq!(Event::from_word(event.to_word()), event);
        }
    }
}
