//! Receiving: splits the bytes of the connection into PDUs, checks and places Data-In, queues the answers to R2Ts, ends
//! commands, and delivers headers and all other PDUs to the receive queue.
//!
//! Bytes are read into a staging buffer. Large Data-In without a digest is read directly into the buffers of its command.

use super::incoming::{Action, Incoming, Rx};
use super::send::Burst;
use super::{CommandId, IscsiQp};
use crate::error::{IscsiFault, QpError};
use crate::half::Left;
use crate::link::LinkError;
use crate::memory::{Denied, Direction, RegistrationWaiter, Rights, Spans, Transfer};
use crate::queue::{Completion, Opcode, Receive, ReceiveRequest, Status};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::Tag;
use ironwarp_wire::iscsi::{DataIn, HEADER_LEN, PduLayout, R2t, TargetPdu};
use ironwarp_wire::mpa::Crc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Data of at least this length that has not arrived is read directly into the buffers of its command.
const DIRECT: usize = 8 << 10;
/// After Data-In of at least this length, only headers are read into the staging buffer: more would have to be copied.
const LARGE: usize = 16 << 10;
/// Number of bytes that are read for a header then.
const HEADER_READ: usize = HEADER_LEN + 4;
/// Maximum number of steps in a turn: PDUs, or reads.
const STEPS: usize = 256;

/// The next step of the receiving side.
enum Step {
    /// Go on.
    Next,
    /// More bytes are needed.
    Read,
    /// A receive is needed.
    Starved,
}

impl IscsiQp {
    /// Receives until there is nothing left or the turn is over, and flushes receives in the error state. Returns whether
    /// bytes may be left. The rx half is held.
    pub(super) fn receive(&self, rx: &mut Rx) -> Left {
        let mut left = Left::Work;
        for _ in 0..STEPS {
            if self.state() == State::Error {
                let unfinished = rx.pdu.take().map(|pdu| pdu.receive.request);
                rx.release_staging(&self.device);
                self.flush_receives(unfinished);
                return Left::Nothing;
            }
            match self.step(rx) {
                Ok(Step::Next) => {}
                Ok(Step::Read) => match self.read(rx) {
                    Ok(true) => {}
                    Ok(false) => {
                        left = Left::Nothing;
                        break;
                    }
                    Err(error) => self.fail(error),
                },
                Ok(Step::Starved) => {
                    // No call to `recv` would report a lost connection.
                    let is_ended = self.link_ended.load(Ordering::Acquire);
                    match self.link.lost().filter(|_| is_ended) {
                        Some(errno) => self.fail(QpError::Lost(errno)),
                        None => {
                            left = Left::Nothing;
                            break;
                        }
                    }
                }
                Err(error) => self.fail(error),
            }
        }
        if rx.start == rx.end && rx.pdu.is_none() {
            rx.release_staging(&self.device);
        }
        if std::mem::take(&mut rx.has_r2t) {
            self.drive_tx();
        }
        left
    }

    /// Parses the bytes in the staging buffer.
    fn step(&self, rx: &mut Rx) -> Result<Step, QpError> {
        if rx.pdu.is_none() {
            match self.begin_pdu(rx)? {
                Step::Next => {}
                other => return Ok(other),
            }
        }
        self.take_data(rx)?;
        let Some(pdu) = &rx.pdu else { return Ok(Step::Next) };
        let trailer = pdu.layout.trailer_len();
        if pdu.arrived < pdu.layout.data || rx.unparsed().len() < trailer {
            return Ok(Step::Read);
        }
        let bytes = &rx.unparsed()[..trailer];
        if let Some(mut crc) = pdu.crc.filter(|_| pdu.layout.data > 0) {
            let (padding, digest) = bytes.split_at(trailer - 4);
            crc.update(padding);
            if digest != crc.to_bytes() {
                return Err(QpError::Iscsi(IscsiFault::DataDigest));
            }
        }
        let pdu = rx.pdu.take().expect("it was found above");
        rx.start += trailer;
        let is_direct = matches!(pdu.action, Action::Place { .. }) && pdu.crc.is_none();
        rx.large = is_direct && pdu.layout.data >= LARGE;
        self.finish_pdu(rx, pdu)?;
        Ok(Step::Next)
    }

