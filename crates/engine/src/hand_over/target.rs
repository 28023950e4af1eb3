//! The end of a hand-over that takes a function over.

use super::channel::{Channel, Peer, Received, own_pidfd};
use super::error::{Failure, HandOverError, Owner, Refusal};
use super::message::{Hello, Message, Role};
use super::source::{common_version, hello_of};
use super::state;
use super::wait::Wait;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use rustix::process::{Resource, getrlimit};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a process may need to die after its sockets were closed. The kernel closes them first.
const DYING: Duration = Duration::from_secs(1);

/// A function that is being taken over. It must not act before [`activate`](Self::activate).
pub trait Target {
    /// The function that runs in the end.
    type Active;

    /// Takes a descriptor. Its name is what the source calls it.
    fn copy(&mut self, name: &[u8], descriptor: OwnedFd) -> Result<(), Refusal>;

    /// Claims everything that the function needs, such as numbers and tags. All descriptors were passed, except those of
    /// objects that the source creates until it is frozen.
    fn prepare(&mut self) -> Result<(), Refusal>;

    /// Loads a snapshot of this version. Afterwards nothing can fail.
    fn load(&mut self, version: u16, snapshot: &[u8]) -> Result<(), Refusal>;

    /// Lets the function run: this process is its only owner.
    fn activate(self) -> Self::Active;

    /// Closes everything, silently: this process is not the owner.
    fn discard(self);

    /// Called after each step.
    fn at(&self, _: TargetStep) {}
}

/// The steps of the target, in order. Those after [`Loaded`](Self::Loaded) depend on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStep {
    HelloSent,
    HelloReceived,
    /// A batch of descriptors was taken, and is not acknowledged yet.
    Copying,
    /// A batch of descriptors was acknowledged.
    Copied,
    /// Everything is claimed.
    Prepared,
    ReadySent,
    Offered,
    Loaded,
    /// The source was told that everything is loaded. Only between hosts.
    LoadedSent,
    /// TAKEN was sent: this process owns the function, and does not act yet.
    TakenSent,
    /// TAKEN could not be sent.
    TakenFailed,
    /// The source neither is dead nor has refused so far.
    Waiting,
}

/// How a function is taken over.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// How long each message of the source is waited for.
    pub timeout: Duration,
    /// The versions of snapshots that [`Target::load`] can read.
    pub versions: RangeInclusive<u16>,
    /// Maximum number of descriptors. RLIMIT_NOFILE can be a lower limit.
    pub descriptors: u32,
    /// Maximum length of the snapshot and the bytes of the program.
    pub state: u64,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), versions: 1..=1, descriptors: 1 << 20, state: 1 << 30 }
    }
}

/// A function that was taken over: this process owns it.
#[derive(Clone, Debug)]
pub struct TakenOver<A> {
    /// The function.
    pub active: A,
    /// How many times it was offered.
    pub epoch: u64,
    /// Bytes of the program that gave it away.
    pub program: Vec<u8>,
    /// The source died after its offer, so it does not know that the function was taken.
    pub adopted: bool,
}

/// Takes a function over from the process at the other end of a SEQPACKET socket, which calls
/// [`hand_over`](super::hand_over). If this fails, everything that was received is closed.
pub fn take_over<T: Target>(
    socket: OwnedFd,
    target: T,
    options: &TargetOptions,
) -> Result<TakenOver<T::Active>, HandOverError> {
    let channel = match Channel::new(socket) {
        Ok(channel) => channel,
        Err(failure) => {
            target.discard();
            return Err(HandOverError { failure, owner: Owner::Source });
        }
    };
    let mut run = Run { channel, target, options, peer: None, copied: 0 };
    match run.run() {
        Ok(Won { epoch, program, adopted }) => {
            Ok(TakenOver { active: run.target.activate(), epoch, program, adopted })
        }
        Err(failure) => {
            let failure = run.channel.explain(failure);
            run.refuse(&failure);
            let owner = run.owner_after(&failure);
            run.target.discard();
            Err(HandOverError { failure, owner })
        }
    }
}

/// How this process became the owner.
struct Won {
    epoch: u64,
    program: Vec<u8>,
    adopted: bool,
}

/// A hand-over in progress.
struct Run<'a, T> {
    channel: Channel,
    target: T,
    options: &'a TargetOptions,
    /// The source, once it has said hello.
    peer: Option<Peer>,
    /// Number of descriptors that were passed.
    copied: u32,
}

