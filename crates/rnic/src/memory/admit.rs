//! Admission of accesses to memory: takes a guard on the entry, checks the access, and translates its range to
//! addresses. Every access to registered memory comes through here.

use super::access::{Access, Kinds};
use super::{CachedGuard, Denied, Domain, Guard, Kind, Rights, Spans, Stream, Table, Touch, Translation};
use ironwarp_wire::{RemoteAddr, Tag};

impl Table {
    /// Checks the access of a work request to `len` bytes of local memory at offset `at` (requirement M8), appends
    /// their address ranges to `spans`, and returns a guard to hold during the access. Payload that is copied from or
    /// to a single element can use [`with_local`](Self::with_local) instead, which needs no list of ranges.
    ///
    /// If a check fails, nothing is appended. Do not call this for an empty element of a scatter/gather list, which
    /// names no memory.
    #[inline]
    pub fn admit_local(
        &self,
        domain: Domain,
        tag: Tag,
        at: u64,
        len: usize,
        need: Rights,
        spans: &mut Spans,
    ) -> Result<Guard<'_>, Denied> {
        let access = Access::local(domain, tag, at, len, need);
        let mut cached = None;
        self.admit(&mut cached, &access, None, |memory, at| memory.append_spans(at, len, spans))?;
        Ok(cached.expect("an admitted access has a guard").guard)
    }

    /// Checks the access of a work request to `len` bytes of local memory at offset `at` (requirement M8), and calls
    /// `then` with the translation and the position of the first byte in it. Leaves the guard in `cached`, for the
    /// next access.
    #[inline]
    pub fn with_local<'t, R>(
        &'t self,
        cached: &mut Option<CachedGuard<'t>>,
        domain: Domain,
        (tag, at): (Tag, u64),
        len: usize,
        need: Rights,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        self.admit(cached, &Access::local(domain, tag, at, len, need), None, then)
    }

    /// Does what [`with_local`](Self::with_local) does, for a single access. Returns `None` if the access is denied.
    #[inline]
    pub(crate) fn with_local_once<R>(
        &self,
        domain: Domain,
        (tag, at): (Tag, u64),
        len: usize,
        need: Rights,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Option<R> {
        let Guard { body, state, .. } = &self.guard(tag)?;
        let within = Access::local(domain, tag, at, len, need).check(body, *state).ok()?;
        Some(then(body.translation.as_ref()?, body.skip + within))
    }

    /// Checks the access of a remote message to `len` bytes at `addr` (requirement M9), appends their address
    /// ranges to `spans`, and returns a guard to hold during the access. For payload that the link sends or receives
    /// without a copy, and for atomic operations; payload that is copied uses [`with_remote`](Self::with_remote).
    ///
    /// If a check fails, nothing is appended. Do not call this for messages without payload, which must not be
    /// checked (RFC 5041 §5.2, RFC 5040 §5.2.1).
    ///
    /// `touch` records whether the message has claimed one-touch memory; pass the same value for all segments of
    /// a message. One-touch memory that another message has claimed is refused (requirement M10).
    #[inline]
    pub fn admit_remote(
        &self,
        stream: Stream,
        addr: RemoteAddr,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        touch: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let access = self.remote_access(stream, addr, len, need);
        let mut cached = None;
        self.admit(&mut cached, &access, Some(touch), |memory, at| memory.append_spans(at, len, spans))?;
        Ok(cached.expect("an admitted access has a guard").guard)
    }

    /// Checks the access of a remote message (requirement M9), as [`admit_remote`](Self::admit_remote) does, and
    /// calls `then` with the translation and the position of the first byte in it. Leaves the guard in `cached`, for
    /// the next access, unless the memory is one-touch.
    #[inline]
    pub fn with_remote<'t, R>(
        &'t self,
        cached: &mut Option<CachedGuard<'t>>,
        stream: Stream,
        (addr, len): (RemoteAddr, usize),
        need: Rights,
        touch: &mut Touch,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let one_touch = |cached: &mut CachedGuard<'t>| cached.guard.body.one_touch;
        let done = self.admit(cached, &self.remote_access(stream, addr, len, need), Some(touch), then);
        // If this message makes one-touch memory invalid, the next message must be refused. A cached guard would
        // admit it, because only taking a new guard checks validity.
        cached.take_if(one_touch);
        done
    }

    /// Whether the memory of a tag is one-touch. False if the tag is not valid.
    pub(crate) fn is_one_touch(&self, tag: Tag) -> bool {
        self.guard(tag).is_some_and(|guard| guard.body.one_touch)
    }

    /// Describes the access of a remote message, for the checks of requirement M9.
    #[inline]
    fn remote_access(&self, stream: Stream, addr: RemoteAddr, len: usize, need: Rights) -> Access {
        let RemoteAddr { tag, offset } = addr;
        let Stream { domain, qp } = stream;
        Access { tag, offset, len: len as u64, need, domain, qp: Some(qp), kinds: self.remote_kinds() }
    }

    /// Returns the kinds of entries that peers can access: only windows in strict mode.
    pub(super) fn remote_kinds(&self) -> Kinds {
        if self.is_strict() { Kinds::Only(Kind::Window) } else { Kinds::Any }
    }

    /// Checks an access, and calls `then` with the translation and the position of the first byte in it. `touch`
    /// is that of a remote message, `None` for a local access. Reuses the guard in `cached` if it has the same
    /// tag, and leaves the guard of this access there.
    #[inline]
    fn admit<'t, R>(
        &'t self,
        cached: &mut Option<CachedGuard<'t>>,
        access: &Access,
        touch: Option<&mut Touch>,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let Guard { entry, body, state } = match cached {
            Some(same) if same.tag == access.tag => &same.guard,
            _ => {
                *cached = None; // drop it before taking another: holding both would delay the revocation of the old tag
                let Some(guard) = self.guard(access.tag) else {
                    return Err(self.explain_refusal(access));
                };
                &cached.insert(CachedGuard { tag: access.tag, guard }).guard
            }
        };
        let mut checked = access.check(body, *state);
        if let (Ok(within), Some(touch)) = (checked, touch)
            && body.one_touch
        {
            checked = self.claim_touch(entry, access.tag, touch).map(|()| within);
        }
        let within = match checked {
            Ok(within) => within,
            Err(check) => {
                let info = entry.describe(body, *state);
                return Err(access.deny(check, Some(info)));
            }
        };
        let memory = body.translation.as_ref().expect("a valid entry has a translation");
        Ok(then(memory, body.skip + within))
    }
}
