//! Sending: starts posted commands, cuts data into PDUs, and passes PDUs to the link in batches.
//!
//! Data is sent from the program's memory without a copy, unless it has a digest: the digest must be that of the bytes that
//! are sent, which the program may change meanwhile.

use super::outgoing::{OutData, Outgoing, Tx};
use super::send::{Burst, Posted};
use super::{CommandId, IscsiQp, PduRequest};
use crate::error::QpError;
use crate::half::Left;
use crate::link::{LinkError, Piece};
use crate::memory::{Check, Denied, Direction, Guard, RegisterError, RegistrationWaiter, Spans, Transfer};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::iscsi::{Command, DataOut, HEADER_LEN, InitiatorPdu, NO_TASK, padding, set_exp_stat_sn};
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::{RemoteAddr, Tag};
use smallvec::SmallVec;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// Maximum number of PDUs in a batch.
const MAX_PDUS: usize = 64;
/// A batch is sent once it has this many bytes.
const ENOUGH_BYTES: usize = 256 << 10;
/// Maximum number of batches in a turn.
const BATCHES: usize = 8;

/// What to do after a request was taken off the queue.
enum Start {
    /// Send this PDU.
    Send(Outgoing),
    /// Nothing is to be sent for it.
    Nothing,
    /// Wait: the memory of the request is still being registered.
    Wait,
}

impl IscsiQp {
    /// Sends until there is nothing left, the link is full or the turn is over. In the error state, flushes. Returns
    /// [`Left::Work`] if the turn is over. The tx half is held.
    pub(super) fn transmit(&self, tx: &mut Tx) -> Left {
        for _ in 0..BATCHES {
            if self.state() == State::Error {
                self.flush_sends(tx);
                return Left::Nothing;
            }
            self.fill_batch(tx);
            if tx.batch.is_empty() {
                return Left::Nothing;
            }
            match self.send_batch(tx) {
                Ok(()) => {}
                Err(LinkError::WouldBlock) => {
                    if self.blocked.swap(true, Ordering::SeqCst) {
                        return Left::Nothing; // the second failure in a row: the link will report when it has room
                    }
                    // The flag was just set: try again, because the link may have reported room before.
                }
                Err(LinkError::Lost(errno)) => self.fail(QpError::Lost(errno)),
                Err(LinkError::Ended) => self.fail(QpError::Closed),
                // Neither the rest of the PDU nor anything else can be sent.
                Err(LinkError::Unmapped) => self.fail(QpError::HalfSent),
            }
        }
        Left::Work
    }

    /// Makes sure that nothing in the batch and no burst uses the memory of a command: drops PDUs that were not begun, and
    /// copies the rest of one that was. The target drops the task, or has ended it. Returns whether data was not sent.
    pub(super) fn detach(&self, tx: &mut Tx, id: CommandId) -> bool {
        let mut sq = lock(&self.sq);
        let bursts = sq.bursts.len();
        sq.bursts.retain(|burst| burst.command != id);
        let unsent = sq.bursts.len() < bursts || tx.batch.iter().any(|pdu| pdu.command == Some(id));
        drop(sq);
        let begun = tx.batch.front().is_some_and(|first| first.sent > 0);
        let mut position = 0;
        tx.batch.retain(|pdu| {
            position += 1;
            // The PDU of the command itself must be sent: its number is expected.
            pdu.command != Some(id) || position == 1 && begun || pdu.is_command()
        });
        for pdu in tx.batch.iter_mut().filter(|pdu| pdu.command == Some(id)) {
            let OutData::Memory(transfer) = &pdu.data else { continue };
            let mut bytes = vec![0; transfer.len].into_boxed_slice();
            let (table, host) = (self.device.table(), self.device.host());
            match table.read_transfer(host, self.stream(), transfer, &mut bytes) {
                Ok(Ok(())) => pdu.data = OutData::Own(bytes),
                _ => {
                    self.fail(QpError::HalfSent);
                    return true;
                }
            }
        }
        unsent
    }

    /// Adds PDUs to the batch until it is large enough, or nothing is left to send.
    fn fill_batch(&self, tx: &mut Tx) {
        let mut bytes: usize = tx.batch.iter().map(Outgoing::len).sum();
        while bytes < ENOUGH_BYTES && tx.batch.len() < MAX_PDUS {
            let Some(pdu) = self.next_pdu() else { return };
            bytes += pdu.len();
            tx.batch.push_back(pdu);
        }
    }

    /// Returns the next PDU: data that was begun or asked for first, then posted requests.
    fn next_pdu(&self) -> Option<Outgoing> {
        loop {
            if let Some(pdu) = self.next_data() {
                return Some(pdu);
            }
            match self.state() {
                State::Error => return None,
                // Requests posted after a command that was refused (requirement M7).
                State::Drained => self.flush_posted(None),
                _ => {}
            }
            let posted = lock(&self.sq).take()?;
            match self.start(posted) {
                Start::Send(pdu) => return Some(pdu),
                Start::Nothing => {}
                Start::Wait => return None,
            }
        }
    }

