//! Checks a to g of requirement M13, each by a target that lies: nothing is placed, nothing is sent, the program gets the
//! PDU, and the queue pair goes on.

use super::*;
use crate::error::IscsiFault;
use crate::memory::{Binding, Scope, Stream};

/// Delivers a PDU that must be refused without any effect, and returns how the program got it.
fn refused(fixture: &Fixture, pdu: TargetPdu, data: &[u8]) -> Got {
    let before = fixture.bytes(DATA, LEN as u32 - DATA as u32);
    fixture.deliver(pdu, data);
    assert!(fixture.bytes(DATA, LEN as u32 - DATA as u32) == before, "a byte was placed by {pdu:?}");
    assert!(fixture.link.sent().is_empty(), "{pdu:?} was answered");
    let got = fixture.got_one();
    assert_eq!((got.opcode, got.command), (Opcode::RefusedPdu, None), "{got:?}");
    assert_eq!((got.pdu, &got.data[..]), (pdu, data));
    assert_eq!(fixture.qp.state(), State::ReadyToSend);
    got
}

/// Delivers Data-In, an R2T and a response with this task tag, each of which must be refused by the same check.
fn refuse_all(fixture: &Fixture, task: u32, check: Check) {
    let data = refused(fixture, data_in(task, 0), &[1; 8]);
    let status = refused(fixture, last_data_in(task, 0), &[2; 8]);
    let r2t = refused(fixture, TargetPdu::R2t(r2t(task, 0, 8)), b"");
    let response = refused(fixture, response(task), b"sense");
    for got in [data, status, r2t] {
        assert_eq!(got.failed_check(), check, "{got:?}");
    }
    // A response checks the instance before it checks whether the command is outstanding.
    let found = response.failed_check();
    assert!(found == check || (found, check) == (Check::Instance, Check::Valid), "{response:?}");
}

/// Asserts that commands of both directions still work.
fn assert_goes_on(fixture: &Fixture) {
    let (read, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(last_data_in(task, 0), &[7; 8]);
    fixture.assert_completed(read);
    assert_eq!(fixture.bytes(DATA, 8), [7; 8]);
    let (write, task) = fixture.start_write(&[(DATA, 8)]);
    let r2t = r2t(task, 0, 8);
    fixture.deliver(TargetPdu::R2t(r2t), b"");
    fixture.assert_answered(&r2t, &[7; 8]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(write);
    assert!(fixture.ended().is_empty());
}

#[test]
fn a_a_tag_that_names_no_command_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 8)]);
    for unknown in [task ^ 0x100, task ^ 0x8000_0000, 0, 1, 255, NO_TASK] {
        refuse_all(&fixture, unknown, Check::Valid);
    }
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    refuse_all(&fixture, task, Check::Valid); // it has ended
    assert_goes_on(&fixture);
}

#[test]
fn a_a_tag_before_its_command_is_started_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    refuse_all(&fixture, crate::memory::next_tag(Tag(task)).0, Check::Valid);
    assert_goes_on(&fixture);
}

#[test]
fn b_the_tag_of_a_region_or_a_window_is_refused() {
    let fixture = Fixture::new();
    let rights = Rights::all();
    let memory = Memory::direct(BASE, LEN as u64, rights).unwrap();
    let region = fixture.device.register(fixture.domain, memory).unwrap();
    let window = fixture.device.table().allocate_window(fixture.domain).unwrap();
    let binding = Binding {
        region,
        at: BASE + DATA,
        len: 100,
        rights: Rights::REMOTE_WRITE | Rights::REMOTE_READ,
        one_touch: false,
        zero_based: true,
        scope: Scope::Domain,
    };
    let stream = Stream { domain: fixture.domain, qp: QPN };
    let window = fixture.device.table().bind(stream, window, binding).unwrap();
    for tag in [region, window, fixture.tag] {
        refuse_all(&fixture, tag.0, Check::Kind);
    }
    assert_goes_on(&fixture);
}

#[test]
fn c_a_command_of_another_queue_pair_or_domain_is_refused() {
    let fixture = Fixture::new();
    let other_domain = fixture.device.allocate_domain();
    let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    let memory = Memory::direct(BASE, LEN as u64, rights).unwrap();
    let other_tag = fixture.device.register(other_domain, memory).unwrap();
    for (domain, tag, check) in
        [(fixture.domain, fixture.tag, Check::Stream), (other_domain, other_tag, Check::Domain)]
    {
        let (other, link) = fixture.neighbour(8, domain);
        for direction in [Direction::In, Direction::Out] {
            let buffers = Sges::from(&[Sge { tag, addr: BASE + DATA, len: 8 }][..]);
            let header = Command::default();
            other.post_commands(vec![CommandRequest { header, data: Some((direction, buffers)) }]).unwrap();
            let bytes = link.sent();
            let InitiatorPdu::Command(Command { task, .. }) =
                InitiatorPdu::parse(bytes.first_chunk().unwrap()).unwrap()
            else {
                panic!("no command")
            };
            refuse_all(&fixture, task, check);
        }
        assert_eq!(other.state(), State::ReadyToSend);
    }
    assert_goes_on(&fixture);
}

#[test]
fn d_a_stale_instance_is_refused() {
    let fixture = Fixture::with(|settings| settings.send_depth = 1);
    let (first, stale) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(response(stale), b"");
    fixture.assert_completed(first);
    let (id, task) = fixture.start_read(&[(DATA, 8)]); // the same entry
    assert_eq!((task >> 8, task != stale), (stale >> 8, true));
    refuse_all(&fixture, stale, Check::Instance);
    refuse_all(&fixture, task ^ 0x80, Check::Instance);
    fixture.deliver(last_data_in(task, 0), &[1; 8]);
    fixture.assert_completed(id);
    assert_goes_on(&fixture);
}

