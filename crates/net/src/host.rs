//! The program of a host: connects a TAP device to the LAN of a unit, and attaches again when the unit was gone.

use crate::channel::{Channel, Failure, Hello, Io, Kind};
use crate::endpoint::{Clock, Endpoint, Event, nonce, settings};
use crate::frame::{ALL_OFFLOADS, MAX_FRAME, TCP_OFFLOADS};
use crate::tap::Tap;
use ironwarp::connection::ConnectOptions;
use ironwarp_io_unit::auth::Key;
use ironwarp_io_unit::message::{HostName, Mac, Mode, Request};
use ironwarp_io_unit::session::{Identity, Reason, Session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

/// Shortest and longest pause between attempts to attach.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Time limit for connecting one channel.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of the session's timer.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Interval of the requests that show whether the unit is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Frames or completions that are processed before the other kind has its turn.
const BURST: usize = 64;

/// A host and its link.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) unit: String,
    pub(crate) name: HostName,
    pub(crate) mac: Mac,
    pub(crate) key: Key,
    pub(crate) mtu: u32,
    pub(crate) tap: Tap,
}

impl Host {
    /// Runs until the TAP device is gone, or the unit refuses the first Attach.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let offloads = if self.tap.enable_offloads()? { ALL_OFFLOADS } else { TCP_OFFLOADS };
        let io = Io::open()?;
        let mut pause = MIN_PAUSE;
        let mut attached = false;
        loop {
            let link = Link::connect(self, &io, offloads);
            let ended = link.and_then(|mut link| {
                let reason = link.run();
                attached |= link.up;
                if link.up {
                    pause = MIN_PAUSE;
                    self.tap.set_carrier(false)?;
                }
                reason
            });
            match ended {
                Ok(reason @ (Reason::Refused(_) | Reason::WrongUnit)) if !attached => {
                    return Err(reason.into());
                }
                Ok(reason) => eprintln!("session with {} ended: {reason}", self.unit),
                Err(error) if error.is::<Fatal>() => return Err(error),
                Err(error) => eprintln!("failed to attach to {}: {error}", self.unit),
            }
            std::thread::sleep(pause);
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

/// A session of a host, with its TAP device.
struct Link<'a> {
    host: &'a Host,
    io: &'a Io,
    unit: SocketAddr,
    endpoint: Endpoint,
    clock: Clock,
    keepalive: Duration,
    up: bool,
    stalled: bool,
    frame: Vec<u8>,
}

impl<'a> Link<'a> {
    fn connect(host: &'a Host, io: &'a Io, offloads: u32) -> Result<Self, Failure> {
        let unit = host.unit.to_socket_addrs()?.next().ok_or("the name of the unit has no address")?;
        let domain = io.adapter.protection_domain();
        let control = Channel::new(io, &domain, Kind::Control)?;
        control
            .qp
            .connect(unit, &ConnectOptions::new().private_data(&Hello::Control.encode()).timeout(CONNECT))?;
        let identity = Identity {
            name: host.name.clone(),
            macs: vec![host.mac],
            key: host.key.clone(),
            mode: Mode::Rdma,
            nonce: nonce()?,
        };
        let clock = Clock::start();
        let session = Session::host(settings(offloads, host.mtu), identity, clock.now())?;
        let endpoint = Endpoint::new(session, control, domain);
        let (up, stalled) = (false, false);
        Ok(Self { host, io, unit, endpoint, clock, keepalive: KEEPALIVE, up, stalled, frame: Vec::new() })
    }

    /// Moves frames until the session ends.
    fn run(&mut self) -> Result<Reason, Failure> {
        loop {
            let more = self.read_frames()?;
            self.tick();
            let mut busy = false;
            for _ in 0..BURST {
                busy = self.endpoint.step();
                while let Some(event) = self.endpoint.next_event() {
                    if let Some(reason) = self.handle(event)? {
                        return Ok(reason);
                    }
                }
                if !busy {
                    break;
                }
            }
            if !more && !busy && !self.endpoint.arm() {
                self.wait()?;
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<Option<Reason>, Failure> {
        match event {
            Event::Frame(frame) => {
                self.endpoint.take(frame, &mut self.frame)?;
                self.host.tap.write(&self.frame);
            }
            Event::ConnectData => self.connect_data()?,
            Event::Up => {
                let (_, unit) = self.endpoint.session.link().unwrap_or_default();
                let own = self.host.mtu;
                if unit < own {
                    return Err(Fatal::Mtu { own, unit }.into());
                }
                // The unit drops longer frames from now on.
                let _ = self.endpoint.call(|session| session.request(&Request::Mtu(own)));
                self.host.tap.set_carrier(true)?;
                self.up = true;
                println!("attached to {} as {} with {}", self.unit, self.host.name, self.host.mac);
            }
            Event::Resume => self.stalled = false,
            Event::Ended(reason) => return Ok(Some(reason)),
            Event::Authenticate { .. } => return Err("a host authenticates nobody".into()),
        }
        Ok(None)
    }

    fn connect_data(&mut self) -> Result<(), Failure> {
        let (session, _) = self.endpoint.session.number().ok_or("not attached")?;
        let data = self.endpoint.data_channel(self.io)?;
        let options = ConnectOptions::new().private_data(&Hello::Data { session }.encode()).timeout(CONNECT);
        data.qp.connect(self.unit, &options)?;
        self.endpoint.set_data(data);
        self.endpoint.call(Session::data_connected);
        Ok(())
    }

    /// Sends frames of the TAP device. Returns whether there may be more.
    fn read_frames(&mut self) -> Result<bool, Failure> {
        self.frame.resize(MAX_FRAME, 0);
        for _ in 0..BURST {
            if !self.up || self.stalled {
                return Ok(false);
            }
            if !self.endpoint.ready() {
                self.stalled = true;
                return Ok(false);
            }
            let Some(len) = self.host.tap.read(&mut self.frame).map_err(Fatal::Gone)? else {
                return Ok(false);
            };
            // Frames that the session does not take are lost, as on a LAN.
            let _ = self.endpoint.send(&self.frame[..len]);
        }
        Ok(true)
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.endpoint.call(|session| session.tick(now));
        if now >= self.keepalive {
            self.keepalive = now + KEEPALIVE;
            let _ = self.endpoint.call(|session| session.request(&Request::Statistics));
        }
    }

    fn wait(&self) -> Result<(), Failure> {
        let handler = &self.io.handler;
        let events = if self.up && !self.stalled { PollFlags::IN } else { PollFlags::empty() };
        let mut descriptors =
            [PollFd::new(handler, PollFlags::IN), PollFd::from_borrowed_fd(self.host.tap.as_fd(), events)];
        match poll(&mut descriptors, Some(&TICK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if descriptors[1].revents().contains(PollFlags::ERR) {
            return Err(Fatal::Gone(std::io::Error::other("it reports an error")).into());
        }
        while handler.try_next().is_some() {}
        Ok(())
    }
}
