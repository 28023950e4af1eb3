//! The 48 bytes of a basic header segment, as fields of equal position in all PDUs (RFC 7143 §11.2.1).

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the basic header segment of a PDU.
pub const HEADER_LEN: usize = 48;

/// Offset of ExpStatSN in every PDU of an initiator.
const EXP_STAT_SN: usize = 28;

/// Bit of the opcode byte: the PDU is for immediate delivery (RFC 7143 §11.2.1.1).
pub(super) const IMMEDIATE: u8 = 0x40;
/// The bits of the opcode byte that hold the opcode.
pub(super) const OPCODE: u8 = 0x3f;
/// Bit of the flags: the last PDU of a sequence (F), or the transition to the next stage (T).
pub(super) const FINAL: u8 = 0x80;
/// Bit of the flags of a login or text PDU: the text continues in the next one.
pub(super) const CONTINUE: u8 = 0x40;

/// A basic header segment. What the words after the task tag mean depends on the opcode.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) specific: [u8; 2],
    pub(super) additional_len: u8,
    pub(super) data_len: [u8; 3],
    pub(super) lun: [u8; 8],
    pub(super) task: U32,
    pub(super) words: [U32; 7],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

impl RawHeader {
    /// Returns a header with this opcode and flags, for `data_len` bytes of data, and zeros elsewhere. Only the low 24 bits
    /// of the length are used.
    pub(super) fn new(opcode: u8, flags: u8, data_len: u32) -> Self {
        let [_, data_len @ ..] = data_len.to_be_bytes();
        Self { opcode, flags, data_len, ..Self::default() }
    }

    /// Interprets the bytes of a header.
    pub(super) fn read(bytes: &[u8; HEADER_LEN]) -> Self {
        zerocopy::transmute!(*bytes)
    }

    /// Returns the bytes of the header.
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        zerocopy::transmute!(self)
    }

    /// Returns a word after the task tag: word 0 begins at byte 20.
    pub(super) fn word(&self, index: usize) -> u32 {
        self.words[index].get()
    }

    /// Returns the four bytes of a word.
    pub(super) fn bytes(&self, index: usize) -> [u8; 4] {
        self.word(index).to_be_bytes()
    }

    /// Returns the opcode, without the bit for immediate delivery.
    pub(super) fn code(&self) -> u8 {
        self.opcode & OPCODE
    }
}

/// Sets ExpStatSN in a header of an initiator: the sequence number of the next status that it expects, which acknowledges all
/// before it. All PDUs of initiators have this field in the same place.
///
/// ```
/// use ironwarp_wire::iscsi::{InitiatorPdu, NopOut, NO_TASK, set_exp_stat_sn};
///
/// let nop = NopOut { immediate: true, lun: 0, task: NO_TASK, target_task: 7, cmd_sn: 1, exp_stat_sn: 0 };
/// let mut header = InitiatorPdu::NopOut(nop).emit(0);
/// set_exp_stat_sn(&mut header, 42);
/// assert_eq!(InitiatorPdu::parse(&header), Ok(InitiatorPdu::NopOut(NopOut { exp_stat_sn: 42, ..nop })));
/// ```
pub fn set_exp_stat_sn(header: &mut [u8; HEADER_LEN], exp_stat_sn: u32) {
    header[EXP_STAT_SN..EXP_STAT_SN + 4].copy_from_slice(&exp_stat_sn.to_be_bytes());
}