#[test]
fn e_data_in_outside_of_the_buffers_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 60), (DATA + 1000, 40)]);
    for (offset, len) in
        [(101, 0), (100, 1), (99, 2), (0, 101), (u32::MAX, 0), (u32::MAX, 1), (u32::MAX - 7, 8)]
    {
        for pdu in [data_in(task, offset), last_data_in(task, offset)] {
            assert_eq!(refused(&fixture, pdu, &vec![5; len]).failed_check(), Check::Range, "{offset} {len}");
        }
    }
    // Up to the end is allowed.
    fixture.deliver(data_in(task, 99), &[1]);
    fixture.deliver(last_data_in(task, 100), &[]);
    fixture.assert_completed(id);
    assert_eq!(fixture.bytes(DATA + 1038, 3), [0xee, 1, 0xee]);
    assert_goes_on(&fixture);
}

#[test]
fn e_an_r2t_outside_of_the_buffers_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_write(&[(DATA, 100)]);
    for (offset, len) in
        [(101, 0), (100, 1), (99, 2), (0, 101), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX)]
    {
        let mut r2t = r2t(task, 0, len);
        r2t.offset = offset;
        assert_eq!(
            refused(&fixture, TargetPdu::R2t(r2t), b"").failed_check(),
            Check::Range,
            "{offset} {len}"
        );
    }
    let last = r2t(task, 99, 1);
    fixture.deliver(TargetPdu::R2t(last), b"");
    fixture.assert_answered(&last, &[0xee]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    assert_goes_on(&fixture);
}

#[test]
fn e_an_r2t_for_nothing_or_too_much_is_refused() {
    let fixture = Fixture::with_session(|session| session.max_burst = 512);
    let (_, task) = fixture.start_write(&[(DATA, 2000)]);
    for len in [0, 513, 2000] {
        let got = refused(&fixture, TargetPdu::R2t(r2t(task, 0, len)), b"");
        let fault = IscsiFault::R2tLength { found: len, limit: 512 };
        assert!(matches!(got.cause.as_deref(), Some(QpError::Iscsi(cause)) if *cause == fault), "{got:?}");
    }
    let most = r2t(task, 0, 512);
    fixture.deliver(TargetPdu::R2t(most), b"");
    fixture.assert_answered(&most, &[0xee; 512]);
    assert_goes_on(&fixture);
}

#[test]
fn more_r2ts_than_agreed_are_refused_until_one_is_answered() {
    let fixture = Fixture::with_session(|session| {
        (session.max_outstanding_r2t, session.immediate_data) = (2, false);
    });
    let (_, task) = fixture.start_write(&[(DATA, 100)]);
    let (_, other) = fixture.start_write(&[(DATA, 100)]);
    fixture.link.block();
    // A batch takes R2Ts off the queue when it is filled: fill it with a burst of another command first.
    let all: Vec<_> = (0..4).map(|_| TargetPdu::R2t(r2t(task, 0, 10))).collect();
    let bytes: Vec<u8> = all.iter().flat_map(|pdu| fixture.encode(pdu, b"")).collect();
    fixture.arrive(&bytes);
    let opcodes: Vec<_> = fixture.got().iter().map(|got| got.opcode).collect();
    assert_eq!(opcodes, [Opcode::Pdu, Opcode::Pdu, Opcode::RefusedPdu, Opcode::RefusedPdu]);
    fixture.deliver(TargetPdu::R2t(r2t(other, 0, 10)), b"");
    assert_eq!(fixture.got_one().opcode, Opcode::Pdu); // each command has its own limit
    fixture.give_room(1 << 20);
    assert_eq!(fixture.sent().len(), 3);
    fixture.deliver(TargetPdu::R2t(r2t(task, 0, 10)), b"");
    assert_eq!((fixture.got_one().opcode, fixture.sent().len()), (Opcode::Pdu, 1));
    fixture.give_room(1 << 20);
    assert_goes_on(&fixture);
}

#[test]
fn f_g_data_in_for_a_write_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_write(&[(DATA, 100)]);
    for pdu in [data_in(task, 0), last_data_in(task, 0)] {
        assert_eq!(refused(&fixture, pdu, &[1; 8]).failed_check(), Check::Right);
        assert_eq!(refused(&fixture, pdu, &[]).failed_check(), Check::Right);
    }
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    assert_goes_on(&fixture);
}

#[test]
fn f_g_an_r2t_for_a_read_is_refused() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 100)]);
    assert_eq!(refused(&fixture, TargetPdu::R2t(r2t(task, 0, 8)), b"").failed_check(), Check::Right);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    assert_goes_on(&fixture);
}

#[test]
fn data_for_a_command_without_data_is_refused() {
    let fixture = Fixture::new();
    let id = fixture.post(None);
    let task = fixture.sent_command().task;
    assert_eq!(refused(&fixture, data_in(task, 0), &[1]).failed_check(), Check::Range);
    assert_eq!(refused(&fixture, TargetPdu::R2t(r2t(task, 0, 1)), b"").failed_check(), Check::Range);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    assert_goes_on(&fixture);
}

#[test]
fn a_status_that_is_refused_is_acknowledged() {
    let fixture = Fixture::new();
    refused(&fixture, response_at(0x1234_5678, 0), b"");
    fixture.read(&[(DATA, 8)]);
    assert_eq!(fixture.sent_command().exp_stat_sn, 1);
}
