//! One end of a session: the state machine of the messaging layer, connected to queue pairs and registered memory
//! (requirements P4 to P9).
//!
//! Executes the actions of the session that are about queue pairs and memory, and passes the others on as events. Threads share
//! an endpoint: one processes its completions ([`Endpoint::pump`]), others send frames. System calls that copy frames are
//! made without the lock of the state.

use crate::arrived::Arrived;
use crate::channel::{Channel, Failure, Io, Kind, SEND_QUEUE};
use crate::ring::{Ring, Space};
use ironwarp::completion::{Completion, Opcode, Status};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr, Tag};
use ironwarp::prelude::ProtectionDomain;
use ironwarp::queue::WorkRequest;
use ironwarp_io_unit::frame::MAX_FRAME;
use ironwarp_io_unit::message::{Attach, MAX_INLINE_FRAME, Nonce, SEND_DATA_HEADER};
use ironwarp_io_unit::pool::Shape;
use ironwarp_io_unit::session::{self, Action, Blocked, Config, Frame, Reason, Session};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Completions that are taken from a queue at a time.
const BATCH: usize = 64;
/// Length of frames that are posted together.
const MAX_BATCH: usize = 256 << 10;

/// What an endpoint leaves to its program.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame has arrived: pass it to [`Endpoint::release`] when done.
    Frame(Arrived),
    Authenticate {
        attach: Box<Attach>,
        nonce: Nonce,
    },
    ConnectData,
    Up,
    /// The session has ended. The last event: call [`Endpoint::is_closed`] until it is, then drop the endpoint.
    Ended(Reason),
}

/// Channels come first: connections are closed before memory is deregistered. Locks are taken in the order of the fields.
#[derive(Debug)]
pub(crate) struct Endpoint {
    control: Channel,
    data: OnceLock<Channel>,
    /// Held while completions are processed, so that they are processed in order.
    processing: Mutex<()>,
    /// Held while a frame is posted: frames are posted in the order in which the session counted them.
    posting: Mutex<()>,
    state: Mutex<State>,
    /// Signalled when there may be room for a frame, and a thread waits for it.
    room: Condvar,
    pub(crate) domain: ProtectionDomain,
}

#[derive(Debug)]
struct State {
    session: Session,
    pools: BTreeMap<u32, Pool>,
    /// Created when the session is up, so that a connection that never attaches has none.
    ring: Option<Ring>,
    events: Vec<Event>,
    /// Requests for the data channel.
    outgoing: Vec<Action>,
    /// Whether a thread waits for room.
    waiting: bool,
    ended: bool,
}

