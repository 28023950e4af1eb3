//! The state of the receiving side of a queue pair in iSCSI mode: bytes that were not parsed, and the PDU whose data is
//! being received.

use super::send::{Burst, CommandId};
use crate::device::Device;
use crate::error::QpError;
use crate::host::Buffer;
use crate::memory::Denied;
use crate::queue::Receive;
use ironwarp_wire::iscsi::{DataIn, HEADER_LEN, PduLayout, Response};
use ironwarp_wire::mpa::Crc;
use std::fmt;
use std::sync::Arc;

/// State of the receiving side.
#[derive(Default)]
pub(super) struct Rx {
    /// The staging buffer. `None` while it would be empty.
    pub(super) staging: Option<Buffer>,
    /// The bytes of the staging buffer that were not parsed.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The PDU whose data is being received.
    pub(super) pdu: Option<Incoming>,
    /// Whether large Data-In is expected next.
    pub(super) large: bool,
    /// Whether the last read has emptied the link.
    pub(super) drained: bool,
    /// Whether an R2T is to be answered.
    pub(super) has_r2t: bool,
}

/// A PDU whose header has arrived.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) header: [u8; HEADER_LEN],
    pub(super) layout: PduLayout,
    pub(super) receive: Receive,
    pub(super) action: Action,
    /// The number of the status that the PDU carries, if it does.
    pub(super) stat_sn: Option<u32>,
    /// Number of bytes of data that have arrived.
    pub(super) arrived: usize,
    /// Data for the receive.
    pub(super) collected: Vec<u8>,
    /// The CRC of the data, if it has a digest.
    pub(super) crc: Option<Crc>,
}

/// What a PDU does, after the checks of its header.
#[derive(Debug)]
pub(super) enum Action {
    /// Places data in the buffers of a command, and may complete it.
    Place { data: DataIn, command: CommandId },
    /// Asks for data of a command.
    Answer(Burst),
    /// Completes a command.
    Complete(Response),
    /// Has no effect: it is only delivered.
    Deliver,
    /// It failed a check.
    Refuse(Arc<QpError>),
}

impl Action {
    /// A PDU that names memory that it may not access.
    pub(super) fn refuse(denied: Denied) -> Self {
        Self::Refuse(Arc::new(QpError::Remote(denied)))
    }
}

impl Rx {
    /// Returns the bytes that were not parsed.
    pub(super) fn unparsed(&self) -> &[u8] {
        self.staging.as_ref().map_or(&[], |staging| &staging[self.start..self.end])
    }

    /// Makes sure that there is a staging buffer, with room for a header.
    pub(super) fn make_room(&mut self, device: &Device) {
        let staging = self.staging.get_or_insert_with(|| device.take_staging());
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if staging.len() - self.start < PduLayout::MAX_HEADER_LEN {
            staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Gives the empty staging buffer back.
    pub(super) fn release_staging(&mut self, device: &Device) {
        (self.start, self.end) = (0, 0);
        if let Some(staging) = self.staging.take() {
            device.put_staging(staging);
        }
    }
}

/// Omits the bytes of the staging buffer.
impl fmt::Debug for Rx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rx").field("pdu", &self.pdu).finish_non_exhaustive()
    }
}
