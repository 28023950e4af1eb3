//! The program of a host: connects its port to the LAN of a unit, and attaches again when the unit was gone.
//!
//! Two threads move frames, one for each direction: one sleeps on the port, the other on the connections.

use crate::arrived::Arrived;
use crate::channel::{Channel, Failure, Hello, Io, Kind};
use crate::endpoint::{Endpoint, Event, Room, lock, settings};
use crate::keys::nonce;
use crate::port::Port;
use ironwarp::WaitError;
use ironwarp::connection::{ConnectOptions, MpaMode};
use ironwarp_io_unit::auth::Key;
use ironwarp_io_unit::message::{HostName, Mac, Mode, Request};
use ironwarp_io_unit::session::{Channel as SessionChannel, Identity, Reason, Session};
use rustix::event::{EventfdFlags, eventfd};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Shortest and longest pause between attempts to attach.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Time limit for connecting one channel.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of the session's timer.
const TICK: Duration = Duration::from_secs(1);
/// Interval of the requests that show whether the unit is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A host and its port.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) unit: String,
    pub(crate) name: HostName,
    pub(crate) mac: Mac,
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) mtu: u32,
    pub(crate) port: Port,
    pub(crate) current: Current,
}

/// The session of a host, for the thread that gets signals.
#[derive(Debug, Default)]
pub(crate) struct Current(Mutex<Attachment>);

#[derive(Debug, Default)]
enum Attachment {
    #[default]
    None,
    Session(Arc<Endpoint>),
    /// The host must not attach again.
    Stopped,
}

impl Current {
    /// Detaches the host for ever. Returns false if it is not attached.
    pub(crate) fn detach(&self) -> bool {
        match std::mem::replace(&mut *lock(&self.0), Attachment::Stopped) {
            Attachment::Session(endpoint) => {
                endpoint.call(Session::detach);
                true
            }
            Attachment::None | Attachment::Stopped => false,
        }
    }

    /// Sets or forgets the session, unless the host is stopped. Returns false if it is.
    fn set(&self, attachment: Attachment) -> bool {
        let mut current = lock(&self.0);
        let stopped = matches!(*current, Attachment::Stopped);
        if !stopped {
            *current = attachment;
        }
        !stopped
    }
}

