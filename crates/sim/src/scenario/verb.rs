//! The kinds of requests and receives that a program posts.

use ironwarp_rnic::queue::Opcode;

/// A kind of request or receive.
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
    RegisterSend,
    Invalidate,
    Receive,
    ReceiveShared,
    ReceiveNamed,
}

impl Verb {
    /// All kinds.
    pub(super) const ALL: [Self; 15] = [
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
        Self::RegisterSend,
        Self::Invalidate,
        Self::Receive,
        Self::ReceiveShared,
        Self::ReceiveNamed,
    ];

    /// Returns whether a request of this kind consumes a receive of the peer.
    pub(super) const fn uses_receive(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendInvalidate
                | Self::SendImmediate
                | Self::RegisterSend
                | Self::WriteImmediate
        )
    }

    /// Returns whether the peer sends a response to a request of this kind.
    pub(super) const fn has_response(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns the opcode in the completion of a request of this kind.
    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Self::Send | Self::SendInvalidate | Self::SendImmediate | Self::RegisterSend => Opcode::Send,
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
