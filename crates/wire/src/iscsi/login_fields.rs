//! The fields that login requests and responses have in the same places (RFC 7143 §11.12, §11.13).

use super::raw::{CONTINUE, FINAL, RawHeader};
use super::{BadPdu, Stage};

/// Stages and session identifier of a login PDU.
pub(super) struct LoginFields {
    pub(super) next: Option<Stage>,
    pub(super) continues: bool,
    pub(super) stage: Stage,
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
}

impl LoginFields {
    /// Decodes the fields.
    pub(super) fn read(raw: &RawHeader) -> Result<Self, BadPdu> {
        let stage =
            |bits: u8, field| Stage::from_bits(bits).ok_or(BadPdu::Reserved { field, value: bits & 3 });
        let [a, b, c, d, e, f, g, h] = raw.lun;
        Ok(Self {
            next: if raw.flags & FINAL != 0 { Some(stage(raw.flags, "NSG")?) } else { None },
            continues: raw.flags & CONTINUE != 0,
            stage: stage(raw.flags >> 2, "CSG")?,
            isid: [a, b, c, d, e, f],
            tsih: u16::from_be_bytes([g, h]),
        })
    }

    /// Encodes a header with these fields.
    pub(super) fn to_raw(&self, opcode: u8, data_len: u32) -> RawHeader {
        let next = self.next.map_or(0, |next| FINAL | next.to_bits());
        let continues = if self.continues { CONTINUE } else { 0 };
        let mut lun = [0; 8];
        lun[..6].copy_from_slice(&self.isid);
        lun[6..].copy_from_slice(&self.tsih.to_be_bytes());
        RawHeader { lun, ..RawHeader::new(opcode, next | continues | self.stage.to_bits() << 2, data_len) }
    }
}
