//! The send queue of a queue pair in iSCSI mode: posted requests, outstanding commands, and data that the target has
//! asked for.

use super::{CommandRequest, PduRequest};
use crate::error::PostError;
use crate::memory::Direction;
use crate::queue::{Completion, Opcode, Sges};
use ironwarp_wire::Tag;
use ironwarp_wire::iscsi::Command;
use std::collections::VecDeque;
use std::fmt;

/// Number of low bits of a [`CommandId`] that hold the index of the command. The others count how often it was used.
const INDEX_BITS: u32 = 16;
/// Maximum number of outstanding commands.
const MAX_COMMANDS: usize = 1 << INDEX_BITS;

/// Identifies a command from its post to its completion (requirement M13). Numbers of commands that have ended are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u32);

impl CommandId {
    /// Returns the command that a completion belongs to; `None` if it belongs to none.
    ///
    /// ```
    /// # use ironwarp_rnic::iscsi::CommandId;
    /// # use ironwarp_rnic::queue::{Completion, Opcode};
    /// let mut completion = Completion::succeeded(7, Opcode::Response, 2, 48);
    /// completion.immediate = Some(0x10001);
    /// assert_eq!(CommandId::of(&completion), Some(CommandId(0x10001)));
    /// ```
    pub fn of(completion: &Completion) -> Option<Self> {
        let is_command = matches!(completion.opcode, Opcode::Command | Opcode::Pdu | Opcode::Response);
        completion.immediate.filter(|_| is_command).map(Self)
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The command does not exist: it has completed, perhaps with a completion that was not polled yet, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("command {0} has ended")]
pub struct CommandEnded(pub CommandId);

/// A posted request that was not started.
#[derive(Debug)]
pub(super) enum Posted {
    Command(CommandId),
    Pdu(PduRequest),
}

/// A command that has not ended.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) header: Command,
    pub(super) direction: Option<Direction>,
    pub(super) buffers: Sges,
    /// Length of the buffers.
    pub(super) len: u32,
    /// The task tag, once the buffers are registered.
    pub(super) task: Option<Tag>,
    /// Number of R2Ts that are not answered completely.
    pub(super) r2ts: u16,
}

/// Data to send for a command: what an R2T has asked for, or unsolicited data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) command: CommandId,
    pub(super) task: Tag,
    pub(super) lun: u64,
    /// The target's tag.
    pub(super) target_task: u32,
    /// The offset of the next byte, and that after the last.
    pub(super) offset: u32,
    pub(super) end: u32,
    /// The number of the next PDU.
    pub(super) data_sn: u32,
    /// Whether an R2T has asked for it.
    pub(super) solicited: bool,
}

/// The send queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    capacity: usize,
    max_sges: usize,
    pub(super) posted: VecDeque<Posted>,
    /// Number of posted PDUs that are not commands.
    pdus: usize,
    /// The outstanding commands by the index in their number, with the count of its uses.
    commands: Vec<(u32, Option<Outstanding>)>,
    free: Vec<usize>,
    pub(super) bursts: VecDeque<Burst>,
    /// Task tags of entries that no command uses, the one that was used least recently first.
    pub(super) tasks: VecDeque<Tag>,
}

impl SendQueue {
    /// Creates an empty queue.
    pub(super) fn new(capacity: usize, max_sges: usize) -> Self {
        Self {
            capacity: capacity.min(MAX_COMMANDS),
            max_sges,
            posted: VecDeque::new(),
            pdus: 0,
            commands: Vec::new(),
            free: Vec::new(),
            bursts: VecDeque::new(),
            tasks: VecDeque::new(),
        }
    }

    /// Number of requests that have not ended.
    fn len(&self) -> usize {
        self.commands.len() - self.free.len() + self.pdus
    }

