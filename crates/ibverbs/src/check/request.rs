//! One request that is under way, and what becomes of its buffers.

use super::finding::{Finding, Kind};
use super::limits::Operation;
use super::memory::{self, Poison, Spans};
use super::regions::{Element, Regions};
use super::stack::Stack;
use ironwarp_rnic::host::{Host, Span};
use ironwarp_rnic::queue::WrId;
use ironwarp_rnic::sync::lock;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Mutex;

/// What a request does with its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Sends their content.
    Source,
    /// Writes to them.
    Sink,
    /// Has none, or copied them.
    Nothing,
}

/// A request that the program is about to post.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) signaled: bool,
    /// Whether it waits for all earlier Reads and atomic operations.
    pub(crate) fence: bool,
    pub(crate) uses: Use,
    pub(crate) elements: SmallVec<[Element; 2]>,
    /// The target of an atomic operation.
    pub(crate) atomic: Option<u64>,
    /// `None` for a receive.
    pub(crate) operation: Option<Operation>,
    /// The length of inline data.
    pub(crate) inline: Option<usize>,
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) elements: SmallVec<[Element; 2]>,
    /// The buffers, as addresses of this process.
    pub(super) buffers: Spans,
    state: Buffers,
    pub(super) stack: Stack,
    /// Whether a finding says already why it will fail.
    pub(super) is_reported: bool,
}

/// What is known about the buffers of a request.
#[derive(Debug)]
enum Buffers {
    Unchecked,
    /// Digest of the data to send.
    Digest(u64),
    Poisoned(Poison),
}

/// Poisoned requests by number, for reports of poison that turns up elsewhere.
#[derive(Debug, Default)]
pub(super) struct Poisoned {
    last: u32,
    recent: VecDeque<(u32, String, Stack)>,
}

/// Number of poisoned requests that are remembered.
const MAX_RECENT: usize = 4096;
/// The number of a request has 24 bits in poison.
const NUMBERS: u32 = 1 << 24;

impl Poisoned {
    /// Remembers a request, and returns its number.
    fn add(&mut self, name: String, stack: Stack) -> u32 {
        self.last = (self.last + 1) % NUMBERS;
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((self.last, name, stack));
        self.last
    }

    /// Finds a request.
    fn find(&self, number: u32) -> Option<(&str, &Stack)> {
        let found = self.recent.iter().find(|(known, ..)| *known == number);
        found.map(|(_, name, stack)| (name.as_str(), stack))
    }
}

/// What requests of all queues share.
#[derive(Debug)]
pub(super) struct Shared<'c> {
    pub(super) host: &'c dyn Host,
    pub(super) adapter: usize,
    /// Whether buffers are filled with poison.
    pub(super) poisons: bool,
    pub(super) regions: &'c Regions,
    pub(super) poisoned: &'c Mutex<Poisoned>,
}

impl Shared<'_> {
    /// Returns the buffers of a request, or none if they are not known.
    pub(super) fn buffers(&self, posted: &Posted) -> Spans {
        self.regions.buffers(self.adapter, &posted.elements).unwrap_or_default()
    }
}

impl Request {
    /// Prepares a request before it is posted. Findings are added to `found`.
    pub(super) fn new(
        posted: Posted,
        buffers: Spans,
        of: &str,
        stack: &Stack,
        shared: &Shared<'_>,
        found: &mut Vec<Finding>,
    ) -> Self {
        let Posted { id, signaled, fence, uses, elements, atomic, .. } = posted;
        let name = || format_name(id, of); // slow, and most requests need no name
        if let Some(target) = atomic.filter(|target| !target.is_multiple_of(8)) {
            let text = format!(
                "{}: the target {target:#x} of an atomic operation is not aligned to 8 bytes",
                name()
            );
            found.push(Finding::posted(Kind::MisalignedAtomic, text, stack));
        }
        let stale = shared.regions.find_stale(shared.adapter, &elements, name, stack);
        let is_reported = stale.is_some();
        found.extend(stale);
        let parts = memory::checked_parts(&buffers);
        let state = match uses {
            _ if parts.is_empty() => Buffers::Unchecked,
            Use::Nothing => Buffers::Unchecked,
            Use::Source => match memory::read(shared.host, &parts) {
                None => Buffers::Unchecked,
                Some(bytes) => {
                    found.extend(find_early_read(&bytes, name, stack, shared));
                    Buffers::Digest(memory::digest(&bytes))
                }
            },
            Use::Sink if !shared.poisons => {
                Poison::remember(shared.host, parts).map_or(Buffers::Unchecked, Buffers::Poisoned)
            }
            Use::Sink => {
                let number = lock(shared.poisoned).add(name(), stack.clone());
                Poison::fill(shared.host, number, parts).map_or(Buffers::Unchecked, Buffers::Poisoned)
            }
        };
        Self { id, signaled, fence, elements, buffers, state, stack: stack.clone(), is_reported }
    }

