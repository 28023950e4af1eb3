//! Admission of every access to memory: it is checked, a guard is taken, and the range is translated.

use super::access::{Access, Kinds};
use super::{
    CachedGuard, Denied, Domain, Guard, Kind, Rights, Spans, Stream, Table, Touch, Translation, index_of,
};
use ironwarp_wire::{Place, Tag};

impl Table {
    /// Checks the access of a work request to local memory (requirement M8), and appends the address ranges
    /// to `spans`.
    ///
    /// If a check fails, nothing is appended. An empty element of a scatter/gather list names no memory: do
    /// not call this for it.
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
        self.admit(&mut cached, &access, None, |memory, at| memory.spans(at, len, spans))?;
        Ok(cached.expect("an admitted access has a guard").guard)
    }

    /// Checks the access of a work request to local memory (requirement M8), and calls `then` with the
    /// translation and the first byte in it. Leaves the guard in `cached`, for the next access.
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

    /// Checks the access of a remote message (requirement M9), and appends the address ranges to `spans`.
    ///
    /// If a check fails, nothing is appended. Messages without payload must not be checked (RFC 5041 §5.2,
    /// RFC 5040 §5.2.1): do not call this for them.
    ///
    /// `message` tracks what the message has touched; pass the same one for all of its segments. One-touch
    /// memory that was claimed by another message is refused (requirement M10).
    #[inline]
    pub fn admit_remote(
        &self,
        stream: Stream,
        place: Place,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        message: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let access = self.remote_access(stream, place, len, need);
        let mut cached = None;
        self.admit(&mut cached, &access, Some(message), |memory, at| memory.spans(at, len, spans))?;
        Ok(cached.expect("an admitted access has a guard").guard)
    }

    /// Checks the access of a remote message (requirement M9), as [`admit_remote`](Self::admit_remote) does, and calls
    /// `then` with the translation and the first byte in it. Leaves the guard in `cached`, for the next
    /// access.
    #[inline]
    pub fn with_remote<'t, R>(
        &'t self,
        cached: &mut Option<CachedGuard<'t>>,
        stream: Stream,
        (place, len): (Place, usize),
        need: Rights,
        message: &mut Touch,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let one_touch = |cached: &mut CachedGuard<'t>| cached.body.one_touch;
        let done = self.admit(cached, &self.remote_access(stream, place, len, need), Some(message), then);
        // A later message must be refused if this one made the memory invalid, which an existing guard would
        // not notice.
        cached.take_if(one_touch);
        done
    }

    #[inline]
    fn remote_access(&self, stream: Stream, place: Place, len: usize, need: Rights) -> Access {
        let Place { tag, offset } = place;
        let Stream { domain, qp } = stream;
        Access { tag, offset, len: len as u64, need, domain, qp: Some(qp), kinds: self.remote_kinds() }
    }

    /// The kinds of entries that peers can access: in strict mode only windows.
    pub(super) fn remote_kinds(&self) -> Kinds {
        if self.is_strict() { Kinds::Only(Kind::Window) } else { Kinds::Any }
    }

    /// Checks an access, and calls `then` with the translation and the first byte in it. Leaves the guard in
    /// `cached`.
    #[inline]
    fn admit<'t, R>(
        &'t self,
        cached: &mut Option<CachedGuard<'t>>,
        access: &Access,
        message: Option<&mut Touch>,
        then: impl FnOnce(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let cached = match cached {
            Some(same) if same.tag == access.tag => same,
            _ => {
                *cached = None; // drop it before taking another: holding two would delay revocation
                let Some((guard, state)) = self.guard(access.tag) else {
                    return Err(self.refusal(access));
                };
                cached.insert(CachedGuard { tag: access.tag, body: guard.entry().body(), state, guard })
            }
        };
        let CachedGuard { body, state, guard, .. } = cached;
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
