//! One end of a session: the state machine of the messaging layer, connected to queue pairs and registered memory
//! (requirements P4 to P9).
//!
//! Executes the actions of the session that are about queue pairs and memory, and passes the others on as events.

use crate::channel::{Channel, Failure, Io, Kind, SEND_QUEUE};
use crate::frame::MAX_FRAME;
use ironwarp::completion::{Completion, Opcode, Status};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr, Tag};
use ironwarp::prelude::ProtectionDomain;
use ironwarp_io_unit::message::{Attach, Nonce};
use ironwarp_io_unit::pool::Shape;
use ironwarp_io_unit::session::{self, Action, Blocked, Config, Frame, Reason, Session};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What an endpoint leaves to its program.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame has arrived: take it with [`Endpoint::take`].
    Frame(Frame),
    Authenticate {
        attach: Box<Attach>,
        nonce: Nonce,
    },
    ConnectData,
    Up,
    Resume,
    /// The session has ended. The last event: call [`Endpoint::is_closed`] until it is, then drop the endpoint.
    Ended(Reason),
}

/// Channels come first: connections are closed before memory is deregistered.
#[derive(Debug)]
pub(crate) struct Endpoint {
    control: Channel,
    data: Option<Channel>,
    pools: BTreeMap<u32, Pool>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) session: Session,
    /// Completions that were polled and not processed.
    control_ready: VecDeque<Completion>,
    data_ready: VecDeque<Completion>,
    events: VecDeque<Event>,
    ended: bool,
}

#[derive(Debug)]
struct Pool {
    memory: MemoryRegion,
    element_size: u32,
}

/// Returns the settings of both ends.
pub(crate) fn settings(offloads: u32, mtu: u32) -> Config {
    let large = u32::try_from(MAX_FRAME).expect("68 KiB");
    Config {
        pools: vec![Shape { count: 256, element_size: 2048 }, Shape { count: 64, element_size: large }],
        send_queue: SEND_QUEUE,
        offloads,
        mtu,
        ..Config::default()
    }
}

impl Endpoint {
    /// Starts a session on a control channel that is connected, or at the unit about to be.
    pub(crate) fn new(session: Session, control: Channel, domain: ProtectionDomain) -> Self {
        let mut endpoint = Self {
            control,
            data: None,
            pools: BTreeMap::new(),
            domain,
            session,
            control_ready: VecDeque::new(),
            data_ready: VecDeque::new(),
            events: VecDeque::new(),
            ended: false,
        };
        endpoint.act(None);
        endpoint
    }

    /// Creates a data channel in the protection domain of the session.
    pub(crate) fn data_channel(&self, io: &Io) -> Result<Channel, Failure> {
        Channel::new(io, &self.domain, Kind::Data)
    }

    /// Uses a data channel whose peer is the authenticated one.
    pub(crate) fn set_data(&mut self, channel: Channel) {
        channel.allow_writes();
        self.data = Some(channel);
    }

