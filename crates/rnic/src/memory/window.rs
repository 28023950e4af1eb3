//! Memory windows: part of a region, opened to one peer or to all peers of the domain, and closed again
//! without affecting the region.
//!
//! A window is an entry of the table like a region (`table.rs` allocates and deregisters it) and uses the
//! translation of its region. A region cannot be deregistered while windows are bound to it.

use super::access::{Access, Kinds};
use super::entry::{Body, Change};
use super::{Denied, Kind, Rights, Stream, Table, index_of, instance_of, next_tag};
use ironwarp_wire::Tag;

/// A binding of a window to part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The region, which must allow windows.
    pub region: Tag,
    /// The offset of the first byte, as an access to the region would name it.
    pub at: u64,
    /// Length in bytes. Zero unbinds the window.
    pub len: u64,
    /// The rights of peers. Local rights are ignored.
    pub rights: Rights,
    /// Whether it serves a single remote message and is closed when that message has ended (requirement M10).
    pub one_touch: bool,
    /// Whether peers name the first byte by offset 0 instead of `at`.
    pub zero_based: bool,
    /// Which peers may use the window.
    pub scope: Scope,
}

/// Which peers may use a window: the two associations of RFC 5041 §8.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only the peer of the stream that binds it, which may also invalidate it (verbs: a window of type 2).
    Stream,
    /// The peers of all streams of the domain; none of them may invalidate it (verbs: type 1).
    Domain,
}

impl Table {
    /// Executes a binding. `window` is the current tag of the window; the new tag, its [`next_tag`],
    /// is returned. A previous binding is revoked, which waits for guards. If a check fails, the window is
    /// unchanged.
    ///
    /// A `len` of 0 unbinds the window and ignores the rest of the binding.
    pub fn bind(&self, stream: Stream, window: Tag, binding: Binding) -> Result<Tag, Denied> {
        let access = Access { kinds: Kinds::Only(Kind::Window), ..Access::to_change(window, stream) };
        let change = self.change_of(&access)?;
        let tag = next_tag(window);
        self.bind_entry(stream, change, tag, &binding)?;
        Ok(tag)
    }

    /// Executes a binding whose instance the consumer has chosen: `tag` becomes the tag of the window,
    /// whatever it is now (verbs: a window of type 2).
    pub fn bind_as(&self, stream: Stream, tag: Tag, binding: Binding) -> Result<(), Denied> {
        let access = Access { kinds: Kinds::Only(Kind::Window), ..Access::to_change(tag, stream) };
        let change = self.change(&access)?;
        self.bind_entry(stream, change, tag, &binding)
    }

    fn bind_entry(
        &self,
        stream: Stream,
        mut change: Change<'_>,
        tag: Tag,
        binding: &Binding,
    ) -> Result<(), Denied> {
        // Attach to the new region before detaching from the old one: they may be the same.
        let body = if binding.len == 0 { None } else { Some(self.attach(stream, binding)?) };
        change.revoke();
        self.unbind(&mut change);
        if let Some(body) = body {
            change.control.region = Some(index_of(binding.region));
            change.control.invalidator = body.qp;
            change.publish(instance_of(tag), body);
        } else {
            let emptied = change.entry.body().emptied();
            change.allocate(instance_of(tag), emptied);
        }
        Ok(())
    }

    /// Checks the region (requirement M8, a to g), counts the window on it, and returns the body for the
    /// window.
    ///
    /// The caller holds the lock of its window while this takes that of the region; no thread takes them in
    /// the other order.
    fn attach(&self, stream: Stream, binding: &Binding) -> Result<Body, Denied> {
        let &Binding { region, at, len, rights, one_touch, zero_based, scope } = binding;
        let access = Access {
            offset: at,
            len,
            need: needed_of_region(rights),
            kinds: Kinds::Only(Kind::Region),
            ..Access::to_change(region, stream)
        };
        let mut change = self.change(&access)?;
        let state = change.entry.state();
        if !state.is_valid() {
            drop(change);
            return Err(self.refusal(&access));
        }
        let checked = access.check(&change.entry.body(), state);
        let within = checked.map_err(|check| change.denied(&access, check))?;
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

/// The rights that the region must have for such a window: remote access through a window counts as access by
/// the program.
fn needed_of_region(rights: Rights) -> Rights {
    let mut needed = Rights::BIND;
    if rights.intersects(Rights::REMOTE_READ | Rights::REMOTE_ATOMIC) {
        needed |= Rights::LOCAL_READ;
    }
    if rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC) {
        needed |= Rights::LOCAL_WRITE;
    }
    needed
}
