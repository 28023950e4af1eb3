//! Requests that must fail: how an honest one becomes such, and what each end must be told of it.

use super::memory::WHOLE;
use super::pick;
use super::program::Program;
use super::request::{Effect, Request, Slot, Verb};
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::memory::{Rights, following};
use ironwarp_rnic::queue::{Data, Operation, Status};
use ironwarp_wire::{Place, Tag};

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crime {
    /// A buffer of its own is not registered.
    LocalTag,
    /// The peer's memory is named by a tag of another instance.
    RemoteTag,
    /// It ends behind the end of the peer's memory.
    RemoteRange,
    /// The peer's memory is not for peers.
    RemoteRight,
    /// The peer's word is not aligned.
    Misaligned,
    /// It invalidates what is not this stream's to invalidate.
    Invalidate,
    /// The message does not fit a receive.
    TooLong,
    /// XRC: there is no such queue.
    NoQueue,
    /// The peer does not wait for receives, and none is posted.
    NoReceive,
    /// The peer does not understand it.
    Stranger,
    /// The memory table refuses it.
    Refused,
    /// The peer's memory has served another message, and serves one.
    Touched,
}

impl Crime {
    /// How the request ends.
    pub(super) const fn status(self) -> Status {
        match self {
            Self::LocalTag => Status::LocalProtection,
            Self::RemoteTag | Self::RemoteRange | Self::RemoteRight | Self::Invalidate | Self::Touched => {
                Status::RemoteAccess
            }
            Self::Misaligned => Status::RemoteOperation,
            Self::TooLong | Self::NoQueue | Self::NoReceive => Status::RemoteInvalidRequest,
            Self::Stranger => Status::LocalQpOperation,
            Self::Refused => Status::WindowBind,
        }
    }

    /// How the receive ends that it used up.
    pub(super) const fn receive(self) -> Option<Status> {
        match self {
            Self::Invalidate => Some(Status::LocalAccess),
            Self::TooLong => Some(Status::LocalLength),
            _ => None,
        }
    }

    /// The peer found out, and complained.
    pub(super) const fn is_remote(self) -> bool {
        !matches!(self, Self::LocalTag | Self::Stranger | Self::Refused)
    }

    const fn of(verb: Verb) -> &'static [Self] {
        match verb {
            Verb::Send => &[Self::LocalTag, Self::TooLong, Self::NoQueue],
            Verb::SendImmediate => &[Self::LocalTag, Self::TooLong, Self::NoQueue, Self::Stranger],
            Verb::SendInvalidate => &[Self::LocalTag, Self::TooLong, Self::Invalidate],
            Verb::Write | Verb::Read => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight]
            }
            Verb::WriteImmediate => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight, Self::NoQueue]
            }
            Verb::FetchAdd | Verb::CompareSwap => {
                &[Self::LocalTag, Self::RemoteTag, Self::RemoteRange, Self::RemoteRight, Self::Misaligned]
            }
            _ => &[Self::Refused],
        }
    }
}

impl Program {
    /// Makes one request of a line a crime, if it can be one.
    pub(super) fn turn_criminal(&mut self, rng: &mut Rng, line: usize, peer: &mut Self) {
        let index = usize::try_from(rng.below(self.lines[line].requests.len() as u64)).expect("an index");
        let verb = self.lines[line].requests[index].verb;
        let crime = pick(rng, Crime::of(verb));
        if self.commit(rng, crime, (line, index), peer) {
            self.lines[line].requests[index].crime = Some(crime);
        }
    }

    fn commit(
        &mut self,
        rng: &mut Rng,
        crime: Crime,
        (line, index): (usize, usize),
        peer: &mut Self,
    ) -> bool {
        let rules = self.rules;
        if crime == Crime::TooLong {
            let here = self.slot(rules.longest + 1, Rights::LOCAL_READ);
            self.arena.fill_pattern(here.span, self.lines[line].requests[index].pattern);
            let request = &mut self.lines[line].requests[index];
            (request.here, request.posted.data) = (here, Data::Memory(here.sges(rng)));
            return true;
        }
        let hidden = peer.slot(self.lines[line].requests[index].here.span.len, WHOLE);
        let request = &mut self.lines[line].requests[index];
        match crime {
            Crime::LocalTag => spoil_buffers(request),
            Crime::NoQueue if rules.receiving == Receiving::Named => {
                request.posted.srq = NO_SUCH_QUEUE;
                true
            }
            Crime::Stranger if !rules.immediate => true,
            Crime::Invalidate => {
                request.posted.operation = Operation::Send { invalidate: Some(NO_TAG) };
                true
            }
            // Where the program would try again, that is no crime.
            Crime::Refused if rules.reactive && request.verb == Verb::Register => false,
            Crime::Refused => refuse(&mut request.posted.operation),
            Crime::RemoteTag | Crime::RemoteRange | Crime::RemoteRight | Crime::Misaligned => {
                spoil_place(crime, request, &hidden)
            }
            _ => false,
        }
    }
}

/// No shared receive queue has this number.
const NO_SUCH_QUEUE: u32 = 99;
/// A tag that no adapter gives out.
const NO_TAG: Tag = Tag(0xff);

fn spoil_buffers(request: &mut Request) -> bool {
    let Data::Memory(sges) = &request.posted.data else { return false };
    let mut list = sges.as_slice().to_vec();
    let Some(last) = list.last_mut() else { return false };
    last.tag = following(last.tag);
    request.posted.data = Data::Memory(list.as_slice().into());
    true
}

fn spoil_place(crime: Crime, request: &mut Request, hidden: &Slot) -> bool {
    let len = request.here.span.len as u64;
    let (Operation::Write(place) | Operation::Read(place) | Operation::Atomic { target: place, .. }) =
        &mut request.posted.operation
    else {
        return false;
    };
    if len == 0 {
        return false; // nothing is checked where there are no bytes
    }
    match crime {
        Crime::RemoteTag => place.tag = following(place.tag),
        Crime::RemoteRange => place.offset += if request.verb.asks() { 8 } else { 1 },
        Crime::RemoteRight => *place = Place { tag: hidden.tag, offset: hidden.span.addr },
        _ => {
            // A word that is whole within the memory, and yet not aligned.
            place.offset -= 4;
        }
    }
    request.named = Some(place.tag);
    request.effect = Effect::None;
    true
}

fn refuse(operation: &mut Operation) -> bool {
    match operation {
        Operation::Bind { binding, .. } => binding.len += 1 << 40,
        Operation::Register { tag, .. } | Operation::Invalidate(tag) => *tag = NO_TAG,
        _ => return false,
    }
    true
}
