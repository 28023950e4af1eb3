//! A connection with a hostile peer in shared memory, and the steps to get there.

use super::doorway::{self, AdapterId, Doorway, Hello, MAGIC, Token};
use super::peer::{Peer, Received};
use super::ring::{ACCEPT, ATTACH, CREDIT, DATA, RingEnd};
use super::victim::{Attacked, Victim};
use super::{send, wait_until};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::queue::Status;
use ironwarp_wire::Header;
use ironwarp_wire::mpa::{FpduWriter, Framing};
use ironwarp_wire::private::Signal;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;

/// The number that the peer gives to its channel.
pub(crate) const CHANNEL: u32 = 0x0070_0007;
pub(crate) const TOKEN: Token = [0x5a; 16];

/// The peer's end of a carrier.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) bell: UnixStream,
    pub(crate) ring: RingEnd,
}

/// A connection with a hostile peer, and its channel in shared memory.
#[derive(Debug)]
pub(crate) struct Attack {
    pub(crate) attacked: Attacked,
    pub(crate) link: Link,
    /// The number that the victim gave to its channel.
    pub(crate) victims_channel: u32,
    writer: FpduWriter,
}

impl Deref for Attack {
    type Target = Attacked;

    fn deref(&self) -> &Attacked {
        &self.attacked
    }
}

impl DerefMut for Attack {
    fn deref_mut(&mut self) -> &mut Attacked {
        &mut self.attacked
    }
}

impl Peer {
    /// Sends an offer.
    pub(crate) fn offer(&mut self, token: &Token, adapter: &AdapterId, lane: u8) {
        let offer = [&token[..], adapter, &[lane]].concat();
        for (part, data) in (0..).zip(offer.as_chunks().0) {
            self.send(&Signal::Offer { part, data: *data }.to_header(), &[]);
        }
    }

    /// Receives the next signal of one kind, and skips all other messages.
    pub(crate) fn receive_signal<T>(&mut self, find: impl Fn(Signal) -> Option<T>) -> T {
        loop {
            let received = self.receive_next();
            let Received::Message(header, ..) = &received else {
                panic!("expected a signal, got {received:?}")
            };
            let Header::Write(write) = header else { continue };
            if let Some(found) = Signal::parse(write.addr).and_then(Result::ok).and_then(&find) {
                return found;
            }
        }
    }

    /// Sends a switch signal over TCP.
    pub(crate) fn send_switch(&mut self, route: Route) {
        self.send(&Signal::Switch(route).to_header(), &[]);
    }
}

impl Attacked {
    /// Has the victim use the connection, and receives its offer: the token, and the number of its adapter.
    pub(crate) fn receive_offer(&mut self) -> (Token, AdapterId, u8) {
        self.post_send(100, 64);
        let mut offer = Vec::new();
        for part in 0..4 {
            let data = self.peer.receive_signal(|signal| match signal {
                Signal::Offer { part: found, data } if found == part => Some(data),
                _ => None,
            });
            offer.extend_from_slice(&data);
        }
        assert_eq!(self.completions(1)[0].status, Status::Success);
        (offer[..16].try_into().unwrap(), offer[16..23].try_into().unwrap(), offer[23])
    }

    /// Checks that the stream still works over TCP: a Send from the peer arrives.
    pub(crate) fn assert_works_over_tcp(&mut self, msn: u32) {
        self.peer.send(&send(msn), b"still here");
        let completion = self.received();
        assert_eq!((completion.status, completion.byte_len), (Status::Success, 10), "{completion:?}");
        assert_eq!(self.pair.qp().error(), None);
    }
}

impl Link {
    /// Offers memory over TCP, and gives it to the victim. Returns the number of the victim's channel, which it asks for.
    pub(crate) fn offered(peer: &mut Peer) -> (Self, u32) {
        let doorway = Doorway::new();
        peer.offer(&TOKEN, &doorway.id, 0);
        let (bell, hello) = doorway.accept();
        assert_eq!(hello.token, TOKEN);
        let mut link = Self { bell, ring: RingEnd::create() };
        doorway::answer(&link.bell, &MAGIC, &link.ring.file);
        let attach = link.ring.next();
        assert_eq!((attach.channel, attach.kind, &attach.payload[..16]), (0, ATTACH, &TOKEN[..]));
        (link, u32::from_ne_bytes(attach.payload[16..].try_into().unwrap()))
    }

    /// Gets memory from the victim with the token of its offer.
    pub(crate) fn joined(token: Token, victim: &AdapterId) -> Self {
        let bell = Hello::new(token).say(victim);
        let file = doorway::receive_file(&bell).expect("the victim shares memory");
        Self { bell, ring: RingEnd::join(file) }
    }

