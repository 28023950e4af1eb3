//! The kinds of requests that a program posts.

use ironwarp_rnic::queue::Opcode;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Send,
    SendInvalidate,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
    Bind,
    Register,
    Invalidate,
    Receive,
    ReceiveShared,
    ReceiveNamed,
}

impl Verb {
    pub(super) const ALL: [Self; 14] = [
        Self::Send,
        Self::SendInvalidate,
        Self::SendImmediate,
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Bind,
        Self::Register,
        Self::Invalidate,
        Self::Receive,
        Self::ReceiveShared,
        Self::ReceiveNamed,
    ];

    /// Whether it consumes a receive of the peer.
    pub(super) const fn uses_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate | Self::SendImmediate | Self::WriteImmediate)
    }

    /// Whether the peer answers it.
    pub(super) const fn asks(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns the opcode of its completion.
    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Self::Send | Self::SendInvalidate | Self::SendImmediate => Opcode::Send,
            Self::Write | Self::WriteImmediate => Opcode::Write,
            Self::Read => Opcode::Read,
            Self::FetchAdd => Opcode::FetchAdd,
            Self::CompareSwap => Opcode::CompareSwap,
            Self::Bind => Opcode::Bind,
            Self::Register => Opcode::Register,
            Self::Invalidate => Opcode::Invalidate,
            Self::Receive | Self::ReceiveShared | Self::ReceiveNamed => Opcode::Receive,
        }
    }
}
