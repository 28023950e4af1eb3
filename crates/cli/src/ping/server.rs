//! The server, which answers pings.

use super::hello::{Hello, Welcome};
use super::message::{TIMEOUT, check_success, message_bytes};
use super::options::{MAX_SIZE, Op};
use crate::say::{self, Failure};
use ironwarp::Adapter;
use ironwarp::completion::{CompletionQueue, Opcode};
use ironwarp::connection::{AcceptOptions, Incoming};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QpError, QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::sync::Arc;

/// Maximum number of concurrent clients. Further clients are rejected.
const MAX_CLIENTS: usize = 256;

/// Listens and answers clients, each in a thread of its own. With `once`, answers one client and returns whether that
/// succeeded.
pub(super) fn run(adapter: &Adapter, at: SocketAddr, once: bool) -> Result<bool, Failure> {
    let listener = adapter.listen(at).map_err(|error| format!("failed to listen on {at}: {error}"))?;
    let addr = listener.local_addr()?;
    say::line(format_args!("listening on {addr}; try: ironwarp ping {addr}"))?;
    // Each client's thread holds a clone, so that the reference count is the number of clients.
    let clients = Arc::new(());
    loop {
        let incoming = listener.accept(None)?;
        if Arc::strong_count(&clients) > MAX_CLIENTS {
            incoming.reject(b"too many clients, try again later")?;
            continue;
        }
        let (peer, adapter, client) = (incoming.peer_addr(), adapter.clone(), Arc::clone(&clients));
        let serve = move || {
            let _client = client;
            let result = serve(&adapter, incoming)
                .and_then(|pings| say::line(format_args!("{peer}: closed after {pings} messages")));
            result.map_err(|error| say::error(&*Failure::from(format!("{peer}: {error}")))).is_ok()
        };
        if once {
            return Ok(serve());
        }
        std::thread::spawn(serve);
    }
}

/// A connected client, with the objects that serve it.
struct Session {
    hello: Hello,
    qp: QueuePair,
    cq: CompletionQueue,
    /// Two slots, each for one message, so that the next message can arrive while one is echoed.
    region: MemoryRegion,
}

/// Accepts one client and answers it until it closes. Returns the number of pings.
fn serve(adapter: &Adapter, incoming: Incoming) -> Result<u64, Failure> {
    let peer = incoming.peer_addr();
    let Some(hello) = Hello::parse(incoming.private_data()) else {
        incoming.reject(b"this is `ironwarp ping --listen`, which only accepts `ironwarp ping`")?;
        return Err("rejected: not an `ironwarp ping`".into());
    };
    if hello.size > MAX_SIZE {
        incoming.reject(format!("message size exceeds the maximum of {MAX_SIZE} bytes").as_bytes())?;
        return Err(format!("rejected: message size of {} bytes", hello.size).into());
    }
    let session = Session::new(adapter, hello)?;
    let welcome = Welcome { addr: session.region.remote_addr(0)? };
    session.post_receive(0)?;
    incoming.accept(&session.qp, &AcceptOptions::new().private_data(&welcome.to_bytes()))?;
    say::line(format_args!("{peer}: {} of {} bytes", hello.op, hello.size))?;
    session.answer_all()
}

impl Session {
    /// Creates the objects for a client.
    fn new(adapter: &Adapter, hello: Hello) -> Result<Self, Failure> {
        let size = hello.size as usize;
        let cq = adapter.completion_queue(64)?;
        let domain = adapter.protection_domain();
        let access = match hello.op {
            Op::Send => Access::LOCAL_READ | Access::LOCAL_WRITE,
            Op::Write => Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Op::Read => Access::REMOTE_READ,
        };
        let region = domain.register(Buffer::new((2 * size).max(1))?, access)?;
        if hello.op == Op::Read {
            region.write(0, &message_bytes(0, size))?;
        }
        let qp = domain.queue_pair(&cq).create()?;
        Ok(Self { hello, qp, cq, region })
    }

    /// Answers pings until the client closes. Returns their number.
    fn answer_all(&self) -> Result<u64, Failure> {
        for pings in 0.. {
            let Some(received) = self.next_message()? else { return Ok(pings) };
            self.answer(pings, received)?;
        }
        Ok(u64::MAX)
    }

    /// Waits for the next message. Returns its length, or `None` if the client has closed.
    fn next_message(&self) -> Result<Option<u32>, Failure> {
        loop {
            let completion = self.cq.wait(None)?;
            if let Some(QpError::Closed) = completion.cause.as_deref() {
                let _ = self.qp.wait_closed(TIMEOUT);
                return Ok(None);
            }
            let completion = check_success(completion)?;
            if completion.opcode == Opcode::Receive {
                return Ok(Some(completion.byte_len));
            }
        }
    }

    /// Posts a receive for a ping.
    fn post_receive(&self, ping: u64) -> Result<(), Failure> {
        let posted = match self.hello.op {
            Op::Send => {
                let at = self.slot_offset(ping);
                self.qp.post_receive(ping, &[self.region.slice(at..at + self.size())?])
            }
            Op::Write | Op::Read => self.qp.post_receive(ping, &[]),
        };
        Ok(posted?)
    }

    /// Sends the answer to a ping, after posting a receive for the next. The next ping's slot is free: a client has
    /// only one ping outstanding, so it has received the echo of the ping that used the slot before.
    fn answer(&self, ping: u64, received: u32) -> Result<(), Failure> {
        self.post_receive(ping + 1)?;
        let requests = match self.hello.op {
            Op::Send => {
                let at = self.slot_offset(ping);
                let echo = self.region.slice(at..at + received as usize)?;
                vec![WorkRequest::send(ping, &[echo]).unsignaled().into()]
            }
            Op::Write => vec![
                WorkRequest::write(ping, &[self.region.slice(..self.size())?], self.hello.addr).unsignaled(),
                WorkRequest::send(ping, &[]).unsignaled().into(),
            ],
            Op::Read => return Err("unexpected message from a client that announced only Reads".into()),
        };
        Ok(self.qp.post_send_all(requests)?)
    }

    /// Returns the size of each message.
    fn size(&self) -> usize {
        self.hello.size as usize
    }

    /// Returns the offset of the slot of a ping.
    fn slot_offset(&self, ping: u64) -> usize {
        if ping.is_multiple_of(2) { 0 } else { self.size() }
    }
}