    /// Ends a request that completed, after `received` bytes were written to its buffers. Other bytes may have changed if
    /// `is_shared` says that something else may write to the buffers.
    pub(super) fn end(
        self,
        of: &str,
        received: usize,
        shared: &Shared<'_>,
        is_shared: impl FnOnce(&[Span]) -> bool,
    ) -> Option<Finding> {
        let (kind, what) = match self.state {
            Buffers::Unchecked => return None,
            Buffers::Digest(before) => {
                let bytes = memory::read(shared.host, &memory::checked_parts(&self.buffers))?;
                if memory::digest(&bytes) == before || is_shared(&self.buffers) {
                    return None;
                }
                (Kind::SendBufferChanged, "changed between post and completion")
            }
            Buffers::Poisoned(poison) => {
                if !poison.end(shared.host, &self.buffers, received) || is_shared(&self.buffers) {
                    return None;
                }
                (Kind::ReceiveBufferWritten, "written by the program between post and completion")
            }
        };
        let text = format!("{}: {} {what}", format_name(self.id, of), Buffer(&self.buffers));
        Some(Finding::posted(kind, text, &self.stack))
    }

    /// Stops checking the buffers of several requests if none of their data has changed. One copy of all data takes less time
    /// than one for each request.
    pub(super) fn accept_unchanged(requests: &mut [Self], host: &dyn Host) {
        if requests.len() == 1 {
            return;
        }
        let sent = requests.iter().filter_map(|request| match request.state {
            Buffers::Digest(digest) => Some((digest, memory::checked_parts(&request.buffers))),
            _ => None,
        });
        let (digests, parts): (Vec<_>, Vec<_>) = sent.unzip();
        let Some(bytes) = memory::read(host, &parts.concat()) else { return };
        let mut rest = &bytes[..];
        let is_unchanged = digests.into_iter().zip(parts).all(|(digest, parts)| {
            let own = rest.split_off(..parts.iter().map(|part| part.len).sum()).unwrap_or_default();
            memory::digest(own) == digest
        });
        if is_unchanged {
            let checked = requests.iter_mut().filter(|request| matches!(request.state, Buffers::Digest(_)));
            checked.for_each(|request| request.state = Buffers::Unchecked);
        }
    }

    /// Stops checking the buffers, and gives them their earlier content back.
    pub(super) fn forget_buffers(&mut self, host: &dyn Host) {
        if let Buffers::Poisoned(poison) = std::mem::replace(&mut self.state, Buffers::Unchecked) {
            poison.end(host, &self.buffers, 0);
        }
    }

    /// Returns whether the content of its buffers is checked.
    pub(super) fn is_checked(&self) -> bool {
        !matches!(self.state, Buffers::Unchecked)
    }

    /// Returns whether its buffers get data, and are checked.
    pub(super) fn is_sink(&self) -> bool {
        matches!(self.state, Buffers::Poisoned(_))
    }

    /// Marks the request as one of which a finding says why it will fail.
    pub(super) fn mark_reported(&mut self) -> &Self {
        self.is_reported = true;
        self
    }

    /// Returns how messages name the request, and the call that posted it.
    pub(super) fn describe(&self, of: &str) -> (String, &Stack) {
        (format_name(self.id, of), &self.stack)
    }
}

/// Returns how messages name a request.
pub(super) fn format_name(id: u64, of: &str) -> String {
    format!("request {} of {of}", WrId(id))
}

/// Buffers, as messages name them.
struct Buffer<'b>(&'b [Span]);

impl std::fmt::Display for Buffer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: usize = self.0.iter().map(|span| span.len).sum();
        let first = self.0.first().map_or(0, |span| span.addr);
        write!(f, "{total} bytes at {first:#x}")?;
        if self.0.len() > 1 { write!(f, " and {} more places", self.0.len() - 1) } else { Ok(()) }
    }
}

/// Looks for poison of another request in data that is about to be sent.
fn find_early_read(
    bytes: &[u8],
    name: impl FnOnce() -> String,
    stack: &Stack,
    shared: &Shared<'_>,
) -> Option<Finding> {
    let number = memory::find_poison(bytes)?;
    let poisoned = lock(shared.poisoned);
    let (read, posted) = poisoned.find(number)?;
    let text = format!("{} sends bytes that were read from a buffer of {read} before its completion", name());
    let finding = Finding::posted(Kind::ReceiveBufferReadEarly, text, stack);
    Some(finding.after("the buffer was posted", posted))
}
