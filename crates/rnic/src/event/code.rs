//! The events in an event queue: each is a code, and the number of an object.

/// An event in an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub code: Code,
    /// The number of the queue pair, completion queue, shared receive queue, port, TCP port, event queue or command that
    /// the event is about. Zero for events of the adapter as a whole.
    pub object: u32,
}

/// What the [event map](super::EventMap) determines the vector of an event from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What happened.
    pub code: Code,
    /// The number of the lane that served the packet, or that the queue pair is steered to if a thread of the program
    /// did. The default lane, zero, for events without a packet.
    pub lane: u16,
}

/// The part of the adapter that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// The adapter as a whole.
    Global,
    /// The port of the adapter.
    Management,
    /// A queue pair, a completion queue or a shared receive queue, or an administrative command; the event is not the
    /// result of a work request.
    Rdma,
    /// The connection manager, which uses TCP as other programs do.
    Channel,
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
    /// An administrative command took effect: a table of the adapter has changed.
    AdminCommand,
    /// A peer requests a connection at a listener.
    ConnectionRequest,
    /// A queue pair was connected, failed to connect, or is no longer connected.
    ConnectionChange,
}

impl Code {
    /// All codes, in order.
    pub const ALL: [Self; 18] = [
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
        Self::AdminCommand,
        Self::ConnectionRequest,
        Self::ConnectionChange,
    ];

    /// Returns the code with this value, which must be one.
    fn from_value(value: u64) -> Self {
        let index = value.checked_sub(Self::Completion as u64);
        let code = index.and_then(|index| Self::ALL.get(usize::try_from(index).ok()?));
        *code.expect("a ring contains only events")
    }

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
            | Self::SrqError
            | Self::AdminCommand => Function::Rdma,
            Self::ConnectionRequest | Self::ConnectionChange => Function::Channel,
        }
    }
}

impl Cause {
    /// Encodes the cause: the code in the upper half, the lane in the lower.
    pub(super) fn to_word(self) -> u32 {
        (self.code as u32) << 16 | u32::from(self.lane)
    }

    /// Decodes a cause that [`to_word`](Self::to_word) has encoded.
    pub(super) fn from_word(word: u32) -> Self {
        let [_, code, high, low] = word.to_be_bytes();
        Self { code: Code::from_value(code.into()), lane: u16::from_be_bytes([high, low]) }
    }
}

impl Event {
    /// Encodes the event: the code in the upper half, the object in the lower.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.code as u32) << 32 | u64::from(self.object)
    }

    /// Decodes an event that [`to_word`](Self::to_word) has encoded.
    pub(super) fn from_word(word: u64) -> Self {
        let code = Code::from_value(word >> 32);
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
            let cause = Cause { code, lane: u16::MAX - 1 };
            assert_eq!(Cause::from_word(cause.to_word()), cause);
        }
    }
}
