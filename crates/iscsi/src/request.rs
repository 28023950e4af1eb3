//! Commands that a session executes, and how they end.

use crate::error::Error;
use crate::scsi::{self, Capacity};
use ironwarp::memory::Sge;
use std::fmt;

/// The direction in which a command transfers data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the initiator.
    In,
    /// To the target.
    Out,
}

/// A SCSI command with the memory that it transfers.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) lun: u16,
    pub(crate) cdb: [u8; 16],
    pub(crate) data: Option<(Direction, Vec<Sge>)>,
}

/// Identifies a command that a session has started. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(crate) u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The command.
    pub task: TaskId,
    /// The number of bytes that were transferred, or why the command failed. A write that failed may have been executed.
    pub result: Result<u32, Error>,
}

impl Request {
    /// Reads blocks to the memory of `list`, whose length decides how many. The memory must be registered in the
    /// [domain of the session](crate::Session::domain), with local write access.
    ///
    /// # Errors
    /// Fails if the length is no multiple of the block size, or if the logical unit has not got the blocks.
    pub fn read(lun: u16, capacity: &Capacity, lba: u64, list: &[Sge]) -> Result<Self, Error> {
        let cdb = scsi::read(lba, blocks(capacity, lba, list)?);
        Ok(Self { lun, cdb, data: Some((Direction::In, list.to_vec())) })
    }

    /// Writes the memory of `list` to blocks. The memory must be registered in the
    /// [domain of the session](crate::Session::domain), with local read access. It must not change until the command has
    /// ended.
    ///
    /// # Errors
    /// Fails if the length is no multiple of the block size, or if the logical unit has not got the blocks.
    pub fn write(lun: u16, capacity: &Capacity, lba: u64, list: &[Sge]) -> Result<Self, Error> {
        let cdb = scsi::write(lba, blocks(capacity, lba, list)?);
        Ok(Self { lun, cdb, data: Some((Direction::Out, list.to_vec())) })
    }

    /// Makes the target write its cache to the medium.
    pub fn synchronize_cache(lun: u16) -> Self {
        Self { lun, cdb: scsi::synchronize_cache(), data: None }
    }

    /// Any command with this descriptor block. If its connection is lost, a session that reconnects issues it again.
    pub fn new(lun: u16, cdb: [u8; 16], data: Option<(Direction, &[Sge])>) -> Self {
        Self { lun, cdb, data: data.map(|(direction, list)| (direction, list.to_vec())) }
    }

    /// Returns the number of bytes to transfer.
    pub(crate) fn len(&self) -> u64 {
        let list = self.data.as_ref().map_or(&[][..], |(_, list)| list);
        list.iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// Returns the number of blocks that a list has.
fn blocks(capacity: &Capacity, lba: u64, list: &[Sge]) -> Result<u32, Error> {
    let len: u64 = list.iter().map(|sge| u64::from(sge.len)).sum();
    let &Capacity { blocks, block_size } = capacity;
    let count = len / u64::from(block_size);
    let fits = lba.checked_add(count).is_some_and(|end| end <= blocks);
    match u32::try_from(count) {
        Ok(count) if count > 0 && len.is_multiple_of(u64::from(block_size)) && fits => Ok(count),
        _ => Err(Error::Blocks { lba, len, capacity: *capacity }),
    }
}
