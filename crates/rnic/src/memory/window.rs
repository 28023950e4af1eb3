//! Windows: part of a region, opened to one peer or to all of the domain, and closed again without touching the region.
//!
//! A window is an entry of the table like a region's (`table.rs` allocates and deregisters it), and uses its region's
//! translation. As long as it is bound, its region cannot go.

use super::access::{Access, Kinds};
use super::entry::{Body, Change};
use super::{Denied, Kind, Rights, Stream, Table, following, index_of, instance_of};
use ironwarp_wire::Tag;

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The region, which must allow it.
    pub region: Tag,
    /// The first byte, as an access to the region would name it.
    pub at: u64,
    /// How many bytes; none to unbind the window.
    pub len: u64,
    /// What peers may do: only remote rights count.
    pub rights: Rights,
    /// Whether it serves one message of a peer's, and is closed when that has ended (requirement M10).
    pub one_touch: bool,
    /// Whether peers name the first byte by 0 instead of `at`.
    pub zero_based: bool,
    /// Whose peers may use it.
    pub scope: Scope,
}

/// Whose peers may use a window: both associations of RFC 5041 §8.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only the peer of the stream that binds it, which may also invalidate it (verbs: a window of type 2).
    Stream,
    /// The peers of all streams of the domain; none of them may invalidate it (verbs: type 1).
    Domain,
}

impl Table {
    /// Executes a binding. `window` is the tag that the window has now; the one it has from then on, the [`following`] one,
    /// is returned. What was bound before is revoked: waits for guards. If a check fails, the window stays as it was.
    ///
    /// `len` 0 unbinds; then the region and the rest of the binding are not looked at.
    pub fn bind(&self, stream: Stream, window: Tag, binding: Binding) -> Result<Tag, Denied> {
        let access = Access { kinds: Kinds::Only(Kind::Window), ..Access::to_change(window, stream) };
        let change = self.change_of(&access)?;
        let tag = following(window);
        self.bind_entry(stream, change, tag, &binding)?;
        Ok(tag)
    }

    /// The same, but the consumer has chosen the instance: `tag` is the one that the window has from then on, whichever it
    /// has now (verbs: a window of type 2).
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
        // The new region is held before the old one is let go: it may be the same.
        let body = if binding.len == 0 { None } else { Some(self.attach(stream, binding)?) };
        change.revoke();
        self.unbind(&mut change);
        if let Some(body) = body {
            change.control.region = Some(index_of(binding.region));
            change.control.invalidator = body.qp;
            change.publish(instance_of(tag), body);
        } else {
            let emptied = change.entry.body().emptied();
            change.keep(instance_of(tag), emptied);
        }
        Ok(())
    }

    /// Checks the region (requirement M8, a to g), counts one window more on it, and gives the window's body.
    ///
    /// Who binds holds its window, then the region for a moment; nobody holds them the other way round.
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

/// The rights that the region must have for such a window: what peers do through it is as if the program did it.
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
