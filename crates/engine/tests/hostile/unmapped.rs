//! Registered memory that the program has unmapped or write-protected: registration pins nothing, so a peer
//! may still name it. The result is an error, never a signal.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{Attacked, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::queue::{Operation, ReceiveRequest, Sge, Status};
use ironwarp_testkit::mapping::Mapping;
use ironwarp_wire::{Cause, Header, Protection, RemoteAddr, Tag, Tagged, Terminate};

const UNMAPPED: Cause = Cause::Protection(Protection::Unspecified);
/// Number of pages, the second half of which is unmapped or protected.
const PAGES: usize = 32;
const HALF: usize = PAGES / 2 * 4096;

/// What happens to the memory.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unmap,
    WriteProtect,
}

/// Small payload is copied through the adapter; large payload without CRC goes directly from and to the
/// socket.
#[derive(Clone, Copy, Debug)]
struct Case {
    crc: bool,
    len: usize,
    /// Number of bytes that are still accessible.
    accessible: usize,
}

const CASES: [Case; 5] = [
    Case { crc: true, len: 100, accessible: 0 },
    Case { crc: true, len: 5000, accessible: 40 },
    Case { crc: true, len: 40_000, accessible: 4096 },
    Case { crc: false, len: 40_000, accessible: 0 },
    Case { crc: false, len: 60_000, accessible: 10_000 },
];

/// A victim, a peer, and memory of which a part is inaccessible.
struct Scene {
    victim: Victim,
    attacked: Attacked,
    /// Kept until the end, although half of it may be unmapped.
    mapping: Mapping,
    tag: Tag,
    addr: u64,
    case: Case,
}

impl Scene {
    fn new(case: Case, loss: Loss, receives: usize) -> Self {
        let victim = Victim::with(Config::default().crc(case.crc));
        let mut attacked = victim
            .connect_peer_with(StartupSettings { crc: case.crc, ..StartupSettings::default() }, receives);
        attacked.peer.open();
        let mapping = Mapping::new(PAGES);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let memory = Memory::direct(mapping.addr(0), mapping.len() as u64, rights).unwrap();
        let tag = victim.engine.device().register(victim.domain, memory).unwrap();
        match loss {
            Loss::Unmap => mapping.unmap(HALF, HALF),
            Loss::WriteProtect => mapping.protect(HALF, HALF),
        }
        let addr = mapping.addr(HALF - case.accessible);
        Self { victim, attacked, mapping, tag, addr, case }
    }

    fn sge(&self) -> Sge {
        Sge { tag: self.tag, addr: self.addr, len: u32::try_from(self.case.len).unwrap() }
    }

    fn ends(self, error: &QpError, remote: bool) {
        assert!(
            matches!(error, QpError::Unmapped { addr, remote: by, .. } if addr.tag == self.tag && *by == remote),
            "{:?}: {error:?}",
            self.case
        );
        self.attacked.closed();
        self.victim.assert_untouched();
        self.victim.assert_survives();
        drop(self.mapping);
    }
}

#[test]
fn a_write_to_unmapped_memory() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, RECEIVES);
            let fpdu = scene.attacked.peer.send(&write(scene.tag, scene.addr), &vec![0xee; case.len]);
            let error = scene.attacked.assert_terminated(UNMAPPED, &fpdu);
            scene.ends(&error, true);
        }
    }
}

#[test]
fn a_read_of_unmapped_memory() {
    for case in CASES {
        let mut scene = Scene::new(case, Loss::Unmap, RECEIVES);
        let len = u32::try_from(case.len).unwrap();
        scene.attacked.peer.send(&read(1, scene.tag, scene.addr, len), &[]);
        let (messages, end) = scene.attacked.peer.receive_until_end();
        assert_eq!(end, Received::End, "{case:?}");
        let Some((Header::Terminate(terminate), _)) = messages.last() else {
            panic!("{case:?}: {messages:?}")
        };
        assert_eq!(terminate.cause, UNMAPPED, "{case:?}");
        let served: usize = messages.iter().map(|(_, payload)| payload.len()).sum();
        assert!(served <= case.accessible, "{case:?}: {served} bytes of inaccessible memory");
        let left = terminate.offender.read.expect("the Terminate returns the Read");
        assert_eq!(left.len as usize, case.len - served, "{case:?}");
        assert_eq!(left.source.offset, scene.addr + served as u64, "{case:?}");
        scene.attacked.closed();
        let error = scene.attacked.error(RECEIVES);
        scene.ends(&error, true);
    }
}

