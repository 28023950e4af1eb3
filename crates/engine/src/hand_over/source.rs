//! The end of a hand-over that gives a function away.

use super::channel::{Channel, Peer, Received, own_pidfd};
use super::error::{Failure, HandOverError, Owner, Refusal};
use super::message::{Hello, MAX_BATCH, MAX_NAME, Message, Role};
use super::state;
use super::wait::Wait;
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Number of batches of descriptors that the target has not acknowledged. Without privileges, a user whose processes have
/// more descriptors in flight than RLIMIT_NOFILE can pass no others (unix(7), ETOOMANYREFS).
const WINDOW: usize = 2;
/// How long a source that keeps its function tries to tell the target.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The name of a descriptor, and the descriptor.
pub type Named<'a> = (Vec<u8>, BorrowedFd<'a>);

/// A function that can be given away.
pub trait Source {
    /// Returns the descriptors that the target needs, with names of at most [`MAX_NAME`] bytes. A name never stands for
    /// another descriptor later. Called twice: while the function runs, and after it was frozen; then those with new names
    /// are passed as well.
    fn descriptors(&self) -> Vec<Named<'_>>;

    /// Freezes the function, and returns a snapshot of this version. A function that fails to freeze keeps running.
    fn freeze(&mut self, version: u16) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

    /// Lets the frozen function run again.
    fn thaw(&mut self);

    /// Closes everything that belongs to the function, silently: the target owns it.
    fn release(&mut self);

    /// Called after each step.
    fn at(&self, _: SourceStep) {}
}

/// The steps of the source, in order. Those after [`Offered`](Self::Offered) depend on the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceStep {
    HelloSent,
    HelloReceived,
    /// A batch of descriptors was sent.
    Copying,
    /// All descriptors were acknowledged.
    Copied,
    /// The target was asked to claim numbers and tags.
    Asked,
    Ready,
    Frozen,
    /// The addresses were removed. Only between hosts.
    Fenced,
    Offered,
    /// The target has loaded the snapshot. Only between hosts.
    Loaded,
    /// COMMIT was sent: the target owns the function. Only between hosts.
    Committed,
    /// TAKEN was received, and nothing was released yet.
    Taken,
    /// TAKEN was not received, and the target can still send it.
    GivingUp,
    /// The receiving direction of the socket was closed: the answer, if there is one, is in the queue.
    Decided,
    /// The target was told that the source keeps its function, which is still frozen.
    Refused,
}

/// How a function is given away.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// How long each answer of the target is waited for while the function runs.
    pub timeout: Duration,
    /// Maximum time from freezing the function until the offer is taken back.
    pub pause: Duration,
    /// The versions of snapshots that [`Source::freeze`] can write.
    pub versions: RangeInclusive<u16>,
    /// How many times the function was offered before.
    pub epoch: u64,
    /// Bytes of the program, which travel with the snapshot.
    pub program: Vec<u8>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            pause: Duration::from_secs(2),
            versions: 1..=1,
            epoch: 0,
            program: Vec::new(),
        }
    }
}

/// A function that was given away: the target owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    pub epoch: u64,
}

/// Hands a function over to the process at the other end of a SEQPACKET socket, which calls
/// [`take_over`](super::take_over). If this fails, the function was thawed, and this process still owns it.
pub fn hand_over(
    socket: OwnedFd,
    source: &mut dyn Source,
    options: &SourceOptions,
) -> Result<HandedOver, HandOverError> {
    let kept = |failure| HandOverError { failure, owner: Owner::Source };
    let channel = Channel::new(socket).map_err(kept)?;
    let mut run = Run { channel, source, options, sent: HashSet::new() };
    let prepared = run.prepare().and_then(|terms| {
        let frozen = run.source.freeze(terms.version).map_err(Failure::Freeze);
        frozen.map(|snapshot| (terms, snapshot))
    });
    let (terms, snapshot) = prepared.map_err(|failure| {
        run.refuse(&failure);
        kept(run.channel.explain(failure))
    })?;
    // From here on the function is frozen, and only one of `release` and `thaw` ends that.
    let epoch = options.epoch.wrapping_add(1);
    match run.offer(&terms, epoch, &snapshot).or_else(|failure| run.decide(failure)) {
        Ok(()) => {
            run.source.release();
            Ok(HandedOver { epoch })
        }
        Err(failure) => {
            run.source.thaw();
            Err(kept(failure))
        }
    }
}

