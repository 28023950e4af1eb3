//! The next tag of a window, or of a region for send-queue registrations, whose index has had all of its instances
//! (requirement M4): it comes from another index, the *successor*.
//!
//! Programs compute tags ahead, when they post a request, and the device assigns them when it executes the request
//! (requirement M6). So the successor is reserved when its tag is computed. Its entry is free until a binding or a
//! registration moves the window or region there, which retires the old index. Until then, both entries refer to each
//! other; if both are locked, the predecessor is locked first.
//!
//! Deregistering the entry frees the indices that are reserved for it.

use super::access::{Access, Kinds};
use super::entry::{Body, Change, Control};
use super::{Check, Denied, Kind, Memory, RegisterError, Stream, Table, index_of, instance_of, next_tag};
use crate::host::Host;
use ironwarp_wire::Tag;
use std::num::NonZeroU32;

impl Table {
    /// Returns the tag that the binding or registration after the one that assigns `tag` will assign, on the same window,
    /// or on the same region for send-queue registrations: the [`next_tag`], or, if the index of `tag` has no instances
    /// left, a tag of another index, which is reserved (requirement M4).
    ///
    /// # Errors
    /// Fails if there is no such window or region, or if the table has no index left.
    pub fn reserve_next_tag(&self, tag: Tag) -> Result<Tag, RegisterError> {
        let unknown = || Access::to_change(tag, Stream::default()).deny(Check::Valid, None);
        let entry = self.slab.entry(index_of(tag)).ok_or_else(unknown)?;
        let mut change = entry.begin_change();
        let exists = entry.state().is_taken() || change.control.predecessor.is_some();
        if !exists || index_of(change.tag()) != index_of(tag) {
            return Err(unknown().into());
        }
        // Requests that are not executed yet use instances, too.
        let ahead = instance_of(tag).wrapping_sub(instance_of(change.tag()));
        let Control { instances_left, promised, .. } = *change.control;
        change.control.promised = promised.max(ahead.saturating_add(1)).min(instances_left);
        if ahead < instances_left {
            return Ok(next_tag(tag));
        }
        self.reserve_successor(&mut change)
    }

    /// Returns the first tag of the successor of the entry that `change` has locked. Reserves a successor if there is
    /// none.
    pub(super) fn reserve_successor(&self, change: &mut Change<'_>) -> Result<Tag, RegisterError> {
        if let Some(tag) = self.successor_tag(change) {
            return Ok(tag);
        }
        let (index, successor) = self.slab.take_successor()?;
        successor.begin_change().control.predecessor = NonZeroU32::new(index_of(change.tag()));
        change.control.successor = NonZeroU32::new(index);
        Ok(successor.state().tag())
    }

    /// Returns the first tag of the successor that is reserved for the entry, if any.
    pub(super) fn successor_tag(&self, change: &Change<'_>) -> Option<Tag> {
        let successor = self.slab.entry(change.control.successor?.get())?;
        Some(successor.state().tag()) // stays while the successor is reserved
    }

    /// Returns the tag of the entry whose successor the index of `tag` is reserved to be, if any. Only the index of the
    /// tag is significant.
    pub(super) fn predecessor_of(&self, tag: Tag) -> Option<Tag> {
        let change = self.slab.entry(index_of(tag))?.begin_change();
        let predecessor = change.control.predecessor?;
        (index_of(change.tag()) == index_of(tag)).then(|| super::tag_of(predecessor.get(), 0))
    }

    /// Moves a window that has no instances left to its successor, and makes it valid there with this body, or leaves it
    /// unbound if there is none. Returns its new tag.
    pub(super) fn bind_successor(
        &self,
        mut change: Change<'_>,
        access: &Access,
        body: impl FnOnce() -> Result<Option<(Body, u32)>, Denied>,
    ) -> Result<Tag, Denied> {
        let tag =
            self.reserve_successor(&mut change).map_err(|_| change.deny(access, Check::InstancesUsed))?;
        let body = body()?;
        change.revoke();
        self.unbind(&mut change);
        let emptied = change.entry.body().without_memory();
        let mut successor = self.begin_takeover(tag);
        match body {
            Some((body, region)) => {
                successor.control.region = Some(region);
                successor.control.invalidator = body.qp;
                successor.publish(tag, body);
            }
            None => successor.allocate(tag, emptied),
        }
        drop(successor);
        self.release_index(change);
        Ok(tag)
    }

    /// Executes a send-queue registration that names a reserved successor. See [`fill`](Self::fill).
    pub(super) fn fill_successor(
        &self,
        host: &dyn Host,
        access: &Access,
        invalidator: u32,
        memory: Memory,
    ) -> Result<(), RegisterError> {
        let invalid = || access.deny(Check::Valid, None);
        let predecessor = self.predecessor_of(access.tag).ok_or_else(invalid)?;
        let access_old = Access { tag: predecessor, kinds: Kinds::Only(Kind::Region), ..*access };
        let change = self.begin_change(&access_old)?;
        if change.entry.state().is_valid() {
            return Err(change.deny(&access_old, Check::Idle).into());
        }
        if self.next_registration_tag_of(&change) != Some(access.tag) {
            return Err(change.deny(&access_old, Check::Instance).into());
        }
        memory.check(host)?;
        self.charge(&change, memory.len)?;
        change.revoke(); // waits for guards, as in `fill`
        let mut successor = self.begin_takeover(access.tag);
        successor.control.invalidator = Some(invalidator);
        successor.publish(access.tag, memory.into_body(access.domain));
        drop(successor);
        self.release_index(change);
        Ok(())
    }

    /// Locks the successor `tag`, which the caller makes the entry of the window or region. The caller has locked the
    /// predecessor.
    fn begin_takeover(&self, tag: Tag) -> Change<'_> {
        let entry = self.slab.entry(index_of(tag)).expect("a reserved index has an entry");
        let mut change = entry.begin_change();
        (change.control.reusable, change.control.predecessor) = (true, None);
        change
    }

    /// Releases a locked entry that was moved to its successor, and its index.
    fn release_index(&self, mut change: Change<'_>) {
        let index = index_of(change.tag());
        let is_reusable = change.release();
        drop(change);
        self.slab.release(index, is_reusable);
    }

    /// Frees the indices that are reserved for an entry which is being deregistered: its successor, and those after it.
    pub(super) fn release_successors(&self, mut successor: Option<NonZeroU32>) {
        while let Some(index) = successor {
            let entry = self.slab.entry(index.get()).expect("a reserved index has an entry");
            let change = entry.begin_change();
            successor = change.control.successor;
            self.release_index(change);
        }
    }
}
