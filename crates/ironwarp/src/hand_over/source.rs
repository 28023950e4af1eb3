//! The process that hands its adapter over.

use super::memory;
use super::{HandOverError, HandOverOptions, kept, required_key};
use crate::adapter::Adapter;
use crate::shared::{RegionBuffers, Shared};
use ironwarp_engine::FrozenEngine;
use ironwarp_engine::hand_over::host::{HostSource, hand_over_to_host};
use ironwarp_engine::hand_over::{self, Failure, Name, Named, Owner, Source, SourceOptions, SourceStep};
use ironwarp_engine::sys::socket::TcpLink;
use ironwarp_rnic::memory::KeyMask;
use ironwarp_rnic::snapshot::VERSION;
use ironwarp_wire::Tag;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::error::Error;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the command of a move that has failed may take to end.
const ENDING: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The adapter of this process.
struct AdapterSource<'a> {
    shared: &'a Shared,
    /// The sockets of queue pairs, by number.
    sockets: Vec<(u32, Arc<TcpLink>)>,
    /// The sockets of listeners, by number.
    listeners: Vec<(u32, Arc<dyn AsFd + Send + Sync>)>,
    /// The buffers of regions.
    buffers: Vec<Arc<dyn RegionBuffers>>,
    /// The state of the adapter while it is frozen.
    frozen: Option<FrozenEngine>,
    /// Called after each step.
    at: fn(&dyn fmt::Debug),
    /// How long the program has to decide on incoming connections.
    pause: Duration,
    /// Hides the key of the tag cipher from those who read what travels to another host.
    mask: KeyMask,
}

/// A region cannot move, because its memory is not shareable.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("region {0} cannot move: its memory is not in buffers that are shareable (Buffer::builder)")]
struct NotShareable(Tag);

impl Adapter {
    /// Hands this adapter over to the process at the other end of a SEQPACKET socket, which calls
    /// [`take_over`](Self::take_over). Its peers notice nothing but a pause. Afterwards, the objects of this process can no longer be
    /// used: the program drops them.
    ///
    /// Listeners move with their backlogs. Connections that have sent their request are accepted or rejected here: another
    /// thread goes on doing so until this returns, or the hand-over fails after [`HandOverOptions::pause`].
    ///
    /// Connections on one host leave shared memory first, and stay on TCP. See [`hand_over`](crate::hand_over).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::Adapter;
    /// use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
    /// use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    ///
    /// let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    /// let next = std::thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new()));
    /// Adapter::new()?.hand_over(here, &HandOverOptions::new().data(b"version 1"))?;
    /// assert_eq!(next.join().unwrap()?.data, b"version 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If this fails, this process still owns the adapter, and goes on: something cannot move, the other process refuses, or it
    /// does not answer in time.
    pub fn hand_over(&self, to: impl Into<OwnedFd>, options: &HandOverOptions) -> Result<(), HandOverError> {
        let mut source = self.begin_move(options)?;
        hand_over::hand_over(to.into(), &mut source, &source_options(options)).map(|_| ())
    }

