//! Memory windows: binding and unbinding. A window gives one peer, or all peers of the domain, access to part of a
//! region, and can be unbound without affecting the region.
//!
//! A window has an entry in the table, as a region does (`table.rs` allocates and deregisters it), and uses the
//! translation of its region. A region cannot be deregistered while windows are bound to it.

use super::access::{Access, Kinds};
use super::entry::{Body, Change};
use super::{Denied, Kind, Rights, Stream, Table, index_of, next_tag};
use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};

/// A binding of a window to part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The region, which must allow windows.
    pub region: Tag,
    /// The offset of the first byte, as an access to the region would name it.
    pub at: u64,
    /// Length in bytes. Zero unbinds the window.
    pub len: u64,
    /// The rights of peers. Local rights are ignored.
    pub rights: Rights,
    /// Whether the window serves a single remote message and becomes invalid when that message has ended
    /// (requirement M10).
    pub one_touch: bool,
    /// Whether peers name the first byte by offset 0 instead of `at`.
    pub zero_based: bool,
    /// Which peers may use the window.
    pub scope: Scope,
}

/// Which peers may use a window: the two associations of RFC 5041 §8.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Only the peer of the stream that binds the window. This peer may also invalidate the window (verbs: type 2).
    Stream,
    /// The peers of all streams of the domain. None of them may invalidate the window (verbs: type 1).
    Domain,
}

impl Table {
    /// Binds a window to part of a region, and returns its new tag, which is the one that
    /// [`reserve_next_tag`](Self::reserve_next_tag) returns for `window`, the current one. Revokes the previous binding, which waits for guards. If a check fails, the window is unchanged.
    ///
    /// A `len` of 0 unbinds the window; the other fields of the binding are then ignored.
    pub fn bind(&self, stream: Stream, window: Tag, binding: Binding) -> Result<Tag, Denied> {
        let access = Access { kinds: Kinds::Only(Kind::Window), ..Access::to_change(window, stream) };
        let change = self.begin_change_of_instance(&access)?;
        if change.control.instances_left == 0 {
            return self.bind_successor(change, &access, || self.attach_if_bound(stream, &binding));
        }
        let tag = next_tag(window);
        self.bind_entry(stream, change, tag, &binding)?;
        Ok(tag)
    }

    /// Binds a window as [`bind`](Self::bind) does, but with an instance that the program has chosen: `tag` becomes
    /// the tag of the window, whatever instance the window has now (verbs: a window of type 2).
    ///
    /// The window keeps its index, because the program derives the tag from it, and the program may choose an instance
    /// again: only the program knows which tags its peers still have. When the window is deallocated, the instances that
    /// it may have had are used up, so that the next owner of the index has none of its tags (requirement M4).
    pub fn bind_as(&self, stream: Stream, tag: Tag, binding: Binding) -> Result<(), Denied> {
        let access = Access { kinds: Kinds::Only(Kind::Window), ..Access::to_change(tag, stream) };
        let change = self.begin_change(&access)?;
        self.bind_entry(stream, change, tag, &binding)
    }

    /// Binds or unbinds the window whose entry is locked by `change`, and gives it the tag `tag`.
    fn bind_entry(
        &self,
        stream: Stream,
        mut change: Change<'_>,
        tag: Tag,
        binding: &Binding,
    ) -> Result<(), Denied> {
        // Attach first: if that fails, the old binding stays. This also counts the window twice, for a moment, if it
        // stays on the same region.
        let body = self.attach_if_bound(stream, binding)?;
        change.revoke();
        self.unbind(&mut change);
        if let Some((body, region)) = body {
            change.control.region = Some(region);
            change.control.invalidator = body.qp;
            change.publish(tag, body);
        } else {
            let emptied = change.entry.body().without_memory();
            change.allocate(tag, emptied);
        }
        Ok(())
    }

    /// Returns the body for the window and the index of the region, which counts the window from now on. `None` if the
    /// binding unbinds the window.
    fn attach_if_bound(&self, stream: Stream, binding: &Binding) -> Result<Option<(Body, u32)>, Denied> {
        if binding.len == 0 {
            return Ok(None);
        }
        Ok(Some((self.attach(stream, binding)?, index_of(binding.region))))
    }

    /// Checks that the window may be bound to the region (requirement M8, a to g), increments the region's number of
    /// windows, and returns the body for the window.
    ///
    /// The caller holds the lock of the window's entry while this takes the lock of the region's entry; no thread
    /// takes the two in the other order.
    fn attach(&self, stream: Stream, binding: &Binding) -> Result<Body, Denied> {
        let &Binding { region, at, len, rights, one_touch, zero_based, scope } = binding;
        let access = Access {
            offset: at,
            len,
            need: required_region_rights(rights),
            kinds: Kinds::Only(Kind::Region),
            ..Access::to_change(region, stream)
        };
        let mut change = self.begin_change(&access)?;
        let state = change.entry.state();
        if !state.is_valid() {
            drop(change);
            return Err(self.explain_refusal(&access));
        }
        let checked = access.check(&change.entry.body(), state);
        let within = checked.map_err(|check| change.deny(&access, check))?;
        change.control.windows += 1;
        let body = change.entry.body();
        Ok(Body {
            kind: Kind::Window,
            domain: stream.domain,
            qp: (scope == Scope::Stream).then_some(stream.qp),
            rights: rights & Rights::REMOTE,
            one_touch,
            start: if zero_based { 0 } else { at },
            len,
            translation: body.translation.clone(),
            skip: body.skip + within,
        })
    }
}

/// Returns the rights that a region must have for a window with these rights. The region needs local rights only,
/// because remote access through a window counts as access by the program.
fn required_region_rights(rights: Rights) -> Rights {
    let mut needed = Rights::BIND;
    if rights.intersects(Rights::REMOTE_READ | Rights::REMOTE_ATOMIC) {
        needed |= Rights::LOCAL_READ;
    }
    if rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC) {
        needed |= Rights::LOCAL_WRITE;
    }
    needed
}