impl Host {
    /// Runs until the host is detached, its port is gone, or the unit refuses the first Attach.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let offloads = self.port.enable_offloads()?;
        let io = Io::open()?;
        let mut pause = MIN_PAUSE;
        let mut attached = false;
        loop {
            let link = Link::connect(self, &io, offloads);
            let ended = link.and_then(|mut link| {
                if !self.current.set(Attachment::Session(Arc::clone(&link.endpoint))) {
                    return Ok(Reason::Detached);
                }
                let reason = link.run();
                if !self.current.set(Attachment::None) {
                    return Ok(Reason::Detached);
                }
                attached |= link.up;
                if link.up {
                    pause = MIN_PAUSE;
                    self.port.set_carrier(false)?;
                }
                reason
            });
            match ended {
                Ok(Reason::Detached) => return Ok(()),
                Ok(reason @ (Reason::Refused(_) | Reason::WrongUnit)) if !attached => {
                    return Err(reason.into());
                }
                Ok(reason) => eprintln!("session with {} ended: {reason}", self.unit),
                Err(error) if error.is::<Fatal>() => return Err(error),
                Err(error) => eprintln!("failed to attach to {}: {error}", self.unit),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

/// Attaching again would not help.
#[derive(Debug, thiserror::Error)]
enum Fatal {
    #[error("the TAP device is gone, or its network namespace: {0}")]
    Gone(std::io::Error),
    #[error("MTU {own} exceeds that of the unit: use --mtu {unit}")]
    Mtu { own: u32, unit: u32 },
}

/// A session of a host, with its port.
struct Link<'a> {
    host: &'a Host,
    io: &'a Io,
    unit: SocketAddr,
    endpoint: Arc<Endpoint>,
    next_tick: Duration,
    keepalive: Duration,
    up: bool,
}

impl<'a> Link<'a> {
    fn connect(host: &'a Host, io: &'a Io, offloads: u32) -> Result<Self, Failure> {
        let unit = host.unit.to_socket_addrs()?.next().ok_or("the name of the unit has no address")?;
        let domain = io.adapter.protection_domain();
        let control = Channel::new(io, &domain, Kind::Control)?;
        control.qp.connect(unit, &connect_options(Hello::Control))?;
        let identity = Identity {
            name: host.name.clone(),
            macs: vec![host.mac],
            key: host.key.clone(),
            mode: host.mode,
            nonce: nonce()?,
        };
        let now = io.now();
        let session = Session::host(settings(offloads, host.mtu), identity, now)?;
        let endpoint = Arc::new(Endpoint::new(session, control, domain));
        Ok(Self { host, io, unit, endpoint, next_tick: now + TICK, keepalive: now + KEEPALIVE, up: false })
    }

    /// Moves frames in both directions until the session ends.
    fn run(&mut self) -> Result<Reason, Failure> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (host, endpoint) = (self.host, Arc::clone(&self.endpoint));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let result = send_frames(host, &endpoint, &stop);
                if result.is_err() {
                    endpoint.call(|session| session.end(Reason::Shutdown));
                }
                result
            });
            let reason = self.receive_frames();
            endpoint.call(|session| session.end(Reason::Shutdown));
            rustix::io::write(&stop, &1u64.to_ne_bytes())?;
            match reader.join() {
                Ok(result) => result.map_err(Fatal::Gone)?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            reason
        })
    }

    /// Processes completions, and writes the frames that have arrived to the port.
    fn receive_frames(&mut self) -> Result<Reason, Failure> {
        let (mut events, mut done) = (Vec::new(), Vec::new());
        let mut ready = vec![SessionChannel::Control];
        loop {
            for channel in std::mem::take(&mut ready) {
                if self.endpoint.pump(channel, &mut events) {
                    ready.push(channel);
                }
                for event in events.drain(..) {
                    match event {
                        Event::ConnectData => {
                            self.connect_data()?;
                            ready.push(SessionChannel::Data);
                        }
                        event => {
                            if let Some(reason) = self.handle(event, &mut done)? {
                                return Ok(reason);
                            }
                        }
                    }
                }
                self.endpoint.release(&mut done);
            }
            if self.tick() {
                ready.push(SessionChannel::Control);
            }
            if ready.is_empty() {
                match self.io.handler.wait(TICK) {
                    Ok(event) => ready.push(self.endpoint.channel_of(event.cq)),
                    Err(WaitError::TimedOut) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            while let Some(event) = self.io.handler.try_next() {
                ready.push(self.endpoint.channel_of(event.cq));
            }
        }
    }

    fn handle(&mut self, event: Event, done: &mut Vec<Arrived>) -> Result<Option<Reason>, Failure> {
        match event {
            Event::Frame(frame) => {
                self.host.port.write(&frame);
                done.push(frame);
            }
            Event::Up => {
                let (_, unit) = self.endpoint.query(Session::link).unwrap_or_default();
                let own = self.host.mtu;
                if unit < own {
                    return Err(Fatal::Mtu { own, unit }.into());
                }
                // The unit drops longer frames from now on.
                let _ = self.endpoint.call(|session| session.request(&Request::Mtu(own)));
                self.host.port.set_carrier(true)?;
                self.up = true;
                println!("attached to {} as {} with {}", self.unit, self.host.name, self.host.mac);
            }
            Event::Ended(reason) => return Ok(Some(reason)),
            Event::ConnectData | Event::Authenticate { .. } => return Err("not for a host".into()),
        }
        Ok(None)
    }

    fn connect_data(&mut self) -> Result<(), Failure> {
        let (session, _) = self.endpoint.query(Session::number).ok_or("not attached")?;
        let data = self.endpoint.data_channel(self.io)?;
        data.qp.connect(self.unit, &connect_options(Hello::Data { session }))?;
        self.endpoint.set_data(data);
        self.endpoint.call(Session::data_connected);
        Ok(())
    }

    /// Returns whether it was time for it: then there may be events.
    fn tick(&mut self) -> bool {
        let now = self.io.now();
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + TICK;
        self.endpoint.call(|session| session.tick(now));
        if now >= self.keepalive {
            self.keepalive = now + KEEPALIVE;
            // Refused until the host is attached, and after the end.
            let _ = self.endpoint.call(|session| session.request(&Request::Statistics));
        }
        true
    }
}

/// Neither end may read from the other: both push (requirement P9). The host sends first, so no Read is needed to start either.
fn connect_options(hello: Hello) -> ConnectOptions {
    let options = ConnectOptions::new().private_data(&hello.encode()).timeout(CONNECT);
    options.mpa_mode(MpaMode::ClientServer).ird(0).ord(0)
}

/// Sends the frames of the port, until the session has ended.
fn send_frames(host: &Host, endpoint: &Endpoint, stop: &OwnedFd) -> std::io::Result<()> {
    while endpoint.wait_for_room(TICK) != Room::Ended {
        let mut batch = endpoint.batch();
        let mut empty = false;
        while let Some(space) = batch.space() {
            match host.port.read(&space)? {
                // Frames that the session does not take are lost, as on a LAN.
                Some(len) => drop(batch.add(&space, len)),
                None => {
                    empty = true;
                    break;
                }
            }
        }
        drop(batch);
        if empty && !host.port.wait(Some(stop.as_fd()))? {
            break;
        }
    }
    Ok(())
}
