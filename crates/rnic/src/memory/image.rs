//! The image of a memory table, which moves with its function (requirement X2): all entries with their tags, and which
//! indices are free, so that no tag is ever honoured again that was revoked before the move (requirement M4).

use super::cipher::TagCipher;
use super::entry::{Body, Control, Entry};
use super::slab::SlabImage;
use super::{EntryInfo, Kind, Limits, NotCarried, Table, Translation, index_of};
use crate::host::Span;
use crate::quota::{Account, Resource};
use crate::sync::atomic::Ordering;
use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// All that a table contains.
#[derive(Debug, Serialize, Deserialize)]
pub struct TableImage {
    /// The key of the tag cipher.
    key: [u8; 16],
    slab: SlabImage,
    /// Number of messages that have claimed one-touch memory.
    claims: u64,
    /// The entries of all indices that can be used, in the order of their slots.
    entries: Vec<EntryImage>,
}

/// An entry.
#[derive(Debug, Serialize, Deserialize)]
struct EntryImage {
    tag: Tag,
    is_taken: bool,
    is_valid: bool,
    claimed_by: u64,
    control: Control,
    /// `None` if the entry is free.
    body: Option<Body>,
}

/// A registration is in progress in a control queue (requirement X6), so the table cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registration of tag {0} is in progress: wait until it is complete")]
pub struct StillPending(pub Tag);

/// Why a table cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The image contradicts itself.
    #[error("the entries of the memory table contradict each other")]
    Inconsistent,
    /// An entry names memory that was not carried over.
    #[error(transparent)]
    NotCarried(#[from] NotCarried),
}

/// Hides the key of the tag cipher in an image that leaves the host: an exclusive-or with bytes that both ends derive from
/// a key that they share, for one move only. The key is unchanged if all bytes are zero.
#[derive(Clone, Copy, Default)]
pub struct KeyMask(pub [u8; 16]);

impl fmt::Debug for KeyMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyMask").finish_non_exhaustive()
    }
}

impl TableImage {
    /// Hides the key, or reveals it again.
    pub fn mask_key(&mut self, mask: KeyMask) {
        self.key.iter_mut().zip(mask.0).for_each(|(byte, mask)| *byte ^= mask);
    }
}

impl Table {
    /// Returns whether regions of other functions have moved here, which an image does not contain.
    pub fn has_foreign(&self) -> bool {
        self.slab.has_foreign()
    }

    /// Returns the image of the table. Nothing may change meanwhile.
    pub fn image(&self) -> Result<TableImage, StillPending> {
        let (slab, entries) = self.slab.image(|entry| {
            let state = entry.state();
            if state.is_pending() {
                return Err(StillPending(state.tag()));
            }
            Ok(EntryImage {
                tag: state.tag(),
                is_taken: state.is_taken(),
                is_valid: state.is_valid(),
                claimed_by: entry.claimed_by(),
                control: entry.begin_change().control.clone(),
                body: state.is_taken().then(|| entry.body().clone()),
            })
        })?;
        let claims = self.claims.load(Ordering::Relaxed);
        Ok(TableImage { key: self.slab.cipher().key(), slab, claims, entries })
    }

    /// Returns the regions that were registered by call and are valid, each with the address of its first byte.
    pub fn regions(&self) -> Vec<(EntryInfo, u64)> {
        let region = |entry: &Entry| {
            let control = entry.begin_change().control.reusable;
            let (body, state) = (entry.body(), entry.state());
            let is_region = state.is_valid() && body.kind == Kind::Region && !control;
            let addr = body.translation.as_ref().filter(|_| is_region)?.first_addr();
            Some((entry.describe(&body, state), addr))
        };
        let all = self.slab.image(|entry| Ok::<_, std::convert::Infallible>(region(entry)));
        let Ok((_, entries)) = all;
        entries.into_iter().flatten().collect()
    }

    /// Creates a table from an image. `relocate` translates memory of the source to memory of this process.
    pub fn load(
        limits: Limits,
        image: TableImage,
        account: &Arc<Account>,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<Self, TableError> {
        let TableImage { key, slab, claims, entries } = image;
        let limits = Limits { slots: slab.slots.clone(), ..limits };
        let table = Self::with_account(limits, TagCipher::new(key), account);
        table.claims.store(claims, Ordering::Relaxed);
        let taken: HashSet<u32> =
            entries.iter().filter(|entry| entry.is_taken).map(|entry| index_of(entry.tag)).collect();
        if entries.iter().filter_map(|entry| entry.control.region).any(|region| !taken.contains(&region)) {
            return Err(TableError::Inconsistent);
        }
        let indices = entries.iter().map(|entry| (index_of(entry.tag), entry.is_free()));
        table.slab.load(&slab, indices).ok_or(TableError::Inconsistent)?;
        for image in entries {
            let entry = table.slab.entry(index_of(image.tag)).ok_or(TableError::Inconsistent)?;
            image.store(entry, relocate)?;
            let bytes = entry.body().registered_bytes();
            account.charge(Resource::RegisteredBytes, bytes).map_err(|_| TableError::Inconsistent)?;
        }
        Ok(table)
    }
}

impl EntryImage {
    /// Returns whether the index of the entry is free.
    fn is_free(&self) -> bool {
        !self.is_taken && self.control.predecessor.is_none()
    }

    /// Makes `entry`, which is new, what the image says.
    fn store(
        self,
        entry: &Entry,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<(), TableError> {
        let Self { tag, is_taken, is_valid, claimed_by, control, body } = self;
        let mut body = body.unwrap_or_default();
        let fits = body.translation.as_ref().is_none_or(|translation| {
            body.skip.checked_add(body.len).is_some_and(|end| end <= translation.len())
        });
        let has_memory = body.translation.is_some() && body.start.checked_add(body.len).is_some();
        if !fits || is_valid && !(is_taken && has_memory) {
            return Err(TableError::Inconsistent);
        }
        if let Some(translation) = body.translation.as_mut().and_then(Arc::get_mut) {
            translation.relocate(relocate)?;
        }
        let mut change = entry.begin_change();
        change.restore(tag, [is_taken, is_valid], body, control);
        drop(change);
        if claimed_by != 0 {
            entry.claim(claimed_by);
        }
        Ok(())
    }
}

impl TableImage {
    /// Number of slots that the table may use.
    pub fn slots(&self) -> u32 {
        self.slab.slots.end.saturating_sub(self.slab.slots.start)
    }
}