#[derive(Debug)]
struct Pool {
    memory: Arc<MemoryRegion>,
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
        let state = State {
            session,
            pools: BTreeMap::new(),
            ring: None,
            events: Vec::new(),
            outgoing: Vec::new(),
            waiting: false,
            ended: false,
        };
        let endpoint = Self {
            control,
            data: OnceLock::new(),
            processing: Mutex::default(),
            posting: Mutex::default(),
            state: Mutex::new(state),
            room: Condvar::new(),
            domain,
        };
        endpoint.call(|_| ());
        endpoint
    }

    /// Creates a data channel in the protection domain of the session.
    pub(crate) fn data_channel(&self, io: &Io) -> Result<Channel, Failure> {
        Channel::new(io, &self.domain, Kind::Data(self.query(Session::mode)))
    }

    /// Uses a data channel whose peer is the authenticated one. A session has one data channel: another is dropped.
    pub(crate) fn set_data(&self, channel: Channel) {
        channel.allow_writes();
        let _ = self.data.set(channel);
    }

    /// Returns something about the session.
    pub(crate) fn query<T>(&self, query: impl FnOnce(&Session) -> T) -> T {
        query(&lock(&self.state).session)
    }

    /// Calls the session and executes its actions. Events that follow are returned by the next [`Self::pump`].
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Session) -> T) -> T {
        let mut state = lock(&self.state);
        let result = call(&mut state.session);
        self.act(&mut state);
        let joins = !state.outgoing.is_empty();
        drop(state);
        if joins {
            drop(self.batch());
        }
        result
    }

    /// Waits until the peer has room for any frame, at most for a time. Returns whether it has.
    pub(crate) fn wait_for_room(&self, limit: Duration) -> Room {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return Room::Ended;
            }
            if self.space(&mut state, MAX_FRAME).is_some() {
                return Room::Free;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Room::Full;
            }
            state.waiting = true;
            (state, _) = self.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts to send frames, which are posted together. Other threads that send wait until this is dropped.
    pub(crate) fn batch(&self) -> Batch<'_> {
        let posting = lock(&self.posting);
        Batch { endpoint: self, _posting: posting, requests: Vec::new(), bytes: 0 }
    }

    /// Sends a copy of a frame if the peer has room for it.
    pub(crate) fn forward(&self, frame: &Arrived) -> Result<(), Blocked> {
        let mut batch = self.batch();
        let space = self.space(&mut lock(&self.state), frame.len()).ok_or(Blocked::Full)?;
        frame.copy_to(&space).map_err(|_| Blocked::NotOpen)?;
        batch.add(&space, frame.len())
    }

    /// Processes a batch of completions of one channel, and asks for an event of the next one if there are no more. Returns
    /// whether there may be more. Appends the events of the endpoint.
    pub(crate) fn pump(&self, from: session::Channel, events: &mut Vec<Event>) -> bool {
        let processing = lock(&self.processing);
        let processed = match from {
            session::Channel::Control => self.pump_control(),
            session::Channel::Data => self.pump_data(),
        };
        let mut state = lock(&self.state);
        if processed.is_err() {
            state.session.disconnected();
        }
        self.act(&mut state);
        events.append(&mut state.events);
        let waiting = std::mem::take(&mut state.waiting);
        let ended = state.ended;
        drop(state);
        drop(processing);
        if waiting {
            self.room.notify_all();
        }
        let channel = match from {
            session::Channel::Control => Some(&self.control),
            session::Channel::Data => self.data.get(),
        };
        // A batch that is not full was the last: polling an empty queue would only read from its socket in vain.
        !ended && (processed.unwrap_or(false) || channel.is_some_and(Channel::arm))
    }

    /// Returns the channel that a completion queue belongs to.
    pub(crate) fn channel_of(&self, queue: u32) -> session::Channel {
        if queue == self.control.cq.id() { session::Channel::Control } else { session::Channel::Data }
    }

    /// Releases the memory of frames that have arrived, which their handlers are done with.
    pub(crate) fn release(&self, frames: &mut Vec<Arrived>) {
        if frames.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for frame in frames.drain(..) {
            if let Some((pool, element)) = frame.element {
                // The element is held. After the end, releasing it frees its pool.
                let _ = state.session.release(pool, element);
            }
        }
        self.act(&mut state);
    }

    /// Returns whether both connections are closed, so that memory can be deregistered.
    pub(crate) fn is_closed(&self) -> bool {
        self.control.is_closed() && self.data.get().is_none_or(Channel::is_closed)
    }

    /// Returns memory for a frame of up to `len` bytes, if the peer has room for it.
    fn space(&self, state: &mut State, len: usize) -> Option<Space> {
        let ready = state.session.ready(u32::try_from(len).unwrap_or(u32::MAX));
        self.act(state);
        state.ring.as_mut().filter(|_| ready)?.space(len)
    }

    /// Returns the request for the data channel that an action stands for.
    fn request(action: Action, frame: Option<Outgoing<'_>>) -> Result<WorkRequest, Failure> {
        Ok(match action {
            Action::Post { message, .. } => WorkRequest::send_inline(0, &message).into(),
            Action::SendFrame { header, .. } => {
                let Outgoing { space, len, position } = frame.ok_or("no frame to send")?;
                if position == 0 {
                    let mut message = [0; SEND_DATA_HEADER + MAX_INLINE_FRAME];
                    message[..SEND_DATA_HEADER].copy_from_slice(&header);
                    space.memory.read(space.at, &mut message[SEND_DATA_HEADER..][..len])?;
                    WorkRequest::send_inline(0, &message[..SEND_DATA_HEADER + len]).into()
                } else {
                    let start = space.at - SEND_DATA_HEADER;
                    space.memory.write(start, &header)?;
                    WorkRequest::send(position, &[space.memory.slice(start..space.at + len)?]).into()
                }
            }
            Action::Write { tag, offset, immediate, .. } => {
                let Outgoing { space, len, position } = frame.ok_or("no frame to write")?;
                let bytes = [space.memory.slice(space.at..space.at + len)?];
                let to = RemoteAddr { tag: Tag(tag), offset };
                match immediate {
                    Some(value) => WorkRequest::write_immediate(position, &bytes, to, value).into(),
                    None => WorkRequest::write(position, &bytes, to),
                }
            }
            _ => return Err("not a request of the data channel".into()),
        })
    }

    /// Posts requests to the data channel. The caller holds `posting`, and not the state.
    fn post(&self, requests: Vec<WorkRequest>) {
        let posted = self.data.get().is_some_and(|data| data.qp.post_send_all(requests).is_ok());
        if !posted {
            self.call(Session::disconnected);
        }
    }

    /// Returns whether there may be more completions.
    fn pump_data(&self) -> Result<bool, Failure> {
        let Some(data) = self.data.get() else { return Ok(false) };
        let completions = data.cq.drain(BATCH)?;
        let full = completions.len() == BATCH;
        let mut state = lock(&self.state);
        for completion in completions {
            if !state.ended {
                self.data_completed(&completion, &mut state)?;
            }
        }
        Ok(full)
    }

    /// Returns whether there may be more completions.
    fn pump_control(&self) -> Result<bool, Failure> {
        let completions = self.control.cq.drain(BATCH)?;
        let full = completions.len() == BATCH;
        // What the data channel has completed is processed before a message of the control channel (docs/io-unit.md, order
        // rule 3).
        while completions.len() > 0 && self.pump_data()? {}
        let mut state = lock(&self.state);
        for completion in completions {
            if !state.ended {
                self.control_completed(&completion, &mut state)?;
            }
        }
        Ok(full)
    }

    fn data_completed(&self, completion: &Completion, state: &mut State) -> Result<(), Failure> {
        let data = self.data.get().ok_or("a completion without a data channel")?;
        check(completion)?;
        match (completion.opcode, completion.immediate) {
            (Opcode::Receive | Opcode::ReceiveWrite, Some(value)) => {
                data.post_again(completion.wr_id)?;
                state.session.immediate(value);
            }
            (Opcode::Receive, None) if data.is_own(completion) => {
                let bytes = data.received(completion)?;
                data.post_again(completion.wr_id)?;
                state.session.receive(session::Channel::Data, &bytes);
            }
            (Opcode::Receive, None) => {
                let bytes = state.posted(completion)?;
                state.session.receive(session::Channel::Data, &bytes);
            }
            _ => {
                state.ring.iter_mut().for_each(|ring| ring.release(completion.wr_id));
                state.session.completed(session::Channel::Data);
            }
        }
        self.act(state);
        Ok(())
    }

    fn control_completed(&self, completion: &Completion, state: &mut State) -> Result<(), Failure> {
        check(completion)?;
        if completion.opcode == Opcode::Receive {
            let bytes = self.control.received(completion)?;
            self.control.post_again(completion.wr_id)?;
            state.session.receive(session::Channel::Control, &bytes);
        } else {
            state.session.completed(session::Channel::Control);
        }
        self.act(state);
        Ok(())
    }

    /// Executes the actions of the session, in order.
    fn act(&self, state: &mut State) {
        while let Some(action) = state.session.next_action() {
            if state.ended {
                continue; // dropping the endpoint frees everything
            }
            if self.execute(action, state).is_err() {
                state.session.disconnected();
            }
        }
    }

    fn execute(&self, action: Action, state: &mut State) -> Result<(), Failure> {
        match action {
            Action::Post { channel: session::Channel::Control, message } => self.control.send(&message)?,
            Action::Post { .. } | Action::SendFrame { .. } | Action::Write { .. } => {
                state.outgoing.push(action);
            }
            Action::RegisterPool { pool, count, element_size } => {
                self.register(state, pool, count, element_size);
            }
            Action::DeregisterPool { pool } => drop(state.pools.remove(&pool)),
            Action::PostReceive { pool, element } => {
                let data = self.data.get().ok_or("no data channel")?;
                let Pool { memory, element_size } = state.pools.get(&pool).ok_or("no such pool")?;
                let (at, len) = (element as usize * *element_size as usize, *element_size as usize);
                data.qp.post_receive(posted_id(pool, element), &[memory.slice(at..at + len)?])?;
            }
            Action::Deliver(frame) => {
                let frame = state.arrived(frame)?;
                state.events.push(Event::Frame(frame));
            }
            Action::Authenticate { attach, nonce } => {
                state.events.push(Event::Authenticate { attach, nonce });
            }
            Action::ConnectData => state.events.push(Event::ConnectData),
            Action::Up => {
                state.ring = Some(Ring::new(&self.domain)?);
                state.events.push(Event::Up);
            }
            Action::Resume | Action::Answer { .. } | Action::SetMac(_) => {}
            Action::Disconnect(reason) => {
                state.ended = true;
                state.outgoing.clear();
                self.control.qp.disconnect();
                self.data.get().into_iter().for_each(|data| data.qp.disconnect());
                state.events.push(Event::Ended(reason));
                self.room.notify_all();
            }
        }
        Ok(())
    }

    fn register(&self, state: &mut State, pool: u32, count: u32, element_size: u32) {
        let allocated = Buffer::new(count as usize * element_size as usize).map_err(Failure::from);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let registered = allocated.and_then(|buffer| {
            let memory = self.domain.register(buffer, access)?;
            let at = memory.remote_addr(0)?;
            Ok((memory, at))
        });
        match registered {
            Ok((memory, at)) => {
                state.pools.insert(pool, Pool { memory: Arc::new(memory), element_size });
                state.session.pool_registered(pool, at.tag.0, at.offset);
            }
            Err(error) => {
                eprintln!("failed to register a pool of {count} elements of {element_size} bytes: {error}");
                state.session.pool_failed(pool);
            }
        }
    }
}

