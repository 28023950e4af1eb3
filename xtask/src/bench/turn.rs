//! A turn of a contender: what is measured, and where.

use std::path::PathBuf;

/// What is measured in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Half a round trip, in microseconds: the median.
    Latency,
    /// The same, but the mean. Beside busy neighbours a few round trips take most of the time.
    MeanLatency,
    /// In GB/s.
    Bandwidth,
    /// Millions of messages per second.
    Rate,
    /// Bytes of memory.
    Memory,
    /// Wakeups of the consumer per completion.
    Wakes,
    /// Voluntary context switches per message.
    Switches,
}

impl Figure {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::MeanLatency => "µs",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
            Self::Memory => "B",
            Self::Wakes => "wakes",
            Self::Switches => "switches",
        }
    }

    /// Not of context switches: their number shows that a program has slept.
    pub(super) fn less_is_better(self) -> bool {
        matches!(self, Self::Latency | Self::MeanLatency | Self::Memory | Self::Wakes)
    }
}

/// Where turns run.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Our own program.
    pub(super) program: PathBuf,
    /// `ironwarp`, with the drop-in next to it.
    pub(super) ironwarp: PathBuf,
    /// The folder for the output of other projects' programs.
    pub(super) folder: PathBuf,
    /// Files of the client's and the server's network namespaces, or `None` if both run in ours.
    pub(super) networks: Option<[String; 2]>,
    /// Duration of a turn of our own program, in milliseconds. Others get a number of messages that takes
    /// about as long.
    pub(super) millis: u64,
}
