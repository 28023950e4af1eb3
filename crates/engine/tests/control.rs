//! Requests that overtake the registration of their memory (requirement X6): the test itself ends each registration, so that it
//! knows what happened before. Two adapters over loopback.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod common;

use common::{SEND, Side, connect};
use ironwarp_engine::{Engine, QueuePair};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::memory::{Binding, Check, Memory, RegisterError, Rights, Scope};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{
    Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest,
};
use ironwarp_wire::{Place, Tag};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const RIGHTS: Rights =
    Rights::LOCAL_READ.union(Rights::LOCAL_WRITE).union(Rights::REMOTE).union(Rights::BIND);

/// Two ends with two connections each, and memory of the client's whose registration is under way.
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
        let tag = client.engine.device().table().begin(client.domain).unwrap();
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

    /// Nothing has completed at the client.
    fn is_quiet(&self) {
        self.client.cq.poll(1, |completion| panic!("{completion:?}")).unwrap();
    }
}

fn one(side: &Side) -> Completion {
    let mut completion = None;
    while completion.is_none() {
        assert!(side.cq.wait(Some(PATIENCE)).unwrap(), "nothing completed");
        side.cq.poll(1, |found| completion = Some(found)).unwrap();
    }
    completion.unwrap()
}

fn succeeds(side: &Side, opcode: Opcode, id: u64) {
    let completion = one(side);
    let found = (completion.opcode, completion.wr_id, completion.status);
    assert_eq!(found, (opcode, id, Status::Success), "{completion:?}");
}

/// Requests of all kinds before and behind one whose memory is not registered yet, and a neighbour that goes on meanwhile.
#[test]
fn a_request_that_overtakes_its_registration_waits_alone() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let scene = Scene::new(completes);
        let (client, server) = (&scene.client, &scene.server);
        let there = server.place();
        scene.post(0, 1, Operation::Write(there), client.sge(0, 8));
        succeeds(client, Opcode::Write, 1);
        scene.post(0, 2, Operation::Write(Place { offset: there.offset + 64, ..there }), scene.late(0, 1000));
        scene.post(0, 3, SEND, client.sge(0, 16));
        server.receive(&scene.far[0], 30, 3000, 100);
        for round in 0..20 {
            server.receive(&scene.far[1], 100 + round, 2000, 64);
            scene.post(1, round, SEND, client.sge(0, 32));
            succeeds(client, Opcode::Send, round);
            succeeds(server, Opcode::Receive, 100 + round);
        }
        scene.is_quiet();
        scene.register();
        succeeds(client, Opcode::Write, 2);
        succeeds(client, Opcode::Send, 3);
        succeeds(server, Opcode::Receive, 30);
        assert_eq!(server.memory[64..1064], scene.late[..1000]);
    }
}

