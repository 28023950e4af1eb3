//! The logical unit: a disk in memory, and the SCSI commands for it (SPC-4, SBC-3).

use std::sync::{Mutex, MutexGuard};

/// Size of a block.
pub const BLOCK: usize = 512;
const BLOCK_LEN: [u8; 4] = 512_u32.to_be_bytes();

/// Vendor, product and revision, of fixed lengths.
const IDENTITY: &[u8; 28] = b"IRONWARPTest target     0001";

/// A disk in memory.
#[derive(Debug)]
pub struct Disk(Mutex<Vec<u8>>);

/// What a command asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Send this data, and end with GOOD.
    Send(Vec<u8>),
    /// Take `len` bytes, and write them at `offset` of the disk.
    Receive { offset: usize, len: usize },
    /// End with CHECK CONDITION.
    Fail(Sense),
}

/// Sense key, additional sense code and its qualifier.
pub(super) type Sense = [u8; 3];

const INVALID_OPCODE: Sense = [5, 0x20, 0];
const OUT_OF_RANGE: Sense = [5, 0x21, 0];
const INVALID_FIELD: Sense = [5, 0x24, 0];
const NO_LOGICAL_UNIT: Sense = [5, 0x25, 0];

/// Returns the data of a Response with CHECK CONDITION: a length, and sense data in fixed format.
pub(super) fn sense_data([key, code, qualifier]: Sense) -> Vec<u8> {
    vec![0, 18, 0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]
}

impl Disk {
    pub(super) fn new(size: usize) -> Self {
        assert!(size > 0 && size.is_multiple_of(BLOCK), "a disk has blocks of {BLOCK} bytes");
        Self(Mutex::new(vec![0; size]))
    }

    /// Gives access to the contents.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    /// Decodes a command for logical unit `lun`, and does it, except for a write, whose data are not here yet.
    pub(super) fn execute(&self, lun: u64, cdb: &[u8; 16]) -> Operation {
        let number = |from: usize, len: usize| {
            cdb[from..from + len].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
        };
        let blocks = (self.bytes().len() / BLOCK) as u64;
        match cdb[0] {
            0xa0 => Operation::Send([&[0, 0, 0, 8, 0, 0, 0, 0][..], &[0; 8]].concat()).limited(number(6, 4)),
            0x12 => inquiry(lun, cdb).limited(number(3, 2)),
            _ if lun != 0 => Operation::Fail(NO_LOGICAL_UNIT),
            // TEST UNIT READY, SYNCHRONIZE CACHE(10) and (16).
            0x00 | 0x35 | 0x91 => Operation::Send(Vec::new()),
            // MODE SENSE(6): no pages, no write protection, DPO and FUA are understood.
            0x1a => Operation::Send(vec![3, 0, 0x10, 0]).limited(number(4, 1)),
            0x25 => {
                let last = u32::try_from(blocks - 1).unwrap_or(u32::MAX);
                Operation::Send([last.to_be_bytes(), BLOCK_LEN].concat())
            }
            // SERVICE ACTION IN(16): READ CAPACITY(16).
            0x9e if cdb[1] & 0x1f == 0x10 => {
                let last = (blocks - 1).to_be_bytes();
                Operation::Send([&last[..], &BLOCK_LEN, &[0; 20]].concat()).limited(number(10, 4))
            }
            // Protection information.
            0x28 | 0x88 | 0x2a | 0x8a if cdb[1] & 0xe0 != 0 => Operation::Fail(INVALID_FIELD),
            0x28 => self.read(number(2, 4), number(7, 2)),
            0x88 => self.read(number(2, 8), number(10, 4)),
            0x2a => self.write(number(2, 4), number(7, 2)),
            0x8a => self.write(number(2, 8), number(10, 4)),
            _ => Operation::Fail(INVALID_OPCODE),
        }
    }

    fn read(&self, block: u64, count: u64) -> Operation {
        let bytes = self.bytes();
        match range(block, count, bytes.len()) {
            Some((offset, len)) => Operation::Send(bytes[offset..offset + len].to_vec()),
            None => Operation::Fail(OUT_OF_RANGE),
        }
    }

    fn write(&self, block: u64, count: u64) -> Operation {
        let size = self.bytes().len();
        range(block, count, size)
            .map_or(Operation::Fail(OUT_OF_RANGE), |(offset, len)| Operation::Receive { offset, len })
    }
}

/// Returns offset and length in bytes of blocks within a disk of this size.
fn range(block: u64, count: u64, size: usize) -> Option<(usize, usize)> {
    let end = block.checked_add(count)?.checked_mul(BLOCK as u64)?;
    let end = usize::try_from(end).ok().filter(|end| *end <= size)?;
    let len = usize::try_from(count).ok()? * BLOCK;
    Some((end - len, len))
}

/// INQUIRY: the standard data, and the pages 0x00, 0x80, 0x83 and 0xb0.
fn inquiry(lun: u64, cdb: &[u8; 16]) -> Operation {
    let kind = if lun == 0 { 0 } else { 0x7f };
    let page = |page: u8, data: &[u8]| {
        Operation::Send([&[kind, page, 0, u8::try_from(data.len()).unwrap()], data].concat())
    };
    match (cdb[1] & 1, cdb[2]) {
        (0, 0) => Operation::Send([&[kind, 0, 5, 2, 31, 0, 0, 2][..], IDENTITY].concat()),
        (1, 0) => page(0, &[0, 0x80, 0x83, 0xb0]),
        (1, 0xb0) => page(0xb0, &[0; 12]), // no limits
        (1, 0x80) => page(0x80, b"0001"),
        // An identifier of the vendor, in ASCII, of the logical unit.
        (1, 0x83) => page(0x83, &[&[2, 1, 0, 28][..], IDENTITY].concat()),
        _ => Operation::Fail(INVALID_FIELD),
    }
}

impl Operation {
    /// Cuts the data to the allocation length of the command.
    fn limited(self, max: u64) -> Self {
        match self {
            Self::Send(mut data) => {
                data.truncate(usize::try_from(max).unwrap());
                Self::Send(data)
            }
            other => other,
        }
    }
}
