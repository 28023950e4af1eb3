//! The SCSI commands of this crate: their descriptor blocks, and what targets answer (SPC-4, SBC-3).

use std::fmt;

/// SCSI status: the command was successful.
pub(crate) const GOOD: u8 = 0;
/// Length of the data that an inquiry asks for.
pub(crate) const INQUIRY_LEN: u8 = 96;
/// Length of the data that a query of the capacity asks for.
pub(crate) const CAPACITY_LEN: u8 = 32;

/// Returns a descriptor block, padded with zeros.
fn cdb<const N: usize>(bytes: [u8; N]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..N].copy_from_slice(&bytes);
    cdb
}

/// Returns the descriptor block of an INQUIRY.
pub(crate) fn inquiry() -> [u8; 16] {
    cdb([0x12, 0, 0, 0, INQUIRY_LEN, 0])
}

/// Returns the descriptor block of a TEST UNIT READY.
pub(crate) fn test_unit_ready() -> [u8; 16] {
    cdb([0; 6])
}

/// Returns the descriptor block of a READ CAPACITY(16).
pub(crate) fn read_capacity() -> [u8; 16] {
    cdb([0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, CAPACITY_LEN])
}

/// Returns the descriptor block of a SYNCHRONIZE CACHE(16) for the whole logical unit.
pub(crate) fn synchronize_cache() -> [u8; 16] {
    cdb([0x91])
}

/// Returns the descriptor block of a READ(16).
pub(crate) fn read(lba: u64, blocks: u32) -> [u8; 16] {
    transfer(0x88, lba, blocks)
}

/// Returns the descriptor block of a WRITE(16).
pub(crate) fn write(lba: u64, blocks: u32) -> [u8; 16] {
    transfer(0x8a, lba, blocks)
}

fn transfer(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = cdb([opcode]);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns the number of a logical unit as PDUs carry it: below 256 with peripheral addressing, others with flat addressing
/// (SAM-5 §4.7).
pub(crate) fn encode_lun(lun: u16) -> u64 {
    let flat = if lun < 256 { 0 } else { 0x4000 };
    u64::from(lun | flat) << 48
}

/// What a logical unit is, as an inquiry returns it.
///
/// ```
/// use ironwarp_iscsi::Inquiry;
///
/// let mut data = [b' '; 36];
/// data[..5].copy_from_slice(&[0, 0, 5, 2, 31]);
/// data[8..11].copy_from_slice(b"IET");
/// data[16..28].copy_from_slice(b"VIRTUAL-DISK");
/// let inquiry = Inquiry::parse(&data).expect("36 bytes");
/// assert_eq!((inquiry.vendor.as_str(), inquiry.product.as_str()), ("IET", "VIRTUAL-DISK"));
/// assert!(inquiry.is_disk());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inquiry {
    /// The type of the device: 0 for a disk.
    pub device_type: u8,
    /// The vendor.
    pub vendor: String,
    /// The product.
    pub product: String,
    /// The revision of the product.
    pub revision: String,
}

impl Inquiry {
    /// Parses the data of an inquiry. `None` if it is too short.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let text = |from: usize, to: usize| {
            let text = String::from_utf8_lossy(data.get(from..to)?);
            Some(text.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned())
        };
        Some(Self {
            device_type: data.first()? & 0x1f,
            vendor: text(8, 16)?,
            product: text(16, 32)?,
            revision: text(32, 36)?,
        })
    }

    /// Returns whether the logical unit is a disk.
    pub fn is_disk(&self) -> bool {
        self.device_type == 0
    }
}

/// The size of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// Number of blocks.
    pub blocks: u64,
    /// Length of a block in bytes.
    pub block_size: u32,
}

impl Capacity {
    /// Parses the data of READ CAPACITY(16). `None` if it is too short, or contradicts itself.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let last = u64::from_be_bytes(*data.first_chunk()?);
        let block_size = u32::from_be_bytes(*data.get(8..)?.first_chunk()?);
        let blocks = last.checked_add(1)?;
        blocks.checked_mul(block_size.into()).filter(|bytes| *bytes > 0)?;
        Some(Self { blocks, block_size })
    }

    /// Returns the size in bytes.
    ///
    /// ```no_run
    /// # fn size(session: &mut ironwarp_iscsi::Session) -> Result<u64, ironwarp_iscsi::Error> {
    /// Ok(session.capacity(1)?.bytes())
    /// # }
    /// ```
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Why a target has not executed a command: the SCSI status, and sense data if there is any.
///
/// ```
/// use ironwarp_iscsi::ScsiError;
///
/// let error = ScsiError { status: 2, sense: Some([5, 0x21, 0]) };
/// assert_eq!(error.to_string(), "CHECK CONDITION: illegal request (sense 5/21/00)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiError {
    /// The SCSI status: 2 is CHECK CONDITION.
    pub status: u8,
    /// Sense key, additional sense code and its qualifier.
    pub sense: Option<[u8; 3]>,
}

impl ScsiError {
    /// Creates the error of a response with this data: a length of two bytes, and sense data.
    pub(crate) fn new(status: u8, data: &[u8]) -> Self {
        let sense = data.get(2..).and_then(|sense| match sense.first()? & 0x7f {
            // Fixed format.
            0x70 | 0x71 => Some([sense.get(2)? & 0xf, *sense.get(12)?, *sense.get(13)?]),
            // Descriptor format.
            0x72 | 0x73 => Some([sense.get(1)? & 0xf, *sense.get(2)?, *sense.get(3)?]),
            _ => None,
        });
        Self { status, sense }
    }
}

impl std::error::Error for ScsiError {}

impl fmt::Display for ScsiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            0x02 => f.write_str("CHECK CONDITION")?,
            0x08 => f.write_str("BUSY: try again")?,
            0x18 => f.write_str("RESERVATION CONFLICT: another initiator has reserved the logical unit")?,
            0x28 => f.write_str("TASK SET FULL: try again with fewer commands")?,
            0x40 => f.write_str("TASK ABORTED")?,
            status => write!(f, "SCSI status {status:#04x}")?,
        }
        let Some([key, code, qualifier]) = self.sense else { return Ok(()) };
        let key_name = match key {
            0x0 => "no sense",
            0x1 => "recovered error",
            0x2 => "not ready",
            0x3 => "medium error",
            0x4 => "hardware error",
            0x5 => "illegal request",
            0x6 => "unit attention",
            0x7 => "data protect: the logical unit is read-only",
            0xb => "aborted command",
            _ => "other",
        };
        write!(f, ": {key_name} (sense {key:x}/{code:02x}/{qualifier:02x})")
    }
}
