//! A connection without a network, for the fuzz target `rsocket`: its state, changed by messages of a peer and by
//! calls of the program. The assertions must hold for everything that the peer sends.
#![expect(unsafe_code, reason = "passes buffers as C does")]

use super::adapter::engine;
use super::buffer::IoSlices;
use super::options::{Options, RESERVE};
use super::state::State;
use super::wire::{Hello, MESSAGE, Message};
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::queue::Operation;
use std::collections::VecDeque;
use std::sync::OnceLock;

// The smallest rings and queues that a program can set: a fuzzer reaches their limits soonest.
const RING: u32 = 2048;
const QUEUE: u32 = 2 * RESERVE;
const INLINE: u32 = 64;
const MAPPINGS: u32 = 4;

/// One end of a connection whose peer is the fuzzer.
#[derive(Debug)]
pub struct Connection {
    state: State,
    peer: Hello,
    /// Bytes of the send ring that each posted request uses.
    posted: VecDeque<u64>,
}

impl Connection {
    /// Creates a connection to a peer that sent this private data. Returns `None` if the data is not a hello.
    pub fn new(private_data: &[u8]) -> Option<Self> {
        static DOMAIN: OnceLock<Domain> = OnceLock::new();
        let peer = Hello::from_bytes(private_data)?;
        assert_eq!(Hello::from_bytes(&peer.to_bytes()), Some(peer));
        let engine = engine().expect("an adapter");
        let domain = *DOMAIN.get_or_init(|| engine.device().allocate_domain());
        let options = Options {
            send_buffer: RING,
            receive_buffer: RING,
            send_queue: QUEUE,
            receive_queue: QUEUE,
            inline: INLINE,
            mappings: MAPPINGS,
            linger: None,
        };
        let mut state = State::new(engine, domain, &options).expect("memory for two small rings");
        state.out.set_peer(&peer);
        state.mappings.set_peer(&peer);
        Some(Self { state, peer, posted: VecDeque::new() })
    }

    /// Applies a Send of the peer. Returns false if it violates the protocol, which ends a connection.
    pub fn receive_send(&mut self, bytes: [u8; MESSAGE]) -> bool {
        let Some(message) = Message::from_bytes(bytes) else { return false };
        assert_eq!(Message::from_bytes(message.to_bytes()), Some(message));
        self.state.apply(message)
    }

    /// Applies a Write with Immediate of the peer. Returns false if it violates the protocol, which ends a connection.
    pub fn receive_write(&mut self, immediate: u32) -> bool {
        self.state.incoming.record_arrival(immediate) && self.state.incoming.count_message()
    }

    /// Reads as the program does, then gives the peer credit if it is due. Returns the number of bytes read.
    pub fn read(&mut self, len: usize, peek: bool) -> usize {
        let mut buffer = vec![0; len];
        let list = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len }];
        // SAFETY: the list has one buffer, which is alive until the end of this function.
        let mut to = unsafe { IoSlices::new(&list) };
        let read = self.state.incoming.read_into(&mut to, peek);
        assert_eq!(read, len - to.len());
        let _ = self.state.incoming.take_due_credit();
        read
    }

    /// Stops reading, as the program does.
    pub fn close(&mut self) {
        self.state.incoming.close();
    }

    /// Writes as the program does, as much as there is room for. Asserts that nothing exceeds the peer's ring. Returns
    /// the number of bytes written.
    pub fn write(&mut self, len: usize) -> usize {
        let mut buffer = vec![0; len];
        let list = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len }];
        // SAFETY: the list has one buffer, which is alive until the end of this function.
        let mut from = unsafe { IoSlices::new(&list) };
        let room = self.state.out.room(len);
        if room == 0 {
            return 0;
        }
        let request = self.state.out.build_write(room, &mut from);
        assert_eq!(room, len - from.len());
        let Operation::Write(addr) = request.operation else { panic!("data is sent as a Write") };
        assert!(addr.offset + room as u64 <= self.peer.len.into(), "{addr:?}, {room} bytes");
        self.posted.push_back(request.id);
        self.state.out.record_post();
        self.state.out.record_write(room);
        assert!(self.posted.len() < QUEUE as usize, "no room for credit and the end");
        room
    }

    /// Completes the oldest posted request, if there is one.
    pub fn complete_oldest(&mut self) {
        if let Some(used) = self.posted.pop_front() {
            self.state.out.record_completion(used);
        }
    }

    /// Number of bytes that the peer has mapped from an offset on. `None` if nothing is mapped there.
    pub fn mapped_len(&self, offset: u64) -> Option<u64> {
        let (addr, len) = self.state.mappings.find_remote(offset)?;
        assert!(len > 0 && addr.offset.checked_add(len).is_some());
        Some(len)
    }
}
