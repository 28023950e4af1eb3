//! What an entry of an event queue says: a code, and a parameter that names an object.

use super::map::Function;

/// An event as it is written to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub code: Code,
    /// To which object: the number of a queue pair, completion queue, shared receive queue, port or event queue.
    pub object: u32,
}

/// What happened. Zero and one to fifteen are the ring's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// A completion queue has what it was armed for.
    Completion = 16,
    /// A queue pair failed by its own doing.
    QpFatal,
    /// The peer of a queue pair sent what it must not.
    QpRequestError,
    /// The peer of a queue pair reached for memory that it may not use.
    QpAccessError,
    /// The first message came for a queue pair that was ready to receive.
    Established,
    /// All that was begun on a send queue that is being drained is complete.
    SqDrained,
    /// A queue pair will take no receive of its shared receive queue any more.
    LastWqeReached,
    /// A completion queue overran.
    CqError,
    /// A shared receive queue has fewer receives left than its limit.
    SrqLimitReached,
    /// A shared receive queue failed.
    SrqError,
    /// A port can be used.
    PortActive,
    /// A port cannot be used.
    PortError,
    /// The addresses of a port changed.
    GidChange,
    /// An event queue has no room, and can grow no more.
    EventQueueOverflow,
    /// The adapter has stopped.
    DeviceFatal,
}

impl Code {
    /// All of them, in order.
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

    /// The part of the adapter that it is of (requirement I6).
    ///
    /// ```
    /// use ironwarp_rnic::event::{Code, Function};
    ///
    /// assert_eq!(Code::PortError.function(), Function::Management);
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
    pub(super) fn word(self) -> u64 {
        u64::from(self.code as u32) << 32 | u64::from(self.object)
    }

    pub(super) fn from_word(word: u64) -> Self {
        let index = (word >> 32).checked_sub(Code::Completion as u64);
        let code = index.and_then(|index| Code::ALL.get(usize::try_from(index).ok()?));
        let code = *code.expect("only events are written to a ring");
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
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
            assert_eq!(Event::from_word(event.word()), event);
        }
    }
}
