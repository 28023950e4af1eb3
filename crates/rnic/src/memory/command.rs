//! Entries of iSCSI commands (requirements M3, M13): the data buffers of one command, registered under the command's
//! initiator task tag for as long as the target may transfer data.
//!
//! An entry belongs to the queue pair that sent the command, so that no other peer can use it, whatever its protocol. Its
//! offsets count from zero. It has no start; the field holds the number of the command instead, as the seed has it.

use super::access::{Access, Kinds};
use super::entry::Body;
use super::translation::Part;
use super::{Check, Denied, Guard, Kind, RegisterError, Rights, Spans, Stream, Table, Translation, next_tag};
use crate::host::{Host, Unmapped};
use ironwarp_wire::{RemoteAddr, Tag};
use smallvec::SmallVec;
use std::sync::Arc;

/// The task tag that names no task (RFC 7143 §11.2.1.8).
const NO_TASK: Tag = Tag(u32::MAX);

/// The direction in which a command transfers data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the initiator, by Data-In.
    In,
    /// To the target, by Data-Out that R2Ts ask for.
    Out,
}

impl Direction {
    /// The right that a transfer in this direction requires of the command's entry.
    const fn remote_right(self) -> Rights {
        match self {
            Self::In => Rights::REMOTE_WRITE,
            Self::Out => Rights::REMOTE_READ,
        }
    }

    /// The right that the command requires of the regions that its buffers are in.
    const fn local_right(self) -> Rights {
        match self {
            Self::In => Rights::LOCAL_WRITE,
            Self::Out => Rights::LOCAL_READ,
        }
    }
}

/// A transfer that a target asks for, by Data-In or R2T.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The initiator task tag.
    pub task: Tag,
    /// Offset of the first byte in the buffer of the command.
    pub offset: u32,
    /// Length in bytes.
    pub len: usize,
    /// The direction.
    pub direction: Direction,
}

impl Table {
    /// Allocates an entry for commands of `stream`, and returns the task tag of the first one.
    pub fn allocate_command(&self, stream: Stream) -> Result<Tag, RegisterError> {
        let tag = self.allocate_new(unused(stream))?;
        if tag != NO_TASK {
            return Ok(tag);
        }
        // The table never assigns a tag twice, so this is the only one that has to be skipped.
        let another = self.allocate_new(unused(stream));
        let _ = self.deregister(tag); // nobody else has it
        another
    }

    /// Registers the buffers of a command of `stream` under its task tag, from offset zero on. Each must be in a region that
    /// allows the access. A command without data has no buffers.
    pub fn fill_command(
        &self,
        stream: Stream,
        (task, command): (Tag, u32),
        direction: Direction,
        buffers: impl IntoIterator<Item = (RemoteAddr, u32)>,
    ) -> Result<(), RegisterError> {
        let mut parts = SmallVec::<[Part; 1]>::new();
        for (RemoteAddr { tag, offset }, len) in buffers.into_iter().filter(|(_, len)| *len > 0) {
            let access = Access::local(stream.domain, tag, offset, len as usize, direction.local_right());
            parts.push(self.part(&access)?);
        }
        let len = parts.iter().map(|part| part.len).sum();
        let (translation, skip) = match parts.len() {
            0 => (None, 0),
            1 => parts.pop().map(|part| (Some(part.translation), part.at)).unwrap_or_default(),
            _ => (Some(Arc::new(Translation::joined(&parts)?)), 0),
        };
        let mut change = self.begin_change_of_instance(&Access::to_command(task, stream))?;
        if change.entry.state().is_valid() {
            return Err(change.deny(&Access::to_command(task, stream), Check::Idle).into());
        }
        let (rights, start) = (direction.remote_right(), command.into());
        change.publish(task, Body { rights, start, len, translation, skip, ..unused(stream) });
        Ok(())
    }

    /// Checks a transfer that the target of `stream` asks for (checks a to g of requirement M13), appends the address ranges
    /// to `spans`, and returns a guard to hold during the transfer, with the number of the command.
    pub fn admit_transfer(
        &self,
        stream: Stream,
        transfer: &Transfer,
        spans: &mut Spans,
    ) -> Result<(Guard<'_>, u32), Denied> {
        let guard = self.guard_transfer(stream, transfer)?;
        if let Some(translation) = &guard.body.translation {
            translation.append_spans(position(&guard.body, transfer), transfer.len, spans);
        }
        let command = command_of(&guard.body);
        Ok((guard, command))
    }

    /// Copies data that has arrived to the buffers of a command of `stream`, after the same checks.
    pub fn write_transfer(
        &self,
        host: &dyn Host,
        stream: Stream,
        transfer: &Transfer,
        from: &[u8],
    ) -> Result<Result<(), Unmapped>, Denied> {
        let Guard { body, .. } = &self.guard_transfer(stream, transfer)?;
        let write = |memory: &Arc<Translation>| memory.write(position(body, transfer), host, from);
        Ok(body.translation.as_ref().map_or(Ok(()), write))
    }

