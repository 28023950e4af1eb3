//! Re-registration: changes the memory, rights or domain of a region in one step (verbs: `ibv_rereg_mr`).
//!
//! The region gets a new tag, whatever changes, unless the program asks to keep the tag. A peer that knows the old
//! tag was granted access to other memory or with other rights, and a partly placed message must not continue in
//! other memory (requirement M4). The region also gets a new entry, as it would if the
//! program deregistered it and registered it again.

use super::access::{Access, Kinds};
use super::{
    Check, Domain, Kind, Memory, RegisterError, ReregisterError, Rights, Stream, Table, Translation, index_of,
};
use crate::host::Host;
use ironwarp_wire::Tag;
use std::sync::Arc;

/// The changes that a re-registration makes to a region. Attributes that are `None` stay as they are.
#[derive(Clone, Debug, Default)]
pub struct Reregistration {
    /// The new protection domain.
    pub domain: Option<Domain>,
    /// The new rights.
    pub rights: Option<Rights>,
    /// The new memory.
    pub bytes: Option<Bytes>,
    /// Whether to keep the tag, so that peers that know the tag can access the changed region. Programs for RoCE
    /// adapters rely on this.
    pub keep_tag: bool,
}

/// The bytes of a region, as in [`Memory`].
#[derive(Clone, Debug)]
pub struct Bytes {
    /// The offset of the first byte.
    pub start: u64,
    /// Length in bytes, from the beginning of the translation.
    pub len: u64,
    /// Translation of offsets to addresses.
    pub translation: Arc<Translation>,
}

impl Table {
    /// Changes a region that was not registered by send-queue request, and returns its new tag. Waits for guards:
    /// after the call returns, no byte is read or written through the old tag any more. If the call fails, the
    /// region is unchanged and its tag stays valid.
    pub fn reregister(&self, host: &dyn Host, tag: Tag, to: Reregistration) -> Result<Tag, ReregisterError> {
        // The region may be in any domain: the caller is the program that owns all domains. `access` serves only to
        // describe errors.
        let no_stream = Stream { domain: Domain::default(), qp: 0 };
        let access =
            Access { qp: None, kinds: Kinds::Only(Kind::Region), ..Access::to_change(tag, no_stream) };
        let unknown = || access.deny(Check::Valid, None);
        let index = index_of(tag);
        let entry = self.slab.entry(index).ok_or_else(unknown)?;
        let mut change = entry.begin_change();
        if !entry.state().is_valid() || index_of(change.tag()) != index {
            return Err(access.deny(Check::Valid, self.look_up_any(tag)).into());
        }
        // A region for send-queue registrations cannot be changed here: posted requests already name its next tag.
        if entry.body().kind != Kind::Region || change.control.reusable {
            return Err(change.deny(&access, Check::Kind).into());
        }
        if change.tag() != tag {
            return Err(change.deny(&access, Check::Instance).into());
        }
        let windows = change.control.windows;
        if windows != 0 {
            return Err(ReregisterError::Busy { tag, windows });
        }
        let mut body = entry.body().clone();
        let translation = body.translation.take().expect("a valid entry has a translation");
        let old = Bytes { start: body.start, len: body.len, translation };
        let Bytes { start, len, translation } = to.bytes.unwrap_or(old);
        let (rights, one_touch) = (to.rights.unwrap_or(body.rights), body.one_touch);
        let memory = Memory { start, len, rights, one_touch, translation };
        memory.check(host)?;
        let body = memory.into_body(to.domain.unwrap_or(body.domain));
        if to.keep_tag {
            self.charge(&change, len).map_err(RegisterError::from)?;
            change.revoke();
            change.publish(tag, body);
            return Ok(tag);
        }
        // Take the new entry before revoking the old one: if the table is full, the region stays unchanged.
        let (next, next_entry) = self.slab.take()?;
        if let Err(exceeded) = self.charge(&change, len) {
            self.slab.release(next, true); // it has not been valid
            return Err(RegisterError::from(exceeded).into());
        }
        change.revoke();
        let is_reusable = change.release();
        drop(change);
        self.slab.release(index, is_reusable);
        Ok(self.publish_at(next_entry, body))
    }
}
