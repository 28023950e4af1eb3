//! The memory of a program: registers memory, revokes it during the run, and checks which memory the adapter accessed.

use super::coverage::Feature;
use super::program::Program;
use super::random::pick;
use super::request::{LOCAL_ACCESS, Slot, memory};
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Binding, Domain, Rights, Scope, Stream};
use ironwarp_wire::{RemoteAddr, Tag};

impl Program {
    /// Registers memory for one request or receive in the program's domain.
    pub(super) fn slot(&mut self, len: usize, rights: Rights) -> Slot {
        self.slot_in(self.domain, len, rights)
    }

    /// Registers memory for one request or receive in a domain.
    pub(super) fn slot_in(&mut self, domain: Domain, len: usize, rights: Rights) -> Slot {
        let slot = Slot::new(&self.arena, &self.device, domain, len, rights);
        self.slots.extend((len > 0).then_some(slot));
        self.grant(slot.span, rights);
        slot
    }

    /// Records that the adapter may access memory with these rights.
    fn grant(&mut self, span: Span, rights: Rights) {
        if rights.intersects(Rights::LOCAL_READ | Rights::REMOTE_READ | Rights::REMOTE_ATOMIC) {
            self.readable.push(span);
        }
        if rights.contains(Rights::LOCAL_WRITE) {
            self.writable.push(span);
        }
    }

    /// Registers memory that is never revoked.
    pub(super) fn bare(&mut self, len: usize, rights: Rights) -> Slot {
        let slot = Slot::new(&self.arena, &self.device, self.domain, len, rights);
        self.grant(slot.span, rights);
        slot
    }

    /// Allocates memory that the adapter may use once a request has registered it.
    pub(super) fn unregistered(&mut self, len: usize) -> Span {
        let span = self.arena.alloc(len);
        self.grant(span, LOCAL_ACCESS);
        span
    }

    /// Registers and deregisters memory so often that indices of the memory table retire, if they have few instances, and
    /// remembers the tags.
    pub(super) fn use_up_tags(&mut self) {
        let instances = self.device.config().tag_instances;
        if instances < 256 {
            let span = self.unregistered(1);
            for _ in 0..=instances {
                // An index is used again only if more than 1024 are free, so many have to be in use at once.
                let register = |_| {
                    let memory = memory(span, LOCAL_ACCESS | Rights::REMOTE);
                    self.device.register(self.domain, memory).expect("a free tag")
                };
                let tags: Vec<_> = (0..1600).map(register).collect();
                for tag in tags {
                    self.device.table().deregister(tag).expect("a registered region");
                    self.old_tags.insert(tag.0);
                }
            }
        }
    }

    /// Returns an old tag that is like this tag of the program: the same, if it is an old one, or of the same index, or
    /// else any. `None` if there is none.
    pub(super) fn old_tag_like(&self, tag: Tag) -> Option<Tag> {
        let near = |from, to| self.old_tags.range(from..=to).next();
        let same_index = || near(tag.0 & !0xff, tag.0 | 0xff);
        let found = near(tag.0, tag.0).or_else(same_index).or_else(|| near(tag.0, u32::MAX));
        found.or_else(|| self.old_tags.first()).copied().map(Tag)
    }

    /// Registers memory that the peer of a connection may access; with strict windows, through a window. Returns the
    /// memory and its remote address.
    pub(super) fn open(&mut self, len: usize, rights: Rights, connection: usize) -> (Span, RemoteAddr) {
        if len == 0 {
            return (Span::new(0, 0), RemoteAddr::default());
        }
        if !self.rules.strict_windows {
            let foreign = self.rules.foreign && self.rules.receiving == Receiving::Named;
            let domain =
                if foreign && self.readable.len().is_multiple_of(2) { self.other } else { self.domain };
            let slot = self.slot_in(domain, len, rights);
            return (slot.span, slot.remote_addr());
        }
        let region = self.bare(len, LOCAL_ACCESS | Rights::BIND);
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
        let stream = Stream { domain: self.domain, qp: self.qp_number(connection) };
        let tag = self.device.table().bind(stream, window, binding).expect("a valid binding");
        (region.span, RemoteAddr { tag, offset: region.span.addr })
    }

    /// Allocates a window.
    pub(super) fn new_window(&self) -> Tag {
        self.device.table().allocate_window(self.domain).expect("a free tag")
    }

    /// Allocates a tag, to be registered by a request.
    pub(super) fn new_tag(&self) -> Tag {
        self.device.table().allocate(self.domain).expect("a free tag")
    }

    /// Returns the memory with the counter that the peer increments. The counter is the second of its two words.
    pub(super) fn counter(&self) -> Span {
        self.counter.span
    }

    /// Returns the remote address of the counter.
    pub(super) fn counter_addr(&self) -> RemoteAddr {
        RemoteAddr { tag: self.counter.tag, offset: self.counter.span.addr + 8 }
    }

    /// Returns the word at an address.
    pub(super) fn word(&self, addr: u64) -> u64 {
        let bytes = self.arena.read(Span::new(addr, 8));
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Revokes random memory from the adapter: unmaps it, or deregisters it and remembers its contents. Does so once
    /// per run.
    pub(super) fn revoke_memory(&mut self, rng: &mut Rng) {
        if self.slots.is_empty() || self.taken.is_some() {
            return;
        }
        let slot = pick(rng, &self.slots);
        let Slot { span, tag } = slot;
        let content = if rng.below(2) == 0 {
            self.arena.unmap(span);
            None
        } else {
            self.device.table().deregister(tag).expect("a registered region");
            Some(self.arena.read(span))
        };
        self.note(format_args!("revokes {span:?}"));
        self.coverage.record(Feature::TakenAway);
        self.taken = Some((slot, content));
    }

    /// Returns whether this memory was revoked.
    pub(super) fn is_revoked(&self, span: Span) -> bool {
        self.taken.as_ref().is_some_and(|(taken, _)| taken.span.addr == span.addr)
    }

    /// Checks that the device accessed only memory that it was granted, and did not write to deregistered memory.
    pub(super) fn expect_untouched(&self) {
        let (read, written) = self.arena.reached();
        assert!(read.within(&self.readable) && written.within(&self.writable));
        if let Some((slot, Some(content))) = &self.taken {
            assert!(self.arena.read(slot.span) == *content, "deregistered memory was written");
        }
    }
}
