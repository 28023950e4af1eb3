//! Memory that the program took away after it registered it, by `munmap` or `mprotect`: registration pins nothing, so a peer
//! may name it. The answer is an error, never a signal.

use crate::common::mapping::Mapping;
use crate::common::peer::{Heard, Way};
use crate::common::victim::{Attacked, RECEIVES, Victim};
use crate::common::{PATIENCE, read, send, write};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::queue::{Operation, ReceiveRequest, Sge, Status};
use ironwarp_wire::{Cause, Header, Place, Protection, Tag, Tagged, Terminate};

const UNMAPPED: Cause = Cause::Protection(Protection::Unspecified);
/// Pages, of which the second half goes away.
const PAGES: usize = 32;
const HALF: usize = PAGES / 2 * 4096;

/// What is done to the memory.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unmap,
    WriteProtect,
}

/// Small payload is copied by way of the adapter; large payload without CRC goes straight from and to the socket.
#[derive(Clone, Copy, Debug)]
struct Case {
    crc: bool,
    len: usize,
    /// How much of it is still there.
    there: usize,
}

const CASES: [Case; 5] = [
    Case { crc: true, len: 100, there: 0 },
    Case { crc: true, len: 5000, there: 40 },
    Case { crc: true, len: 40_000, there: 4096 },
    Case { crc: false, len: 40_000, there: 0 },
    Case { crc: false, len: 60_000, there: 10_000 },
];

/// A victim, a peer, and memory of which a part is gone.
struct Scene {
    victim: Victim,
    attacked: Attacked,
    /// Kept until the end, though half of it is gone.
    mapping: Mapping,
    tag: Tag,
    addr: u64,
    case: Case,
}

impl Scene {
    fn new(case: Case, loss: Loss, receives: usize) -> Self {
        let victim = Victim::with(Config { crc: case.crc, ..Config::default() });
        let mut attacked = victim.attacked_by(Way { crc: case.crc, ..Way::default() }, receives);
        attacked.peer.open();
        let mapping = Mapping::new(PAGES);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let memory = Memory::direct(mapping.addr(0), mapping.len() as u64, rights).unwrap();
        let tag = victim.engine.device().register(victim.domain, memory).unwrap();
        match loss {
            Loss::Unmap => mapping.unmap(HALF, HALF),
            Loss::WriteProtect => mapping.protect(HALF, HALF),
        }
        let addr = mapping.addr(HALF - case.there);
        Self { victim, attacked, mapping, tag, addr, case }
    }

    fn sge(&self) -> Sge {
        Sge { tag: self.tag, addr: self.addr, len: u32::try_from(self.case.len).unwrap() }
    }

    fn ends(self, fault: &Fault, remote: bool) {
        assert!(
            matches!(fault, Fault::Unmapped { place, remote: by, .. } if place.tag == self.tag && *by == remote),
            "{:?}: {fault:?}",
            self.case
        );
        self.attacked.closed();
        self.victim.untouched();
        self.victim.survives();
        drop(self.mapping);
    }
}

#[test]
fn a_write_to_it() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, RECEIVES);
            let fpdu = scene.attacked.peer.send(&write(scene.tag, scene.addr), &vec![0xee; case.len]);
            let fault = scene.attacked.terminated_for(UNMAPPED, &fpdu);
            scene.ends(&fault, true);
        }
    }
}

#[test]
fn a_read_of_it() {
    for case in CASES {
        let mut scene = Scene::new(case, Loss::Unmap, RECEIVES);
        let len = u32::try_from(case.len).unwrap();
        scene.attacked.peer.send(&read(1, scene.tag, scene.addr, len), &[]);
        let (messages, end) = scene.attacked.peer.hear_out();
        assert_eq!(end, Heard::End, "{case:?}");
        let Some((Header::Terminate(terminate), _)) = messages.last() else {
            panic!("{case:?}: {messages:?}")
        };
        assert_eq!(terminate.cause, UNMAPPED, "{case:?}");
        let served: usize = messages.iter().map(|(_, payload)| payload.len()).sum();
        assert!(served <= case.there, "{case:?}: {served} bytes of memory that is not there");
        let left = terminate.offender.read.expect("it returns the Read");
        assert_eq!(left.len as usize, case.len - served, "{case:?}");
        assert_eq!(left.source.offset, scene.addr + served as u64, "{case:?}");
        scene.attacked.closed();
        let fault = scene.attacked.fault(RECEIVES);
        scene.ends(&fault, true);
    }
}

