//! What a test can do with the PDUs of the target before they are sent.

use ironwarp_wire::iscsi::{Digests, InitiatorPdu, SequenceNumbers, TargetPdu, padding};
use ironwarp_wire::mpa::Crc;

/// Offset of StatSN in every PDU of a target. ExpCmdSN and MaxCmdSN follow.
const STAT_SN: usize = 24;

/// A PDU that the target sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The header.
    pub pdu: TargetPdu,
    /// The data, without padding.
    pub data: Vec<u8>,
    /// Sends the sequence numbers of `pdu`. Otherwise the target fills in those of the connection when it sends the PDU.
    pub own_numbers: bool,
    /// Sends a wrong header digest, if the connection has header digests.
    pub wrong_header_digest: bool,
    /// Sends a wrong data digest, if the connection has data digests.
    pub wrong_data_digest: bool,
    /// Sends this opcode instead of that of `pdu`.
    pub opcode: Option<u8>,
}

impl Outgoing {
    /// A PDU with correct digests, and the sequence numbers of the connection.
    pub fn new(pdu: TargetPdu, data: Vec<u8>) -> Self {
        Self {
            pdu,
            data,
            own_numbers: false,
            wrong_header_digest: false,
            wrong_data_digest: false,
            opcode: None,
        }
    }

    /// Returns the bytes on the wire. `numbers` are those of the connection.
    pub(super) fn bytes(&self, digests: Digests, numbers: SequenceNumbers) -> Vec<u8> {
        let mut header = self.pdu.emit(u32::try_from(self.data.len()).unwrap());
        if !self.own_numbers {
            let has_stat_sn = !matches!(&self.pdu, TargetPdu::DataIn(data) if data.status.is_none());
            let stat_sn = if has_stat_sn { numbers.stat_sn } else { 0 };
            let fields = [stat_sn, numbers.exp_cmd_sn, numbers.max_cmd_sn].map(u32::to_be_bytes);
            header[STAT_SN..STAT_SN + 12].copy_from_slice(fields.as_flattened());
        }
        header[0] = self.opcode.unwrap_or(header[0]);
        let mut bytes = header.to_vec();
        if digests.header {
            bytes.extend(digest(&header, self.wrong_header_digest));
        }
        if !self.data.is_empty() {
            let padded = [&self.data[..], &[0; 3][..padding(self.data.len())]].concat();
            bytes.extend(&padded);
            if digests.data {
                bytes.extend(digest(&padded, self.wrong_data_digest));
            }
        }
        bytes
    }
}

/// Returns the digest of `bytes`, or a wrong one.
fn digest(bytes: &[u8], wrong: bool) -> [u8; 4] {
    let mut digest = Crc::of(bytes).to_bytes();
    digest[0] ^= u8::from(wrong);
    digest
}

/// A PDU in the hands of a [`Script`].
#[derive(Debug)]
pub struct Sending {
    /// What is sent now, in this order: at first the PDU alone. A script may change, remove and add PDUs.
    pub now: Vec<Outgoing>,
    /// What is kept until [`Target::release`](super::Target::release). At first empty.
    pub held: Vec<Outgoing>,
}

impl Sending {
    /// Holds the PDU back.
    pub fn hold(&mut self) {
        self.held.append(&mut self.now);
    }
}

/// Decides what the target really sends. Every closure with a [`Sending`] is a script.
///
/// Called on the thread of the connection, so that what comes before is sent before.
pub trait Script: Send + Sync + 'static {
    /// Called with each PDU of the target before it is sent.
    fn send(&self, sending: &mut Sending);

    /// Called with each PDU of the initiator and its data, before the target handles it.
    fn received(&self, pdu: &InitiatorPdu, data: &[u8]) {
        let _ = (pdu, data);
    }

    /// Returns the number of commands that the target accepts, instead of that of the settings.
    fn window(&self) -> Option<u32> {
        None
    }
}

impl<F: Fn(&mut Sending) + Send + Sync + 'static> Script for F {
    fn send(&self, sending: &mut Sending) {
        self(sending);
    }
}

/// The script of a target that does not lie.
#[derive(Clone, Copy, Debug)]
pub struct Honest;

impl Script for Honest {
    fn send(&self, _: &mut Sending) {}
}
