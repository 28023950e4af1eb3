//! Commands for the send queue of a queue pair in iSCSI mode.

use ironwarp_rnic::iscsi::CommandRequest as Inner;
use ironwarp_rnic::memory::Direction;
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::iscsi::Command;

/// A SCSI command, and the memory that it transfers.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// use ironwarp::iscsi::{Command, CommandRequest};
///
/// # let domain = Adapter::new()?.protection_domain();
/// # let region = domain.register(Buffer::new(4096)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
/// let mut header = Command { lun: 1 << 48, cmd_sn: 7, ..Default::default() };
/// header.cdb[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0]); // READ(10), 8 blocks
/// let read = CommandRequest::new(header).read_to(&[region.slice(..)?]);
/// header.cdb[0] = 0x2a; // WRITE(10)
/// let write = CommandRequest::new(header).write_from(&[region.slice(..)?]);
/// # let _ = (read, write);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct CommandRequest {
    pub(super) inner: Inner,
}

impl CommandRequest {
    /// Creates a command without data. The adapter sets the task tag, the lengths and flags of the data, and the expected
    /// status number in the header; the program sets the other fields, among them the sequence number of the command.
    ///
    /// ```
    /// # use ironwarp::iscsi::{Command, CommandRequest};
    /// let test_unit_ready = CommandRequest::new(Command { lun: 1 << 48, cmd_sn: 7, ..Default::default() });
    /// # let _ = test_unit_ready;
    /// ```
    pub const fn new(header: Command) -> Self {
        Self { inner: Inner { header, data: None } }
    }

    /// Sets the memory that the target's data is placed in. It needs local write access.
    pub fn read_to(mut self, list: &[Sge]) -> Self {
        self.inner.data = Some((Direction::In, list.into()));
        self
    }

    /// Sets the memory whose bytes the target gets. It needs local read access, and must not change until the command has
    /// ended.
    pub fn write_from(mut self, list: &[Sge]) -> Self {
        self.inner.data = Some((Direction::Out, list.into()));
        self
    }
}
