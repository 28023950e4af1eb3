//! Requests posted before the registration of their memory is complete (requirement X6). The tests complete
//! each registration themselves, to control the order of events. Two adapters over loopback.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{Engine, QueuePair};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Binding, Check, Memory, RegisterError, Rights, Scope};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Opcode, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest};
use ironwarp_testkit::engine::{SEND, Side, connect};
use ironwarp_wire::{RemoteAddr, Tag};
use std::sync::Arc;

const RIGHTS: Rights =
    Rights::LOCAL_READ.union(Rights::LOCAL_WRITE).union(Rights::REMOTE).union(Rights::BIND);

/// Two ends with two connections each, and client memory whose registration is in progress.
struct Scene {
    client: Side,
    server: Side,
    pairs: [Arc<QueuePair>; 2],
    far: [Arc<QueuePair>; 2],
    late: Vec<u8>,
    tag: Tag,
}

impl Scene {
    fn new(completes: Completes) -> Self {
        let side = || Side::new(&Engine::new(Config::default()).unwrap(), 64, 4096);
        let (client, server) = (side(), side());
        let pairs = [(); 2].map(|()| client.pair(16, completes));
        let far = [(); 2].map(|()| server.pair(16, completes));
        for (near, far) in pairs.iter().zip(&far) {
            connect((&client, near), (&server, far));
        }
        let late: Vec<u8> = (0..4096_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
        let tag = client.engine.device().table().begin_registration(client.domain).unwrap();
        Self { client, server, pairs, far, late, tag }
    }

    fn late(&self, at: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.late.as_ptr() as u64 + at, len }
    }

    fn register(&self) {
        let memory = Memory::direct(self.late.as_ptr() as u64, self.late.len() as u64, RIGHTS).unwrap();
        self.client.engine.device().finish_registration(self.client.domain, self.tag, memory, true).unwrap();
    }

    fn post(&self, pair: usize, id: u64, operation: Operation, from: Sge) {
        let request = WorkRequest::new(id, operation, Data::Memory(from.into()));
        self.pairs[pair].post_send([request]).unwrap();
    }

    /// Checks that nothing has completed at the client.
    fn is_quiet(&self) {
        self.client.cq.poll(1, |completion| panic!("{completion:?}")).unwrap();
    }
}

/// Requests before and after one whose memory is not registered yet, while another queue pair continues.
#[test]
fn a_request_waits_for_its_registration_without_delaying_others() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let scene = Scene::new(completes);
        let (client, server) = (&scene.client, &scene.server);
        let remote = server.remote_addr();
        scene.post(0, 1, Operation::Write(remote), client.sge(0, 8));
        client.succeeds(Opcode::Write, 1);
        scene.post(
            0,
            2,
            Operation::Write(RemoteAddr { offset: remote.offset + 64, ..remote }),
            scene.late(0, 1000),
        );
        scene.post(0, 3, SEND, client.sge(0, 16));
        server.receive(&scene.far[0], 30, 3000, 100);
        for round in 0..20 {
            server.receive(&scene.far[1], 100 + round, 2000, 64);
            scene.post(1, round, SEND, client.sge(0, 32));
            client.succeeds(Opcode::Send, round);
            server.succeeds(Opcode::Receive, 100 + round);
        }
        scene.is_quiet();
        scene.register();
        client.succeeds(Opcode::Write, 2);
        client.succeeds(Opcode::Send, 3);
        server.succeeds(Opcode::Receive, 30);
        assert_eq!(server.memory[64..1064], scene.late[..1000]);
    }
}