    /// Calls the session and executes its actions.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&mut Session) -> T) -> T {
        let result = call(&mut self.session);
        self.act(None);
        result
    }

    /// Returns the next event.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Sends a frame, now or never.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), Blocked> {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let result = self.session.send(0, len);
        self.act(Some(frame));
        result
    }

    /// Returns whether the peer has room for any frame. If not, [`Event::Resume`] will follow.
    pub(crate) fn ready(&mut self) -> bool {
        let len = u32::try_from(MAX_FRAME).expect("68 KiB");
        self.call(|session| session.ready(len))
    }

    /// Copies a frame that has arrived, and releases the memory in which it is.
    pub(crate) fn take(&mut self, frame: Frame, into: &mut Vec<u8>) -> Result<(), Failure> {
        match frame {
            Frame::Inline(bytes) => *into = bytes,
            Frame::Element { pool, element, offset, len } => {
                into.resize(len as usize, 0);
                let from = self.pools.get(&pool).ok_or("a frame in a pool that is not registered")?;
                let at = u64::from(element) * u64::from(from.element_size) + u64::from(offset);
                from.memory.read(usize::try_from(at)?, into)?;
                self.call(|session| session.release(pool, element))?;
            }
        }
        Ok(())
    }

    /// Processes one completion. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let done = self.try_step();
        done.unwrap_or_else(|_| {
            self.call(Session::disconnected);
            false
        })
    }

    /// Asks for an event of the next completion. Returns whether there is a completion already.
    pub(crate) fn arm(&self) -> bool {
        let data = self.data.as_ref().is_some_and(Channel::arm);
        !self.ended && (self.control.arm() | data)
    }

    /// Returns whether both connections are closed, so that memory can be deregistered.
    pub(crate) fn is_closed(&self) -> bool {
        self.control.is_closed() && self.data.as_ref().is_none_or(Channel::is_closed)
    }

    fn try_step(&mut self) -> Result<bool, Failure> {
        // What the data channel has completed is processed before a message of the control channel (docs/io-unit.md, order
        // rule 3): so it is polled after the control channel was.
        if self.control_ready.is_empty() {
            self.control_ready.extend(self.control.cq.drain(32)?);
        }
        if let Some(data) = self.data.as_ref().filter(|_| self.data_ready.is_empty()) {
            self.data_ready.extend(data.cq.drain(64)?);
        }
        if let Some(completion) = self.data_ready.pop_front() {
            self.data_completed(&completion)?;
        } else if let Some(completion) = self.control_ready.pop_front() {
            self.control_completed(&completion)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn data_completed(&mut self, completion: &Completion) -> Result<(), Failure> {
        let data = self.data.as_ref().ok_or("a completion without a data channel")?;
        check(completion)?;
        match (completion.opcode, completion.immediate) {
            (Opcode::Receive | Opcode::ReceiveWrite, Some(value)) => {
                data.post_receive(completion.wr_id)?;
                self.call(|session| session.immediate(value));
            }
            (Opcode::Receive, None) => {
                let bytes = data.received(completion)?;
                data.post_receive(completion.wr_id)?;
                self.call(|session| session.receive(session::Channel::Data, &bytes));
            }
            _ => self.call(|session| session.completed(session::Channel::Data)),
        }
        Ok(())
    }

    fn control_completed(&mut self, completion: &Completion) -> Result<(), Failure> {
        check(completion)?;
        if completion.opcode == Opcode::Receive {
            let bytes = self.control.received(completion)?;
            self.control.post_receive(completion.wr_id)?;
            self.call(|session| session.receive(session::Channel::Control, &bytes));
        } else {
            self.call(|session| session.completed(session::Channel::Control));
        }
        Ok(())
    }

    /// Executes the actions of the session, in order. `frame` is the one that was just passed to it.
    fn act(&mut self, frame: Option<&[u8]>) {
        while let Some(action) = self.session.next_action() {
            if self.ended {
                continue; // dropping the endpoint frees everything
            }
            if self.execute(action, frame).is_err() {
                self.session.disconnected();
            }
        }
    }

    fn execute(&mut self, action: Action, frame: Option<&[u8]>) -> Result<(), Failure> {
        match action {
            Action::Post { channel: session::Channel::Control, message } => self.control.send(&message)?,
            Action::Post { channel: session::Channel::Data, message } => self.data()?.send(&message)?,
            Action::SendFrame { header, .. } => {
                let frame = frame.ok_or("no frame to send")?;
                self.data()?.send(&[&header[..], frame].concat())?;
            }
            Action::Write { tag, offset, immediate, .. } => {
                let frame = frame.ok_or("no frame to write")?;
                self.data()?.write(frame, RemoteAddr { tag: Tag(tag), offset }, immediate)?;
            }
            Action::RegisterPool { pool, count, element_size } => {
                self.register(pool, count, element_size);
            }
            Action::DeregisterPool { pool } => drop(self.pools.remove(&pool)),
            Action::PostReceive { .. } => return Err("Send mode is not supported".into()),
            Action::Deliver(frame) => self.events.push_back(Event::Frame(frame)),
            Action::Authenticate { attach, nonce } => {
                self.events.push_back(Event::Authenticate { attach, nonce });
            }
            Action::ConnectData => self.events.push_back(Event::ConnectData),
            Action::Up => self.events.push_back(Event::Up),
            Action::Resume => self.events.push_back(Event::Resume),
            Action::Answer { .. } | Action::SetMac(_) => {}
            Action::Disconnect(reason) => {
                self.ended = true;
                self.control.qp.disconnect();
                self.data.iter().for_each(|data| data.qp.disconnect());
                self.events.push_back(Event::Ended(reason));
            }
        }
        Ok(())
    }

    fn data(&self) -> Result<&Channel, Failure> {
        self.data.as_ref().ok_or_else(|| "no data channel".into())
    }

    fn register(&mut self, pool: u32, count: u32, element_size: u32) {
        let allocated = Buffer::new(count as usize * element_size as usize).map_err(Failure::from);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let registered = allocated.and_then(|buffer| {
            let memory = self.domain.register(buffer, access)?;
            let at = memory.remote_addr(0)?;
            Ok((memory, at))
        });
        match registered {
            Ok((memory, at)) => {
                self.pools.insert(pool, Pool { memory, element_size });
                self.session.pool_registered(pool, at.tag.0, at.offset);
            }
            Err(error) => {
                eprintln!("failed to register a pool of {count} elements of {element_size} bytes: {error}");
                self.session.pool_failed(pool);
            }
        }
    }
}

/// Fails unless the request was successful.
fn check(completion: &Completion) -> Result<(), Failure> {
    match completion.status {
        Status::Success => Ok(()),
        status => Err(format!("request failed: {status:?}").into()),
    }
}

/// Returns a random number for one connection.
pub(crate) fn nonce() -> Result<Nonce, Failure> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are never returned in part (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(Nonce(bytes))
}

/// Time since a start that is the same for the whole program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn now(self) -> Duration {
        self.0.elapsed()
    }
}
