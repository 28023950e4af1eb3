//! The end of a connection, protocol violations of the target, and memory that cannot be used. Each command and each receive
//! ends once.

use super::*;
use crate::error::IscsiFault;
use ironwarp_wire::iscsi::BadPdu;

/// Asserts that the queue pair has failed, that `commands` were flushed, and that all `receives` were, and returns the cause.
fn assert_failed(fixture: &Fixture, commands: &[CommandId], receives: u64) -> Arc<QpError> {
    assert_eq!(fixture.qp.state(), State::Error);
    assert!(fixture.link.aborted.load(Ordering::Relaxed));
    let mut failed = fixture.failed();
    failed.sort_unstable_by_key(|(id, _)| *id);
    let expected: Vec<_> = commands.iter().map(|id| (*id, Status::Flushed)).collect();
    assert_eq!(failed, expected);
    let flushed = poll(&fixture.receive_cq);
    assert!(flushed.iter().all(|receive| receive.status == Status::Flushed), "{flushed:?}");
    let mut ids: Vec<_> = flushed.iter().map(|receive| receive.wr_id).collect();
    ids.dedup();
    assert_eq!(ids.len() as u64, receives);
    assert!(ids.is_sorted(), "{ids:?}");
    let none = CommandRequest { header: Command::default(), data: None };
    assert_eq!(fixture.qp.post_commands(vec![none]), Err(PostError::NotConnected));
    let request = ReceiveRequest { id: 1, buffers: Sges::default() };
    assert_eq!(fixture.qp.post_receive(request), Err(PostError::NotConnected));
    assert_eq!(fixture.device.table().len(), 1); // the memory of the test
    fixture.qp.error().unwrap()
}

/// Reports the end of the connection to the queue pair.
fn report_end(fixture: &Fixture, error: LinkError) {
    fixture.link.end(error);
    fixture.qp.drive(Ready { readable: true, writable: true, ended: true });
    fixture.settle();
}

#[test]
fn a_connection_that_ends_between_pdus_is_closed() {
    let fixture = Fixture::new();
    let (read, _) = fixture.start_read(&[(DATA, 8)]);
    let (write, _) = fixture.start_write(&[(DATA, 8)]);
    report_end(&fixture, LinkError::Ended);
    let cause = assert_failed(&fixture, &[read, write], SLOTS);
    assert!(matches!(*cause, QpError::Closed), "{cause}");
}

#[test]
fn a_connection_that_ends_within_a_pdu_is_cut_short() {
    for at in [1, 47, 48, 49, 60, 99] {
        for digests in [false, true] {
            let fixture = Fixture::with_session(|session| session.digests.data = digests);
            let (id, task) = fixture.start_read(&[(DATA, 99)]);
            let bytes = fixture.encode(&last_data_in(task, 0), &[1; 99]);
            fixture.arrive(&bytes[..at]);
            report_end(&fixture, LinkError::Ended);
            let cause = assert_failed(&fixture, &[id], SLOTS);
            assert!(matches!(*cause, QpError::CutShort), "{cause}");
        }
    }
}

#[test]
fn a_lost_connection_flushes_everything() {
    for within in [false, true] {
        let fixture = Fixture::new();
        let (id, task) = fixture.start_read(&[(DATA, 99)]);
        if within {
            fixture.arrive(&fixture.encode(&last_data_in(task, 0), &[1; 99])[..70]);
        }
        report_end(&fixture, LinkError::Lost(104));
        let cause = assert_failed(&fixture, &[id], SLOTS);
        assert!(matches!(*cause, QpError::Lost(104)), "{cause}");
        fixture.deliver(response(task), b""); // nothing happens
        assert!(fixture.got().is_empty() && fixture.ended().is_empty());
    }
}

#[test]
fn a_lost_connection_is_noticed_while_no_receive_is_posted() {
    let fixture = Fixture::without_receives(|_| {});
    let (id, task) = fixture.start_read(&[(DATA, 99)]);
    fixture.arrive(&fixture.encode(&last_data_in(task, 0), &[1; 99]));
    report_end(&fixture, LinkError::Lost(104));
    let cause = assert_failed(&fixture, &[id], 0);
    assert!(matches!(*cause, QpError::Lost(104)), "{cause}");
}

#[test]
fn responses_before_the_end_of_the_connection_are_delivered() {
    let fixture = Fixture::without_receives(|_| {});
    let (id, task) = fixture.start_read(&[(DATA, 99)]);
    fixture.link.arrive(&fixture.encode(&last_data_in(task, 0), &[1; 99]));
    report_end(&fixture, LinkError::Ended);
    assert_eq!(fixture.qp.state(), State::ReadyToSend);
    fixture.post_receive();
    fixture.settle();
    let cause = fixture.qp.error();
    fixture.assert_completed(id);
    assert!(matches!(cause.as_deref(), Some(QpError::Closed)), "{cause:?}");
    assert!(fixture.ended().is_empty());
}

#[test]
fn a_link_that_fails_to_send_ends_the_queue_pair() {
    let fixture = Fixture::new();
    fixture.link.end(LinkError::Lost(32));
    let id = fixture.read(&[(DATA, 8)]);
    let cause = assert_failed(&fixture, &[id], SLOTS);
    assert!(matches!(*cause, QpError::Lost(32)), "{cause}");
}

