//! Requirement M7, the reactive option: a refused registration by work request drains the send queue, and the
//! connection continues. `local_checks` tests the other option, which ends the connection.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, write};
use ironwarp_engine::QueuePairAttributes;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Check, Memory, RegisterError, Rights, next_tag};
use ironwarp_rnic::qp::{Completes, Receives, RegistrationFailure, State};
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest};
use ironwarp_wire::{Cause, Header, Protection, RemoteAddr, Tag, Tagged, Terminate};
use std::time::Instant;

const SEND: Operation = Operation::Send { invalidate: None };
/// The remote memory that the victim's Reads name.
const ELSEWHERE: RemoteAddr = RemoteAddr { tag: Tag(0x7777_7700), offset: 0 };

fn request(id: u64, operation: Operation, data: impl Into<Sges>) -> WorkRequest {
    WorkRequest::new(id, operation, Data::Memory(data.into()))
}

impl Victim {
    /// A queue pair that survives refused registrations, and its peer.
    fn reactive(&self) -> Attacked {
        let cq = self.engine.create_cq(64).unwrap();
        let pair = self.engine.create_qp(QueuePairAttributes {
            receives: Receives::Own(64),
            completes: Completes::WhenSent,
            registration_failure: RegistrationFailure::Reactive,
            ..QueuePairAttributes::new(self.domain, &cq)
        });
        let pair = pair.unwrap();
        for id in 0..RECEIVES as u64 {
            let buffers = self.private.sge(id * 256, 256).into();
            pair.qp().post_receive(ReceiveRequest { id, buffers }).unwrap();
        }
        let mut peer = self.connected(&pair, StartupSettings::default());
        peer.open();
        Attacked { peer, pair, cq }
    }

    /// A request that registers its open area under this tag.
    fn registration(&self, id: u64, tag: Tag) -> WorkRequest {
        let memory = Memory::direct(self.open.addr, AREA as u64, Rights::LOCAL_READ).unwrap();
        request(id, Operation::Register { tag, memory }, Sges::default())
    }

    fn new_tag(&self) -> Tag {
        self.engine.device().table().allocate(self.domain).unwrap()
    }
}

impl Attacked {
    fn posts(&self, requests: Vec<WorkRequest>) {
        self.pair.qp().post_send(requests).unwrap();
    }

    /// Checks the next completions, in order.
    fn ended(&self, expected: &[(u64, Status)]) {
        let ended = self.completions(expected.len());
        let found: Vec<_> = ended.iter().map(|it| (it.wr_id, it.status)).collect();
        assert_eq!(found, expected, "{ended:?}");
    }

    /// Waits until its registration was refused, which happens after earlier requests were sent.
    fn until_drained(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.pair.qp().state() != State::Drained {
            assert!(Instant::now() < deadline, "{:?}", self.pair.qp().state());
        }
    }

    fn receive_send(&mut self) {
        let received = self.peer.receive_message();
        assert!(matches!(received, Received::Message(Header::Send(_), ..)), "{received:?}");
    }
}

#[test]
fn requests_after_a_refusal_are_flushed_and_the_consumer_tries_again() {
    let victim = Victim::new();
    let mut attacked = victim.reactive();
    let tag = victim.new_tag();
    let some = victim.readable.sge(0, 8);
    let wrong = victim.registration(2, next_tag(tag));
    attacked.posts(vec![request(1, SEND, some), wrong, request(3, SEND, some)]);
    let ended = attacked.completions(3);
    let found: Vec<_> = ended.iter().map(|it| (it.wr_id, it.status)).collect();
    assert_eq!(found, [(1, Status::Success), (2, Status::WindowBind), (3, Status::Flushed)], "{ended:?}");
    let Some(QpError::Register { error: RegisterError::Denied(denied), .. }) = ended[1].cause.as_deref()
    else {
        panic!("{ended:?}");
    };
    assert_eq!((denied.check, &ended[1].cause), (Check::Instance, &ended[2].cause));
    attacked.receive_send();

    // Requests posted before the program notices are flushed; everything else still works.
    assert_eq!(attacked.pair.qp().state(), State::Drained);
    attacked.posts(vec![request(4, SEND, some), request(5, SEND, some)]);
    attacked.ended(&[(4, Status::Flushed), (5, Status::Flushed)]);
    attacked.peer.send(&write(victim.open.tag, victim.open.addr), b"written");
    attacked.assert_works(1);
    attacked.peer.send(&read(1, victim.open.tag, victim.open.addr, 7), &[]);
    let received = attacked.peer.receive_message();
    assert!(matches!(&received, Received::Message(Header::ReadResponse(_), bytes, _) if bytes == b"written"));

    // The tag can still be used.
    attacked.pair.modify(State::ReadyToSend).unwrap();
    let registered = Sge { tag, addr: victim.open.addr, len: 7 };
    attacked.posts(vec![victim.registration(6, tag), request(7, SEND, registered)]);
    attacked.ended(&[(6, Status::Success), (7, Status::Success)]);
    let received = attacked.peer.receive_message();
    assert!(
        matches!(&received, Received::Message(Header::Send(_), bytes, _) if bytes == b"written"),
        "{received:?}"
    );
    assert_eq!(attacked.pair.qp().error(), None);
    victim.assert_untouched_except(&[(victim.open.at, 7), (victim.private.at, 10)]);
    victim.assert_survives();
}