/// Each kind of request, the first that its queue has to hold up: in one segment and in several, fenced, with immediate data, as
/// the sink of a Read, as the region of a window. What is behind it goes on as if it had not waited.
#[test]
fn every_kind_of_request_waits_for_its_registration() {
    for kind in 0..6 {
        let scene = Scene::new(Completes::WhenAcknowledged);
        let (client, server) = (&scene.client, &scene.server);
        let there = server.place();
        let memory = |at, len| Data::Memory(scene.late(at, len).into());
        let (request, opcode) = match kind {
            0 => (WorkRequest::new(1, SEND, memory(8, 32)), Opcode::Send),
            1 => (WorkRequest { fence: true, ..WorkRequest::new(1, SEND, memory(8, 32)) }, Opcode::Send),
            2 => (WorkRequest::new(1, SEND, memory(0, 4000)), Opcode::Send),
            3 => {
                let write = WorkRequest::new(1, Operation::Write(there), memory(8, 32));
                (WorkRequest { immediate: Some(7), ..write }, Opcode::Write)
            }
            4 => {
                let from = Place { offset: there.offset + 2000, ..there };
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
        succeeds(client, opcode, 1);
        succeeds(client, Opcode::Send, 2);
        if uses_receive {
            let first = if kind == 3 { Opcode::ReceiveWrite } else { Opcode::Receive };
            succeeds(server, first, 20);
        }
        succeeds(server, Opcode::Receive, 21);
        assert_eq!(&server.memory[..6], b"behind");
        match kind {
            0 | 1 | 3 => assert_eq!(server.memory[6..32], scene.late[14..40]),
            2 => assert_eq!(server.memory[6..4000], scene.late[6..4000]),
            4 => assert_eq!(scene.late[100..132], [0; 32]),
            _ => {}
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

/// A message whose receive names such memory waits as if none was posted; and the send queue of that end goes on.
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
    succeeds(server, Opcode::Receive, 7);
    succeeds(client, Opcode::Send, 6);
    scene.is_quiet();
    scene.register();
    succeeds(client, Opcode::Receive, 9);
    assert_eq!(scene.late[100..116], server.memory[..16]);
    scene.pairs[0].qp().post_receive(ReceiveRequest { id: 10, buffers: client.sge(0, 8).into() }).unwrap();
    succeeds(client, Opcode::Receive, 10);
    succeeds(server, Opcode::Send, 5);
}

/// What waited for a registration that fails, fails: with a local protection error, and the neighbour goes on.
#[test]
fn a_registration_that_fails_fails_the_request_that_waited() {
    let scene = Scene::new(Completes::WhenSent);
    let device = scene.client.engine.device();
    scene.post(0, 1, SEND, scene.late(0, 8));
    scene.post(0, 2, SEND, scene.client.sge(0, 8));
    let nothing = Memory::direct(8, 4096, RIGHTS).unwrap();
    let failed = device.finish_registration(scene.client.domain, scene.tag, nothing, true);
    assert!(matches!(failed, Err(RegisterError::Unmapped(_))), "{failed:?}");
    let completion = one(&scene.client);
    assert_eq!((completion.wr_id, completion.status), (1, Status::LocalProtection));
    assert!(
        matches!(completion.cause.as_deref(), Some(Fault::Local(denied)) if denied.check == Check::Valid)
    );
    assert_eq!(one(&scene.client).status, Status::Flushed);
    scene.post(1, 3, Operation::Write(scene.server.place()), scene.client.sge(0, 8));
    succeeds(&scene.client, Opcode::Write, 3);
}

/// A request that waits for memory that is deregistered before it was registered, fails as well.
#[test]
fn a_pending_tag_can_be_deregistered() {
    let scene = Scene::new(Completes::WhenSent);
    scene.post(0, 1, SEND, scene.late(0, 8));
    scene.is_quiet();
    scene.client.engine.device().table().deregister(scene.tag).unwrap();
    let completion = one(&scene.client);
    assert_eq!((completion.wr_id, completion.status), (1, Status::LocalProtection));
    let memory = Memory::direct(scene.late.as_ptr() as u64, 64, RIGHTS).unwrap();
    let late =
        scene.client.engine.device().finish_registration(scene.client.domain, scene.tag, memory, false);
    assert!(matches!(late, Err(RegisterError::Denied(_))), "{late:?}");
}

/// A peer does not wait: to it the tag names nothing yet.
#[test]
fn a_peer_that_names_a_pending_tag_is_refused() {
    let scene = Scene::new(Completes::WhenAcknowledged);
    let place = Place { tag: scene.tag, offset: scene.late.as_ptr() as u64 };
    let request = scene.server.request(1, Operation::Write(place), 8);
    scene.far[0].post_send([request]).unwrap();
    let completion = one(&scene.server);
    assert_eq!((completion.wr_id, completion.status), (1, Status::RemoteAccess), "{completion:?}");
    let fault = scene.pairs[0].qp().fault().cloned();
    assert!(matches!(fault.as_deref(), Some(Fault::Remote(denied)) if denied.check == Check::Pending));
}
