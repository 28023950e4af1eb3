//! Re-registration: a region with other memory, rights or domain, in one step (verbs: `ibv_rereg_mr`).
//!
//! The region gets another tag, whatever changes, unless its consumer asks for the same. Who was told the old one was granted something else, and a message that
//! is half placed must not go on in other memory (requirement M4). It also gets another entry: an entry has 256 instances
//! and its index would not wait in line, so a region that goes back and forth would soon honour its first tag again.

use super::access::{Access, Kinds};
use super::{
    Check, Domain, Kind, Memory, ReregisterError, Rights, Stream, Table, Translation, index_of, instance_of,
};
use crate::host::Host;
use ironwarp_wire::Tag;
use std::sync::Arc;

/// What is to change of a region; the rest stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Reregistration {
    /// Whose it is.
    pub domain: Option<Domain>,
    /// What may be done with it.
    pub rights: Option<Rights>,
    /// Which bytes.
    pub bytes: Option<Bytes>,
    /// Its tag stays: peers who were told it reach what the region has become. Programs for RoCE adapters rely on it.
    pub keep_tag: bool,
}

/// The bytes of a region, as in [`Memory`].
#[derive(Clone, Debug)]
pub struct Bytes {
    /// The offset of the first.
    pub start: u64,
    /// How many of the translation.
    pub len: u64,
    /// Where they are.
    pub translation: Arc<Translation>,
}

impl Table {
    /// Changes a region that was registered by call, and returns its new tag. Waits for guards: when it returns, nobody uses
    /// the region by the old tag any more, and nobody will. If it fails, the region is as it was, its tag valid.
    pub fn reregister(&self, host: &dyn Host, tag: Tag, to: Reregistration) -> Result<Tag, ReregisterError> {
        // Whose the region is does not matter: this is a call of the program that owns all domains.
        let nobody = Stream { domain: Domain::default(), qp: 0 };
        let access = Access { qp: None, kinds: Kinds::Only(Kind::Region), ..Access::to_change(tag, nobody) };
        let unknown = || access.denied(Check::Valid, None);
        let index = index_of(tag);
        let entry = self.slab.entry(index).ok_or_else(unknown)?;
        let mut change = entry.change(&self.departures);
        if !entry.state().is_valid() {
            return Err(access.denied(Check::Valid, self.look_up_any(tag)).into());
        }
        // What requests of a send queue fill is theirs: they know its next tag.
        if entry.body().kind != Kind::Region || change.control.keepable {
            return Err(change.denied(&access, Check::Kind).into());
        }
        if change.tag(index) != tag {
            return Err(change.denied(&access, Check::Instance).into());
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
            change.revoke();
            change.publish(instance_of(tag), body);
            return Ok(tag);
        }
        let (next, next_entry) = self.slab.take()?;
        change.revoke();
        change.release();
        drop(change);
        self.slab.give_back(index);
        Ok(self.publish_at(next, next_entry, body))
    }
}