/// Each kind of request as the first that has to wait: in one segment and in several, fenced, with immediate
/// data, as the sink of a Read, as the region of a window. The requests after it proceed as if it had not
/// waited.
#[test]
fn every_kind_of_request_waits_for_its_registration() {
    for kind in 0..6 {
        let scene = Scene::new(Completes::WhenAcknowledged);
        let (client, server) = (&scene.client, &scene.server);
        let remote = server.remote_addr();
        let memory = |at, len| Data::Memory(scene.late(at, len).into());
        let (request, opcode) = match kind {
            0 => (WorkRequest::new(1, SEND, memory(8, 32)), Opcode::Send),
            1 => (WorkRequest { fence: true, ..WorkRequest::new(1, SEND, memory(8, 32)) }, Opcode::Send),
            2 => (WorkRequest::new(1, SEND, memory(0, 4000)), Opcode::Send),
            3 => {
                let write = WorkRequest::new(1, Operation::Write(remote), memory(8, 32));
                (WorkRequest { immediate: Some(7), ..write }, Opcode::Write)
            }
            4 => {
                let from = RemoteAddr { offset: remote.offset + 2000, ..remote };
                (WorkRequest::new(1, Operation::Read(from), memory(100, 32)), Opcode::Read)
            }
            _ => (WorkRequest::new(1, bind(&scene), Data::Memory(Sges::default())), Opcode::Bind),
        };
        let uses_receive = matches!(kind, 0..=3);
        for id in [20, 21].into_iter().filter(|id| uses_receive || *id == 21) {
            server.receive(&scene.far[0], id, 0, 4096);
        }
        let behind = WorkRequest::new(2, SEND, Data::Inline(b"behind".as_slice().into()));
        scene.pairs[0].post_send([request, behind]).unwrap();
        scene.is_quiet();
        scene.register();
        client.succeeds(opcode, 1);
        client.succeeds(Opcode::Send, 2);
        if uses_receive {
            let first = if kind == 3 { Opcode::ReceiveWrite } else { Opcode::Receive };
            server.succeeds(first, 20);
        }
        server.succeeds(Opcode::Receive, 21);
        assert_eq!(&server.memory[..6], b"behind");
        match kind {
            0 | 1 | 3 => assert_eq!(server.memory[6..32], scene.late[14..40]),
            2 => assert_eq!(server.memory[6..4000], scene.late[6..4000]),
            4 => assert_eq!(scene.late[100..132], [0; 32]),
            _ => {}
        }
    }
}

/// A request that registers memory and sends (requirement M12) does neither until the data of its message is registered.
/// If that registration fails, it has registered nothing.
#[test]
fn a_request_that_registers_and_sends_waits_for_its_data_with_both() {
    for fails in [false, true] {
        let scene = Scene::new(Completes::WhenAcknowledged);
        let (client, server) = (&scene.client, &scene.server);
        let table = client.engine.device().table();
        let tag = table.allocate(client.domain).unwrap();
        let is_valid = || table.look_up(tag).is_some_and(|entry| entry.valid);
        let memory = Memory::direct(client.remote_addr().offset, 64, RIGHTS).unwrap();
        let operation = Operation::RegisterSend { tag, memory, invalidate: None };
        server.receive(&scene.far[0], 20, 0, 64);
        scene.post(0, 1, operation, scene.late(8, 32));
        // Posting has tried to send. Another connection continues.
        server.receive(&scene.far[1], 21, 64, 64);
        scene.post(1, 2, SEND, client.sge(0, 8));
        client.succeeds(Opcode::Send, 2);
        server.succeeds(Opcode::Receive, 21);
        scene.is_quiet();
        assert!(!is_valid());
        if fails {
            let bad = Memory::direct(scene.late.as_ptr() as u64, 4096, Rights::REMOTE_WRITE).unwrap();
            let refused =
                client.engine.device().finish_registration(client.domain, scene.tag, bad, true).unwrap_err();
            assert_eq!(refused, RegisterError::Rights(Rights::REMOTE_WRITE));
            let failed = client.next();
            assert_eq!((failed.wr_id, failed.status), (1, Status::LocalProtection), "{failed:?}");
            assert!(!is_valid());
            assert_eq!(server.memory[..32], [0; 32]);
        } else {
            scene.register();
            client.succeeds(Opcode::Send, 1);
            server.succeeds(Opcode::Receive, 20);
            assert!(is_valid());
            assert_eq!(server.memory[..32], scene.late[8..40]);
        }
    }
}

fn bind(scene: &Scene) -> Operation {
    let window = scene.client.engine.device().table().allocate_window(scene.client.domain).unwrap();
    let binding = Binding {
        region: scene.tag,
        at: scene.late.as_ptr() as u64,
        len: 64,
        rights: Rights::REMOTE_READ,
        one_touch: false,
        zero_based: true,
        scope: Scope::Domain,
    };
    Operation::Bind { window, binding }
}

