//! Injects defects into valid requests, which must then fail.

use super::defect::Defect;
use super::program::Program;
use super::random::pick;
use super::request::{Effect, LOCAL_ACCESS, Request, Slot};
use super::supply::Receiving;
use super::verb::Verb;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::memory::{Rights, next_tag};
use ironwarp_rnic::queue::{Data, Operation};
use ironwarp_wire::{RemoteAddr, Tag};

impl Program {
    /// Injects a defect into a random request of a connection, if possible.
    pub(super) fn inject_defect(&mut self, rng: &mut Rng, connection: usize, peer: &mut Self) {
        let index =
            usize::try_from(rng.below(self.connections[connection].requests.len() as u64)).expect("an index");
        let verb = self.connections[connection].requests[index].verb;
        let defect = pick(rng, Defect::of(verb));
        if self.apply_defect(rng, defect, (connection, index), peer) {
            self.connections[connection].requests[index].defect = Some(defect);
        }
    }

    /// Changes a request so that it has this defect. Returns false if the request cannot have it.
    fn apply_defect(
        &mut self,
        rng: &mut Rng,
        defect: Defect,
        (connection, index): (usize, usize),
        peer: &mut Self,
    ) -> bool {
        let rules = self.rules;
        if defect == Defect::TooLong {
            let here = self.slot(rules.max_len + 1, Rights::LOCAL_READ);
            self.arena.fill_pattern(here.span, self.connections[connection].requests[index].pattern);
            let request = &mut self.connections[connection].requests[index];
            (request.here, request.posted.data) = (here, Data::Memory(here.sges(rng)));
            return true;
        }
        let hidden = peer.slot(self.connections[connection].requests[index].here.span.len, LOCAL_ACCESS);
        let request = &mut self.connections[connection].requests[index];
        match defect {
            Defect::LocalTag => spoil_buffers(request),
            Defect::NoQueue if rules.receiving == Receiving::Named => {
                request.posted.srq = NO_SUCH_QUEUE;
                true
            }
            Defect::ForeignPeer if !rules.immediate => true,
            Defect::Invalidate => {
                request.posted.operation = Operation::Send { invalidate: Some(NO_TAG) };
                true
            }
            // The program retries refused registrations, so the request would not fail.
            Defect::Refused
                if rules.reactive && matches!(request.verb, Verb::Register | Verb::RegisterSend) =>
            {
                false
            }
            Defect::Refused => refuse(&mut request.posted.operation),
            Defect::RemoteTag | Defect::RemoteRange | Defect::RemoteRight | Defect::Misaligned => {
                spoil_addr(defect, request, &hidden)
            }
            _ => false,
        }
    }
}

/// The number of a shared receive queue that does not exist.
const NO_SUCH_QUEUE: u32 = 99;
/// A tag that no adapter allocates.
const NO_TAG: Tag = Tag(0xff);

/// Replaces the tag of the last local buffer by one that is not registered. Returns false without local buffers.
fn spoil_buffers(request: &mut Request) -> bool {
    let Data::Memory(sges) = &request.posted.data else { return false };
    let mut list = sges.as_slice().to_vec();
    let Some(last) = list.last_mut() else { return false };
    last.tag = next_tag(last.tag);
    request.posted.data = Data::Memory(list.as_slice().into());
    true
}

/// Replaces the remote address by one that the defect describes. Returns false if the request has no remote address.
fn spoil_addr(defect: Defect, request: &mut Request, hidden: &Slot) -> bool {
    let len = request.here.span.len as u64;
    let (Operation::Write(addr) | Operation::Read(addr) | Operation::Atomic { target: addr, .. }) =
        &mut request.posted.operation
    else {
        return false;
    };
    if len == 0 {
        return false; // the peer checks no address of an empty message
    }
    match defect {
        Defect::RemoteTag => addr.tag = next_tag(addr.tag),
        Defect::RemoteRange => addr.offset += if request.verb.has_response() { 8 } else { 1 },
        Defect::RemoteRight => *addr = RemoteAddr { tag: hidden.tag, offset: hidden.span.addr },
        _ => {
            // An address inside the memory that is not aligned.
            addr.offset -= 4;
        }
    }
    request.named = Some(addr.tag);
    request.effect = Effect::None;
    true
}

/// Changes a local operation so that the memory table refuses it. Returns false for other operations.
fn refuse(operation: &mut Operation) -> bool {
    match operation {
        Operation::Bind { binding, .. } => binding.len += 1 << 40,
        Operation::Register { tag, .. }
        | Operation::RegisterSend { tag, .. }
        | Operation::Invalidate(tag) => {
            *tag = NO_TAG;
        }
        _ => return false,
    }
    true
}