#[test]
fn violations_of_the_target_end_the_connection() {
    let mut unknown = response(0).emit(0);
    unknown[0] = 0x3e;
    let mut reserved = response(0).emit(0);
    (reserved[0], reserved[1]) = (0x23, 0x82); // a login response to stage 2
    let long = data_in(0, 0).emit(8193);
    let cases = [
        (unknown, IscsiFault::Header(BadPdu::Opcode(0x3e))),
        (reserved, IscsiFault::Header(BadPdu::Reserved { field: "NSG", value: 2 })),
        (long, IscsiFault::TooLong { found: 8193, limit: 8192 }),
    ];
    for (header, fault) in cases {
        let fixture = Fixture::new();
        let (id, _) = fixture.start_read(&[(DATA, 99)]);
        fixture.arrive(&header);
        let cause = assert_failed(&fixture, &[id], SLOTS);
        assert!(matches!(&*cause, QpError::Iscsi(cause) if *cause == fault), "{cause}");
    }
}

/// The offset of memory that is registered but not mapped.
const UNMAPPED: u64 = LEN as u64;

#[test]
fn data_in_for_unmapped_memory_ends_the_connection() {
    for len in [8, 4000] {
        let fixture = Fixture::new();
        let (id, task) = fixture.start_read(&[(DATA, 4), (UNMAPPED, len)]);
        let bytes = fixture.encode(&data_in(task, 0), &vec![1; len as usize + 4]);
        fixture.arrive(&bytes[..48]);
        fixture.arrive(&bytes[48..]);
        let cause = assert_failed(&fixture, &[id], SLOTS);
        assert!(matches!(*cause, QpError::Unmapped { remote: true, .. }), "{cause}");
    }
}

#[test]
fn sending_unmapped_memory_ends_the_connection() {
    for digests in [false, true] {
        let fixture = Fixture::with_session(|session| session.digests.data = digests);
        let id = fixture.write(&[(UNMAPPED, 8)]);
        let cause = assert_failed(&fixture, &[id], SLOTS);
        let is_expected = matches!(*cause, QpError::Unmapped { remote: false, .. } | QpError::HalfSent);
        assert!(is_expected, "{cause}");
    }
}

#[test]
fn a_response_that_its_receive_cannot_hold_still_ends_the_command() {
    for bad_tag in [false, true] {
        let fixture = Fixture::without_receives(|_| {});
        let tag = if bad_tag { Tag(0x1234_5678) } else { fixture.tag };
        let buffers = Sges::from(&[Sge { tag, addr: BASE + UNMAPPED, len: 48 }][..]);
        fixture.qp.post_receive(ReceiveRequest { id: 5, buffers }).unwrap();
        let (id, task) = fixture.start_read(&[(DATA, 8)]);
        let (other, _) = fixture.start_read(&[(DATA, 8)]);
        fixture.deliver(response(task), b"");
        assert_eq!(fixture.qp.state(), State::Error);
        let [receive] = &poll(&fixture.receive_cq)[..] else { panic!() };
        assert_eq!((receive.wr_id, receive.status), (5, Status::LocalProtection));
        assert_eq!((receive.opcode, CommandId::of(receive)), (Opcode::Response, Some(id)));
        assert_eq!(fixture.failed(), [(other, Status::Flushed)]);
    }
}

#[test]
fn a_completion_queue_that_overflows_ends_the_connection() {
    let fixture = Fixture::with(|settings| settings.completions = 1);
    let ids = [fixture.read(&[(DATA, 8)]), fixture.read(&[(DATA, 8)])];
    fixture.qp.modify(State::Error).unwrap();
    fixture.settle();
    let mut failed = Vec::new();
    while fixture.send_cq.poll(1, |end| failed.push(CommandId::of(&end).unwrap())).unwrap_or(0) > 0 {}
    assert_eq!(failed, ids[..1]);

    let fixture = Fixture::with(|settings| {
        settings.completions = 1;
        settings.failure = RegistrationFailure::Reactive;
    });
    let (outstanding, _) = fixture.start_read(&[(DATA, 8)]);
    let bad = Some((Direction::In, Sges::from(&[Sge { tag: Tag(1), addr: 0, len: 8 }][..])));
    fixture.post(bad.clone());
    fixture.post(bad); // flushed, but there is no room for its completion
    assert_eq!(fixture.qp.state(), State::Error);
    assert!(matches!(&*fixture.qp.error().unwrap(), QpError::Overrun(1)));
    assert_eq!(fixture.qp.abort(outstanding), Err(CommandEnded(outstanding)));
}

#[test]
fn a_region_may_be_deregistered_while_a_command_uses_it() {
    let fixture = Fixture::new();
    let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    let memory = Memory::direct(BASE + DATA, 100, rights).unwrap();
    let region = fixture.device.register(fixture.domain, memory).unwrap();
    let sges = Sges::from(&[Sge { tag: region, addr: BASE + DATA, len: 100 }][..]);
    let read = fixture.post(Some((Direction::In, sges.clone())));
    let read_task = fixture.sent_command().task;
    fixture.device.table().deregister(region).unwrap();
    // The command has registered the memory itself.
    fixture.deliver(last_data_in(read_task, 0), &[7; 100]);
    fixture.assert_completed(read);
    assert_eq!(fixture.bytes(DATA, 100), [7; 100]);
    let late = fixture.post(Some((Direction::In, sges)));
    assert_eq!(fixture.failed(), [(late, Status::LocalProtection)]);
}

#[test]
fn shutting_down_ends_everything_at_once() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 99)]);
    fixture.arrive(&fixture.encode(&last_data_in(task, 0), &[1; 99])[..70]);
    fixture.qp.shut_down();
    let cause = assert_failed(&fixture, &[id], SLOTS);
    assert!(matches!(*cause, QpError::Moved), "{cause}");
}