    /// Returns the next PDU of the first burst.
    fn next_data(&self) -> Option<Outgoing> {
        loop {
            let (burst, len) = {
                let mut sq = lock(&self.sq);
                let burst = sq.bursts.front_mut()?;
                let now = *burst;
                let len = (now.end - now.offset).min(self.attributes.session.max_send_data);
                burst.offset += len;
                burst.data_sn += 1;
                if burst.offset == burst.end {
                    sq.bursts.pop_front();
                    if let Some(command) = sq.get(now.command).filter(|_| now.solicited) {
                        command.r2ts -= 1;
                    }
                }
                (now, len)
            };
            let header = DataOut {
                last: burst.offset + len == burst.end,
                lun: burst.lun,
                task: burst.task.0,
                target_task: burst.target_task,
                exp_stat_sn: 0,
                data_sn: burst.data_sn,
                offset: burst.offset,
            };
            let transfer = out(burst.task, burst.offset, len);
            let header = InitiatorPdu::DataOut(header).emit(len);
            // `None` if the command has ended meanwhile.
            if let Some(pdu) = self.build_from_memory(header, transfer, burst.command) {
                return Some(pdu);
            }
        }
    }

    /// Starts a posted request.
    fn start(&self, posted: Posted) -> Start {
        match posted {
            Posted::Pdu(PduRequest { header, data, .. }) => Start::Send(self.build(header, data, None)),
            Posted::Command(id) => self.start_command(id),
        }
    }

    /// Starts a command: registers its buffers, and returns its PDU.
    fn start_command(&self, id: CommandId) -> Start {
        let Some((header, direction, buffers)) = lock(&self.sq)
            .get(id)
            .map(|command| (command.header, command.direction, command.buffers.clone()))
        else {
            return Start::Nothing; // it was aborted
        };
        let (table, stream) = (self.device.table(), self.stream());
        let free = lock(&self.sq).tasks.pop_front();
        let task = match free.map_or_else(|| table.allocate_command(stream), Ok) {
            Ok(task) => task,
            Err(error) => {
                self.refuse(id, QpError::Register { tag: Tag(NO_TASK), error });
                return Start::Nothing;
            }
        };
        let list =
            buffers.as_slice().iter().map(|sge| (RemoteAddr { tag: sge.tag, offset: sge.addr }, sge.len));
        let direction_or_in = direction.unwrap_or(Direction::In);
        if let Err(error) = table.fill_command(stream, (task, id.0), direction_or_in, list) {
            lock(&self.sq).tasks.push_front(task);
            return self.wait_or_refuse(id, task, error);
        }
        if let Some(command) = lock(&self.sq).get(id) {
            command.task = Some(task);
        }
        Start::Send(self.build_command(id, task, header, direction))
    }

    /// Builds the PDU of a command with its immediate data, and queues its unsolicited data.
    fn build_command(
        &self,
        id: CommandId,
        task: Tag,
        header: Command,
        direction: Option<Direction>,
    ) -> Outgoing {
        let session = &self.attributes.session;
        let len = lock(&self.sq).get(id).map_or(0, |command| command.len);
        let unsolicited = if direction == Some(Direction::Out) { len.min(session.first_burst) } else { 0 };
        let immediate = if session.immediate_data { unsolicited.min(session.max_send_data) } else { 0 };
        let rest = if session.initial_r2t { 0 } else { unsolicited - immediate };
        let header = Command {
            last: rest == 0,
            read: direction == Some(Direction::In),
            write: direction == Some(Direction::Out),
            task: task.0,
            expected_len: len,
            ..header
        };
        if rest > 0 {
            // Before all others: it follows the command, in order.
            lock(&self.sq).bursts.push_front(Burst {
                command: id,
                task,
                lun: 0, // reserved without a target's tag (RFC 7143 §11.7.4)
                target_task: NO_TASK,
                offset: immediate,
                end: immediate + rest,
                data_sn: 0,
                solicited: false,
            });
        }
        let header = InitiatorPdu::Command(header).emit(immediate);
        let data =
            if immediate > 0 { self.build_from_memory(header, out(task, 0, immediate), id) } else { None };
        data.unwrap_or_else(|| self.build(header, Box::default(), Some(id)))
    }

    /// Handles a registration that failed: waits for memory whose own registration is in progress (requirement X6), or
    /// refuses the command.
    fn wait_or_refuse(&self, id: CommandId, task: Tag, error: RegisterError) -> Start {
        let cause = match error {
            RegisterError::Denied(Denied { check: Check::Pending, tag, .. }) => {
                lock(&self.sq).posted.push_front(Posted::Command(id));
                let me: Weak<dyn RegistrationWaiter> = Weak::<Self>::clone(&self.me);
                return match self.device.table().defer_until_registered(tag, &me) {
                    true => Start::Wait,
                    false => Start::Nothing, // it has just ended: try again
                };
            }
            RegisterError::Denied(denied) => QpError::Local(denied),
            error => QpError::Register { tag: task, error },
        };
        self.refuse(id, cause);
        Start::Nothing
    }