impl<T: Target> Run<'_, T> {
    fn run(&mut self) -> Result<Won, Failure> {
        let limit = self.descriptor_limit();
        let version = self.greet(limit)?;
        self.expect_copies(limit)?;
        self.target.prepare()?;
        self.target.at(TargetStep::Prepared);
        self.channel.send(&Message::Ready, &[], self.wait("room in the socket"))?;
        self.target.at(TargetStep::ReadySent);
        let (offer, memfd) = loop {
            match self.channel.receive(self.wait("OFFER"))? {
                (Message::Copy(names), descriptors) => self.copy(&names, descriptors, limit)?,
                (Message::Offer(offer), memfd) => break (offer, memfd.into_iter().next()),
                (other, _) => return Err(unexpected(&other, "OFFER")),
            }
        };
        self.target.at(TargetStep::Offered);
        let (epoch, offered) = (offer.epoch, offer.version);
        if offered != version {
            return Err(Failure::NoCommonVersion { own: version..=version, theirs: offered..=offered });
        }
        let (snapshot, program) = state::unpack(offer, memfd, self.options.state)?;
        self.target.load(version, &snapshot)?;
        drop(snapshot);
        self.target.at(TargetStep::Loaded);
        // The commit point: that this succeeds makes this process the owner.
        match self.channel.send(&Message::Taken, &[], self.wait("room in the socket")) {
            Ok(()) => {
                self.target.at(TargetStep::TakenSent);
                Ok(Won { epoch, program, adopted: false })
            }
            Err(Failure::Ended { .. }) => {
                self.target.at(TargetStep::TakenFailed);
                self.adopt()?;
                Ok(Won { epoch, program, adopted: true })
            }
            Err(failure) => Err(failure),
        }
    }

    fn wait(&self, awaited: &'static str) -> Wait {
        Wait::new(awaited, self.options.timeout)
    }

    /// Returns the number of descriptors that this process can take at most.
    fn descriptor_limit(&self) -> u32 {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.options.descriptors.min(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Exchanges HELLOs. Returns the version of the snapshot to come.
    fn greet(&mut self, descriptors: u32) -> Result<u16, Failure> {
        let snapshots = self.options.versions.clone();
        let hello = Hello { role: Role::Target, snapshots, descriptors, state: self.options.state };
        let wait = self.wait("HELLO");
        let sent = self.channel.send(&Message::Hello(hello), &[own_pidfd()?.as_fd()], wait);
        match sent {
            Ok(()) => self.target.at(TargetStep::HelloSent),
            // A source that is gone may have said hello before, which tells whether it is dead.
            Err(Failure::Ended { .. }) => {}
            Err(failure) => return Err(failure),
        }
        let (hello, peer) = hello_of(self.channel.receive(wait)?, Role::Source)?;
        self.peer = Some(peer);
        sent?;
        self.target.at(TargetStep::HelloReceived);
        common_version(&self.options.versions, &hello.snapshots)
    }

    /// Takes descriptors until the source has sent all of them.
    fn expect_copies(&mut self, limit: u32) -> Result<(), Failure> {
        loop {
            match self.channel.receive(self.wait("COPY"))? {
                (Message::Copy(names), descriptors) => self.copy(&names, descriptors, limit)?,
                (Message::Prepare(total), _) if total == self.copied => return Ok(()),
                (other, _) => return Err(unexpected(&other, "COPY")),
            }
        }
    }

    /// Takes a batch of descriptors, and acknowledges it.
    fn copy(&mut self, names: &[Vec<u8>], descriptors: Vec<OwnedFd>, limit: u32) -> Result<(), Failure> {
        let have = self.copied as usize + names.len();
        self.copied = match u32::try_from(have) {
            Ok(total) if total <= limit => total,
            _ => return Err(Failure::TooManyDescriptors { have, limit }),
        };
        for (name, descriptor) in names.iter().zip(descriptors) {
            self.target.copy(name, descriptor)?;
        }
        self.target.at(TargetStep::Copying);
        self.channel.send(&Message::Copied(self.copied), &[], self.wait("room in the socket"))?;
        self.target.at(TargetStep::Copied);
        Ok(())
    }

    /// Decides who owns the function after the source has stopped receiving. A source that keeps its function sends
    /// REFUSED before it runs on. So if it is dead and has not, it died frozen, and the snapshot is exact.
    fn adopt(&self) -> Result<(), Failure> {
        let Some(peer) = &self.peer else { return Err(Failure::Ended { awaited: "HELLO" }) };
        let wait = self.wait("the end of the source");
        let mut ended = false;
        loop {
            // In this order: everything that a dead process has sent is in the queue.
            let is_dead = peer.is_dead(Wait::new("", Duration::ZERO))?;
            while !ended {
                match self.channel.try_receive() {
                    Ok(Received::Message(Message::Refused(reason), _)) => {
                        return Err(Failure::Revoked(Refusal(reason)));
                    }
                    Ok(Received::Message(..)) | Err(Failure::Malformed(_) | Failure::Descriptors { .. }) => {}
                    Ok(Received::Nothing) => break,
                    Ok(Received::End) => ended = true,
                    Err(failure) => return Err(failure),
                }
            }
            if is_dead {
                return Ok(());
            }
            self.target.at(TargetStep::Waiting);
            let mut both = [PollFd::new(peer, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
            // A socket that has ended stays readable.
            if !wait.poll(if ended { &mut both[..1] } else { &mut both })? {
                return Err(Failure::Undecided(self.options.timeout));
            }
        }
    }

    /// Tells the source that this process takes no further part, if the source does not know.
    fn refuse(&self, failure: &Failure) {
        if !matches!(failure, Failure::Refused(_) | Failure::Revoked(_) | Failure::Ended { .. }) {
            let message = Message::Refused(failure.reason());
            let _ = self.channel.try_send(&message, &[]); // the end of the socket has the same meaning
        }
    }

    /// Returns who owns the function, which is not this process.
    fn owner_after(&self, failure: &Failure) -> Owner {
        let dying = if matches!(failure, Failure::Ended { .. }) { DYING } else { Duration::ZERO };
        match self.peer.as_ref().map(|peer| peer.is_dead(Wait::new("", dying))) {
            Some(Ok(true)) => Owner::Nobody,
            _ => Owner::Source,
        }
    }
}

fn unexpected(got: &Message, awaited: &'static str) -> Failure {
    Failure::Unexpected { got: got.name(), awaited }
}