    /// Parses and checks the header of the next PDU, if it has arrived and there is a receive for it.
    fn begin_pdu(&self, rx: &mut Rx) -> Result<Step, QpError> {
        let session = &self.attributes.session;
        let Some(&header) = rx.unparsed().first_chunk::<HEADER_LEN>() else { return Ok(Step::Read) };
        let layout = PduLayout::of(&header, session.digests);
        let (found, limit) = (layout.data, session.max_recv_data);
        if found > limit as usize {
            return Err(QpError::Iscsi(IscsiFault::TooLong { found, limit }));
        }
        let head = layout.header_len();
        if rx.unparsed().len() < head {
            return Ok(Step::Read);
        }
        if session.digests.header {
            let (bytes, digest) = rx.unparsed()[..head].split_at(head - 4);
            if digest != Crc::of(bytes).to_bytes() {
                return Err(QpError::Iscsi(IscsiFault::HeaderDigest));
            }
        }
        let pdu = TargetPdu::parse(&header).map_err(|error| QpError::Iscsi(IscsiFault::Header(error)))?;
        let Some(receive) = self.take_receive() else { return Ok(Step::Starved) };
        rx.start += head;
        let action = self.check(&pdu, layout.data);
        let (numbers, is_status) = pdu.numbers();
        let stat_sn = is_status.then_some(numbers.stat_sn);
        let crc = session.digests.data.then(Crc::new);
        let collected = Vec::new();
        rx.pdu = Some(Incoming { header, layout, receive, action, stat_sn, arrived: 0, collected, crc });
        Ok(Step::Next)
    }

    /// Decides what a PDU does: checks a to g of requirement M13.
    fn check(&self, pdu: &TargetPdu, len: usize) -> Action {
        match *pdu {
            TargetPdu::DataIn(data) => match self.admit(&data_in(&data, 0, len)) {
                Ok(command) => Action::Place { data, command },
                Err(denied) => Action::refuse(denied),
            },
            TargetPdu::R2t(r2t) => self.check_r2t(&r2t),
            TargetPdu::Response(response) => Action::Complete(response),
            _ => Action::Deliver,
        }
    }

    /// Checks an R2T, also against what the two ends agreed on.
    fn check_r2t(&self, r2t: &R2t) -> Action {
        let session = &self.attributes.session;
        let transfer = Transfer {
            task: Tag(r2t.task),
            offset: r2t.offset,
            len: r2t.len as usize,
            direction: Direction::Out,
        };
        let command = match self.admit(&transfer) {
            Ok(command) => command,
            Err(denied) => return Action::refuse(denied),
        };
        let limit = session.max_burst;
        if r2t.len == 0 || r2t.len > limit {
            let fault = IscsiFault::R2tLength { found: r2t.len, limit };
            return Action::Refuse(Arc::new(QpError::Iscsi(fault)));
        }
        let mut sq = lock(&self.sq);
        let Some(outstanding) = sq.get(command) else { return Action::Deliver };
        let limit = session.max_outstanding_r2t;
        if outstanding.r2ts >= limit {
            return Action::Refuse(Arc::new(QpError::Iscsi(IscsiFault::TooManyR2ts { limit })));
        }
        outstanding.r2ts += 1;
        Action::Answer(Burst {
            command,
            task: transfer.task,
            lun: outstanding.header.lun,
            target_task: r2t.target_task,
            offset: r2t.offset,
            end: r2t.offset + r2t.len, // within the buffers of the command
            data_sn: 0,
            solicited: true,
        })
    }

