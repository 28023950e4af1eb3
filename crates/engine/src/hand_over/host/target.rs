//! The host that takes a function over.

use super::super::error::{Failure, HandOverError, Owner, Refusal};
use super::super::message::Role;
use super::super::name::Name;
use super::super::target::{TakenOver, Target, TargetStep};
use super::super::wait::Wait;
use super::greeting::{Terms, greet};
use super::message::{Head, Part};
use super::pages::Arriving;
use super::pipe::Pipe;
use crate::config::ClusterKey;
use crate::sys::fence::Destination;
use crate::sys::tcp_repair::{Restored, TcpImage, restore};
use ironwarp_rnic::memory::KeyMask;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long a target that refuses tries to tell the source.
const LAST_WORD: Duration = Duration::from_secs(1);
/// When addresses are announced once more, because an announcement can be lost (RFC 5227 §1.1, RFC 4861 §10).
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(1);
/// Time limit for COMMIT, in effect none: the target waits until the pipe ends. Meanwhile it does nothing that peers could
/// notice, and if it gave up, a COMMIT on its way would find no owner.
const UNTIL_DECIDED: Duration = Duration::from_secs(u32::MAX as u64);

/// A function that arrives from another host.
pub trait HostTarget: Target {
    /// Sets the mask of the key in the snapshot. Called before [`load`](Target::load).
    fn reveal_key(&mut self, mask: KeyMask);

    /// Creates the file of a buffer, filled with zeros.
    fn allocate(&mut self, len: u64) -> Result<OwnedFd, Refusal>;

    /// Takes the bytes that were in the buffers of a connection: those that had arrived at the source, and those that it
    /// had not sent. Called before [`load`](Target::load), for the queue pair with this number.
    fn carry(&mut self, number: u32, received: Vec<u8>, unsent: Vec<u8>);

    /// Listens at an address that this host may not have yet, for the listener with this number.
    fn listen(&mut self, number: u32, at: SocketAddr) -> Result<(), Refusal>;
}

/// How a function is taken over from another host.
#[derive(Clone, Debug)]
pub struct HostTargetOptions {
    /// The interface that gets the addresses of the function.
    pub interface: String,
    /// How long each message of the source is waited for until the function is offered.
    pub timeout: Duration,
    /// The versions of snapshots that [`Target::load`] can read.
    pub versions: RangeInclusive<u16>,
    /// Maximum length of the connections, the snapshot and the bytes of the program.
    pub state: u64,
    /// Maximum length of all buffers.
    pub memory: u64,
}

/// Takes a function over from another host, at which [`hand_over_to_host`](super::hand_over_to_host) writes what is read from
/// `input`. If this fails, everything that was received is closed.
///
/// Must be called in the network namespace that gets the addresses of the function.
pub fn take_over_from_host<T: HostTarget>(
    input: OwnedFd,
    output: OwnedFd,
    target: T,
    key: &ClusterKey,
    options: &HostTargetOptions,
) -> Result<TakenOver<T::Active>, HandOverError> {
    let pipe = match Pipe::new(input, output) {
        Ok(pipe) => pipe,
        Err(failure) => {
            target.discard();
            return Err(HandOverError { failure, owner: Owner::Source });
        }
    };
    let mut run = Run {
        pipe,
        target,
        key,
        options,
        buffers: Arriving::new(options.memory),
        destinations: BTreeMap::new(),
        state: State::default(),
        sockets: Vec::new(),
    };
    let epoch = match run.prepare() {
        Ok(epoch) => epoch,
        Err(failure) => {
            run.refuse(&failure);
            run.target.discard();
            return Err(HandOverError { failure, owner: Owner::Source });
        }
    };
    // The source has given the function away. Nobody else can continue it.
    if let Err(failure) = run.begin() {
        run.target.discard();
        return Err(HandOverError { failure, owner: Owner::Nobody });
    }
    let Run { mut pipe, target, destinations, state, .. } = run;
    let active = target.activate();
    if let Err(error) = pipe.send(&Head::Taken, &[], Wait::new("room in the pipe", LAST_WORD)) {
        tracing::warn!(%error, "failed to tell the source that its function was taken over");
    }
    announce_again(destinations.into_values().collect());
    Ok(TakenOver { active, epoch, program: state.program, adopted: false })
}

/// The state of a function, as far as it has arrived.
#[derive(Debug, Default)]
struct State {
    sockets: BTreeMap<u32, Vec<u8>>,
    snapshot: Vec<u8>,
    program: Vec<u8>,
    /// Length of all of it.
    len: u64,
}

/// A move in progress.
struct Run<'a, T> {
    pipe: Pipe,
    target: T,
    key: &'a ClusterKey,
    options: &'a HostTargetOptions,
    buffers: Arriving,
    destinations: BTreeMap<IpAddr, Destination>,
    state: State,
    /// The connections, in repair mode.
    sockets: Vec<Restored>,
}

