//! The host that gives a function away.

use super::super::error::{Failure, HandOverError, Owner, Refusal};
use super::super::message::Role;
use super::super::name::Name;
use super::super::source::{HandedOver, Source, SourceOptions, SourceStep};
use super::super::wait::Wait;
use super::greeting::{Terms, greet};
use super::message::{Head, MAX_PAYLOAD, Part};
use super::pages::Sent;
use super::pipe::Pipe;
use crate::config::ClusterKey;
use crate::sys::fence::{Fence, prefix_len_of};
use crate::sys::tcp_repair::{TcpImage, dump, thaw};
use ironwarp_rnic::memory::KeyMask;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Maximum number of times that buffers are copied while the function runs.
const MAX_ROUNDS: usize = 8;
/// Number of changed bytes that is small enough for the time in which the function is frozen.
const FEW: u64 = 1 << 20;
/// How long a source that keeps its function tries to tell the target, and waits for the reason of the target.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A function that can move to another host. Its descriptors have the names of [`Name`].
pub trait HostSource: Source {
    /// Sets the mask of the key in the snapshot. Called before [`freeze`](Source::freeze).
    fn hide_key(&mut self, mask: KeyMask);
}

/// Moves a function to another host, at which [`take_over_from_host`](super::take_over_from_host) reads what is written to
/// `output`. If this fails with [`Owner::Source`], the function was thawed, and this process still owns it.
///
/// Must be called in the network namespace of the function's sockets.
pub fn hand_over_to_host(
    input: OwnedFd,
    output: OwnedFd,
    source: &mut dyn HostSource,
    key: &ClusterKey,
    options: &SourceOptions,
) -> Result<HandedOver, HandOverError> {
    let kept = |failure| HandOverError { failure, owner: Owner::Source };
    let pipe = Pipe::new(input, output).map_err(kept)?;
    let mut run = Run {
        pipe,
        source,
        key,
        options,
        sent: Sent::default(),
        addresses: BTreeSet::new(),
        fences: Vec::new(),
        images: HashMap::new(),
    };
    let version = run.prepare().map_err(|failure| kept(run.refuse(failure)))?;
    let snapshot = run.source.freeze(version).map_err(|error| kept(run.refuse(Failure::Freeze(error))))?;
    // From here on the function is frozen, and only one of `release` and `thaw` ends that.
    run.source.at(SourceStep::Frozen);
    let epoch = options.epoch.wrapping_add(1);
    match run.offer(epoch, version, &snapshot).and_then(|()| run.commit()) {
        Ok(()) => {
            // In this order: without the address, closing the sockets sends nothing.
            let confirmed = run.pipe.receive(Wait::new("TAKEN", options.timeout)).map(|(head, _)| head);
            run.source.release();
            drop(run.fences);
            match confirmed {
                Ok(Head::Taken) => Ok(HandedOver { epoch }),
                Ok(other) => Err(unconfirmed(other.unexpected("TAKEN"))),
                Err(failure) => Err(unconfirmed(failure)),
            }
        }
        Err(failure) => {
            run.take_back();
            Err(kept(run.refuse(failure)))
        }
    }
}

/// The function was given away, and the target has not confirmed that it runs.
fn unconfirmed(failure: Failure) -> HandOverError {
    HandOverError { failure: Failure::Unconfirmed(Box::new(failure)), owner: Owner::Target }
}

/// A move in progress.
struct Run<'a> {
    pipe: Pipe,
    source: &'a mut dyn HostSource,
    key: &'a ClusterKey,
    options: &'a SourceOptions,
    /// What the target has of the buffers.
    sent: Sent,
    /// The addresses that the target is prepared for.
    addresses: BTreeSet<IpAddr>,
    /// The addresses that this host does not have any more.
    fences: Vec<Fence>,
    /// The connections that were dumped, by the number of the queue pair.
    images: HashMap<u32, TcpImage>,
}

