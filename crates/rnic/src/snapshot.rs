//! The snapshot of a function (requirement X2): the state of its objects, which moves to another function, as bytes.
//!
//! The bytes begin with a magic number and a version, then follows the state in the format of `postcard`. A change to a type
//! that is part of it makes another version, which `sim/tests/snapshot` finds by its golden file.
//!
//! A snapshot comes from another process. [`Snapshot::decode`] and [`Snapshot::relocate`] refuse one that contradicts
//! itself or names memory that was not carried over; what they accept can be driven without harm to other connections.

use crate::broken;
use crate::device::Device;
use crate::host::Span;
use crate::memory::{KeyMask, NotCarried, StillPending, TableImage, Translation};
use crate::qp::FrozenQp;
use crate::queue::{FrozenCq, FrozenSrq};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The first bytes of a snapshot.
const MAGIC: [u8; 4] = *b"IWFN";
/// The version of the format.
pub const VERSION: u16 = 1;
/// Length of magic number and version.
const HEADER: usize = MAGIC.len() + 2;

/// The state of the objects of a function.
#[derive(Debug, Deserialize)]
pub struct Snapshot {
    /// The number of the next protection domain.
    pub next_domain: u32,
    /// The memory table.
    pub table: TableImage,
    /// The completion queues.
    pub cqs: Vec<FrozenCq>,
    /// The shared receive queues.
    pub srqs: Vec<FrozenSrq>,
    /// The queue pairs.
    pub qps: Vec<FrozenQp>,
}

/// Why a snapshot cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes do not begin as a snapshot does.
    #[error("not a snapshot of a function")]
    Magic,
    /// The version is not supported.
    #[error(
        "snapshot of version {0}, but this release reads version {VERSION} only: use the same release at both ends"
    )]
    Version(u16),
    /// The bytes are damaged, or cut short.
    #[error("the snapshot is damaged: {0}")]
    Damaged(postcard::Error),
    /// Bytes follow the snapshot.
    #[error("{0} bytes follow the snapshot")]
    Trailing(usize),
    /// An object cannot be in the state that the snapshot has for it.
    #[error("the snapshot contradicts itself: {kind} {id:#x}")]
    Inconsistent {
        /// The kind of the object.
        kind: &'static str,
        /// Its number.
        id: u32,
    },
}

/// The state of the objects of a function, to be encoded. Has the fields of [`Snapshot`], in the same order.
#[derive(Serialize)]
struct Stored<'a> {
    next_domain: u32,
    table: TableImage,
    cqs: &'a [FrozenCq],
    srqs: &'a [FrozenSrq],
    qps: &'a [FrozenQp],
}

impl Device {
    /// Returns the snapshot of the memory table and of objects that were frozen, as bytes. `mask` hides the key of the tag
    /// cipher.
    ///
    /// # Panics
    /// Never: a vector takes all that the encoder writes.
    pub fn snapshot(
        &self,
        cqs: &[FrozenCq],
        srqs: &[FrozenSrq],
        qps: &[FrozenQp],
        mask: KeyMask,
    ) -> Result<Vec<u8>, StillPending> {
        let (next_domain, mut table) = (self.next_domain(), self.table().image()?);
        table.mask_key(mask);
        let bytes = [&MAGIC[..], &VERSION.to_be_bytes()].concat();
        let stored = Stored { next_domain, table, cqs, srqs, qps };
        Ok(postcard::to_extend(&stored, bytes).expect("a vector takes everything"))
    }
}

impl Snapshot {
    /// Decodes a snapshot, and checks that its parts fit together.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (header, state) = bytes.split_at_checked(HEADER).ok_or(SnapshotError::Magic)?;
        let (magic, version) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(SnapshotError::Magic);
        }
        match version.try_into().map(u16::from_be_bytes) {
            Ok(VERSION) => {}
            other => return Err(SnapshotError::Version(other.unwrap_or_default())),
        }
        let (mut snapshot, rest) =
            postcard::take_from_bytes::<Self>(state).map_err(SnapshotError::Damaged)?;
        if !rest.is_empty() {
            return Err(SnapshotError::Trailing(rest.len()));
        }
        snapshot.check()?;
        snapshot.forget();
        Ok(snapshot)
    }

    /// Relocates all memory that the snapshot names, except for that of the table: see [`Device::load`].
    pub fn relocate(
        &mut self,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<(), NotCarried> {
        self.qps.iter_mut().try_for_each(|qp| qp.relocate(relocate))
    }

    /// Checks that each object can be in its state, and that the objects that it names exist.
    fn check(&self) -> Result<(), SnapshotError> {
        let inconsistent = |kind, id| Err(SnapshotError::Inconsistent { kind, id });
        let (mut cqs, mut srqs, mut qps) = (HashSet::new(), HashSet::new(), HashSet::new());
        for cq in &self.cqs {
            if !cqs.insert(cq.id) || !cq.is_consistent() {
                return inconsistent("completion queue", cq.id);
            }
        }
        for srq in &self.srqs {
            if !srqs.insert(srq.id) || !srq.is_consistent() || srq.cq.is_some_and(|cq| !cqs.contains(&cq)) {
                return inconsistent("shared receive queue", srq.id);
            }
        }
        for qp in &self.qps {
            let names =
                qp.cqs().iter().all(|cq| cqs.contains(cq)) && qp.srqs().iter().all(|srq| srqs.contains(srq));
            if !qps.insert(qp.id()) || !names || !qp.is_consistent() {
                return inconsistent("queue pair", qp.id());
            }
        }
        Ok(())
    }

    /// Forgets a part of the state, in a build that must be found to lose it.
    fn forget(&mut self) {
        self.qps.iter_mut().for_each(FrozenQp::forget);
        if broken::is("completions") {
            self.cqs.iter_mut().for_each(FrozenCq::forget_completions);
        }
        if broken::is("arming") {
            self.cqs.iter_mut().for_each(FrozenCq::forget_arming);
        }
    }
}