    /// Publishes what was put, and rings.
    pub(crate) fn publish(&self) {
        self.ring.set_head(self.ring.head);
        self.ring_bell();
    }

    /// Rings the bell of the victim, unless it has closed it.
    pub(crate) fn ring_bell(&self) {
        let _ = (&self.bell).write(&[0]);
    }

    /// Sends a record.
    pub(crate) fn send(&mut self, channel: u32, kind: u8, payload: &[u8]) {
        self.ring.put(channel, kind, payload);
        self.publish();
    }

    /// Waits until the victim has read everything.
    pub(crate) fn wait_read(&self) {
        wait_until("the victim to read the ring", || self.ring.victims_tail() == self.ring.head);
    }
}

impl Attack {
    /// Connects to the victim, and offers memory of which the victim uses a channel.
    pub(crate) fn offering(victim: &Victim) -> Self {
        let mut attacked = victim.connect_peer();
        let (mut link, victims_channel) = Link::offered(&mut attacked.peer);
        link.send(victims_channel, ACCEPT, &CHANNEL.to_ne_bytes());
        Self::established(attacked, link, victims_channel)
    }

    /// Is called by the victim, and uses a channel of the memory that the victim offers.
    pub(crate) fn joining(victim: &Victim) -> Self {
        let mut attacked = victim.dial_peer();
        let (token, adapter, _) = attacked.receive_offer();
        let mut link = Link::joined(token, &adapter);
        let victims_channel = link.attach(&token);
        Self::established(attacked, link, victims_channel)
    }

    /// Waits until the victim sends by shared memory.
    pub(crate) fn established(mut attacked: Attacked, link: Link, victims_channel: u32) -> Self {
        attacked.peer.receive_signal(|signal| (signal == Signal::Switch(Route::SharedMemory)).then_some(()));
        let writer = FpduWriter::new(Framing { crc: false, markers: false });
        Self { attacked, link, victims_channel, writer }
    }

    /// Both, for tests that are the same in either role.
    pub(crate) fn both() -> [fn(&Victim) -> Self; 2] {
        [Self::offering, Self::joining]
    }

    /// Switches the peer's direction to shared memory, too.
    pub(crate) fn switch(&mut self) {
        self.peer.send_switch(Route::SharedMemory);
        wait_until("the victim to follow", || self.pair.qp().recv_route() == Route::SharedMemory);
    }

    /// Connects in either role, with both directions in shared memory.
    pub(crate) fn switched(connect: fn(&Victim) -> Self, victim: &Victim) -> Self {
        let mut attack = connect(victim);
        attack.switch();
        attack
    }

    /// Encodes an FPDU for shared memory.
    pub(crate) fn fpdu(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.writer.write(header, payload, |part| bytes.extend_from_slice(part)).unwrap();
        bytes
    }

    /// Sends bytes of the stream in a record.
    pub(crate) fn send_data(&mut self, bytes: &[u8]) {
        self.link.send(self.victims_channel, DATA, bytes);
    }

    /// Allows the victim to send this number of bytes in all.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.link.send(self.victims_channel, CREDIT, &bytes.to_ne_bytes());
    }

    /// Checks that the stream works in shared memory: a Send from the peer arrives.
    pub(crate) fn assert_works(&mut self, msn: u32) {
        let fpdu = self.fpdu(&send(msn), b"still here");
        self.send_data(&fpdu);
        let completion = self.received();
        assert_eq!((completion.status, completion.byte_len), (Status::Success, 10), "{completion:?}");
    }
}

impl Link {
    /// Asks the victim for a channel. Returns the victim's number of it.
    pub(crate) fn attach(&mut self, token: &Token) -> u32 {
        self.send(0, ATTACH, &[&token[..], &CHANNEL.to_ne_bytes()].concat());
        let accept = self.ring.next();
        assert_eq!((accept.channel, accept.kind), (CHANNEL, ACCEPT), "{accept:?}");
        u32::from_ne_bytes(accept.payload.try_into().unwrap())
    }
}

impl Link {
    /// Waits until the victim has filled the ring that it writes: it has no room for any other record.
    pub(crate) fn fill_victims_ring(&self) {
        let room = 256 + 8;
        let used = || self.ring.victims_head() - self.ring.tail;
        wait_until("the victim to fill its ring", || used() + room > ironwarp_shm::RING_LEN as u64);
    }

    /// Waits until the victim has sent something after this position.
    pub(crate) fn wait_sent_after(&self, tail: u64) {
        let full = tail + ironwarp_shm::RING_LEN as u64;
        wait_until("the victim to use the room", || self.ring.victims_head() > full);
    }
}