    /// Copies data to send from the buffers of a command of `stream`, after the same checks.
    pub fn read_transfer(
        &self,
        host: &dyn Host,
        stream: Stream,
        transfer: &Transfer,
        into: &mut [u8],
    ) -> Result<Result<(), Unmapped>, Denied> {
        let Guard { body, .. } = &self.guard_transfer(stream, transfer)?;
        let read = |memory: &Arc<Translation>| memory.read(position(body, transfer), host, into);
        Ok(body.translation.as_ref().map_or(Ok(()), read))
    }

    /// Ends a command of `stream` that its target has completed: deregisters its buffers, and returns its number and the next
    /// task tag of the same entry. Waits for guards: after the call returns, no byte is read or written through the tag any
    /// more. Of several calls that end a command, one succeeds.
    ///
    /// Instances of such an entry wrap around, unlike those of regions (requirement M4): a tag that a target has completed names
    /// no task (RFC 7143 §4.2.2.1), and all tags of the adapter would be used up after 2^32 commands.
    pub fn complete_command(&self, stream: Stream, task: Tag) -> Result<(u32, Tag), Denied> {
        let access = Access::to_command(task, stream);
        let mut change = self.begin_change_of_instance(&access)?;
        if !change.entry.state().is_valid() {
            return Err(change.deny(&access, Check::Valid));
        }
        change.revoke();
        let command = command_of(&change.entry.body());
        let next = Some(next_tag(task)).filter(|next| *next != NO_TASK).unwrap_or(next_tag(NO_TASK));
        change.allocate(next, unused(stream));
        Ok((command, next))
    }

    /// Frees the entry of a command of `stream`, valid or not. Waits for guards, as
    /// [`complete_command`](Self::complete_command) does. The target cannot use the task tag any more: it has completed the
    /// command, or its connection has ended.
    pub fn free_command(&self, stream: Stream, task: Tag) -> Result<(), Denied> {
        let access = Access::to_command(task, stream);
        drop(self.begin_change_of_instance(&access)?);
        self.deregister(task).map_err(|_| access.deny(Check::Valid, None))
    }

    /// Frees the entry of a command of `stream` that its target may still transfer data for. As `free_command`, but the
    /// task tag is never valid again: its index is retired, because instances of commands wrap around.
    pub fn abort_command(&self, stream: Stream, task: Tag) -> Result<(), Denied> {
        self.begin_change_of_instance(&Access::to_command(task, stream))?.control.instances_left = 0;
        self.free_command(stream, task)
    }

    /// Takes the guard of a transfer that passes its checks. The rights of an entry are those of its command's direction, so
    /// that check f includes check g.
    fn guard_transfer(&self, stream: Stream, transfer: &Transfer) -> Result<Guard<'_>, Denied> {
        let Transfer { task, offset, len, direction } = *transfer;
        let (offset, len, need) = (offset.into(), len as u64, direction.remote_right());
        let access = Access { offset, len, need, ..Access::to_command(task, stream) };
        let Some(guard) = self.guard(task) else {
            return Err(self.explain_refusal(&access));
        };
        match check_transfer(&access, &guard) {
            Ok(()) => Ok(guard),
            Err(check) => Err(access.deny(check, Some(guard.entry.describe(&guard.body, guard.state)))),
        }
    }

    /// Returns the memory of a local access to a region, which stays usable when the region is deregistered.
    fn part(&self, access: &Access) -> Result<Part, Denied> {
        let Some(guard) = self.guard(access.tag) else {
            return Err(self.explain_refusal(access));
        };
        let within = access
            .check(&guard.body, guard.state)
            .map_err(|check| access.deny(check, Some(guard.entry.describe(&guard.body, guard.state))))?;
        let translation = guard.body.translation.as_ref().expect("a valid region has a translation");
        Ok(Part { translation: Arc::clone(translation), at: guard.body.skip + within, len: access.len })
    }
}

impl Access {
    /// Describes a change of a command's entry by its queue pair.
    fn to_command(task: Tag, stream: Stream) -> Self {
        Self { kinds: Kinds::Only(Kind::IscsiCommand), ..Self::to_change(task, stream) }
    }
}

/// Returns the body of an entry for commands of `stream` that names no memory.
fn unused(stream: Stream) -> Body {
    Body { kind: Kind::IscsiCommand, domain: stream.domain, qp: Some(stream.qp), ..Body::default() }
}

/// Does all checks of a transfer but the first, which the caller has done by taking the guard.
fn check_transfer(access: &Access, Guard { body, state, .. }: &Guard<'_>) -> Result<(), Check> {
    access.check_owner(body)?;
    if access.tag != state.tag() {
        return Err(Check::Instance);
    }
    // The offset has 32 bits, and the length 24: the sum cannot overflow.
    if access.offset + access.len > body.len {
        return Err(Check::Range);
    }
    if body.rights.contains(access.need) { Ok(()) } else { Err(Check::Right) }
}

/// Returns the position of the first byte of a transfer in the translation of its command.
fn position(body: &Body, transfer: &Transfer) -> u64 {
    body.skip + u64::from(transfer.offset)
}

/// Returns the number of the command that an entry belongs to.
fn command_of(body: &Body) -> u32 {
    u32::try_from(body.start).expect("the number of a command has 32 bits")
}