impl<T: HostTarget> Run<'_, T> {
    /// Everything until the source has given the function away. Returns how many times it was offered.
    fn prepare(&mut self) -> Result<u64, Failure> {
        let timeout = self.options.timeout;
        let terms = Terms {
            role: Role::Target,
            versions: &self.options.versions,
            state: self.options.state,
            memory: self.options.memory,
            key: self.key,
            timeout,
        };
        let (version, mask) = greet(&mut self.pipe, &terms, || self.target.at(TargetStep::HelloSent))?;
        self.target.reveal_key(mask);
        self.target.at(TargetStep::HelloReceived);
        let epoch = loop {
            let (head, payload) = self.pipe.receive(Wait::new("OFFER", timeout))?;
            match head {
                Head::Address(ip, prefix_len) => {
                    let destination = Destination::prepare(ip, prefix_len, &self.options.interface);
                    self.destinations.insert(ip, destination.map_err(Refusal::of)?);
                }
                Head::Buffer { first, addr, len } => {
                    let name = Name::Buffer { first, addr, len };
                    self.buffers.add(name, len, || self.target.allocate(len))?;
                }
                Head::Pages { buffer, offset } => self.buffers.write(buffer, offset, payload)?,
                Head::Prepare => {
                    self.pass_buffers()?;
                    self.target.prepare()?;
                    self.target.at(TargetStep::Prepared);
                    self.pipe.send(&Head::Ready, &[], Wait::new("room in the pipe", timeout))?;
                    self.target.at(TargetStep::ReadySent);
                }
                Head::Listener(number, at) => self.target.listen(number, at)?,
                Head::State(part) => self.state.add(part, payload, self.options.state)?,
                Head::Offer { epoch, version: offered } if offered == version => break epoch,
                other => return Err(other.unexpected("OFFER")),
            }
        };
        self.target.at(TargetStep::Offered);
        self.load(version)?;
        self.target.at(TargetStep::Loaded);
        self.pipe.send(&Head::Loaded, &[], Wait::new("room in the pipe", timeout))?;
        self.target.at(TargetStep::LoadedSent);
        match self.pipe.receive(Wait::new("COMMIT", UNTIL_DECIDED))?.0 {
            Head::Commit => Ok(epoch),
            other => Err(other.unexpected("COMMIT")),
        }
    }

    /// Passes the buffers that are new to the target.
    fn pass_buffers(&mut self) -> Result<(), Failure> {
        for (name, file) in self.buffers.take_new()? {
            self.target.copy(&name.to_bytes(), file)?;
        }
        Ok(())
    }

    /// Restores the connections, in repair mode, and loads the snapshot.
    fn load(&mut self, version: u16) -> Result<(), Failure> {
        self.pass_buffers()?;
        for (number, bytes) in std::mem::take(&mut self.state.sockets) {
            let image = TcpImage::decode(&bytes).map_err(Refusal::of)?;
            let ip = image.local.ip().to_canonical();
            if !self.destinations.contains_key(&ip) {
                return Err(
                    Refusal(format!("a connection has the address {ip}, which was not announced")).into()
                );
            }
            let mut socket = restore(image).map_err(Refusal::of)?;
            let copy = socket.try_clone_fd().map_err(Failure::system("duplicate a descriptor"))?;
            let (received, unsent) = socket.take_buffered();
            self.target.copy(&Name::Socket(number).to_bytes(), copy)?;
            self.target.carry(number, received, unsent);
            self.sockets.push(socket);
        }
        self.target.load(version, &std::mem::take(&mut self.state.snapshot))?;
        Ok(())
    }

    /// Adds the addresses to the interface, and lets the connections continue.
    fn begin(&mut self) -> Result<(), Failure> {
        for destination in self.destinations.values() {
            destination.take_address().map_err(Refusal::of)?;
        }
        for socket in &mut self.sockets {
            socket.leave_repair().map_err(Failure::system("continue a connection"))?;
        }
        Ok(())
    }

    /// Tells the source that this process takes no further part, if the source does not know.
    fn refuse(&mut self, failure: &Failure) {
        if !matches!(failure, Failure::Refused(_) | Failure::Ended { .. }) {
            let (reason, wait) = (failure.short_reason(), Wait::new("room in the pipe", LAST_WORD));
            let _ = self.pipe.send(&Head::Refused, reason.as_bytes(), wait); // its end has the same meaning
        }
    }
}

impl State {
    /// Adds bytes to a part.
    fn add(&mut self, part: Part, bytes: &[u8], limit: u64) -> Result<(), Failure> {
        self.len += bytes.len() as u64;
        if self.len > limit {
            return Err(Failure::StateTooLong { len: self.len, limit });
        }
        match part {
            Part::Socket(number) => self.sockets.entry(number).or_default().extend(bytes),
            Part::Snapshot => self.snapshot.extend(bytes),
            Part::Program => self.program.extend(bytes),
        }
        Ok(())
    }
}

/// Announces addresses once more, some time later.
fn announce_again(destinations: Vec<Destination>) {
    let announce = move || {
        std::thread::sleep(ANNOUNCE_AGAIN);
        for destination in destinations {
            if let Err(error) = destination.announce() {
                tracing::warn!(%error, "failed to announce an address again");
            }
        }
    };
    let started = std::thread::Builder::new().name("ironwarp-announce".to_owned()).spawn(announce);
    if let Err(error) = started {
        tracing::warn!(%error, "failed to start a thread that announces an address again");
    }
}
