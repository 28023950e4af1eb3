//! Text for events of the flight recorder, which may come from a hostile file: any numbers.

use crate::error::VendorError;
use crate::fault;
use crate::recording::Kind;
use crate::state::State;
use crate::status::Status;
use std::fmt;

/// An event of the flight recorder. Displays what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The kind: one of [`Kind`], or any other number.
    pub kind: u8,
    /// The argument.
    pub argument: u32,
}

/// The names of the types of segments, in the order of their numbers.
const SEGMENTS: [&str; 11] = [
    "Write",
    "Read Response",
    "Send",
    "Immediate Data",
    "Read Request",
    "Atomic Request",
    "Atomic Response",
    "Terminate",
    "Send with immediate data",
    "Read V2 Request",
    "Read V2 Response",
];

impl Recorded {
    /// Returns whether the event is the failure of a request or receive, which errors report in other words.
    pub fn is_failure(&self) -> bool {
        self.kind == Kind::Failed as u8 || self.kind == Kind::Status as u8
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, argument } = *self;
        let Some(known) = Kind::ALL.into_iter().find(|known| *known as u8 == kind) else {
            return write!(f, "unknown event {kind}, {argument:#x}");
        };
        match known {
            Kind::Posted => write!(f, "posted request {argument}"),
            Kind::Sent => write!(f, "posted and sent request {argument}"),
            Kind::SentLast => f.write_str("sent the last request"),
            Kind::PostedReceive => write!(f, "posted receive {argument}"),
            Kind::SegmentsSent => write!(f, "sent {argument} bytes"),
            Kind::SegmentReceived => {
                let [low, high, segment, _] = argument.to_le_bytes();
                let len = u16::from_le_bytes([low, high]);
                match SEGMENTS.get(usize::from(segment)) {
                    Some(name) => write!(f, "received a segment: {name}, {len} bytes"),
                    None => write!(f, "received a segment of type {segment}, {len} bytes"),
                }
            }
            Kind::WritePlaced => write!(f, "received and placed a Write of {argument} bytes"),
            Kind::Received => write!(f, "received a Send, which completed receive {argument}"),
            Kind::Completed => write!(f, "completed request or receive {argument}"),
            Kind::Failed => write!(f, "request or receive {argument} failed"),
            Kind::Status => match Status::ALL.get(argument as usize) {
                Some(status) => write!(f, "its status: {status}"),
                None => write!(f, "its status: {argument}"),
            },
            Kind::Acknowledged => write!(f, "the peer acknowledged {argument} messages"),
            Kind::Acknowledging => write!(f, "acknowledged {argument} messages"),
            Kind::State => match State::ALL.get(argument as usize) {
                Some(state) => write!(f, "state {state}"),
                None => write!(f, "state {argument}"),
            },
            Kind::Ended => write_error(f, "ended", argument),
            Kind::TerminateSent => write_error(f, "sends a Terminate", argument),
            Kind::TerminateReceived => write_error(f, "received", argument),
            Kind::Fault => match fault::NAMES.get(argument as usize) {
                Some(name) => write!(f, "injected fault: {name}"),
                None => write!(f, "injected fault {argument}"),
            },
            Kind::NoReceive => f.write_str("a message of the peer waits for a receive"),
            Kind::PeerNotReady => {
                write!(f, "the peer has no receive for the message after {argument} messages")
            }
            Kind::Blocked => f.write_str("the connection takes no more bytes"),
        }
    }
}

/// Writes a cause that is encoded as a `vendor_err`.
fn write_error(f: &mut fmt::Formatter<'_>, what: &str, number: u32) -> fmt::Result {
    match VendorError::from_u32(number) {
        Some(error) => write!(f, "{what}: {error} ({number:#010x})"),
        None => write!(f, "{what}: {number:#010x}"),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::QpError;

    fn text(kind: Kind, argument: u32) -> String {
        Recorded { kind: kind as u8, argument }.to_string()
    }

    #[test]
    fn events_have_texts() {
        assert_eq!(text(Kind::Sent, 7), "posted and sent request 7");
        assert_eq!(text(Kind::SegmentReceived, 2 << 16 | 64), "received a segment: Send, 64 bytes");
        assert_eq!(text(Kind::State, State::ReadyToSend as u32), format!("state {}", State::ReadyToSend));
        let closed = text(Kind::Ended, QpError::Closed.vendor_err());
        assert!(closed.starts_with("ended: ") && closed.ends_with("(0x490e0000)"), "{closed}");
        let status = text(Kind::Status, Status::RnrRetryExceeded as u32);
        assert!(status.contains("receiver-not-ready"), "{status}");
    }

    #[test]
    fn any_number_has_a_text() {
        for kind in 0..=u8::MAX {
            for argument in [0, 1, 6, 20, 0xffff, 0x4907_0102, 0x49ff_ffff, u32::MAX] {
                assert!(!Recorded { kind, argument }.to_string().is_empty());
            }
        }
    }
}