#[test]
fn a_receive_into_it() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, 0);
            let request = ReceiveRequest { id: 7, buffers: scene.sge().into() };
            scene.attacked.pair.qp().post_receive(request).unwrap();
            scene.attacked.peer.send(&send(1), &vec![0xee; case.len]);
            let failed = scene.attacked.one();
            assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
            assert_eq!(scene.attacked.peer.hear_terminate(), Terminate::LOCAL_CATASTROPHE, "{case:?}");
            let fault = failed.cause.expect("it says why");
            scene.ends(&fault, false);
        }
    }
}

#[test]
fn an_answer_into_it() {
    for loss in [Loss::Unmap, Loss::WriteProtect] {
        for case in CASES {
            let mut scene = Scene::new(case, loss, 0);
            let elsewhere = Place { tag: Tag(0x7777_7700), offset: 0 };
            scene.attacked.post(7, Operation::Read(elsewhere), scene.sge());
            let heard = scene.attacked.peer.hear_message();
            let Heard::Message(Header::ReadRequest(request), ..) = heard else { panic!("{heard:?}") };
            let answer = Header::ReadResponse(Tagged { last: true, place: request.sink });
            scene.attacked.peer.send(&answer, &vec![0xee; case.len]);
            let failed = scene.attacked.one();
            assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
            assert_eq!(scene.attacked.peer.hear_terminate(), Terminate::LOCAL_CATASTROPHE, "{case:?}");
            let fault = failed.cause.expect("it says why");
            scene.ends(&fault, false);
        }
    }
}

/// The program's own request. What was there left; of what was not, the peer sees nothing but that the stream ends.
#[test]
fn a_send_of_it() {
    for case in CASES {
        let mut scene = Scene::new(case, Loss::Unmap, 0);
        scene.attacked.post(7, Operation::Send { invalidate: None }, scene.sge());
        let failed = scene.attacked.one();
        assert_eq!((failed.wr_id, failed.status), (7, Status::LocalProtection), "{case:?}: {failed:?}");
        let (messages, _) = scene.attacked.peer.hear_out();
        let sent: usize = messages.iter().map(|(_, payload)| payload.len()).sum();
        assert!(sent <= case.there, "{case:?}: {sent} bytes of memory that is not there");
        let last = messages.last().map(|(header, _)| *header);
        assert_eq!(last, Some(Header::Terminate(Terminate::LOCAL_CATASTROPHE)), "{case:?}");
        let fault = failed.cause.expect("it says why");
        scene.ends(&fault, false);
    }
}

/// A peer writes while the program takes pages away and maps them again, over and over: no signal, and the stream ends with
/// the right Terminate or not at all.
#[test]
fn pages_that_come_and_go() {
    for crc in [true, false] {
        let victim = Victim::with(Config { crc, ..Config::default() });
        let memory = Mapping::new(PAGES);
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = victim.engine.device().register(victim.domain, region).unwrap();
        for round in 0..20 {
            let mut attacked = victim.attacked_by(Way { crc, ..Way::default() }, 0);
            attacked.peer.open();
            let addr = memory.addr(0);
            // Half of the rounds write to pages that are writable again by the time the Write arrives.
            memory.protect(HALF, HALF);
            if round % 2 == 0 {
                memory.unprotect(HALF, HALF);
            }
            attacked.peer.send(&write(tag, addr + HALF as u64 - 100), &[0xee; 50_000]);
            attacked.peer.send(&read(1, Tag(0), 0, 0), &[]);
            let heard = attacked.peer.hear_message();
            let Heard::Message(header, ..) = heard else { panic!("{heard:?}") };
            match header {
                Header::ReadResponse(_) => assert_eq!(round % 2, 0),
                Header::Terminate(terminate) => assert_eq!((terminate.cause, round % 2), (UNMAPPED, 1)),
                other => panic!("{other:?}"),
            }
            attacked.peer.finish();
            assert!(attacked.pair.wait_closed(PATIENCE));
            memory.unprotect(HALF, HALF);
        }
        victim.untouched();
        victim.survives();
    }
}
