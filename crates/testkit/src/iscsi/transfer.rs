//! Transfers of data: how reads are cut into PDUs, and writes that wait for theirs.

use super::disk::Sense;
use super::login::Parameters;
use ironwarp_wire::iscsi::{Command, DataIn, DataOut, NO_TASK, R2t, Residual, SequenceNumbers};
use std::collections::VecDeque;

/// Returns the headers of the Data-In PDUs for `len` bytes, with the length of each. The last has the status if `status` has
/// one.
pub(super) fn data_in(
    command: &Command,
    len: usize,
    parameters: &Parameters,
    status: Option<(u8, Residual)>,
) -> Vec<(DataIn, usize)> {
    let mut pdus = Vec::new();
    let mut at = 0;
    while at < len {
        let burst_end = len.min((at / parameters.max_burst + 1) * parameters.max_burst);
        let end = burst_end.min(at + parameters.max_send);
        let data = DataIn {
            last: end == burst_end,
            acknowledge: false,
            status: status.filter(|_| end == len),
            lun: 0,
            task: command.task,
            target_task: NO_TASK,
            numbers: SequenceNumbers::default(),
            data_sn: u32::try_from(pdus.len()).unwrap(),
            offset: u32::try_from(at).unwrap(),
        };
        pdus.push((data, end - at));
        at = end;
    }
    pdus
}

/// Returns the difference between the length of a transfer and what the initiator expected.
pub(super) fn residual(len: usize, expected: u32) -> Residual {
    let len = u32::try_from(len).unwrap();
    match expected.checked_sub(len) {
        Some(0) => Residual::None,
        Some(rest) => Residual::Underflow(rest),
        None => Residual::Overflow(len - expected),
    }
}

/// A write that waits for data.
pub(super) struct Write {
    pub(super) command: Command,
    /// Where the data go on the disk. An error if they are discarded, with the reason why the command fails then, if it does.
    pub(super) place: Result<usize, Option<Sense>>,
    /// Number of bytes that the command would transfer, whatever the initiator expects.
    pub(super) len: usize,
    /// Number of bytes that it transfers.
    transfer: usize,
    /// The data, and possibly unsolicited data after them, which are discarded.
    buffer: Vec<u8>,
    /// Number of bytes that have arrived. They arrive in order.
    filled: usize,
    /// End of the bytes that have arrived, or for which there is a burst.
    asked: usize,
    /// Sequences of Data-Out that the initiator sends.
    bursts: VecDeque<Burst>,
    pub(super) r2t_sn: u32,
}

/// A sequence of Data-Out PDUs.
struct Burst {
    /// The tag of its R2T; [`NO_TASK`] for unsolicited data.
    target_task: u32,
    end: usize,
    data_sn: u32,
}

impl Write {
    /// Begins a write of `len` bytes with its immediate data.
    pub(super) fn new(
        command: Command,
        place: Result<usize, Option<Sense>>,
        len: usize,
        immediate: &[u8],
        parameters: &Parameters,
    ) -> Result<Self, String> {
        let expected = if command.write { command.expected_len as usize } else { 0 };
        let solicited_only = parameters.initial_r2t && !command.last;
        if immediate.len() > expected.min(parameters.first_burst) || solicited_only {
            return Err(format!("unsolicited data against the parameters: {command:?}"));
        }
        let first = expected.min(parameters.first_burst);
        let transfer = if place.is_ok() { len.min(expected) } else { 0 };
        let mut buffer = vec![0; transfer.max(first)];
        let filled = immediate.len();
        buffer[..filled].copy_from_slice(immediate);
        let (mut asked, mut bursts) = (filled, VecDeque::new());
        if !command.last {
            asked = first;
            bursts.push_back(Burst { target_task: NO_TASK, end: first, data_sn: 0 });
        }
        Ok(Self { command, place, len, transfer, buffer, filled, asked, bursts, r2t_sn: 0 })
    }

    /// Takes data.
    pub(super) fn accept(&mut self, pdu: &DataOut, data: &[u8]) -> Result<(), String> {
        let burst = self.bursts.front_mut().ok_or_else(|| format!("Data-Out without R2T: {pdu:?}"))?;
        let end = self.filled + data.len();
        let due = (burst.target_task, burst.data_sn, self.filled);
        if (pdu.target_task, pdu.data_sn, pdu.offset as usize) != due || end > burst.end {
            return Err(format!("{} bytes with {pdu:?}, due is {due:x?} up to {}", data.len(), burst.end));
        }
        self.buffer[self.filled..end].copy_from_slice(data);
        (self.filled, burst.data_sn) = (end, burst.data_sn + 1);
        if pdu.last != (end == burst.end) && burst.target_task != NO_TASK {
            return Err(format!("F at the wrong place of a sequence: {pdu:?}"));
        }
        if pdu.last {
            if burst.target_task == NO_TASK {
                self.asked = end;
            }
            self.bursts.pop_front();
        }
        Ok(())
    }

    /// Returns the R2T to send next, with this tag, if one is due.
    pub(super) fn next_r2t(&mut self, target_task: u32, parameters: &Parameters) -> Option<R2t> {
        let unsolicited = self.bursts.front().is_some_and(|burst| burst.target_task == NO_TASK);
        if unsolicited || self.asked >= self.transfer || self.bursts.len() == parameters.max_outstanding_r2t {
            return None;
        }
        let end = self.transfer.min(self.asked + parameters.max_burst);
        let r2t = R2t {
            lun: self.command.lun,
            task: self.command.task,
            target_task,
            numbers: SequenceNumbers::default(),
            r2t_sn: self.r2t_sn,
            offset: u32::try_from(self.asked).unwrap(),
            len: u32::try_from(end - self.asked).unwrap(),
        };
        self.bursts.push_back(Burst { target_task, end, data_sn: 0 });
        (self.asked, self.r2t_sn) = (end, self.r2t_sn + 1);
        Some(r2t)
    }

    /// Returns the data.
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[..self.transfer]
    }

    /// Returns whether all data have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.bursts.is_empty() && self.filled >= self.transfer
    }
}
