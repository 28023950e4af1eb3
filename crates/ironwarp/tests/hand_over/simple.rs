//! An adapter moves to another with all of its connections, in the middle of traffic (requirement X2).

use ironwarp::hand_over::{HandOverOptions, TakeOverOptions, TakenOver};
use ironwarp::prelude::*;
use ironwarp_testkit::native::SOON;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::thread;

/// Length of the region of each end.
const LEN: usize = 1 << 16;

/// The end of a connection that stays.
struct Peer {
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

/// The end of a connection that moves.
struct Mover {
    adapter: Adapter,
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

fn rights() -> Access {
    Access::LOCAL_READ
        | Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::REMOTE_ATOMIC
}

/// Connects an end that stays to one that moves.
fn connect() -> (Peer, Mover) {
    let adapter = Adapter::new().unwrap();
    let (cq, domain) = (adapter.completion_queue(256).unwrap(), adapter.protection_domain());
    let region = domain.register(Buffer::new(LEN).unwrap(), rights()).unwrap();
    let qp = domain.queue_pair(&cq).create().unwrap();
    let peer = Peer { cq, qp, region };
    let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let adapter = Adapter::new().unwrap();
    let (cq, domain) = (adapter.completion_queue(256).unwrap(), adapter.protection_domain());
    let buffer = Buffer::builder().shareable().allocate(LEN).unwrap();
    let region = domain.register(buffer, rights()).unwrap();
    let qp = domain.queue_pair(&cq).create().unwrap();
    qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().accept(&peer.qp, &AcceptOptions::new()).unwrap();
    qp.wait_connected(SOON).unwrap();
    (peer, Mover { adapter, cq, qp, region })
}

/// Hands the adapter over to another one of this process, and returns that.
fn hand_over(adapter: &Adapter, data: &[u8]) -> TakenOver {
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let target = thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new()));
    let handed_over = adapter.hand_over(here, &HandOverOptions::new().data(data));
    let taken = target.join().unwrap();
    handed_over.unwrap();
    taken.unwrap()
}

impl Mover {
    /// Moves to another adapter.
    fn move_on(self) -> Self {
        let mut taken = hand_over(&self.adapter, b"data");
        assert_eq!((&taken.data[..], taken.adopted), (&b"data"[..], false));
        let moved = Self {
            cq: taken.completion_queues.remove(0),
            qp: taken.queue_pairs.remove(0),
            region: taken.regions.remove(0),
            adapter: taken.adapter,
        };
        assert_eq!((moved.cq.id(), moved.qp.id()), (self.cq.id(), self.qp.id()));
        assert_eq!((moved.region.tag(), moved.region.len()), (self.region.tag(), self.region.len()));
        moved
    }
}

#[test]
fn a_connection_goes_on_after_its_adapter_has_moved() {
    let (peer, mut mover) = connect();
    for round in 0..20_u64 {
        let (text, addr) = (format!("round {round}"), mover.region.remote_addr(0).unwrap());
        // Posted before the move, completed after it, in both directions.
        mover.qp.post_receive(round, &[mover.region.slice(100..200).unwrap()]).unwrap();
        peer.qp.post_receive(round, &[peer.region.slice(100..200).unwrap()]).unwrap();
        mover = mover.move_on();
        peer.qp.post_send(WorkRequest::write_inline(1, text.as_bytes(), addr).unsignaled()).unwrap();
        peer.qp.post_send(WorkRequest::send_inline(2, text.as_bytes()).unsignaled()).unwrap();
        let received = mover.cq.wait(SOON).unwrap().success().unwrap();
        assert_eq!((received.wr_id, received.byte_len as usize), (round, text.len()));
        let bytes = mover.region.to_vec().unwrap();
        assert_eq!((&bytes[..text.len()], &bytes[100..][..text.len()]), (text.as_bytes(), text.as_bytes()));
        mover.qp.post_send(WorkRequest::send_inline(3, text.as_bytes())).unwrap();
        assert_eq!(mover.cq.wait(SOON).unwrap().success().unwrap().wr_id, 3);
        assert_eq!(peer.cq.wait(SOON).unwrap().success().unwrap().wr_id, round);
        assert_eq!(&peer.region.to_vec().unwrap()[100..][..text.len()], text.as_bytes());
    }
}
