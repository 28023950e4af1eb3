//! A host that a test implements with queue pairs and messages of its own, so that it can break every rule.

use crate::network::CLIENTS;
use ironwarp::completion::Opcode;
use ironwarp::memory::Tag;
use ironwarp::prelude::*;
use ironwarp_io_unit::auth::{Key, Purpose};
use ironwarp_io_unit::frame::CHECKSUM;
use ironwarp_io_unit::message::{
    Attach, HostName, Join, MAX_MESSAGE, Mac, Message, Mode, Nonce, PoolEntry, Proof, Reply, Request,
    Statistics,
};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Time limit for everything that a client waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Requests that the send queue of a channel holds: more than a unit answers without the answers being read.
pub(crate) const SENDS: usize = 160;
/// Posted receives of a channel.
const RECEIVES: usize = 64;
/// Elements of the pool that a client advertises, and their size.
pub(crate) const ELEMENTS: u32 = 16;
const ELEMENT: u32 = 2048;

/// A channel of a client.
pub(crate) struct Channel {
    pub(crate) qp: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    memory: MemoryRegion,
    /// Whether receives are posted again after they were used.
    pub(crate) reads: bool,
}

impl Channel {
    pub(crate) fn connect(
        adapter: &Adapter,
        domain: &ProtectionDomain,
        address: SocketAddr,
        private_data: &[u8],
    ) -> Result<Self, String> {
        let (sends, receives) =
            (adapter.completion_queue(256).unwrap(), adapter.completion_queue(RECEIVES).unwrap());
        let builder = domain.queue_pair(&sends).receive_cq(&receives).receive_depth(RECEIVES);
        let qp = builder.send_depth(SENDS).completes(Completes::WhenAcknowledged).create().unwrap();
        let memory =
            domain.register(Buffer::new(RECEIVES * MAX_MESSAGE).unwrap(), Access::LOCAL_WRITE).unwrap();
        let channel = Self { qp, sends, receives, memory, reads: true };
        (0..RECEIVES as u64).for_each(|id| channel.post_receive(id));
        let options = ConnectOptions::new().private_data(private_data).timeout(LIMIT);
        channel.qp.connect(address, &options).map_err(|error| error.to_string())?;
        Ok(channel)
    }

    fn post_receive(&self, id: u64) {
        let at = usize::try_from(id).unwrap() * MAX_MESSAGE;
        // Fails after the unit has closed the connection.
        let _ = self.qp.post_receive(id, &[self.memory.slice(at..at + MAX_MESSAGE).unwrap()]);
    }

    /// Posts a request, when there is room for it. Returns false if the connection is closed.
    pub(crate) fn post(&self, request: impl Into<WorkRequest> + Clone) -> bool {
        let is_done = |completion: Completion| completion.status == Status::Success;
        while let Some(completion) = self.sends.poll_one().unwrap() {
            if !is_done(completion) {
                return false;
            }
        }
        while self.qp.post_send(request.clone()).is_err() {
            if self.qp.wait_closed(Duration::ZERO) || !self.sends.wait(LIMIT).is_ok_and(is_done) {
                return false;
            }
        }
        true
    }

    pub(crate) fn send(&self, context: u64, message: &Message<'_>) -> bool {
        self.post(WorkRequest::send_inline(0, &message.encode(context)))
    }

    /// Sends a message, for which there is room.
    pub(crate) fn say(&self, context: u64, message: &Message<'_>) {
        assert!(self.send(context, message), "the connection is open");
    }

    /// Returns the status of the next request that does not succeed.
    pub(crate) fn failure(&self) -> Status {
        loop {
            let completion = self.sends.wait(LIMIT).unwrap();
            if completion.status != Status::Success {
                return completion.status;
            }
        }
    }

    /// Returns the next message, or the immediate data of the next Write.
    pub(crate) fn next(&self) -> Result<Vec<u8>, u32> {
        let completion = self.receives.wait(LIMIT).unwrap();
        assert_eq!(completion.status, Status::Success, "the connection is open");
        let at = usize::try_from(completion.wr_id).unwrap() * MAX_MESSAGE;
        let mut bytes = vec![0; completion.byte_len as usize];
        if completion.opcode == Opcode::Receive {
            self.memory.read(at, &mut bytes).unwrap();
        }
        if self.reads {
            self.post_receive(completion.wr_id);
        }
        completion.immediate.map_or(Ok(bytes), Err)
    }

