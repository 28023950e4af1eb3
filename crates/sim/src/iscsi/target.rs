//! The target, a model: it reads and answers PDUs through its end of the link, checks every byte that it gets, and lies.

use crate::arena::pattern;
use crate::link::SimLink;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::iscsi::SessionParameters;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_wire::iscsi::{
    Command, DataIn, DataOut, HEADER_LEN, InitiatorPdu, NO_TASK, PduLayout, R2t, Residual, Response,
    SequenceNumbers, TargetPdu, padding,
};
use ironwarp_wire::mpa::Crc;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A command that the target has received.
#[derive(Debug)]
struct Task {
    task: u32,
    /// The number that the program gave the command. It selects the pattern of the data.
    serial: u64,
    is_read: bool,
    len: u32,
    /// Number of bytes that were sent, of a read, or asked for, of a write.
    done: u32,
    /// Number of bytes that have arrived, of a write.
    arrived: u32,
    /// The Data-Out that is expected: unsolicited data, and the answers to R2Ts, in order.
    bursts: Vec<Burst>,
    /// Whether the program has aborted the command.
    is_aborted: bool,
}

/// Data that is expected: the tag of the R2T, and the range that has not arrived.
#[derive(Debug)]
struct Burst {
    target_task: u32,
    offset: u32,
    end: u32,
    data_sn: u32,
}

/// The target's end of the connection.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) link: Arc<SimLink>,
    rng: Rng,
    session: SessionParameters,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    tasks: Vec<Task>,
    /// The data of the last command of each task tag, also of those that have ended.
    known: BTreeMap<u32, Arc<[u8]>>,
    stat_sn: u32,
    next_r2t: u32,
    /// Number of PDUs that were sent, or will be.
    pub(super) pdus: u64,
    pub(super) is_honest: bool,
}

impl Target {
    pub(super) fn new(link: Arc<SimLink>, rng: Rng, session: SessionParameters) -> Self {
        Self {
            link,
            rng,
            session,
            inbox: Vec::new(),
            outbox: Vec::new(),
            tasks: Vec::new(),
            known: BTreeMap::new(),
            stat_sn: session.exp_stat_sn,
            next_r2t: 0,
            pdus: 0,
            is_honest: false,
        }
    }

    /// Learns that the program has aborted a command. The target may go on with it for a while.
    pub(super) fn abort(&mut self, serial: u64) {
        for task in self.tasks.iter_mut().filter(|task| task.serial == serial) {
            task.is_aborted = true;
        }
    }

