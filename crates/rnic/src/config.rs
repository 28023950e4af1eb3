//! All settings of the adapter, in one place: default, reason, and who would change it.

use std::time::Duration;

/// The settings of an adapter.
#[derive(Clone, Debug)]
pub struct Config {
    /// Recognise other Ironwarp ends by the signal, and use what only they understand. Turn it off to be seen on the wire
    /// as nothing but the RFCs: for conformance tests, or a middlebox that minds empty Writes.
    pub private: bool,
    /// A message for which no receive is posted ends the stream (the RFC's way) instead of waiting for one. For programs
    /// that want their missing receives found.
    pub strict_receive: bool,
    /// Peers reach memory through windows only, never through regions (requirement M9).
    pub strict_windows: bool,
    /// Ask for CRCs. TCP's own checksum is weak, so the RFC's default is to; on a path that checks better, turn it off.
    pub crc: bool,
    /// How many Reads of a peer a queue pair holds (IRD), and how many of its own it has outstanding (ORD), unless the
    /// connection says otherwise.
    pub ird: u16,
    /// See `ird`.
    pub ord: u16,
    /// How many bytes of messages wait for a receive before a stream stops reading.
    pub park: usize,
    /// How many regions and windows there may be.
    pub tags: usize,
    /// How many queue pairs there may be.
    pub queue_pairs: usize,
    /// How long a startup frame may take, in either role. Hardware drivers wait up to 60 s; siw 5 and 10.
    pub startup: Duration,
    /// How long the peer may take to close after this end did. Then the connection is cut.
    pub close: Duration,
    /// Silence after which the kernel asks the peer whether it is there; and how long it asks before it gives up.
    pub keepalive: Duration,
    /// How many lanes there are at most; also bounded by the processors that this process may use.
    pub lanes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            private: true,
            strict_receive: false,
            strict_windows: false,
            crc: true,
            ird: 32,
            ord: 32,
            park: 256 << 10,
            tags: 1 << 20,
            queue_pairs: 1 << 17,
            startup: Duration::from_secs(10),
            close: Duration::from_secs(5),
            keepalive: Duration::from_secs(30),
            lanes: 4,
        }
    }
}