impl State {
    /// Returns where a frame is that the session delivers.
    fn arrived(&self, frame: Frame) -> Result<Arrived, Failure> {
        match frame {
            Frame::Inline(bytes) => Ok(Arrived::inline(bytes)),
            Frame::Element { pool, element, offset, len } => {
                let from = self.pools.get(&pool).ok_or("a frame in a pool that is not registered")?;
                let at = element as usize * from.element_size as usize + offset as usize;
                Ok(Arrived::in_memory(&from.memory, at, len as usize, Some((pool, element))))
            }
        }
    }

    /// Returns the bytes that an element has got, in Send mode.
    fn posted(&self, completion: &Completion) -> Result<Vec<u8>, Failure> {
        let (pool, element) = posted_element(completion.wr_id);
        let Pool { memory, element_size } = self.pools.get(&pool).ok_or("no such pool")?;
        let mut bytes = vec![0; completion.byte_len.min(*element_size) as usize];
        memory.read(element as usize * *element_size as usize, &mut bytes)?;
        Ok(bytes)
    }
}

/// Whether the peer has room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    Full,
    Ended,
}

/// Frames that are sent together: they are posted when this is dropped.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    endpoint: &'a Endpoint,
    _posting: MutexGuard<'a, ()>,
    requests: Vec<WorkRequest>,
    bytes: usize,
}

