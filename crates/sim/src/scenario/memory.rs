//! The memory of a program: what its adapter and its peers may use, and what is taken away from them.

use super::coverage::Trait;
use super::pick;
use super::program::Program;
use super::request::Slot;
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Binding, Domain, Rights, Scope, Stream};
use ironwarp_wire::{Place, Tag};

/// For the program itself.
pub(super) const WHOLE: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);

impl Program {
    /// Memory for one request or receive, of this domain.
    pub(super) fn slot(&mut self, len: usize, rights: Rights) -> Slot {
        self.slot_in(self.domain, len, rights)
    }

    pub(super) fn slot_in(&mut self, domain: Domain, len: usize, rights: Rights) -> Slot {
        let slot = Slot::new(&self.arena, &self.device, domain, len, rights);
        self.slots.extend((len > 0).then_some(slot));
        self.grant(slot.span, rights);
        slot
    }

    fn grant(&mut self, span: Span, rights: Rights) {
        if rights.intersects(Rights::LOCAL_READ | Rights::REMOTE_READ | Rights::REMOTE_ATOMIC) {
            self.readable.push(span);
        }
        if rights.contains(Rights::LOCAL_WRITE) {
            self.writable.push(span);
        }
    }

    /// The same, which is never taken away.
    pub(super) fn bare(&mut self, len: usize, rights: Rights) -> Slot {
        let slot = Slot::new(&self.arena, &self.device, self.domain, len, rights);
        self.grant(slot.span, rights);
        slot
    }

    /// Memory that the adapter may use once a request registered it.
    pub(super) fn unregistered(&mut self, len: usize) -> Span {
        let span = self.arena.alloc(len);
        self.grant(span, WHOLE);
        span
    }

    /// Memory for the peer of a line. In strict mode there is a window before it.
    pub(super) fn open(&mut self, len: usize, rights: Rights, line: usize) -> (Span, Place) {
        if len == 0 {
            return (Span { addr: 0, len: 0 }, Place::default());
        }
        if !self.rules.strict_windows {
            let foreign = self.rules.foreign && self.rules.receiving == Receiving::Named;
            let domain =
                if foreign && self.readable.len().is_multiple_of(2) { self.other } else { self.domain };
            let slot = self.slot_in(domain, len, rights);
            return (slot.span, slot.place());
        }
        let region = self.bare(len, WHOLE | Rights::BIND);
        let window = self.new_window();
        let binding = Binding {
            region: region.tag,
            at: region.span.addr,
            len: len as u64,
            rights: rights & Rights::REMOTE,
            zero_based: false,
            scope: Scope::Domain,
            one_touch: false,
        };
        let stream = Stream { domain: self.domain, qp: self.qp_number(line) };
        let tag = self.device.table().bind(stream, window, binding).expect("it may be bound");
        (region.span, Place { tag, offset: region.span.addr })
    }

    pub(super) fn new_window(&self) -> Tag {
        self.device.table().allocate_window(self.domain).expect("there is room")
    }

    pub(super) fn new_tag(&self) -> Tag {
        self.device.table().allocate(self.domain).expect("there is room")
    }

    /// Where the lines of the peer count: a word in the middle of this.
    pub(super) fn counter(&self) -> Span {
        self.counter.span
    }

    pub(super) fn counter_place(&self) -> Place {
        Place { tag: self.counter.tag, offset: self.counter.span.addr + 8 }
    }

    pub(super) fn word(&self, addr: u64) -> u64 {
        let bytes = self.arena.read(Span { addr, len: 8 });
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Takes memory away from the adapter: unmaps it, or deregisters it and goes on with it.
    pub(super) fn take_away(&mut self, rng: &mut Rng) {
        if self.slots.is_empty() || self.taken.is_some() {
            return;
        }
        let slot = pick(rng, &self.slots);
        let Slot { span, tag } = slot;
        let content = if rng.below(2) == 0 {
            self.arena.unmap(span);
            None
        } else {
            self.device.table().deregister(tag).expect("it is registered");
            Some(self.arena.read(span))
        };
        self.note(format_args!("takes {span:?} away"));
        self.coverage.met(Trait::TakenAway);
        self.taken = Some((slot, content));
    }

    /// Whether this memory was taken away.
    pub(super) fn took(&self, span: Span) -> bool {
        self.taken.as_ref().is_some_and(|(taken, _)| taken.span.addr == span.addr)
    }

    /// The device reached for what it was granted, and for nothing else.
    pub(super) fn expect_untouched(&self) {
        let (read, written) = self.arena.reached();
        assert!(read.within(&self.readable) && written.within(&self.writable));
        if let Some((slot, Some(content))) = &self.taken {
            assert!(self.arena.read(slot.span) == *content, "nobody writes what is not registered any more");
        }
    }
}
