//! The state of the sending side of a queue pair in iSCSI mode: PDUs that the link has not taken.

use super::send::CommandId;
use crate::memory::Transfer;
use ironwarp_wire::iscsi::{HEADER_LEN, InitiatorPdu};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// State of the sending side.
#[derive(Debug, Default)]
pub(super) struct Tx {
    /// PDUs that the link has not taken. It may have taken a part of the first one.
    pub(super) batch: VecDeque<Outgoing>,
}

/// A PDU to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Header and its digest.
    pub(super) head: SmallVec<[u8; 64]>,
    pub(super) data: OutData,
    /// Padding and the digest of the data.
    pub(super) trailer: SmallVec<[u8; 8]>,
    /// Number of bytes that the link has taken.
    pub(super) sent: usize,
    /// The command that the PDU belongs to.
    pub(super) command: Option<CommandId>,
}

/// The data of a PDU.
#[derive(Debug)]
pub(super) enum OutData {
    Own(Box<[u8]>),
    /// Memory of the program.
    Memory(Transfer),
}

impl OutData {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Memory(transfer) => transfer.len,
        }
    }
}

impl Outgoing {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.data.len() + self.trailer.len()
    }

    /// Returns whether this is the PDU of a command.
    pub(super) fn is_command(&self) -> bool {
        let header = self.head.first_chunk::<HEADER_LEN>();
        header.is_some_and(|header| matches!(InitiatorPdu::parse(header), Ok(InitiatorPdu::Command(_))))
    }
}
