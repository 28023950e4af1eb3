//! Two adapters in one process, over loopback.
use ironwarp_engine::*;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::*;
use std::sync::Arc;
use std::time::Duration;

struct End {
    engine: Arc<Engine>,
    pair: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    buf: Vec<u8>,
    tag: ironwarp_wire::Tag,
}

fn end(completes: Completes) -> End {
    let engine = Engine::new(Config::default()).unwrap();
    let domain = engine.device().allocate_domain();
    let cq = engine.create_cq(64).unwrap();
    let pair = engine.create_qp(QueuePairAttributes {
        domain,
        send_cq: cq.clone(),
        receive_cq: cq.clone(),
        send_depth: 16,
        receive_depth: 16,
        max_sges: 4,
        completes,
        events: None,
    });
    let buf = vec![0u8; 1 << 20];
    let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let tag = engine
        .device()
        .register(domain, Memory::direct(buf.as_ptr() as u64, buf.len() as u64, rights).unwrap())
        .unwrap();
    End { engine, pair, cq, buf, tag }
}
impl End {
    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.buf.as_ptr() as u64 + at as u64, len }
    }
    fn recv(&self, id: u64, at: usize, len: u32) {
        self.pair.qp().post_receive(ReceiveRequest { id, buffers: self.sge(at, len).into() }).unwrap();
    }
    fn send(&self, id: u64, operation: Operation, at: usize, len: u32) {
        self.pair
            .qp()
            .post_send(vec![WorkRequest {
                id,
                operation,
                data: Data::Memory(self.sge(at, len).into()),
                signaled: true,
                fence: false,
            }])
            .unwrap();
    }
    fn one(&self) -> Completion {
        let mut got = None;
        assert!(self.cq.wait(Some(Duration::from_secs(5))).unwrap(), "nothing completed");
        self.cq.poll(1, |c| got = Some(c)).unwrap();
        got.unwrap()
    }
}

#[test]
fn everything() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let (mut a, mut b) = (end(completes), end(completes));
        let listener = b.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        a.engine
            .connect(&a.pair, to, &ConnectOptions { private_data: b"hi".to_vec(), ..Default::default() })
            .unwrap();
        let incoming = listener.incoming().wait(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(incoming.private_data(), b"hi");
        b.recv(7, 0, 100);
        incoming.accept(&b.pair, b.engine.terms(None, None), b"yes").unwrap();
        let est = a.pair.wait_connected(Duration::from_secs(5)).unwrap();
        assert_eq!(&est.private_data[..], b"yes");
        b.pair.wait_connected(Duration::from_secs(5)).unwrap();
        a.buf[..5].copy_from_slice(b"hello");
        a.send(1, Operation::Send { solicited: false, invalidate: None }, 0, 5);
        let c = b.one();
        assert_eq!((c.wr_id, c.status, c.byte_len), (7, Status::Success, 5), "{c:?}");
        assert_eq!(&b.buf[..5], b"hello");
        // The acknowledgement needs b to look again.
        std::thread::scope(|s| {
            s.spawn(|| b.cq.wait(Some(Duration::from_millis(200))));
            let c = a.one();
            assert_eq!((c.wr_id, c.status), (1, Status::Success), "{c:?}");
        });
        for (i, x) in a.buf.iter_mut().enumerate() {
            *x = (i * 7) as u8;
        }
        let place = ironwarp_wire::Place { tag: b.tag, offset: b.buf.as_ptr() as u64 };
        a.send(2, Operation::Write(place), 0, 1 << 20);
        let c = a.one();
        assert_eq!((c.wr_id, c.status), (2, Status::Success), "{c:?}");
        for (i, x) in b.buf.iter_mut().enumerate() {
            if completes == Completes::WhenAcknowledged {
                assert_eq!(*x, (i * 7) as u8);
            }
        }
        a.send(3, Operation::Read(place), 0, 1 << 20);
        let c = a.one();
        assert_eq!((c.wr_id, c.status), (3, Status::Success), "{c:?}");
        assert_eq!(a.buf, b.buf);
        a.pair.disconnect();
        assert!(a.pair.wait_closed(Duration::from_secs(5)));
        assert!(b.pair.wait_closed(Duration::from_secs(5)));
        println!("{:?}", a.engine.statistics());
    }
}