impl Run<'_> {
    /// Everything before the function is frozen. Returns the version of the snapshot.
    fn prepare(&mut self) -> Result<u16, Failure> {
        let terms = Terms {
            role: Role::Source,
            versions: &self.options.versions,
            state: 0,
            memory: 0,
            key: self.key,
            timeout: self.options.timeout,
        };
        let (version, mask) = greet(&mut self.pipe, &terms, || self.source.at(SourceStep::HelloSent))?;
        self.source.hide_key(mask);
        self.source.at(SourceStep::HelloReceived);
        let timeout = self.options.timeout;
        let wait = || Wait::new("room in the pipe", timeout);
        for ip in self.local_addresses()? {
            let prefix_len = prefix_len_of(ip).map_err(Refusal::of)?;
            self.pipe.send(&Head::Address(ip, prefix_len), &[], wait())?;
            self.addresses.insert(ip);
        }
        let mut last = u64::MAX;
        for _ in 0..MAX_ROUNDS {
            let changed = self.send_memory()?;
            self.source.at(SourceStep::Copying);
            if changed <= FEW || changed > last / 2 {
                break; // further rounds would not make the last one shorter
            }
            last = changed;
        }
        self.source.at(SourceStep::Copied);
        let wait = Wait::new("READY", self.options.timeout);
        self.pipe.send(&Head::Prepare, &[], wait)?;
        self.source.at(SourceStep::Asked);
        self.expect(&Head::Ready, wait)?;
        self.source.at(SourceStep::Ready);
        Ok(version)
    }

    /// Returns the local addresses of all sockets, except for those of listeners at all addresses.
    fn local_addresses(&self) -> Result<BTreeSet<IpAddr>, Failure> {
        let mut addresses = BTreeSet::new();
        for (name, fd) in named(&*self.source) {
            match name {
                Name::Buffer { .. } => {}
                Name::Socket(_) => drop(addresses.insert(local_address(fd)?.ip().to_canonical())),
                Name::Listener(_) => {
                    let ip = local_address(fd)?.ip().to_canonical();
                    addresses.extend(Some(ip).filter(|ip| !ip.is_unspecified()));
                }
            }
        }
        Ok(addresses)
    }

    /// Announces the buffers that are new, and sends the contents that have changed. Returns the number of bytes.
    fn send_memory(&mut self) -> Result<u64, Failure> {
        let timeout = self.options.timeout;
        let wait = || Wait::new("room in the pipe", timeout);
        let mut changed = 0;
        for (name, file) in named(&*self.source) {
            let Name::Buffer { first, addr, len } = name else { continue };
            if self.sent.add(name, usize::try_from(len).unwrap_or(usize::MAX)) {
                self.pipe.send(&Head::Buffer { first, addr, len }, &[], wait())?;
            }
            changed += self.sent.send_changes(name, file, |change| {
                let head = Head::Pages { buffer: change.buffer, offset: change.offset };
                self.pipe.send(&head, change.bytes, wait())
            })?;
        }
        Ok(changed)
    }

    /// Removes the addresses, dumps the connections, and offers the frozen function. Waits until the target has loaded it.
    fn offer(&mut self, epoch: u64, version: u16, snapshot: &[u8]) -> Result<(), Failure> {
        let wait = Wait::new("LOADED", self.options.pause);
        let addresses = self.local_addresses()?;
        if let Some(new) = addresses.iter().find(|ip| !self.addresses.contains(ip)) {
            return Err(Refusal(format!("a connection was made at {new} meanwhile: try again")).into());
        }
        for ip in addresses {
            self.fences.push(Fence::raise(ip).map_err(Refusal::of)?);
        }
        self.source.at(SourceStep::Fenced);
        let mut images = HashMap::new();
        let dumped = self.dump(&mut images);
        self.images = images; // those of connections that must continue if another one could not be dumped
        dumped?;
        self.send_memory()?;
        for (name, fd) in named(&*self.source) {
            if let Name::Listener(number) = name {
                self.pipe.send(&Head::Listener(number, local_address(fd)?), &[], wait)?;
            }
        }
        for (number, image) in &self.images {
            send_state(&mut self.pipe, Part::Socket(*number), &image.encode(), wait)?;
        }
        send_state(&mut self.pipe, Part::Snapshot, snapshot, wait)?;
        send_state(&mut self.pipe, Part::Program, &self.options.program, wait)?;
        self.pipe.send(&Head::Offer { epoch, version }, &[], wait)?;
        self.source.at(SourceStep::Offered);
        self.expect(&Head::Loaded, wait)?;
        self.source.at(SourceStep::Loaded);
        Ok(())
    }

    /// Dumps all connections.
    fn dump(&self, images: &mut HashMap<u32, TcpImage>) -> Result<(), Failure> {
        for (name, fd) in named(&*self.source) {
            let Name::Socket(number) = name else { continue };
            let ip = local_address(fd)?.ip().to_canonical();
            let fence = self.fences.iter().find(|fence| fence.ip() == ip);
            let fence = fence.ok_or_else(|| Refusal(format!("{ip} is not fenced")))?;
            images.insert(number, dump(&fd, fence).map_err(Refusal::of)?);
        }
        Ok(())
    }

    /// Makes the target the owner. If this fails, COMMIT was not sent: a pipe takes a message that is this short as a
    /// whole, or not at all.
    fn commit(&mut self) -> Result<(), Failure> {
        self.pipe.send(&Head::Commit, &[], Wait::new("room in the pipe", Duration::ZERO))?;
        self.source.at(SourceStep::Committed);
        Ok(())
    }

    /// Waits for this message.
    fn expect(&mut self, expected: &Head, wait: Wait) -> Result<(), Failure> {
        match self.pipe.receive(wait)?.0 {
            head if head == *expected => Ok(()),
            other => Err(other.unexpected(expected.name())),
        }
    }

    /// Puts the addresses back, and lets the function run again.
    fn take_back(&mut self) {
        for fence in std::mem::take(&mut self.fences) {
            let ip = fence.ip();
            if let Err(error) = fence.put_back() {
                tracing::error!(%error, %ip, "failed to put an address back: add it, and connections continue");
            }
        }
        for (name, fd) in named(&*self.source) {
            let Name::Socket(number) = name else { continue };
            let Some(image) = self.images.get(&number) else { continue };
            if let Err(error) = thaw(&fd, image) {
                tracing::error!(%error, qp = number, "failed to continue a connection");
            }
        }
        self.source.thaw();
    }

    /// Tells the target that the source keeps its function. Returns the failure, with the target's reason if there is one.
    fn refuse(&mut self, failure: Failure) -> Failure {
        let wait = Wait::new("room in the pipe", LAST_WORD);
        let failure = self.pipe.explain(failure, wait);
        match self.pipe.send(&Head::Refused, failure.short_reason().as_bytes(), wait) {
            Ok(()) | Err(Failure::Ended { .. }) => {}
            Err(error) => tracing::warn!(%error, "failed to tell the target that the function stays"),
        }
        failure
    }
}

/// Sends a part of the state.
fn send_state(pipe: &mut Pipe, part: Part, bytes: &[u8], wait: Wait) -> Result<(), Failure> {
    bytes.chunks(MAX_PAYLOAD).try_for_each(|chunk| pipe.send(&Head::State(part), chunk, wait))
}

/// Returns the descriptors of a function that have a name of an adapter.
fn named(source: &dyn HostSource) -> impl Iterator<Item = (Name, BorrowedFd<'_>)> {
    source.descriptors().into_iter().filter_map(|(name, fd)| Some((Name::from_bytes(&name)?, fd)))
}

fn local_address(fd: BorrowedFd<'_>) -> Result<SocketAddr, Failure> {
    let local = rustix::net::getsockname(fd).and_then(SocketAddr::try_from);
    local.map_err(Failure::system("read the address of a socket"))
}
