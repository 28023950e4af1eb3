//! Every access to memory passes here: the checks of requirements M8 and M9, in their order, then the translation.
//!
//! Before this, a work request or a segment named a tag; after it, the stream holds spans and a guard, and moves bytes.

use super::entry::{Body, State};
use super::{
    Check, Denied, Domain, EntryInfo, Guard, Hold, Kind, Rights, Spans, Stream, Table, Touch, Translation,
    index_of, instance_of,
};
use ironwarp_wire::{Place, Tag};

/// What somebody wants to do with memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) tag: Tag,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) need: Rights,
    pub(super) domain: Domain,
    /// The queue pair that asks.
    pub(super) qp: Option<u32>,
    /// Which kinds can be used so.
    pub(super) kinds: Kinds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinds {
    Any,
    Only(Kind),
}

impl Table {
    /// Checks what a work request wants of the program's own memory (requirement M8), and appends where it is to `spans`.
    ///
    /// If a check fails, nothing is appended. An element of a scatter/gather list that has no bytes names no memory: do
    /// not ask for it.
    #[inline]
    pub fn local(
        &self,
        domain: Domain,
        tag: Tag,
        at: u64,
        len: usize,
        need: Rights,
        spans: &mut Spans,
    ) -> Result<Guard<'_>, Denied> {
        let access = Access::local(domain, tag, at, len, need);
        let mut hold = None;
        self.admit(&mut hold, &access, None, |memory, at| memory.spans(at, len, spans))?;
        Ok(hold.expect("what was admitted is guarded").guard)
    }

    /// The same, where `then` uses the memory at once, from this byte of its translation on. The guard is left in `hold`, for the
    /// next access.
    #[inline]
    pub fn with_local<'t, R>(
        &'t self,
        hold: &mut Option<Hold<'t>>,
        domain: Domain,
        (tag, at): (Tag, u64),
        len: usize,
        need: Rights,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        self.admit(hold, &Access::local(domain, tag, at, len, need), None, then)
    }

    /// Checks what a peer's message wants (requirement M9), and appends where it is to `spans`.
    ///
    /// If a check fails, nothing is appended. Messages of no bytes must not be checked (RFC 5041 §5.2, RFC 5040 §5.2.1): do not
    /// ask for them.
    ///
    /// `message` is what the message has touched; the same one for all of its segments. One-touch memory that serves another
    /// is refused (requirement M10).
    #[inline]
    pub fn remote(
        &self,
        stream: Stream,
        place: Place,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        message: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let access = self.remotely(stream, place, len, need);
        let mut hold = None;
        self.admit(&mut hold, &access, Some(message), |memory, at| memory.spans(at, len, spans))?;
        Ok(hold.expect("what was admitted is guarded").guard)
    }

    /// The same, where `then` uses the memory at once, from this byte of its translation on. The guard is left in `hold`, for the
    /// next access.
    #[inline]
    pub fn with_remote<'t, R>(
        &'t self,
        hold: &mut Option<Hold<'t>>,
        stream: Stream,
        (place, len): (Place, usize),
        need: Rights,
        message: &mut Touch,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let one_touch = |hold: &mut Hold<'t>| hold.body.one_touch;
        let done = self.admit(hold, &self.remotely(stream, place, len, need), Some(message), then);
        // It may be shut for those behind this message, and whoever has a guard does not notice.
        hold.take_if(one_touch);
        done
    }

    #[inline]
    fn remotely(&self, stream: Stream, place: Place, len: usize, need: Rights) -> Access {
        let Place { tag, offset } = place;
        let Stream { domain, qp } = stream;
        Access { tag, offset, len: len as u64, need, domain, qp: Some(qp), kinds: self.remote_kinds() }
    }

    /// What peers can reach. In strict mode only windows.
    pub(super) fn remote_kinds(&self) -> Kinds {
        if self.is_strict() { Kinds::Only(Kind::Window) } else { Kinds::Any }
    }

    /// Checks an access, and has `then` use the memory, from this byte of its translation on. The guard for it is in `hold` then.
    #[inline]
    fn admit<'t, R>(
        &'t self,
        hold: &mut Option<Hold<'t>>,
        access: &Access,
        message: Option<&mut Touch>,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let hold = match hold {
            Some(held) if held.tag == access.tag => held,
            _ => {
                *hold = None; // before another: who holds two waits for one the longer
                let Some((guard, state)) = self.guard(access.tag) else {
                    return Err(self.refusal(access));
                };
                hold.insert(Hold { tag: access.tag, body: guard.entry().body(), state, guard })
            }
        };
        let Hold { body, state, guard, .. } = hold;
        let mut checked = access.check(body, *state);
        if let (Ok(within), Some(message)) = (checked, message)
            && body.one_touch
        {
            checked = self.touch(guard.entry(), access.tag, message).map(|()| within);
        }
        let within = match checked {
            Ok(within) => within,
            Err(check) => {
                let info = guard.entry().info(body, index_of(access.tag), *state);
                return Err(access.denied(check, Some(info)));
            }
        };
        let memory = body.translation.as_ref().expect("a valid entry has a translation");
        Ok(then(memory, body.skip + within))
    }
}

impl Access {
    #[inline]
    fn local(domain: Domain, tag: Tag, at: u64, len: usize, need: Rights) -> Self {
        let kinds = Kinds::Only(Kind::Region);
        Self { tag, offset: at, len: len as u64, need, domain, qp: None, kinds }
    }

    /// The checks after *valid*, which the guard implies. Returns how far into the entry's range the access begins.
    #[inline]
    pub(super) fn check(&self, body: &Body, state: State) -> Result<u64, Check> {
        self.check_owner(body)?;
        if instance_of(self.tag) != state.instance() {
            return Err(Check::Instance);
        }
        if self.offset.checked_add(self.len).is_none() {
            return Err(Check::Wrap);
        }
        let within = self.offset.checked_sub(body.start).ok_or(Check::Range)?;
        if within > body.len || self.len > body.len - within {
            return Err(Check::Range);
        }
        match self.need.difference(body.rights) {
            missing if missing.is_empty() => Ok(within),
            Rights::BIND => Err(Check::Bind),
            _ => Err(Check::Right),
        }
    }

    /// Kind, domain and stream.
    #[inline]
    pub(super) fn check_owner(&self, body: &Body) -> Result<(), Check> {
        if self.kinds != Kinds::Any && self.kinds != Kinds::Only(body.kind) {
            return Err(Check::Kind);
        }
        if self.domain != body.domain {
            return Err(Check::Domain);
        }
        if body.qp.is_some() && self.qp != body.qp {
            return Err(Check::Stream);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn denied(&self, check: Check, entry: Option<EntryInfo>) -> Denied {
        let Self { tag, offset, len, need, domain, qp, kinds: _ } = *self;
        Denied { check, tag, offset, len, need, domain, qp, entry }
    }
}