/// Requests before the refused one are not affected and complete first, even if the consumer has resumed
/// sending meanwhile.
#[test]
fn requests_before_a_refusal_complete_first() {
    for goes_on in [false, true] {
        let victim = Victim::new();
        let mut attacked = victim.reactive();
        let some = victim.readable.sge(0, 8);
        let wrong = victim.registration(2, Tag(0xff));
        attacked.posts(vec![request(1, Operation::Read(ELSEWHERE), victim.open.sge(0, 8)), wrong]);
        attacked.posts(vec![request(3, SEND, some)]);
        let received = attacked.peer.receive_message();
        let Received::Message(Header::ReadRequest(asked), ..) = received else { panic!("{received:?}") };
        attacked.until_drained();
        if goes_on {
            attacked.pair.modify(State::ReadyToSend).unwrap();
            attacked.posts(vec![request(4, SEND, victim.readable.sge(8, 8))]);
            let received = attacked.peer.receive_message();
            let Received::Message(Header::Send(_), bytes, _) = received else { panic!("{received:?}") };
            assert_eq!(bytes, victim.memory.read(victim.readable.at + 8, 8), "not the flushed request");
        }
        let mut early = 0;
        attacked.cq.poll(1, |_| early += 1).unwrap();
        assert_eq!(early, 0, "the Read is not answered yet, and all others complete after it");
        attacked.peer.send(&Header::ReadResponse(Tagged { last: true, addr: asked.sink }), &[0xee; 8]);
        attacked.ended(&[(1, Status::Success), (2, Status::WindowBind), (3, Status::Flushed)]);
        if goes_on {
            attacked.ended(&[(4, Status::Success)]);
        }
        attacked.assert_works(1);
        victim.assert_survives();
    }
}

/// Several refusals, after each of which the consumer resumes.
#[test]
fn a_registration_may_be_refused_repeatedly() {
    let victim = Victim::new();
    let mut attacked = victim.reactive();
    let tag = victim.new_tag();
    let some = victim.readable.sge(0, 8);
    for round in 0..5 {
        let wrong = victim.registration(10 * round, next_tag(tag));
        attacked.posts(vec![wrong, request(10 * round + 1, SEND, some)]);
        attacked.ended(&[(10 * round, Status::WindowBind), (10 * round + 1, Status::Flushed)]);
        attacked.pair.modify(State::ReadyToSend).unwrap();
        attacked.posts(vec![request(10 * round + 2, SEND, some)]);
        attacked.ended(&[(10 * round + 2, Status::Success)]);
        attacked.receive_send();
    }
    attacked.assert_works(1);
    victim.assert_survives();
}

/// A drained queue pair ends like any other: by the peer's Terminate, or because the program closes it.
#[test]
fn a_drained_queue_pair_ends_as_others_do() {
    let victim = Victim::new();
    let (mut attacked, some) = (victim.reactive(), victim.readable.sge(0, 8));
    attacked.posts(vec![victim.registration(1, Tag(0xff))]);
    attacked.ended(&[(1, Status::WindowBind)]);
    let cause = Cause::Protection(Protection::Access);
    attacked.peer.send(&Header::Terminate(Terminate { cause, offender: Default::default() }), &[]);
    attacked.closed();
    assert!(matches!(*attacked.error(RECEIVES), QpError::Terminated(_)));
    attacked.posts(vec![request(2, SEND, some)]);
    let late = attacked.one();
    assert!(matches!(late.cause.as_deref(), Some(QpError::Terminated(_))), "{late:?}");

    let mut attacked = victim.reactive();
    attacked.posts(vec![victim.registration(1, Tag(0xff)), request(2, SEND, some)]);
    attacked.pair.disconnect();
    attacked.ended(&[(1, Status::WindowBind), (2, Status::Flushed)]);
    assert_eq!(attacked.peer.receive_message(), Received::End);
    attacked.peer.finish();
    assert!(attacked.pair.wait_closed(TIMEOUT));
    victim.assert_untouched();
    victim.assert_survives();
}