    /// Checks a transfer, and returns the command that it belongs to.
    fn admit(&self, transfer: &Transfer) -> Result<CommandId, Denied> {
        let (_, command) = self.device.table().admit_transfer(self.stream(), transfer, &mut Spans::new())?;
        Ok(CommandId(command))
    }

    /// Takes the oldest receive, if its memory is registered. If there is none, the next post drives the rx half.
    fn take_receive(&self) -> Option<Receive> {
        let table = self.device.table();
        let me: Weak<dyn RegistrationWaiter> = Weak::<Self>::clone(&self.me);
        let is_ready = |request: &ReceiveRequest| {
            let sges = request.buffers.as_slice();
            !table.has_pending() || !sges.iter().any(|sge| table.defer_until_registered(sge.tag, &me))
        };
        let taken = lock(&self.rq).take_if(is_ready);
        if taken.is_some() {
            return taken;
        }
        self.starved.store(true, Ordering::Release);
        let taken = lock(&self.rq).take_if(is_ready); // one may have been posted before the mark
        if taken.is_some() {
            self.starved.store(false, Ordering::Release);
        }
        taken
    }

    /// Takes the data of the current PDU that is in the staging buffer.
    fn take_data(&self, rx: &mut Rx) -> Result<(), QpError> {
        let Rx { staging: Some(staging), start, end, pdu: Some(pdu), .. } = rx else { return Ok(()) };
        let len = (*end - *start).min(pdu.layout.data - pdu.arrived);
        let bytes = &staging[*start..*start + len];
        if let Some(crc) = &mut pdu.crc {
            crc.update(bytes);
        }
        if let Action::Place { data, .. } = &pdu.action {
            let transfer = data_in(data, pdu.arrived, len);
            let (table, host) = (self.device.table(), self.device.host());
            match table.write_transfer(host, self.stream(), &transfer, bytes) {
                Ok(written) => written.map_err(|_| unmapped(&transfer))?,
                Err(denied) => pdu.action = Action::refuse(denied), // the command was aborted
            }
        } else {
            // A receive has room for what it was posted for: the rest is discarded. So is the rest of data that was placed
            // until its command was aborted.
            let room = usize::try_from(pdu.receive.room).unwrap_or(usize::MAX).saturating_sub(HEADER_LEN);
            let is_whole = pdu.collected.len() == pdu.arrived;
            let take = if is_whole { len.min(room - pdu.arrived.min(room)) } else { 0 };
            pdu.collected.extend_from_slice(&bytes[..take]);
        }
        pdu.arrived += len;
        *start += len;
        Ok(())
    }

    /// Reads from the link: data of a large Data-In into the buffers of its command, everything else into the staging
    /// buffer. Returns false if nothing has arrived.
    fn read(&self, rx: &mut Rx) -> Result<bool, QpError> {
        // Cleared before the call: what arrives afterwards is reported again.
        let has_arrived =
            self.arrived.swap(false, Ordering::AcqRel) || self.link_ended.load(Ordering::Acquire);
        if std::mem::take(&mut rx.drained) && !has_arrived {
            return Ok(false);
        }
        rx.make_room(&self.device);
        let (spans, guard, placed) = match &mut rx.pdu {
            Some(pdu) => self.direct_spans(pdu),
            None => (Spans::new(), None, 0),
        };
        let own = if rx.large && rx.pdu.is_none() || placed >= LARGE { HEADER_READ } else { usize::MAX };
        let staging = rx.staging.as_mut().expect("`make_room` has taken one");
        let own_end = rx.end.saturating_add(own).min(staging.len());
        let own = &mut staging[rx.end..own_end];
        let room = placed + own.len();
        let received = self.link.recv(&spans, own);
        drop(guard);
        let received = match received {
            Ok(received) => received,
            Err(LinkError::WouldBlock) => return Ok(false),
            Err(LinkError::Ended) if rx.pdu.is_none() && rx.start == rx.end => return Err(QpError::Closed),
            Err(LinkError::Ended) => return Err(QpError::CutShort),
            Err(LinkError::Lost(errno)) => return Err(QpError::Lost(errno)),
            Err(LinkError::Unmapped) => return Err(rx.pdu.as_ref().map_or(QpError::HalfSent, unmapped_pdu)),
        };
        rx.drained = received < room && self.link.is_empty_after_short_recv();
        let direct = received.min(placed);
        if let Some(pdu) = &mut rx.pdu {
            pdu.arrived += direct;
        }
        rx.end += received - direct;
        Ok(true)
    }

