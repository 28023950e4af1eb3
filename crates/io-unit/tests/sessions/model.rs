//! A model of two ordered channels between a host and a unit, of registered memory and of two drivers.
//!
//! It is not Ironwarp: no sockets and no queue pairs. It delivers, acknowledges and processes in any order that two TCP
//! streams allow, and checks what a driver relies on: no Write reaches memory that is not registered, no element is
//! used while it holds a frame, and every byte of every frame is right.

use ironwarp_io_unit::auth::{Key, Registry};
use ironwarp_io_unit::message::{Function, HostName, Mac, Message, Mode, Nonce, Reply};
use ironwarp_io_unit::session::{
    Action, Blocked, Channel, Config, Frame, Identity, Reason, Session, join_request,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// When sessions start.
pub(crate) const START: Duration = Duration::from_secs(1000);
/// The address that the host attaches with, and another that its key allows.
pub(crate) const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The address of the host "right".
pub(crate) const OTHER_HOST: Mac = Mac([2, 0, 0, 0, 0, 3]);

/// A request on its way on the data channel.
enum Item {
    Send(Vec<u8>),
    Write { tag: u32, offset: u64, bytes: Vec<u8>, immediate: Option<u32> },
}

/// What the data channel has completed and the driver has not seen.
enum Arrival {
    Message(Vec<u8>),
    Immediate(u32),
}

struct Pool {
    tag: u32,
    offset: u64,
    element_size: u32,
    elements: Vec<Vec<u8>>,
    /// Elements that hold a frame: written, or not released by the application.
    busy: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Host,
    Unit,
}

/// One end: session, driver, application and memory.
pub(crate) struct End {
    pub(crate) session: Session,
    /// Messages and requests of this end that have not reached the peer.
    control_wire: VecDeque<Vec<u8>>,
    data_wire: VecDeque<Item>,
    /// Completions of this end's requests that it has not seen.
    completions: [u64; 2],
    control_inbox: VecDeque<Vec<u8>>,
    data_inbox: VecDeque<Arrival>,
    pools: BTreeMap<u32, Pool>,
    registering: VecDeque<(u32, u32, u32)>,
    posted: VecDeque<(u32, u32)>,
    frames: BTreeMap<u64, Vec<u8>>,
    pub(crate) held: Vec<(u32, u32, u32, u32)>,
    /// Frames that the session took.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Number of frames that arrived.
    pub(crate) received: usize,
    pub(crate) up: bool,
    pub(crate) resumed: u64,
    pub(crate) answers: Vec<Reply>,
    pub(crate) closed: Option<Reason>,
    /// Whether the data channel has had its first message in this direction.
    joined: bool,
    pub(crate) writes_without_immediate: u64,
}

pub(crate) struct Pair {
    pub(crate) host: End,
    pub(crate) unit: End,
    /// Shared by all sessions of a unit.
    registry: Rc<RefCell<Registry>>,
    pub(crate) mode: Mode,
    /// The session that the unit was told to end, because the same host has attached again.
    pub(crate) replaced: Option<u64>,
    next_tag: u32,
}

impl End {
    fn new(session: Session) -> Self {
        Self {
            session,
            control_wire: VecDeque::new(),
            data_wire: VecDeque::new(),
            completions: [0; 2],
            control_inbox: VecDeque::new(),
            data_inbox: VecDeque::new(),
            pools: BTreeMap::new(),
            registering: VecDeque::new(),
            posted: VecDeque::new(),
            frames: BTreeMap::new(),
            held: Vec::new(),
            sent: Vec::new(),
            received: 0,
            up: false,
            resumed: 0,
            answers: Vec::new(),
            closed: None,
            joined: false,
            writes_without_immediate: 0,
        }
    }

    /// Places a request of the peer in memory. Panics where an adapter would end the connection.
    fn arrive(&mut self, item: Item, mode: Mode) {
        match item {
            Item::Send(bytes) => {
                if self.joined && mode == Mode::Send {
                    let (pool, element) =
                        self.posted.pop_front().expect("a receive is posted for every SendData");
                    let pool = self.pools.get_mut(&pool).expect("posted elements are registered");
                    let busy = &mut pool.busy[element as usize];
                    assert!(!std::mem::replace(busy, true), "an element is posted while it holds a frame");
                    pool.elements[element as usize][..bytes.len()].copy_from_slice(&bytes);
                }
                self.joined = true;
                self.data_inbox.push_back(Arrival::Message(bytes));
            }
            Item::Write { tag, offset, bytes, immediate } => {
                let pool = self.pools.values_mut().find(|pool| pool.tag == tag);
                let pool = pool.unwrap_or_else(|| panic!("a Write to tag {tag:#x}, which is not registered"));
                let start = offset.checked_sub(pool.offset).expect("the Write is inside of the pool");
                let size = u64::from(pool.element_size);
                assert_eq!(start % size, 0, "a Write that does not start at an element");
                let element = usize::try_from(start / size).expect("small");
                assert!(!std::mem::replace(&mut pool.busy[element], true), "element {element} is used twice");
                pool.elements[element][..bytes.len()].copy_from_slice(&bytes);
                self.data_inbox.extend(immediate.map(Arrival::Immediate));
            }
        }
    }

    pub(crate) fn element(&self, held: (u32, u32, u32, u32)) -> &[u8] {
        let (pool, element, offset, len) = held;
        &self.pools[&pool].elements[element as usize][offset as usize..(offset + len) as usize]
    }

    /// Number of registered pools.
    pub(crate) fn pools(&self) -> usize {
        self.pools.len()
    }

    /// Functions of the control messages on their way to the peer.
    pub(crate) fn control_messages(&self) -> Vec<Function> {
        self.control_wire.iter().map(|bytes| Message::decode(bytes).unwrap().1.function()).collect()
    }

    /// The next request on the data channel, if it is a message.
    pub(crate) fn first_data_message(&self) -> Option<&[u8]> {
        match self.data_wire.front()? {
            Item::Send(bytes) => Some(bytes),
            Item::Write { .. } => None,
        }
    }

    /// Number of requests on their way on the data channel.
    pub(crate) fn data_requests(&self) -> usize {
        self.data_wire.len()
    }
}

impl Pair {
    /// Connects a host and a unit, whose registry knows the host.
    pub(crate) fn new(mode: Mode, host: Config, unit: Config) -> Self {
        Self::with_key(mode, host, unit, &[7; 32])
    }

    /// Connects a host and a unit, and lets them exchange pools.
    pub(crate) fn open(mode: Mode, config: &Config) -> Self {
        let mut pair = Self::new(mode, config.clone(), config.clone());
        pair.settle();
        assert!(pair.host.up && pair.unit.up);
        pair
    }

    /// Connects a host with a key that is not necessarily right.
    pub(crate) fn with_key(mode: Mode, host: Config, unit: Config, key: &[u8]) -> Self {
        let mut registry = Registry::new();
        for (name, macs) in [("left", [MAC, OTHER_MAC].as_slice()), ("right", &[OTHER_HOST])] {
            let key = Key::new(&[7; 32]).unwrap();
            registry.add(HostName::new(name).unwrap(), key, macs.iter().copied()).unwrap();
        }
        Self::connect(&Rc::new(RefCell::new(registry)), mode, host, unit, ("left", MAC, key))
    }

    /// Connects another host to the unit of `first`.
    pub(crate) fn second(first: &Self, name: &str, mac: Mac, config: &Config) -> Self {
        let (host, unit) = (config.clone(), config.clone());
        Self::connect(&first.registry, first.mode, host, unit, (name, mac, &[7; 32]))
    }

    fn connect(
        registry: &Rc<RefCell<Registry>>,
        mode: Mode,
        host: Config,
        unit: Config,
        (name, mac, key): (&str, Mac, &[u8]),
    ) -> Self {
        let name = HostName::new(name).unwrap();
        let key = Key::new(key).unwrap();
        let identity = Identity { name, macs: vec![mac], key, mode, nonce: Nonce([1; 16]) };
        let host = End::new(Session::host(host, identity, START).unwrap());
        let unit = End::new(Session::unit(unit, Nonce([2; 16]), START).unwrap());
        let registry = Rc::clone(registry);
        let mut pair = Self { host, unit, registry, mode, replaced: None, next_tag: 0x100 };
        pair.act(Who::Host);
        pair.act(Who::Unit);
        pair
    }

    pub(crate) fn ends(&mut self, who: Who) -> (&mut End, &mut End) {
        match who {
            Who::Host => (&mut self.host, &mut self.unit),
            Who::Unit => (&mut self.unit, &mut self.host),
        }
    }

    pub(crate) fn end(&mut self, who: Who) -> &mut End {
        self.ends(who).0
    }

    /// Calls the session of an end and executes its actions.
    pub(crate) fn call<T>(&mut self, who: Who, call: impl FnOnce(&mut Session) -> T) -> T {
        let result = call(&mut self.end(who).session);
        self.act(who);
        result
    }

    pub(crate) fn send(&mut self, who: Who, bytes: Vec<u8>) -> Result<(), Blocked> {
        let len = u32::try_from(bytes.len()).expect("a short frame");
        let end = self.end(who);
        let number = end.sent.len() as u64;
        let result = end.session.send(number, len);
        if result.is_ok() {
            end.frames.insert(number, bytes.clone());
            end.sent.push(bytes);
        }
        self.act(who);
        result
    }

    /// Executes the actions of an end.
    fn act(&mut self, who: Who) {
        while let Some(action) = self.end(who).session.next_action() {
            self.execute(who, action);
        }
    }

    fn execute(&mut self, who: Who, action: Action) {
        let (mode, (end, peer)) = (self.mode, self.ends(who));
        match action {
            Action::Post { channel: Channel::Control, message } => end.control_wire.push_back(message),
            Action::Post { channel: Channel::Data, message } => {
                end.data_wire.push_back(Item::Send(message));
                end.completions[1] += u64::from(mode == Mode::Send);
            }
            Action::SendFrame { frame, header } => {
                let frame = end.frames.remove(&frame).expect("a frame is sent once");
                end.data_wire.push_back(Item::Send([&header[..], &frame].concat()));
                end.completions[1] += u64::from(mode == Mode::Send);
            }
            Action::Write { frame, tag, offset, immediate } => {
                assert_eq!(mode, Mode::Rdma);
                let bytes = end.frames.remove(&frame).expect("a frame is sent once");
                end.writes_without_immediate += u64::from(immediate.is_none());
                end.data_wire.push_back(Item::Write { tag, offset, bytes, immediate });
            }
            Action::RegisterPool { pool, count, element_size } => {
                end.registering.push_back((pool, count, element_size));
            }
            Action::DeregisterPool { pool } => {
                assert!(
                    end.held.iter().all(|held| held.0 != pool),
                    "pool {pool} is freed while it holds frames"
                );
                assert!(end.pools.remove(&pool).is_some(), "pool {pool} is registered");
            }
            Action::PostReceive { pool, element } => {
                assert_eq!(mode, Mode::Send);
                end.posted.push_back((pool, element));
            }
            Action::Deliver(frame) => self.deliver(who, &frame),
            Action::Authenticate { attach, nonce } => {
                let result = self.registry.borrow_mut().attach(&attach, nonce);
                match result {
                    Ok(admission) => {
                        self.replaced = admission.replaced;
                        self.unit.session.admit(admission);
                    }
                    Err(status) => self.unit.session.refuse(status),
                }
            }
            Action::ConnectData => end.session.data_connected(),
            Action::Up => assert!(!std::mem::replace(&mut end.up, true)),
            Action::Resume => end.resumed += 1,
            Action::Answer { reply, .. } => end.answers.push(reply),
            Action::SetMac(_) => {}
            Action::Disconnect(reason) => {
                assert!(end.closed.is_none(), "a session ends once");
                end.closed = Some(reason);
                end.data_wire.clear();
                end.control_inbox.clear();
                end.data_inbox.clear();
                // Nothing of the peer reaches this end any more.
                peer.control_wire.clear();
                peer.data_wire.clear();
            }
        }
    }

    fn deliver(&mut self, who: Who, frame: &Frame) {
        let (end, peer) = self.ends(who);
        let expected = &peer.sent[end.received];
        end.received += 1;
        match frame {
            Frame::Inline(bytes) => assert_eq!(bytes, expected),
            Frame::Element { pool, element, offset, len } => {
                let held = (*pool, *element, *offset, *len);
                assert!(end.element(held) == &expected[..], "frame {} arrived altered", end.received - 1);
                end.held.push(held);
            }
        }
    }

    /// Moves one request of `who` to its peer.
    pub(crate) fn carry(&mut self, who: Who, channel: Channel) -> bool {
        let (mode, (end, peer)) = (self.mode, self.ends(who));
        let closed = peer.closed.is_some();
        match channel {
            Channel::Control => {
                let Some(message) = end.control_wire.pop_front() else { return false };
                end.completions[0] += 1;
                if !closed {
                    peer.control_inbox.push_back(message);
                }
            }
            Channel::Data => {
                let Some(item) = end.data_wire.pop_front() else { return false };
                end.completions[1] += u64::from(mode == Mode::Rdma);
                if !closed {
                    peer.arrive(item, mode);
                }
            }
        }
        true
    }

    /// Passes one completion to a session.
    pub(crate) fn complete(&mut self, who: Who, channel: Channel) -> bool {
        let left = &mut self.end(who).completions[usize::from(channel == Channel::Data)];
        let some = *left > 0;
        if some {
            *left -= 1;
            self.call(who, |session| session.completed(channel));
        }
        some
    }

    /// Lets a driver process one arrival: of the data channel first, as the rules of a session demand.
    pub(crate) fn process(&mut self, who: Who) -> bool {
        let end = self.end(who);
        if let Some(arrival) = end.data_inbox.pop_front() {
            self.process_data(who, arrival);
        } else if let Some(message) = end.control_inbox.pop_front() {
            self.call(who, |session| session.receive(Channel::Control, &message));
        } else {
            return false;
        }
        true
    }

    /// Lets a driver process a control message before what its data channel has completed, which breaks order rule 3.
    pub(crate) fn process_control_first(&mut self, who: Who) -> bool {
        let Some(message) = self.end(who).control_inbox.pop_front() else { return false };
        self.call(who, |session| session.receive(Channel::Control, &message));
        true
    }

    fn process_data(&mut self, who: Who, arrival: Arrival) {
        match arrival {
            Arrival::Immediate(value) => self.call(who, |session| session.immediate(value)),
            Arrival::Message(bytes) if who == Who::Unit && join_request(&bytes).is_ok() => {
                let (context, join) = join_request(&bytes).unwrap();
                self.call(who, |session| session.join(context, &join)).unwrap();
            }
            Arrival::Message(bytes) => self.call(who, |session| session.receive(Channel::Data, &bytes)),
        }
    }

    /// Registers the memory of one pool.
    pub(crate) fn register(&mut self, who: Who) -> bool {
        self.next_tag += 0x100;
        let (tag, offset) = (self.next_tag, u64::from(self.next_tag) << 8);
        let end = self.end(who);
        let Some((index, count, element_size)) = end.registering.pop_front() else { return false };
        let elements = vec![vec![0; element_size as usize]; count as usize];
        let busy = vec![false; count as usize];
        let old = end.pools.insert(index, Pool { tag, offset, element_size, elements, busy });
        assert!(old.is_none(), "pool {index} is registered twice");
        self.call(who, |session| session.pool_registered(index, tag, offset));
        true
    }

    /// Lets the application release one frame.
    pub(crate) fn release(&mut self, who: Who, choice: u64) -> bool {
        let end = self.end(who);
        if end.held.is_empty() {
            return false;
        }
        let index = usize::try_from(choice % end.held.len() as u64).expect("small");
        let (pool, element, ..) = end.held.swap_remove(index);
        end.pools.get_mut(&pool).expect("a held element is registered").busy[element as usize] = false;
        self.call(who, |session| session.release(pool, element)).unwrap();
        true
    }

    /// Tells an end that its peer has closed the connections, once it has read what was sent before.
    pub(crate) fn notice(&mut self, who: Who) -> bool {
        let (end, peer) = self.ends(who);
        let gone = peer.closed.is_some() && peer.control_wire.is_empty();
        if !gone || end.closed.is_some() || !end.control_inbox.is_empty() {
            return false;
        }
        self.call(who, Session::disconnected);
        true
    }

    /// Loses both connections, with everything on its way.
    pub(crate) fn cut(&mut self) {
        for who in [Who::Host, Who::Unit] {
            let end = self.end(who);
            end.control_wire.clear();
            end.data_wire.clear();
            end.control_inbox.clear();
            end.data_inbox.clear();
            self.call(who, Session::disconnected);
        }
    }

    /// Runs until nothing is on its way and nothing is held.
    pub(crate) fn settle(&mut self) {
        self.run(true);
    }

    /// Runs until nothing is on its way. Applications keep their frames.
    pub(crate) fn settle_and_hold(&mut self) {
        self.run(false);
    }

    fn run(&mut self, release: bool) {
        loop {
            let mut moved = false;
            for who in [Who::Host, Who::Unit] {
                for channel in [Channel::Control, Channel::Data] {
                    moved |= self.carry(who, channel);
                    moved |= self.complete(who, channel);
                }
                moved |= self.process(who) | self.register(who) | self.notice(who);
                moved |= release && self.release(who, 0);
            }
            if !moved {
                return;
            }
        }
    }
}