/// What both ends agreed on.
struct Terms {
    version: u16,
    descriptors: u32,
    state: u64,
}

/// A hand-over in progress.
struct Run<'a> {
    channel: Channel,
    source: &'a mut dyn Source,
    options: &'a SourceOptions,
    /// Names of the descriptors that were sent.
    sent: HashSet<Vec<u8>>,
}

impl Run<'_> {
    /// Everything before the function is frozen.
    fn prepare(&mut self) -> Result<Terms, Failure> {
        let timeout = self.options.timeout;
        let hello =
            Hello { role: Role::Source, snapshots: self.options.versions.clone(), descriptors: 0, state: 0 };
        let wait = Wait::new("HELLO", timeout);
        self.channel.send(&Message::Hello(hello), &[own_pidfd()?.as_fd()], wait)?;
        self.source.at(SourceStep::HelloSent);
        let theirs = hello_of(self.channel.receive(wait)?, Role::Target)?.0;
        let terms = Terms {
            version: common_version(&self.options.versions, &theirs.snapshots)?,
            descriptors: theirs.descriptors,
            state: theirs.state,
        };
        self.source.at(SourceStep::HelloReceived);
        self.copy(&terms, || Wait::new("COPIED", timeout))?;
        self.source.at(SourceStep::Copied);
        let wait = Wait::new("READY", timeout);
        let total = u32::try_from(self.sent.len()).unwrap_or(u32::MAX); // bounded by the limit of the target
        self.channel.send(&Message::Prepare(total), &[], wait)?;
        self.source.at(SourceStep::Asked);
        self.expect(&Message::Ready, wait)?;
        self.source.at(SourceStep::Ready);
        Ok(terms)
    }

    /// Passes the descriptors that were not passed yet.
    fn copy(&mut self, terms: &Terms, wait: impl Fn() -> Wait) -> Result<(), Failure> {
        let mut named = self.source.descriptors();
        named.retain(|(name, _)| !self.sent.contains(name));
        let have = self.sent.len() + named.len();
        if have > terms.descriptors as usize {
            return Err(Failure::TooManyDescriptors { have, limit: terms.descriptors });
        }
        if let Some((name, _)) = named.iter().find(|(name, _)| name.len() > MAX_NAME) {
            return Err(Failure::NameTooLong { have: name.len(), max: MAX_NAME });
        }
        let mut unacknowledged = VecDeque::new();
        for batch in named.chunks(MAX_BATCH) {
            if unacknowledged.len() == WINDOW {
                self.acknowledged(&mut unacknowledged, wait())?;
            }
            let (names, descriptors): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
            self.channel.send(&Message::Copy(names.clone()), &descriptors, wait())?;
            self.sent.extend(names);
            unacknowledged.push_back(self.sent.len());
            self.source.at(SourceStep::Copying);
        }
        while !unacknowledged.is_empty() {
            self.acknowledged(&mut unacknowledged, wait())?;
        }
        Ok(())
    }

    /// Waits for the acknowledgement of the first batch that has none.
    fn acknowledged(&self, batches: &mut VecDeque<usize>, wait: Wait) -> Result<(), Failure> {
        match self.channel.receive(wait)?.0 {
            Message::Copied(total) if batches.pop_front() == Some(total as usize) => Ok(()),
            other => Err(Failure::Unexpected { got: other.name(), awaited: "COPIED" }),
        }
    }

    /// Offers the frozen function, and waits until the target has taken it.
    fn offer(&mut self, terms: &Terms, epoch: u64, snapshot: &[u8]) -> Result<(), Failure> {
        let wait = Wait::new("TAKEN", self.options.pause);
        self.source.at(SourceStep::Frozen);
        self.copy(terms, || wait.awaiting("COPIED"))?;
        let program = &self.options.program;
        let len = (snapshot.len() as u64).saturating_add(program.len() as u64);
        if len > terms.state {
            return Err(Failure::StateTooLong { len, limit: terms.state });
        }
        let (offer, memfd) = state::pack(epoch, terms.version, snapshot, program)?;
        let memfd = memfd.as_ref().map(AsFd::as_fd);
        self.channel.send(&Message::Offer(offer), memfd.as_slice(), wait)?;
        self.source.at(SourceStep::Offered);
        self.expect(&Message::Taken, wait)?;
        self.source.at(SourceStep::Taken);
        Ok(())
    }

    /// Waits for this message.
    fn expect(&self, expected: &Message, wait: Wait) -> Result<(), Failure> {
        match self.channel.receive(wait)?.0 {
            message if message == *expected => Ok(()),
            other => Err(Failure::Unexpected { got: other.name(), awaited: expected.name() }),
        }
    }

    /// Decides who owns a frozen function that the target was not seen to take. After the receiving direction is closed, no
    /// TAKEN can be sent, so either one is in the queue, or there will never be one.
    fn decide(&mut self, mut failure: Failure) -> Result<(), Failure> {
        self.source.at(SourceStep::GivingUp);
        self.channel.stop_receiving();
        self.source.at(SourceStep::Decided);
        loop {
            match self.channel.try_receive() {
                Ok(Received::Message(Message::Taken, _)) => {
                    self.source.at(SourceStep::Taken);
                    return Ok(());
                }
                Ok(Received::Message(Message::Refused(reason), _)) => {
                    failure = Failure::Refused(Refusal(reason));
                }
                Ok(Received::End | Received::Nothing) | Err(Failure::System { .. }) => break,
                Ok(Received::Message(..)) | Err(_) => {}
            }
        }
        // Sent before the function runs again: if the source dies later, the target must not use the snapshot, which is then
        // out of date. A target that has not received this, and finds the source dead, knows that the source died frozen.
        self.refuse(&failure);
        self.source.at(SourceStep::Refused);
        Err(failure)
    }

    /// Tells the target that the source keeps its function.
    fn refuse(&self, failure: &Failure) {
        let message = Message::Refused(failure.reason());
        match self.channel.send(&message, &[], Wait::new("room in the socket", LAST_WORD)) {
            Ok(()) | Err(Failure::Ended { .. }) => {}
            Err(error) => tracing::warn!(%error, "failed to tell the target that the function stays"),
        }
    }
}

/// Returns the terms in a HELLO, and the process that has sent it.
pub(super) fn hello_of(
    (message, descriptors): (Message, Vec<OwnedFd>),
    expected: Role,
) -> Result<(Hello, Peer), Failure> {
    match (message, descriptors.into_iter().next()) {
        (Message::Hello(hello), Some(_)) if hello.role != expected => Err(Failure::SameRole(hello.role)),
        (Message::Hello(hello), Some(pidfd)) => Ok((hello, Peer::new(pidfd)?)),
        (other, _) => Err(Failure::Unexpected { got: other.name(), awaited: "HELLO" }),
    }
}

/// Returns the latest version of snapshots that both ends know.
pub(super) fn common_version(
    own: &RangeInclusive<u16>,
    theirs: &RangeInclusive<u16>,
) -> Result<u16, Failure> {
    let latest = *own.end().min(theirs.end());
    if latest < *own.start().max(theirs.start()) {
        return Err(Failure::NoCommonVersion { own: own.clone(), theirs: theirs.clone() });
    }
    Ok(latest)
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("channel", &self.channel).finish_non_exhaustive()
    }
}