/// A message whose receive names such memory waits as if no receive was posted, while the send queue of that
/// end continues.
#[test]
fn a_receive_waits_for_its_registration() {
    let scene = Scene::new(Completes::WhenAcknowledged);
    let (client, server) = (&scene.client, &scene.server);
    let receive = ReceiveRequest { id: 9, buffers: scene.late(100, 64).into() };
    scene.pairs[0].qp().post_receive(receive).unwrap();
    let (mut sent, mut fill) = (server.request(5, SEND, 16), server.request(4, SEND, 0));
    (sent.signaled, fill.signaled) = (true, false);
    scene.far[0].post_send([sent, fill]).unwrap();
    server.receive(&scene.far[0], 7, 0, 64);
    scene.post(0, 6, SEND, client.sge(0, 8));
    server.succeeds(Opcode::Receive, 7);
    client.succeeds(Opcode::Send, 6);
    scene.is_quiet();
    scene.register();
    client.succeeds(Opcode::Receive, 9);
    assert_eq!(scene.late[100..116], server.memory[..16]);
    scene.pairs[0].qp().post_receive(ReceiveRequest { id: 10, buffers: client.sge(0, 8).into() }).unwrap();
    client.succeeds(Opcode::Receive, 10);
    server.succeeds(Opcode::Send, 5);
}

/// If the registration fails, the waiting request fails with a local protection error; the other queue pair
/// continues.
#[test]
fn a_registration_that_fails_fails_the_request_that_waited() {
    let scene = Scene::new(Completes::WhenSent);
    let device = scene.client.engine.device();
    scene.post(0, 1, SEND, scene.late(0, 8));
    scene.post(0, 2, SEND, scene.client.sge(0, 8));
    let nothing = Memory::direct(8, 4096, RIGHTS).unwrap();
    let failed = device.finish_registration(scene.client.domain, scene.tag, nothing, true);
    assert!(matches!(failed, Err(RegisterError::Unmapped(_))), "{failed:?}");
    let completion = scene.client.next();
    assert_eq!((completion.wr_id, completion.status), (1, Status::LocalProtection));
    assert!(
        matches!(completion.cause.as_deref(), Some(QpError::Local(denied)) if denied.check == Check::Valid)
    );
    assert_eq!(scene.client.next().status, Status::Flushed);
    scene.post(1, 3, Operation::Write(scene.server.remote_addr()), scene.client.sge(0, 8));
    scene.client.succeeds(Opcode::Write, 3);
}

/// If the memory is deregistered before its registration is complete, the waiting request fails as well.
#[test]
fn a_pending_tag_can_be_deregistered() {
    let scene = Scene::new(Completes::WhenSent);
    scene.post(0, 1, SEND, scene.late(0, 8));
    scene.is_quiet();
    scene.client.engine.device().table().deregister(scene.tag).unwrap();
    let completion = scene.client.next();
    assert_eq!((completion.wr_id, completion.status), (1, Status::LocalProtection));
    let memory = Memory::direct(scene.late.as_ptr() as u64, 64, RIGHTS).unwrap();
    let late =
        scene.client.engine.device().finish_registration(scene.client.domain, scene.tag, memory, false);
    assert!(matches!(late, Err(RegisterError::Denied(_))), "{late:?}");
}

/// A remote request does not wait: for the peer, the tag is not valid yet.
#[test]
fn a_peer_that_names_a_pending_tag_is_refused() {
    let scene = Scene::new(Completes::WhenAcknowledged);
    let addr = RemoteAddr { tag: scene.tag, offset: scene.late.as_ptr() as u64 };
    let request = scene.server.request(1, Operation::Write(addr), 8);
    scene.far[0].post_send([request]).unwrap();
    let completion = scene.server.next();
    assert_eq!((completion.wr_id, completion.status), (1, Status::RemoteAccess), "{completion:?}");
    let error = scene.pairs[0].qp().error().cloned();
    assert!(matches!(error.as_deref(), Some(QpError::Remote(denied)) if denied.check == Check::Pending));
}