#[test]
fn a_receive_into_unmapped_memory() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, 0);
            let request = ReceiveRequest { id: 7, buffers: scene.sge().into() };
            scene.attacked.pair.qp().post_receive(request).unwrap();
            scene.attacked.peer.send(&send(1), &vec![0xee; case.len]);
            let failed = scene.attacked.one();
            assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
            assert_eq!(scene.attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE, "{case:?}");
            let error = failed.cause.expect("a cause");
            scene.ends(&error, false);
        }
    }
}

#[test]
fn a_read_response_into_unmapped_memory() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, 0);
            let elsewhere = RemoteAddr { tag: Tag(0x7777_7700), offset: 0 };
            scene.attacked.post(7, Operation::Read(elsewhere), scene.sge());
            let received = scene.attacked.peer.receive_message();
            let Received::Message(Header::ReadRequest(request), ..) = received else {
                panic!("{received:?}")
            };
            let answer = Header::ReadResponse(Tagged { last: true, addr: request.sink });
            scene.attacked.peer.send(&answer, &vec![0xee; case.len]);
            let failed = scene.attacked.one();
            assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
            assert_eq!(scene.attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE, "{case:?}");
            let error = failed.cause.expect("a cause");
            scene.ends(&error, false);
        }
    }
}

/// A local request. The accessible part may be sent; of the rest, the peer sees only that the stream ends.
#[test]
fn a_send_of_unmapped_memory() {
    for case in CASES {
        let mut scene = Scene::new(case, Loss::Unmap, 0);
        scene.attacked.post(7, Operation::Send { invalidate: None }, scene.sge());
        let failed = scene.attacked.one();
        assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
        let (messages, _) = scene.attacked.peer.receive_until_end();
        let sent: usize = messages.iter().map(|(_, payload)| payload.len()).sum();
        assert!(sent <= case.accessible, "{case:?}: {sent} bytes of inaccessible memory");
        let last = messages.last().map(|(header, _)| *header);
        assert_eq!(last, Some(Header::Terminate(Terminate::LOCAL_CATASTROPHE)), "{case:?}");
        let error = failed.cause.expect("a cause");
        scene.ends(&error, false);
    }
}

/// A peer writes while the program protects pages and makes them writable again: there is no signal, and the
/// stream ends with the right Terminate or not at all.
#[test]
fn pages_that_come_and_go() {
    for crc in [true, false] {
        let victim = Victim::with(Config::default().crc(crc));
        let memory = Mapping::new(PAGES);
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = victim.engine.device().register(victim.domain, region).unwrap();
        for round in 0..20 {
            let mut attacked =
                victim.connect_peer_with(StartupSettings { crc, ..StartupSettings::default() }, 0);
            attacked.peer.open();
            let addr = memory.addr(0);
            // In half of the rounds, the pages are writable again when the Write arrives.
            memory.protect(HALF, HALF);
            if round % 2 == 0 {
                memory.unprotect(HALF, HALF);
            }
            attacked.peer.send(&write(tag, addr + HALF as u64 - 100), &[0xee; 50_000]);
            attacked.peer.send(&read(1, Tag(0), 0, 0), &[]);
            let received = attacked.peer.receive_message();
            let Received::Message(header, ..) = received else { panic!("{received:?}") };
            match header {
                Header::ReadResponse(_) => assert_eq!(round % 2, 0),
                Header::Terminate(terminate) => assert_eq!((terminate.cause, round % 2), (UNMAPPED, 1)),
                other => panic!("{other:?}"),
            }
            attacked.peer.finish();
            assert!(attacked.pair.wait_closed(TIMEOUT));
            memory.unprotect(HALF, HALF);
        }
        victim.assert_untouched();
        victim.assert_survives();
    }
}
