//! The state of a TCP connection, as the kernel reports it (TCP_INFO).

use crate::sys::raw::{Structure, read_structure};
use rustix::fd::AsFd;
use std::fmt;
use std::io;

/// The state of a TCP socket, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpState(u8);

impl TcpState {
    pub(super) const ESTABLISHED: Self = Self(1);
    pub(super) const FIN_WAIT1: Self = Self(4);
    pub(super) const FIN_WAIT2: Self = Self(5);
    pub(super) const CLOSE_WAIT: Self = Self(8);
    pub(super) const LAST_ACK: Self = Self(9);
    pub(super) const CLOSING: Self = Self(11);

    /// Returns which ends have closed their directions: this one, and the peer. `None` if the connection cannot move: it is
    /// not established yet, or over.
    pub(super) fn finished(self) -> Option<(bool, bool)> {
        match self {
            Self::ESTABLISHED => Some((false, false)),
            Self::FIN_WAIT1 | Self::FIN_WAIT2 => Some((true, false)),
            Self::CLOSE_WAIT => Some((false, true)),
            Self::LAST_ACK | Self::CLOSING => Some((true, true)),
            _ => None,
        }
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 13] = [
            "0",
            "ESTABLISHED",
            "SYN_SENT",
            "SYN_RECV",
            "FIN_WAIT1",
            "FIN_WAIT2",
            "TIME_WAIT",
            "CLOSE",
            "CLOSE_WAIT",
            "LAST_ACK",
            "LISTEN",
            "CLOSING",
            "NEW_SYN_RECV",
        ];
        f.write_str(NAMES.get(usize::from(self.0)).unwrap_or(&"unknown"))
    }
}

/// What is read of TCP_INFO. Unless segments arrive, it stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) state: TcpState,
    pub(super) options: u8,
    /// Shifts of the windows: the peer's in the lower half, the own one in the upper half.
    pub(super) scales: u8,
    acknowledged: u64,
    received: u64,
}

impl Info {
    pub(super) fn read(socket: &impl AsFd) -> io::Result<Self> {
        let mut info = [0; 136];
        read_structure(socket, Structure::TcpInfo, &mut info)?;
        let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]));
        // Byte offsets in `struct tcp_info`.
        Ok(Self {
            state: TcpState(info[0]),
            options: info[5],
            scales: info[6],
            acknowledged: u64_at(120),
            received: u64_at(128),
        })
    }
}