    /// Returns the first message in which `find` finds something. Answers the unit, which asks whether the client is still there.
    pub(crate) fn find<T>(&self, mut find: impl FnMut(Message<'_>) -> Option<T>) -> T {
        loop {
            let bytes = self.next().unwrap();
            match Message::decode(&bytes).unwrap() {
                (context, Message::Request(Request::Statistics)) => {
                    self.send(context, &Message::Reply(Reply::Statistics(Statistics::default())));
                }
                (_, message) => {
                    if let Some(found) = find(message) {
                        return found;
                    }
                }
            }
        }
    }
}

/// A client that is attached, with the pools of the unit. Connections are closed before memory is deregistered.
pub(crate) struct Client {
    pub(crate) control: Channel,
    pub(crate) data: Channel,
    pub(crate) join: Join,
    pub(crate) mac: Mac,
    pub(crate) pools: Vec<PoolEntry>,
    pub(crate) memory: MemoryRegion,
    pub(crate) domain: ProtectionDomain,
}

impl Client {
    /// Attaches one of [`CLIENTS`], and waits until the unit has advertised its pools.
    pub(crate) fn attach(adapter: &Adapter, address: SocketAddr, client: usize) -> Self {
        let (name, mac, key) = CLIENTS[client];
        let key = Key::new(key.as_bytes()).unwrap();
        let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let mac = Mac(bytes.try_into().unwrap());
        let domain = adapter.protection_domain();
        let control = Channel::connect(adapter, &domain, address, &[0]).unwrap();
        control.send(1, &Message::Request(Request::Challenge));
        let nonce = control.find(|message| match message {
            Message::Reply(Reply::Challenge(nonce)) => Some(nonce),
            _ => None,
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        let mut attach = Attach {
            mode: Mode::Rdma,
            offloads: CHECKSUM,
            nonce: Nonce(now.to_be_bytes()),
            name: HostName::new(name).unwrap(),
            macs: vec![mac],
            proof: Proof([0; 32]),
        };
        attach.proof = key.proof(Purpose::Attach, nonce, &attach);
        control.send(2, &Message::Request(Request::Attach(Box::new(attach.clone()))));
        let admitted = control.find(|message| match message {
            Message::Reply(Reply::Attach(admitted)) => Some(admitted),
            _ => None,
        });
        let mut join =
            Join { session: admitted.session, generation: admitted.generation, proof: Proof([0; 32]) };
        join.proof = key.proof(Purpose::Join(&join), nonce, &attach);
        let hello = [&[1], &join.session.to_be_bytes()[..]].concat();
        let data = Channel::connect(adapter, &domain, address, &hello).unwrap();
        data.send(3, &Message::Request(Request::Join(join)));
        data.find(|message| (message == Message::Reply(Reply::Join)).then_some(()));
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.register(Buffer::new((ELEMENTS * ELEMENT) as usize).unwrap(), access).unwrap();
        let mut client = Self { control, data, join, mac, pools: Vec::new(), memory, domain };
        while client.pools.len() < 2 {
            client.next_pool();
        }
        client
    }

    /// Waits for another pool of the unit.
    pub(crate) fn next_pool(&mut self) {
        let pools = self.control.find(|message| match message {
            Message::Pools(pools) => Some(pools),
            _ => None,
        });
        self.pools.extend(pools);
    }

    /// Returns a pool of the client, to advertise.
    pub(crate) fn pool(&self, index: u32) -> PoolEntry {
        let RemoteAddr { tag, offset } = self.memory.remote_addr(0).unwrap();
        PoolEntry { index, count: ELEMENTS, element_size: ELEMENT, tag: tag.0, offset, context: 0 }
    }

    pub(crate) fn advertise(&self, pool: PoolEntry) {
        self.control.send(0, &Message::Pools(vec![pool]));
    }

    /// Writes a frame to a place, with immediate data.
    pub(crate) fn write(&self, frame: &[u8], tag: u32, offset: u64, immediate: u32) {
        self.memory.write(0, frame).unwrap();
        let bytes = [self.memory.slice(..frame.len()).unwrap()];
        let to = RemoteAddr { tag: Tag(tag), offset };
        self.data.qp.post_send(WorkRequest::write_immediate(0, &bytes, to, immediate)).unwrap();
    }

    /// Returns an address of an element of the unit.
    pub(crate) fn element(&self, pool: usize, element: u32) -> (u32, u64) {
        let PoolEntry { tag, offset, element_size, .. } = self.pools[pool];
        (tag, offset + u64::from(element) * u64::from(element_size))
    }

    /// Returns a frame of `len` bytes with its virtio header.
    pub(crate) fn frame(&self, from: Mac, to: Mac, len: usize) -> Vec<u8> {
        let mut frame = [&[0; 12], &to.0[..], &from.0, &[0x88, 0xb5]].concat();
        frame.resize(12 + len, 0x5a);
        frame
    }

    /// Returns whether the unit still answers.
    pub(crate) fn is_answered(&self) -> bool {
        self.control.send(4, &Message::Request(Request::Statistics))
            && self.control.find(|message| match message {
                Message::Reply(Reply::Statistics(_)) => Some(true),
                _ => None,
            })
    }
}