    /// Appends commands, all or none, and returns their numbers.
    pub(super) fn post_commands(
        &mut self,
        requests: impl ExactSizeIterator<Item = CommandRequest> + Clone,
    ) -> Result<Vec<CommandId>, PostError> {
        if self.len() + requests.len() > self.capacity {
            return Err(PostError::Full { capacity: self.capacity });
        }
        for CommandRequest { data, .. } in requests.clone() {
            let Some((_, buffers)) = data else { continue };
            let (have, len) = (buffers.as_slice().len(), buffers.len());
            if have > self.max_sges {
                return Err(PostError::TooManySges { have, limit: self.max_sges });
            }
            if u32::try_from(len).is_err() {
                return Err(PostError::MessageTooLong { len, limit: u32::MAX });
            }
        }
        Ok(requests.map(|request| self.append(request)).collect())
    }

    /// Appends a command that was checked.
    fn append(&mut self, CommandRequest { header, data }: CommandRequest) -> CommandId {
        let (direction, buffers) = data.map_or_else(Default::default, |(way, buffers)| (Some(way), buffers));
        let len = u32::try_from(buffers.len()).unwrap_or(u32::MAX); // was checked
        let command = Outstanding { header, direction, buffers, len, task: None, r2ts: 0 };
        let index = self.free.pop().unwrap_or_else(|| {
            self.commands.push((0, None));
            self.commands.len() - 1
        });
        let (uses, place) = &mut self.commands[index];
        *place = Some(command);
        *uses = uses.wrapping_add(1);
        let id = CommandId(*uses << INDEX_BITS | u32::try_from(index).unwrap_or(0)); // at most MAX_COMMANDS
        self.posted.push_back(Posted::Command(id));
        id
    }

    /// Appends another PDU.
    pub(super) fn post_pdu(&mut self, request: PduRequest) -> Result<(), PostError> {
        if self.len() >= self.capacity {
            return Err(PostError::Full { capacity: self.capacity });
        }
        self.pdus += 1;
        self.posted.push_back(Posted::Pdu(request));
        Ok(())
    }

    /// Takes the oldest request that was not started. A command stays outstanding.
    pub(super) fn take(&mut self) -> Option<Posted> {
        let posted = self.posted.pop_front()?;
        self.pdus -= usize::from(matches!(posted, Posted::Pdu(_)));
        Some(posted)
    }

    /// Returns an outstanding command.
    pub(super) fn get(&mut self, id: CommandId) -> Option<&mut Outstanding> {
        let (uses, command) = self.commands.get_mut(index_of(id))?;
        if *uses << INDEX_BITS == id.0 >> INDEX_BITS << INDEX_BITS { command.as_mut() } else { None }
    }

    /// Removes a command that has ended.
    pub(super) fn remove(&mut self, id: CommandId) -> Option<Outstanding> {
        self.get(id)?;
        self.free.push(index_of(id));
        self.commands[index_of(id)].1.take()
    }

    /// Removes a command that was not started from the posted ones, and posts `instead` in its place.
    pub(super) fn unpost(&mut self, id: CommandId, instead: Option<PduRequest>) {
        let is_it = |posted: &Posted| matches!(posted, Posted::Command(other) if *other == id);
        let Some(at) = self.posted.iter().position(is_it) else { return };
        match instead {
            Some(pdu) => {
                self.posted[at] = Posted::Pdu(pdu);
                self.pdus += 1;
            }
            None => drop(self.posted.remove(at)),
        }
    }

    /// Returns the numbers of all commands that have not ended.
    pub(super) fn all_commands(&self) -> Vec<CommandId> {
        let number = |(index, (uses, command)): (usize, &(u32, Option<Outstanding>))| {
            command.as_ref()?;
            Some(CommandId(uses << INDEX_BITS | u32::try_from(index).ok()?))
        };
        self.commands.iter().enumerate().filter_map(number).collect()
    }
}

/// Returns the index of a command.
fn index_of(id: CommandId) -> usize {
    id.0 as usize % MAX_COMMANDS
}