    /// Returns where the rest of the current PDU's data is to be read to, if it is worth while, with a guard and the length.
    fn direct_spans(&self, pdu: &mut Incoming) -> (Spans, Option<crate::memory::Guard<'_>>, usize) {
        let (mut spans, rest) = (Spans::new(), pdu.layout.data - pdu.arrived);
        if let Action::Place { data, .. } = &pdu.action
            && pdu.crc.is_none()
            && rest >= DIRECT
        {
            let transfer = data_in(data, pdu.arrived, rest);
            match self.device.table().admit_transfer(self.stream(), &transfer, &mut spans) {
                Ok((guard, _)) => return (spans, Some(guard), rest),
                Err(denied) => pdu.action = Action::refuse(denied), // the command was aborted
            }
        }
        (Spans::new(), None, 0)
    }

    /// Does what a PDU asks for, after all of it has arrived and its digest was verified, and completes its receive.
    fn finish_pdu(&self, rx: &mut Rx, pdu: Incoming) -> Result<(), QpError> {
        let Incoming { header, receive, collected, action, stat_sn, .. } = pdu;
        let (opcode, command, cause) = match action {
            Action::Place { data: DataIn { status: Some(_), task, .. }, .. } => self.end_command(Tag(task)),
            Action::Complete(response) => {
                let unsent = self.detach_unsent(Tag(response.task));
                let (opcode, command, cause) = self.end_command(Tag(response.task));
                // An error of the target is not doubted, but success is: the program must know.
                let unsent = unsent.then(|| Arc::new(QpError::Iscsi(IscsiFault::Unsent)));
                (opcode, command, cause.or(unsent))
            }
            Action::Place { command, .. } => (Opcode::Pdu, Some(command), None),
            Action::Answer(burst) => {
                let mut sq = lock(&self.sq);
                // Not if the command was aborted meanwhile.
                if sq.get(burst.command).is_some() {
                    sq.bursts.push_back(burst);
                    rx.has_r2t = true;
                }
                (Opcode::Pdu, Some(burst.command), None)
            }
            Action::Deliver => (Opcode::Pdu, None, None),
            Action::Refuse(cause) => (Opcode::RefusedPdu, None, Some(cause)),
        };
        if let Some(stat_sn) = stat_sn {
            self.acknowledge(stat_sn);
        }
        let completion = Completion {
            immediate: command.map(|id| id.0),
            cause,
            ..Completion::succeeded(receive.request.id, opcode, self.id, 0)
        };
        self.deliver(&receive, &header, &collected, completion)
    }

    /// Ends the command with this task tag: deregisters its memory, so that nothing accesses it any more. Returns the opcode of
    /// the completion, the number of the command, and why the response is refused if there is no such command.
    fn end_command(&self, task: Tag) -> (Opcode, Option<CommandId>, Option<Arc<QpError>>) {
        let (table, stream) = (self.device.table(), self.stream());
        match table.complete_command(stream, task) {
            Ok((id, next)) => {
                let mut sq = lock(&self.sq);
                sq.remove(CommandId(id));
                sq.tasks.push_back(next);
                (Opcode::Response, Some(CommandId(id)), None)
            }
            Err(denied) => (Opcode::RefusedPdu, None, Some(Arc::new(QpError::Remote(denied)))),
        }
    }

