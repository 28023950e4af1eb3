//! The only member of a poll set, and the carriers of the set, as threads of the program that poll use them.
//!
//! Most polls are of a set with one member. They borrow a copy of what they need, with one lock, instead of locking each
//! list and cloning references.

use super::carriers::{Carriers, List, serve_all};
use super::members::{Members, OnlyMember};
use ironwarp_rnic::sync::{try_read, try_write};
use std::ops::Deref;
use std::sync::{RwLock, RwLockReadGuard};

/// The copy. No thread waits for its lock: it is updated when no thread polls.
#[derive(Debug, Default)]
pub(super) struct OnlySlot(RwLock<Copied>);

/// The only member and the carriers of a set, as they were in one generation.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// Generation of the members and carriers that were copied.
    generation: u64,
    /// `None` if the set had no member, or several, or if the only one was not a connection.
    only: Option<OnlyMember>,
    carriers: List,
}

/// The only member of a set, borrowed for a poll.
#[derive(Debug)]
pub(crate) struct BorrowedMember<'s> {
    slot: &'s OnlySlot,
    members: &'s Members,
    carriers: &'s Carriers,
    /// `None` only while this is dropped.
    copied: Option<RwLockReadGuard<'s, Copied>>,
}

impl OnlySlot {
    /// Borrows the only member, if there is exactly one and it is a connection. May return `None` while members or
    /// carriers are added or removed.
    #[inline]
    pub(super) fn borrow<'s>(
        &'s self,
        members: &'s Members,
        carriers: &'s Carriers,
    ) -> Option<BorrowedMember<'s>> {
        let mut copied = try_read(&self.0)?;
        if !members.is_current(copied.generation) {
            drop(copied);
            self.update(members, carriers);
            copied = try_read(&self.0)?;
        }
        copied.only.is_some().then_some(BorrowedMember {
            slot: self,
            members,
            carriers,
            copied: Some(copied),
        })
    }

    /// Copies the only member and the carriers again, after a change. Leaves that to the thread that borrows the copy, if
    /// one does.
    #[cold]
    pub(super) fn update(&self, members: &Members, carriers: &Carriers) {
        // The generation is read first: if something changes meanwhile, the copy is outdated at once.
        let generation = members.generation();
        let (only, carriers) = (members.only_member(), carriers.list());
        let outdated = try_write(&self.0)
            .map(|mut copied| std::mem::replace(&mut *copied, Copied { generation, only, carriers }));
        drop(outdated); // without the lock: it may have the last reference to a queue pair
    }
}

impl BorrowedMember<'_> {
    /// Receives what has arrived in the carriers, on a thread of the program. Does not wait.
    pub(super) fn poll_carriers(&self) {
        let Some(Copied { carriers, .. }) = self.copied.as_deref() else { return };
        if carriers.iter().any(|carrier| carrier.has_news()) {
            self.qp.poll(1);
            // Something for another set, or a record that is not data.
            serve_all(carriers);
        }
    }
}

impl Deref for BorrowedMember<'_> {
    type Target = OnlyMember;

    #[inline]
    fn deref(&self) -> &OnlyMember {
        self.copied
            .as_ref()
            .and_then(|copied| copied.only.as_ref())
            .expect("it is borrowed only if it exists")
    }
}

impl Drop for BorrowedMember<'_> {
    /// Updates the copy if it is outdated, which the thread that made the change could not do.
    #[inline]
    fn drop(&mut self) {
        let is_current = self.copied.take().is_some_and(|copied| self.members.is_current(copied.generation));
        if !is_current {
            self.slot.update(self.members, self.carriers);
        }
    }
}
