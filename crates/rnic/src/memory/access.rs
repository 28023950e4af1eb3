//! The checks that an access to memory has to pass: the steps of requirements M8 and M9, in their order.

use super::entry::{Body, State};
use super::{Check, Denied, Domain, EntryInfo, Kind, Rights};
use ironwarp_wire::Tag;

/// An access to memory, or a request to change an entry, that is to be checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) tag: Tag,
    /// The first byte: a virtual address, or an offset if the entry is zero-based.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// The rights that the access requires.
    pub(super) need: Rights,
    /// The protection domain that makes the access.
    pub(super) domain: Domain,
    /// The queue pair whose peer makes the access, or whose work request changes the entry. `None` if the buffer of a
    /// local work request is accessed, or if the program changes the entry by a call. An entry that is bound to one
    /// queue pair refuses all accesses but those of this queue pair.
    pub(super) qp: Option<u32>,
    /// The kinds of entries that the access may use.
    pub(super) kinds: Kinds,
}

/// The kinds of entries that an access may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinds {
    /// Regions and windows, but not the buffers of an iSCSI command, which only its target may access.
    Any,
    Only(Kind),
}

impl Access {
    /// Describes the access of a work request to local memory, which must be a region.
    #[inline]
    pub(super) fn local(domain: Domain, tag: Tag, at: u64, len: usize, need: Rights) -> Self {
        let kinds = Kinds::Only(Kind::Region);
        Self { tag, offset: at, len: len as u64, need, domain, qp: None, kinds }
    }

    /// Does all checks but the first, [`Check::Valid`], which the caller has done by taking a guard or by looking at
    /// the state. Returns the position of the first byte within the memory of the entry, or the check that failed.
    #[inline]
    pub(super) fn check(&self, body: &Body, state: State) -> Result<u64, Check> {
        self.check_owner(body)?;
        if self.tag != state.tag() {
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
            Rights::BIND => Err(Check::Bind), // only the right to bind windows is missing
            _ => Err(Check::Right),
        }
    }

    /// Checks kind, domain and stream, and returns the check that failed.
    #[inline]
    pub(super) fn check_owner(&self, body: &Body) -> Result<(), Check> {
        let is_allowed = match self.kinds {
            Kinds::Any => body.kind != Kind::IscsiCommand,
            Kinds::Only(kind) => body.kind == kind,
        };
        if !is_allowed {
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

    /// Creates the error for an access that failed `check`. `entry` describes the entry that the tag names, if any.
    #[cold]
    pub(super) fn deny(&self, check: Check, entry: Option<EntryInfo>) -> Denied {
        let Self { tag, offset, len, need, domain, qp, kinds: _ } = *self;
        Denied { check, tag, offset, len, need, domain, qp, entry }
    }
}