    /// Makes sure that no data of a command is to be sent: a target may end a write before it has received everything. Returns
    /// whether there was such data.
    fn detach_unsent(&self, task: Tag) -> bool {
        let writes = Transfer { task, offset: 0, len: 0, direction: Direction::Out };
        let Ok(id) = self.admit(&writes) else { return false };
        let (unsent, left) = self.tx.with(|tx| self.detach(tx, id));
        if left == Left::Work {
            self.driver.schedule();
        }
        unsent
    }

    /// Records the number of a status that has arrived, which the next PDU to the target acknowledges.
    fn acknowledge(&self, stat_sn: u32) {
        let next = stat_sn.wrapping_add(1);
        // Numbers wrap around (RFC 7143 §4.2.2): the greater of two is less than half of all numbers ahead.
        let is_ahead = next.wrapping_sub(self.exp_stat_sn.load(Ordering::Relaxed)).cast_signed() > 0;
        if is_ahead {
            self.exp_stat_sn.store(next, Ordering::Release);
        }
    }

    /// Copies a header and data to the memory of a receive, and completes it. If that fails, the completion has an error, but
    /// also the number of the command, which may have ended.
    fn deliver(
        &self,
        receive: &Receive,
        header: &[u8],
        data: &[u8],
        completion: Completion,
    ) -> Result<(), QpError> {
        let cq = &self.attributes.receive_cq;
        let room = usize::try_from(receive.room).unwrap_or(usize::MAX);
        let mut len = 0;
        for bytes in [&header[..header.len().min(room)], data] {
            if let Err(error) = self.scatter(receive, len, bytes) {
                let (status, cause) = (Status::LocalProtection, Some(Arc::new(error.clone())));
                self.complete(cq, Completion { status, cause, ..completion });
                return Err(error);
            }
            len += bytes.len();
        }
        let byte_len = u32::try_from(len).unwrap_or(u32::MAX);
        self.complete(cq, Completion { byte_len, ..completion });
        Ok(())
    }

    /// Copies `bytes` to the memory of a receive, `at` bytes from its beginning, if the checks of requirement M8 allow it.
    fn scatter(&self, receive: &Receive, at: usize, bytes: &[u8]) -> Result<(), QpError> {
        let buffers = &receive.request.buffers;
        let (table, host, mut done) = (self.device.table(), self.device.host(), 0);
        buffers.range(at as u64, bytes.len(), |sge| {
            let part = &bytes[done..done + sge.len as usize];
            done += part.len();
            let place = (sge.tag, sge.addr);
            let written = table
                .with_local(
                    &mut None,
                    receive.domain,
                    place,
                    part.len(),
                    Rights::LOCAL_WRITE,
                    |memory, at| memory.write(at, host, part),
                )
                .map_err(QpError::Local)?;
            written.map_err(|_| QpError::Unmapped { addr: buffers.addr(), len: bytes.len(), remote: false })
        })
    }
}

/// Describes the transfer of `len` bytes of a Data-In, after the first `arrived`.
fn data_in(data: &DataIn, arrived: usize, len: usize) -> Transfer {
    let arrived = u32::try_from(arrived).unwrap_or(u32::MAX);
    let offset = data.offset.saturating_add(arrived); // the checks of the header have shown that it does not overflow
    Transfer { task: Tag(data.task), offset, len, direction: Direction::In }
}

/// The error of a transfer to memory that the program has unmapped.
fn unmapped(transfer: &Transfer) -> QpError {
    let addr = ironwarp_wire::RemoteAddr { tag: transfer.task, offset: transfer.offset.into() };
    QpError::Unmapped { addr, len: transfer.len, remote: true }
}

/// The error of a PDU whose data cannot be placed, because the program has unmapped the memory.
fn unmapped_pdu(pdu: &Incoming) -> QpError {
    match &pdu.action {
        Action::Place { data, .. } => unmapped(&data_in(data, pdu.arrived, pdu.layout.data - pdu.arrived)),
        _ => QpError::HalfSent,
    }
}
