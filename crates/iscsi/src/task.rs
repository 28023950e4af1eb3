//! The account of a command: which bytes were transferred, as the headers of the target tell. A target that reports success
//! without having transferred all bytes is lying, or has lost a PDU.

use crate::request::{Direction, Request};
use ironwarp::iscsi::CommandId;
use ironwarp_wire::iscsi::{DataIn, R2t, Residual};

/// A command that has not ended.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) request: Request,
    /// Number of bytes to transfer.
    pub(crate) len: u32,
    /// The number at the queue pair, once the command is posted.
    pub(crate) command: Option<CommandId>,
    /// The sequence number of the command.
    pub(crate) cmd_sn: u32,
    /// Number of bytes, from the first on, that have arrived, or that the target was sent or has asked for.
    covered: u32,
    /// The number of the next Data-In or R2T.
    next_sn: u32,
}

/// The target has violated the protocol, in this way.
pub(crate) type Violation = &'static str;

impl Task {
    pub(crate) fn new(request: Request, len: u32) -> Self {
        Self { request, len, command: None, cmd_sn: 0, covered: 0, next_sn: 0 }
    }

    /// Records that the command is posted, with this number of bytes of unsolicited data if it is a write.
    pub(crate) fn begin(&mut self, command: CommandId, cmd_sn: u32, unsolicited: u32) {
        let is_write = matches!(self.request.data, Some((Direction::Out, _)));
        (self.command, self.cmd_sn, self.next_sn) = (Some(command), cmd_sn, 0);
        self.covered = if is_write { unsolicited.min(self.len) } else { 0 };
    }

    /// Records that the command is not posted any more, and will be posted again.
    pub(crate) fn withdraw(&mut self) {
        self.command = None;
    }

    /// Records data that has arrived.
    pub(crate) fn record_data(&mut self, data: &DataIn, len: u32) -> Result<(), Violation> {
        self.record(data.data_sn, data.offset, len)
    }

    /// Records that the target has asked for data.
    pub(crate) fn record_r2t(&mut self, r2t: &R2t) -> Result<(), Violation> {
        self.record(r2t.r2t_sn, r2t.offset, r2t.len)
    }

    /// Data and R2Ts come in order, without gaps: the login has negotiated that.
    fn record(&mut self, number: u32, offset: u32, len: u32) -> Result<(), Violation> {
        if number != self.next_sn {
            return Err("a Data-In or R2T is missing");
        }
        if offset != self.covered {
            return Err("data is not in order");
        }
        self.next_sn += 1;
        self.covered = self.covered.saturating_add(len);
        Ok(())
    }

    /// Returns the number of bytes that a successful command has transferred.
    pub(crate) fn transferred(&self, residual: Residual) -> Result<u32, Violation> {
        let transferred = match residual {
            Residual::None | Residual::Overflow(_) => self.len,
            Residual::Underflow(missing) => {
                self.len.checked_sub(missing).ok_or("residual count above the expected length")?
            }
        };
        if self.covered < transferred {
            return Err("success is reported, but not all data was transferred");
        }
        Ok(transferred)
    }
}
