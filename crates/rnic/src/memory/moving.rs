//! Moves regions from the table of one function to that of another (requirement X2). Their tags stay, because functions of
//! an adapter derive their tags from one key, each from a slice of its own.

use super::entry::{Body, Control, Entry};
use super::{Domain, Kind, RegisterError, Table, index_of};
use crate::quota::QuotaExceeded;
use crate::sync::atomic::Ordering;
use ironwarp_wire::Tag;
use std::sync::Arc;

/// Why a region cannot move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionNotMovable {
    /// There is no valid region with this tag that was registered by call.
    #[error("{0} cannot move: it is not a region that was registered by call")]
    NotARegion(Tag),
    /// Windows are bound to the region.
    #[error("region {tag} cannot move: {windows} windows are bound to it")]
    Windows {
        /// The tag of the region.
        tag: Tag,
        /// Number of windows.
        windows: u32,
    },
    /// The other function has no room for it.
    #[error(transparent)]
    NoRoom(#[from] RegisterError),
    /// The tables do not belong to functions of one adapter.
    #[error("region {0} cannot move: the functions belong to two adapters")]
    OtherAdapter(Tag),
}

impl From<QuotaExceeded> for RegionNotMovable {
    fn from(exceeded: QuotaExceeded) -> Self {
        Self::NoRoom(exceeded.into())
    }
}

impl Table {
    /// Moves a region that was registered by call to another table, into this domain. It keeps its tag. Waits for guards.
    pub fn move_region(&self, tag: Tag, to: &Self, domain: Domain) -> Result<(), RegionNotMovable> {
        if !Arc::ptr_eq(self.cipher(), to.cipher()) {
            return Err(RegionNotMovable::OtherAdapter(tag));
        }
        let entry = self.slab.entry(index_of(tag)).ok_or(RegionNotMovable::NotARegion(tag))?;
        let mut change = entry.begin_change();
        let (state, windows) = (entry.state(), change.control.windows);
        let is_region = state.is_valid() && state.tag() == tag && entry.body().kind == Kind::Region;
        if !is_region || change.control.reusable {
            return Err(RegionNotMovable::NotARegion(tag));
        }
        if windows != 0 {
            return Err(RegionNotMovable::Windows { tag, windows });
        }
        let bytes = entry.body().registered_bytes();
        to.charge_registered(bytes)?;
        let place = to.slab.adopt(index_of(tag)).inspect_err(|_| to.release_registered(bytes))?;
        change.revoke();
        let (mut body, claimed_by) = (entry.body().clone(), entry.claimed_by());
        body.domain = domain;
        let control = std::mem::take(&mut *change.control);
        // Claims are identified by numbers that each table assigns: no number of the other table may be one of these.
        let claims = self.claims.load(Ordering::Relaxed);
        to.claims.fetch_max(claims, Ordering::Relaxed);
        store(place, tag, body, control, claimed_by);
        self.release_registered(bytes);
        change.restore(tag, [false; 2], Body::default(), Control::default());
        drop(change);
        self.slab.surrender();
        Ok(())
    }
}

/// Makes the entry, which is free, a valid one.
fn store(entry: &Entry, tag: Tag, body: Body, control: Control, claimed_by: u64) {
    let mut change = entry.begin_change();
    change.restore(tag, [true; 2], body, control);
    drop(change);
    if claimed_by != 0 {
        entry.claim(claimed_by);
    }
}