    /// Moves this adapter to another host. `command` runs a program there whose standard input and output are those of the
    /// command, usually by `ssh`; the program calls [`take_over_from_host`](Self::take_over_from_host). Otherwise this is
    /// like [`hand_over`](Self::hand_over), and it returns the command, which still runs.
    ///
    /// - The addresses of the connections move, too: this host loses them. So this process needs the capabilities CAP_NET_ADMIN
    ///   and CAP_NET_RAW, and must be in the network namespace of the addresses.
    /// - Both hosts have the same [cluster key](crate::Config::key_file), which does not travel.
    /// - The contents of buffers are copied. Once this was called, only peers may change them.
    /// - Peers that connect while the adapter is frozen are refused, and can connect again.
    ///
    /// ```
    /// use ironwarp::Adapter;
    /// use ironwarp::hand_over::HandOverOptions;
    /// use std::process::Command;
    ///
    /// let adapter = Adapter::new()?;
    /// let mut ssh = Command::new("ssh");
    /// ssh.args(["root@next-host", "server", "--take-over", "eth0"]);
    /// let refused = adapter.hand_over_to_host(ssh, &HandOverOptions::new()).unwrap_err();
    /// assert!(refused.to_string().starts_with("no cluster key is set: both hosts need the same one"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If this fails, this process usually still owns the adapter, and goes on: something cannot move, the addresses cannot
    /// be removed, or the other host refuses or does not answer in time. If the [owner](HandOverError::owner) is the target, the
    /// other host was told to go on, and has not confirmed that it does.
    pub fn hand_over_to_host(
        &self,
        mut command: Command,
        options: &HandOverOptions,
    ) -> Result<Child, HandOverError> {
        let key = required_key(self.shared.engine.config())?;
        let mut source = self.begin_move(options)?;
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            started.map_err(|error| kept(Failure::System { doing: "start the command", error }))?;
        let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
            unreachable!("both were requested");
        };
        let options = source_options(options);
        let moved = hand_over_to_host(input.into(), output.into(), &mut source, &key, &options);
        match moved {
            Ok(_) => Ok(child),
            Err(error) => {
                if error.owner == Owner::Source {
                    end(child);
                }
                Err(error)
            }
        }
    }

    /// Waits until all objects can move, and lists them.
    fn begin_move(&self, options: &HandOverOptions) -> Result<AdapterSource<'_>, HandOverError> {
        let kept = |error: Box<dyn Error + Send + Sync>| kept(Failure::Freeze(error));
        let engine = &self.shared.engine;
        engine.wait_until_movable(Instant::now() + options.timeout).map_err(|error| kept(error.into()))?;
        self.check_memory().map_err(|error| kept(error.into()))?;
        let mut source = AdapterSource {
            shared: &self.shared,
            sockets: Vec::new(),
            listeners: Vec::new(),
            buffers: Vec::new(),
            frozen: None,
            at: options.at,
            pause: options.pause,
            mask: KeyMask::default(),
        };
        source.list_descriptors();
        Ok(source)
    }

    /// Checks that all regions are in shareable buffers.
    fn check_memory(&self) -> Result<(), NotShareable> {
        let all = self.shared.buffers.all();
        let files = all.iter().filter_map(|buffers| memory::files(&**buffers)).flatten();
        let mut firsts: Vec<u64> = files
            .filter_map(|(name, _)| match name {
                Name::Buffer { addr, .. } => Some(addr),
                Name::Socket(_) | Name::Listener(_) => None,
            })
            .collect();
        firsts.sort_unstable();
        let regions = self.shared.device().table().regions();
        match regions.iter().find(|(_, addr)| firsts.binary_search(addr).is_err()) {
            Some((info, _)) => Err(NotShareable(info.tag)),
            None => Ok(()),
        }
    }
}

/// Ends the command, whose pipes are closed. It has a moment to do so itself.
fn end(mut child: Child) {
    if let Ok(process) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&ENDING));
    }
    let _ = child.kill(); // it may have ended
    let _ = child.wait();
}

/// Returns the options of the protocol.
fn source_options(options: &HandOverOptions) -> SourceOptions {
    SourceOptions {
        timeout: options.timeout,
        pause: options.pause,
        versions: VERSION..=VERSION,
        epoch: 0,
        program: options.data.clone(),
    }
}

impl AdapterSource<'_> {
    /// Lists the sockets and buffers that exist now.
    fn list_descriptors(&mut self) {
        self.sockets = self.shared.engine.connected_sockets();
        self.listeners = self.shared.engine.listening_sockets();
        self.buffers = self.shared.buffers.all();
    }
}

impl Source for AdapterSource<'_> {
    fn descriptors(&self) -> Vec<Named<'_>> {
        let sockets =
            self.sockets.iter().map(|(number, link)| (Name::Socket(*number).to_bytes(), link.as_fd()));
        let listeners = self
            .listeners
            .iter()
            .map(|(number, socket)| (Name::Listener(*number).to_bytes(), socket.as_fd()));
        // Buffers that are not shareable stay: no region needs them, or the other process refuses.
        let files = self.buffers.iter().filter_map(|buffers| memory::files(&**buffers)).flatten();
        sockets.chain(listeners).chain(files.map(|(name, file)| (name.to_bytes(), file))).collect()
    }

    fn freeze(&mut self, _: u16) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let deadline = Instant::now() + self.pause;
        let paused = self.shared.engine.pause_listening(deadline)?;
        self.shared.engine.wait_until_movable(deadline)?; // connections may have been accepted since
        let mut frozen = self.shared.engine.freeze(paused)?;
        match self.shared.engine.store(&mut frozen, self.mask) {
            Ok(state) => {
                self.frozen = Some(frozen);
                self.list_descriptors();
                Ok(state)
            }
            Err(error) => {
                frozen.thaw();
                Err(error.into())
            }
        }
    }

    fn thaw(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            frozen.thaw();
        }
    }

    fn release(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            frozen.surrender();
        }
    }

    fn at(&self, step: SourceStep) {
        (self.at)(&step);
    }
}

impl HostSource for AdapterSource<'_> {
    fn hide_key(&mut self, mask: KeyMask) {
        self.mask = mask;
    }
}
