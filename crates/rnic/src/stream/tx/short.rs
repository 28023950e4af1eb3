//! Requests of one segment, several at a time: the send queue is locked once for all of them, and each takes the straight way into
//! the train. All others, and what answers take turns with, go through `build.rs`.

use super::build::Stop;
use super::payload::Source;
use super::{Did, Doing, Tx};
use crate::qp::Qp;
use crate::queue::{Data, Operation, Pushed, Sge, WorkRequest};
use crate::stream::{DIRECT, Guards, NOWHERE, Train};
use crate::sync::lock;
use ironwarp_wire::ddp::UNTAGGED_LEN;
use ironwarp_wire::{Header, Place, Send, SendWord, Tagged};

/// So many at once: by then the lock costs nothing.
const MOST: usize = 16;

/// What is left of a request on its way into the train.
#[derive(Debug)]
pub(crate) struct Short {
    message: Message,
    data: Payload,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Send { solicited: bool, word: SendWord },
    Write(Place),
}

#[derive(Debug)]
enum Payload {
    Nothing,
    Memory(Sge),
    Inline(Pushed),
}

impl Short {
    /// `None`: it is not that simple.
    fn of(request: &WorkRequest, room: usize) -> Option<Self> {
        if request.fence || request.immediate.is_some() || request.data.len() > room as u64 {
            return None;
        }
        let message = match request.operation {
            Operation::Send { invalidate } => {
                let word = invalidate.map_or(SendWord::Srq(request.srq), SendWord::Invalidate);
                Message::Send { solicited: request.solicited, word }
            }
            Operation::Write(to) => Message::Write(to),
            _ => return None,
        };
        let data = match &request.data {
            data if data.is_empty() => Payload::Nothing,
            Data::Inline(bytes) => Payload::Inline(bytes.clone()),
            Data::Memory(sges) => match sges.as_slice() {
                [one] => Payload::Memory(*one),
                _ => return None,
            },
        };
        Some(Self { message, data })
    }
}

impl Tx {
    /// Adds those that have their turn. False: none has.
    pub(super) fn add_shorts<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
    ) -> Result<bool, Stop> {
        if train.owed.answers > self.cursor.answered as usize || !self.may_begin(qp) {
            return Ok(false);
        }
        let mut shorts = train.take_shorts();
        let room = self.room(train, UNTAGGED_LEN).min(DIRECT - 1);
        let (mut number, mut msn) = (self.cursor.requests, self.cursor.send_msn);
        let mut sq = lock(&qp.sq);
        let last = sq.begin_several(self.cursor.seq, MOST, |request| {
            let short = Short::of(request, room)?;
            let own = msn;
            number += 1;
            msn = msn.wrapping_add(u32::from(matches!(short.message, Message::Send { .. })));
            shorts.push(short);
            Some((number, own))
        });
        let idle = last && !sq.wants_probe(number);
        drop(sq);
        let any = !shorts.is_empty();
        if any {
            // As for others: see `add_request`.
            self.acknowledge(qp, train);
        }
        let mut added = Ok(any);
        for short in shorts.drain(..) {
            if train.is_full() {
                added = Err(Stop::Full);
            } else if added.is_ok()
                && let Err(stop) = self.add_short(qp, train, guards, &short)
            {
                added = Err(stop);
            }
        }
        train.put_shorts(shorts);
        if added.is_err() {
            // Another message may get the number of one that did not come to leave, and be acknowledged.
            lock(&qp.sq).take_back_numbers(self.cursor.seq);
        }
        if idle && any && added.is_ok() { Err(Stop::Idle) } else { added }
    }

    fn add_short<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
        short: &Short,
    ) -> Result<(), Stop> {
        let seq = self.cursor.seq;
        let (source, len) = match &short.data {
            Payload::Nothing => (Source::Inline(&[]), 0),
            Payload::Memory(sge) => (Source::Sge(*sge), sge.len as usize),
            Payload::Inline(bytes) => (Source::Inline(bytes), bytes.len()),
        };
        let msn = self.cursor.send_msn;
        let (header, sends) = match short.message {
            Message::Send { solicited, word } => {
                (Header::Send(Send { msn, last: true, offset: 0, solicited, word }), 1)
            }
            // As for others: see `add_segment_of`.
            Message::Write(_) if len == 0 => (Header::Write(Tagged { last: true, place: NOWHERE }), 0),
            Message::Write(place) => (Header::Write(Tagged { last: true, place }), 0),
        };
        self.add_payload(qp, train, guards, &header, &source, len)
            .map_err(|fault| Stop::local(fault, seq))?;
        self.cursor.send_msn = msn.wrapping_add(sends);
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.answer_next = true;
        self.cursor.doing = Doing::Nothing;
        train.seal(self.cursor, Did::Request(seq));
        Ok(())
    }
}