    /// Builds a PDU with data in the program's memory. `None` if the command has ended.
    fn build_from_memory(
        &self,
        header: [u8; HEADER_LEN],
        transfer: Transfer,
        command: CommandId,
    ) -> Option<Outgoing> {
        if !self.attributes.session.digests.data {
            return Some(self.build_with(header, OutData::Memory(transfer), None, Some(command)));
        }
        let mut bytes = vec![0; transfer.len].into_boxed_slice();
        let (table, host) = (self.device.table(), self.device.host());
        match table.read_transfer(host, self.stream(), &transfer, &mut bytes).ok()? {
            Ok(()) => Some(self.build(header, bytes, Some(command))),
            Err(_) => {
                let addr = RemoteAddr { tag: transfer.task, offset: transfer.offset.into() };
                self.fail(QpError::Unmapped { addr, len: transfer.len, remote: false });
                None
            }
        }
    }

    /// Builds a PDU with data of the adapter.
    fn build(&self, header: [u8; HEADER_LEN], data: Box<[u8]>, command: Option<CommandId>) -> Outgoing {
        let has_digest = self.attributes.session.digests.data && !data.is_empty();
        let digest = has_digest.then(|| {
            let mut crc = Crc::of(&data);
            crc.update(&[0; 3][..padding(data.len())]);
            crc
        });
        self.build_with(header, OutData::Own(data), digest, command)
    }

    /// Builds a PDU: sets the expected status number, and adds digests and padding.
    fn build_with(
        &self,
        mut header: [u8; HEADER_LEN],
        data: OutData,
        digest: Option<Crc>,
        command: Option<CommandId>,
    ) -> Outgoing {
        set_exp_stat_sn(&mut header, self.exp_stat_sn.load(Ordering::Acquire));
        let mut head = SmallVec::from_slice(&header);
        if self.attributes.session.digests.header {
            head.extend_from_slice(&Crc::of(&header).to_bytes());
        }
        let mut trailer = SmallVec::from_slice(&[0; 3][..padding(data.len())]);
        trailer.extend(digest.into_iter().flat_map(Crc::to_bytes));
        Outgoing { head, data, trailer, sent: 0, command }
    }

    /// Passes the batch to the link, once, and removes what the link has taken.
    fn send_batch(&self, tx: &mut Tx) -> Result<(), LinkError> {
        let mut pieces = SmallVec::<[Piece<'_>; 64]>::new();
        let mut guards = SmallVec::<[Guard<'_>; 16]>::new();
        for pdu in &tx.batch {
            let mut skip = pdu.sent;
            push_own(&mut pieces, &pdu.head, &mut skip);
            match &pdu.data {
                OutData::Own(bytes) => push_own(&mut pieces, bytes, &mut skip),
                OutData::Memory(transfer) => {
                    let skipped = skip.min(transfer.len);
                    skip -= skipped;
                    let rest = skip_front(transfer, skipped);
                    let mut spans = Spans::new();
                    let admitted = self.device.table().admit_transfer(self.stream(), &rest, &mut spans);
                    // Cannot fail: a command is detached before its memory is deregistered.
                    guards.push(admitted.map_err(|_| LinkError::Unmapped)?.0);
                    pieces.extend(spans.iter().map(|span| Piece::Host(*span)));
                }
            }
            push_own(&mut pieces, &pdu.trailer, &mut skip);
        }
        let sent = self.link.send(&pieces);
        drop((pieces, guards));
        let mut left = sent?;
        while let Some(first) = tx.batch.front_mut() {
            let taken = left.min(first.len() - first.sent);
            first.sent += taken;
            left -= taken;
            if first.sent < first.len() {
                break;
            }
            tx.batch.pop_front();
        }
        Ok(())
    }
}

/// Describes a transfer to the target.
fn out(task: Tag, offset: u32, len: u32) -> Transfer {
    Transfer { task, offset, len: len as usize, direction: Direction::Out }
}

/// Returns a transfer without its first bytes.
fn skip_front(transfer: &Transfer, skipped: usize) -> Transfer {
    let offset = transfer.offset + u32::try_from(skipped).unwrap_or(u32::MAX); // at most the length
    Transfer { offset, len: transfer.len - skipped, ..*transfer }
}

/// Appends bytes without the first `skip`, and reduces `skip` by those that were skipped.
fn push_own<'a>(pieces: &mut SmallVec<[Piece<'a>; 64]>, bytes: &'a [u8], skip: &mut usize) {
    let skipped = bytes.len().min(*skip);
    *skip -= skipped;
    if skipped < bytes.len() {
        pieces.push(Piece::Own(&bytes[skipped..]));
    }
}