    /// Returns whether there is nothing to do or to send.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.iter().all(|task| task.is_aborted) && self.outbox.is_empty()
    }

    /// Receives what has arrived, does something, and sends what the link takes.
    pub(super) fn work(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(len) = self.link.recv(&[], &mut buffer) {
            self.inbox.extend_from_slice(&buffer[..len]);
        }
        while self.take_pdu() {}
        if self.outbox.len() < 100_000 {
            self.act();
            if !self.is_honest && self.rng.below(20) == 0 {
                self.lie();
            }
        }
        while !self.outbox.is_empty() {
            match self.link.send(&[Piece::Own(&self.outbox)]) {
                Ok(len) => drop(self.outbox.drain(..len)),
                Err(LinkError::WouldBlock) => return,
                Err(_) => self.outbox.clear(),
            }
        }
    }

    /// Takes a PDU out of the inbox, if all of it has arrived, and checks its padding and digests.
    fn take_pdu(&mut self) -> bool {
        let Some(header) = self.inbox.first_chunk::<HEADER_LEN>() else { return false };
        let (pdu, digests) = (InitiatorPdu::parse(header), self.session.digests);
        let layout = PduLayout::of(header, digests);
        if self.inbox.len() < layout.len() {
            return false;
        }
        let bytes: Vec<u8> = self.inbox.drain(..layout.len()).collect();
        let (head, body) = bytes.split_at(layout.header_len());
        if digests.header {
            assert_eq!(head[HEADER_LEN..], Crc::of(&head[..HEADER_LEN]).to_bytes(), "header digest");
        }
        let (data, trailer) = body.split_at(layout.data);
        let (pad, digest) = trailer.split_at(padding(layout.data));
        assert!(pad.iter().all(|byte| *byte == 0), "padding");
        if digests.data && !data.is_empty() {
            assert_eq!(digest, Crc::of(&body[..body.len() - 4]).to_bytes(), "data digest");
        }
        assert!(data.len() <= self.session.max_send_data as usize);
        match pdu.expect("a valid PDU") {
            InitiatorPdu::Command(command) => self.start(&command, data),
            InitiatorPdu::DataOut(out) => self.take_data(&out, data),
            other => panic!("unexpected {other:?}"),
        }
        true
    }

    fn start(&mut self, command: &Command, data: &[u8]) {
        let serial = u64::from_be_bytes(*command.cdb.first_chunk().expect("16 bytes"));
        let (task, len) = (command.task, command.expected_len);
        assert!(command.read != command.write && task != NO_TASK);
        assert!(self.tasks.iter().all(|other| other.task != task || other.is_aborted), "tag used twice");
        self.tasks.retain(|other| other.task != task);
        let whole: Arc<[u8]> = pattern(serial, len as usize).into();
        let immediate = u32::try_from(data.len()).expect("checked above");
        assert!(data == &whole[..data.len()], "immediate data of {serial}");
        self.known.insert(task, whole);
        let unsolicited = if command.last { immediate } else { len.min(self.session.first_burst) };
        let burst = Burst { target_task: NO_TASK, offset: immediate, end: unsolicited, data_sn: 0 };
        self.tasks.push(Task {
            task,
            serial,
            is_read: command.read,
            len,
            done: unsolicited,
            arrived: immediate,
            bursts: if command.last { vec![] } else { vec![burst] },
            is_aborted: false,
        });
    }

    /// Checks data of a write: that it is the data of the command, whatever the program has done with its memory since, and
    /// that it is expected.
    fn take_data(&mut self, out: &DataOut, data: &[u8]) {
        let whole = self.known.get(&out.task).expect("the tag of a command");
        let start = out.offset as usize;
        assert!(data == &whole[start..start + data.len()], "data of {out:?}");
        let Some(task) = self.tasks.iter_mut().find(|task| task.task == out.task) else { return };
        let burst = task.bursts.first_mut().expect("data that was asked for");
        assert_eq!(
            (out.target_task, out.offset, out.data_sn),
            (burst.target_task, burst.offset, burst.data_sn)
        );
        let len = u32::try_from(data.len()).expect("checked");
        (burst.offset, burst.data_sn) = (burst.offset + len, burst.data_sn + 1);
        task.arrived += len;
        assert_eq!(out.last, burst.offset == burst.end);
        if out.last {
            task.bursts.remove(0);
        }
    }

    /// Does something for a command.
    fn act(&mut self) {
        let Some(last) = (self.tasks.len() as u64).checked_sub(1) else { return };
        let index = usize::try_from(self.rng.below(last + 1)).expect("an index");
        if self.tasks[index].is_aborted && self.rng.below(3) == 0 {
            self.tasks.remove(index);
            return;
        }
        let is_early = self.rng.below(40) == 0;
        let Task { task, is_read, len, done, arrived, .. } = self.tasks[index];
        let transferred = if is_read { done } else { arrived };
        if transferred == len || is_early {
            self.respond(index, transferred);
        } else if is_read {
            self.send_data(index);
        } else if done < len && self.tasks[index].bursts.len() < usize::from(self.session.max_outstanding_r2t)
        {
            let part = 1 + self.below((len - done).min(self.session.max_burst));
            self.next_r2t += 1;
            let target_task = self.next_r2t;
            let end = done + part;
            self.tasks[index].bursts.push(Burst { target_task, offset: done, end, data_sn: 0 });
            self.tasks[index].done = end;
            self.push_r2t(task, target_task, done, part);
        }
    }

    /// Ends a command after this many bytes.
    fn respond(&mut self, index: usize, transferred: u32) {
        let Task { task, len, .. } = self.tasks.remove(index);
        let residual = residual(len, transferred);
        let numbers = self.next_status();
        let response = Response { residual, response: 0, status: 0, task, numbers, exp_data_sn: 0 };
        let sense = self.below(70) as usize;
        self.push(&TargetPdu::Response(response), &vec![7; sense]);
    }

    /// Sends the next data of a read, with the status if it is the last.
    fn send_data(&mut self, index: usize) {
        let Task { task, len, done, .. } = self.tasks[index];
        let part = 1 + self.below((len - done).min(self.session.max_recv_data));
        let is_last = done + part == len && self.rng.below(2) == 0;
        let whole = Arc::clone(&self.known[&task]);
        let data = &whole[done as usize..(done + part) as usize];
        self.tasks[index].done = done + part;
        let status = is_last.then_some((0, Residual::None));
        let numbers = if is_last { self.next_status() } else { SequenceNumbers::default() };
        self.push(&TargetPdu::DataIn(data_in(task, done, status, numbers)), data);
        if is_last {
            self.tasks.remove(index);
        }
    }

    /// Sends a PDU that must be refused.
    fn lie(&mut self) {
        let Some(task) = self.tasks.first() else { return };
        let (tag, is_read, len) = (task.task, task.is_read, task.len);
        let ended = self.known.keys().copied().find(|tag| self.tasks.iter().all(|task| task.task != *tag));
        let numbers = SequenceNumbers::default();
        let junk = vec![0xbd; 1 + self.below(200) as usize];
        let short = u32::try_from(junk.len()).expect("small");
        let place = |tag, offset| TargetPdu::DataIn(data_in(tag, offset, None, numbers));
        match self.rng.below(6) {
            0 => self.push(&place(tag, len.saturating_sub(short - 1)), &junk),
            1 => self.push(&place(tag, u32::MAX - 3), &junk),
            2 if !is_read => self.push(&place(tag, 0), &junk[..1]),
            2 => self.push_r2t(tag, 1, 0, 1),
            3 => self.push_r2t(tag, 1, 0, 0),
            4 => self.push_r2t(tag, 1, len, 1),
            _ => {
                let Some(ended) = ended else { return };
                self.push(&place(ended, 0), &junk);
            }
        }
    }

    fn push_r2t(&mut self, task: u32, target_task: u32, offset: u32, len: u32) {
        let numbers = SequenceNumbers::default();
        self.push(&TargetPdu::R2t(R2t { lun: 0, task, target_task, numbers, r2t_sn: 0, offset, len }), &[]);
    }

    fn next_status(&mut self) -> SequenceNumbers {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        SequenceNumbers { stat_sn, ..SequenceNumbers::default() }
    }

    /// Appends a PDU to what is to be sent.
    fn push(&mut self, pdu: &TargetPdu, data: &[u8]) {
        self.pdus += 1;
        let digests = self.session.digests;
        let header = pdu.emit(u32::try_from(data.len()).expect("small"));
        self.outbox.extend(header);
        if digests.header {
            self.outbox.extend(Crc::of(&header).to_bytes());
        }
        let padded = [data, &[0; 3][..padding(data.len())]].concat();
        self.outbox.extend(&padded);
        if digests.data && !data.is_empty() {
            self.outbox.extend(Crc::of(&padded).to_bytes());
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.rng.below(bound.into())).expect("below 2^32")
    }
}

/// Returns the difference in length that a response reports.
fn residual(len: u32, transferred: u32) -> Residual {
    if transferred == len { Residual::None } else { Residual::Underflow(len - transferred) }
}

fn data_in(task: u32, offset: u32, status: Option<(u8, Residual)>, numbers: SequenceNumbers) -> DataIn {
    let (last, target_task) = (status.is_some(), NO_TASK);
    DataIn { last, acknowledge: false, status, lun: 0, task, target_task, numbers, data_sn: 0, offset }
}