impl Batch<'_> {
    /// Returns memory for any frame, if the peer has room for it, and the batch is not long yet.
    pub(crate) fn space(&mut self) -> Option<Space> {
        let state = &mut lock(&self.endpoint.state);
        if self.bytes < MAX_BATCH { self.endpoint.space(state, MAX_FRAME) } else { None }
    }

    /// Adds a frame, now or never.
    pub(crate) fn add(&mut self, space: &Space, len: usize) -> Result<(), Blocked> {
        let mut state = lock(&self.endpoint.state);
        state.session.send(0, u32::try_from(len).unwrap_or(u32::MAX))?;
        self.endpoint.act(&mut state);
        let actions = std::mem::take(&mut state.outgoing);
        let ring = state.ring.as_mut().filter(|_| !is_inline(&actions, len));
        let position = ring.map_or(0, |ring| ring.take(space, len));
        drop(state);
        self.bytes += len;
        self.extend(actions, Some(Outgoing { space, len, position }));
        Ok(())
    }

    fn extend(&mut self, actions: Vec<Action>, frame: Option<Outgoing<'_>>) {
        for action in actions {
            match Endpoint::request(action, frame) {
                Ok(request) => self.requests.push(request),
                Err(_) => self.endpoint.call(Session::disconnected),
            }
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let actions = std::mem::take(&mut lock(&self.endpoint.state).outgoing);
        self.extend(actions, None);
        if !self.requests.is_empty() {
            self.endpoint.post(std::mem::take(&mut self.requests));
        }
    }
}

/// A frame to post, its place, and the position in the ring that its completion frees, or 0.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    space: &'a Space,
    len: usize,
    position: u64,
}

/// Returns whether the frame is copied into its message, so that it uses no memory of the ring.
fn is_inline(posts: &[Action], len: usize) -> bool {
    len <= MAX_INLINE_FRAME && matches!(posts, [Action::SendFrame { .. }])
}

/// Identifier of the receive for an element, in Send mode. 0 is the receive of the Join.
fn posted_id(pool: u32, element: u32) -> u64 {
    (u64::from(pool) << 32 | u64::from(element)) + 1
}

#[expect(clippy::cast_possible_truncation, reason = "two halves")]
fn posted_element(id: u64) -> (u32, u32) {
    let id = id - 1;
    ((id >> 32) as u32, id as u32)
}

/// Fails unless the request was successful.
fn check(completion: &Completion) -> Result<(), Failure> {
    match completion.status {
        Status::Success => Ok(()),
        status => Err(format!("request failed: {status:?}").into()),
    }
}

/// Locks a mutex. Every thread leaves the data in a valid state, also one that panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
