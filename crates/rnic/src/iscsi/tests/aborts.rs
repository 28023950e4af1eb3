//! Aborts: from their return on, no byte of the command's memory is read or written, whatever the target sends and
//! whatever the link has taken.

use super::*;

#[test]
fn a_command_that_was_not_started_is_removed() {
    let fixture = Fixture::with_session(|session| session.max_send_data = 300_000);
    fixture.link.block();
    // More than a batch, so that the second command waits in the queue.
    let first = fixture.write(&[(DATA, 65_536)]);
    let blockers: Vec<_> = (0..5).map(|_| fixture.write(&[(DATA, 65_536)])).collect();
    let last = fixture.read(&[(DATA, 8)]);
    fixture.qp.abort(last).unwrap();
    assert_eq!(fixture.qp.abort(last), Err(CommandEnded(last)));
    fixture.give_room(1 << 24);
    assert_eq!(fixture.sent().len(), 1 + blockers.len());
    fixture.qp.abort(first).unwrap();
    assert!(fixture.ended().is_empty() && fixture.got().is_empty());
}

#[test]
fn late_data_in_of_an_aborted_command_changes_no_byte() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 100)]);
    fixture.deliver(data_in(task, 0), &[1; 10]);
    assert_eq!(fixture.got_one().opcode, Opcode::Pdu);
    fixture.qp.abort(id).unwrap();
    fixture.host.bytes()[DATA as usize..].fill(0x33);
    // The memory is used by other commands, with other tags.
    let (write, write_task) = fixture.start_write(&[(DATA, 50)]);
    let (read, read_task) = fixture.start_read(&[(DATA + 50, 50)]);
    for pdu in [data_in(task, 0), last_data_in(task, 0)] {
        fixture.deliver(pdu, &[9; 100]);
        assert_eq!(fixture.got_one().failed_check(), Check::Valid);
    }
    fixture.deliver(response(task), b"");
    assert_eq!(fixture.got_one().failed_check(), Check::Valid);
    assert_eq!(fixture.bytes(DATA, 100), [0x33; 100]);

    fixture.deliver(last_data_in(read_task, 0), &[4; 50]);
    fixture.assert_completed(read);
    fixture.deliver(response(write_task), b"");
    fixture.assert_completed(write);
    assert!(fixture.ended().is_empty());
}

#[test]
fn an_abort_within_data_in_stops_the_placement() {
    for (len, tail) in [(100, 40), (60_000, 30_000)] {
        for at in [48, 49, 48 + len / 3, 47 + len] {
            let fixture = Fixture::with_session(|session| session.max_recv_data = 100_000);
            let (id, task) = fixture.start_read(&[(DATA, len as u32)]);
            let bytes = fixture.encode(&last_data_in(task, 0), &vec![5; len]);
            fixture.arrive(&bytes[..at]);
            let placed = fixture.bytes(DATA, len as u32).iter().filter(|byte| **byte == 5).count();
            assert_eq!(placed, at - 48);
            fixture.qp.abort(id).unwrap();
            fixture.host.bytes()[DATA as usize..].fill(0x33);
            fixture.arrive(&bytes[at..]);
            let got = fixture.got_one();
            assert_eq!(got.failed_check(), Check::Valid);
            // Data is delivered only from its beginning on.
            let delivered = if at == 48 { len.min(SLOT as usize - 48) } else { 0 };
            assert_eq!((got.pdu, got.data), (last_data_in(task, 0), vec![5; delivered]));
            assert!(fixture.bytes(DATA, len as u32 + tail).iter().all(|byte| *byte == 0x33));
            assert_eq!((fixture.qp.state(), fixture.ended().len()), (State::ReadyToSend, 0));
        }
    }
}

#[test]
fn an_abort_within_data_out_sends_the_rest_of_the_pdu_and_nothing_else() {
    for digests in [(false, false), (true, true)] {
        for taken in [0, 1, 47, 48, 49, 100, 140, 150, 155] {
            let fixture = Fixture::with_session(|session| {
                (session.digests.header, session.digests.data) = digests;
                (session.max_send_data, session.immediate_data) = (99, false);
            });
            let data = fixture.fill(DATA, 1000, 1);
            let (id, task) = fixture.start_write(&[(DATA, 600), (DATA + 600, 400)]);
            fixture.link.block();
            fixture.deliver(TargetPdu::R2t(r2t(task, 0, 1000)), b"");
            fixture.give_room(taken);
            fixture.qp.abort(id).unwrap();
            fixture.host.bytes()[DATA as usize..].fill(0x33);
            fixture.give_room(1 << 20);
            let mut sent = fixture.sent();
            // The whole PDU was sent if its last byte was.
            let whole = 48 + 99 + 1 + if digests.0 { 8 } else { 0 };
            match taken {
                0 => assert!(sent.is_empty(), "{sent:?}"),
                _ => {
                    let second = sent.split_off(1);
                    assert_eq!(sent[0].data, data[..99], "{taken}");
                    assert_eq!(second.len(), usize::from(taken > whole), "{taken} {second:?}");
                    assert!(second.iter().all(|pdu| pdu.data == data[99..198]));
                }
            }
            let (next, task) = fixture.start_read(&[(DATA, 8)]);
            fixture.deliver(response(task), b"");
            assert_eq!(fixture.got().last().unwrap().command, Some(next));
        }
    }
}

#[test]
fn an_abort_ends_an_answer_of_more_pdus_than_a_batch_has() {
    for ends_by_response in [false, true] {
        let fixture = Fixture::with_session(|session| {
            (session.max_send_data, session.immediate_data) = (10, false);
        });
        let data = fixture.fill(DATA, 2000, 1);
        let (id, task) = fixture.start_write(&[(DATA, 2000)]);
        fixture.link.block();
        fixture.deliver(TargetPdu::R2t(r2t(task, 0, 2000)), b"");
        fixture.give_room(50);
        if ends_by_response {
            fixture.deliver(response(task), b"");
        } else {
            fixture.qp.abort(id).unwrap();
        }
        fixture.host.bytes()[DATA as usize..].fill(0x33);
        fixture.give_room(1 << 20);
        let sent = fixture.sent();
        assert_eq!((sent.len(), &sent[0].data[..]), (1, &data[..10]));
        assert_eq!(fixture.qp.state(), State::ReadyToSend);
    }
}

#[test]
fn an_abort_of_a_command_that_waits_for_the_link_sends_its_pdu() {
    // The command has a number, which the target expects.
    for digests in [false, true] {
        let fixture = Fixture::with_session(|session| {
            (session.digests.data, session.initial_r2t, session.max_send_data) = (digests, false, 64);
        });
        let data = fixture.fill(DATA, 1000, 1);
        fixture.link.block();
        let id = fixture.write(&[(DATA, 1000)]);
        fixture.qp.abort(id).unwrap();
        fixture.host.bytes()[DATA as usize..].fill(0x33);
        fixture.give_room(1 << 20);
        let sent = fixture.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].data, data[..64]);
        assert!(matches!(sent[0].pdu, InitiatorPdu::Command(_)), "{sent:?}");
    }
}

#[test]
fn an_r2t_of_an_aborted_command_is_not_answered() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_write(&[(DATA, 100)]);
    let bytes = fixture.encode(&TargetPdu::R2t(r2t(task, 0, 100)), b"some data");
    fixture.arrive(&bytes[..50]); // it was checked
    fixture.qp.abort(id).unwrap();
    fixture.arrive(&bytes[50..]);
    assert!(fixture.link.sent().is_empty());
    fixture.deliver(TargetPdu::R2t(r2t(task, 0, 100)), b"");
    assert!(fixture.link.sent().is_empty());
    assert_eq!(fixture.got().last().unwrap().failed_check(), Check::Valid);
}

#[test]
fn a_command_ends_by_its_response_or_by_an_abort() {
    let fixture = Fixture::new();
    let (id, task) = fixture.start_read(&[(DATA, 100)]);
    let bytes = fixture.encode(&response(task), b"sense");
    let (front, rest) = bytes.split_at(50);
    fixture.arrive(front);
    fixture.qp.abort(id).unwrap(); // first
    fixture.arrive(rest);
    assert_eq!(fixture.got_one().failed_check(), Check::Valid);

    let (id, task) = fixture.start_read(&[(DATA, 100)]);
    fixture.deliver(response(task), b"");
    assert_eq!(fixture.qp.abort(id), Err(CommandEnded(id)));
    fixture.assert_completed(id);
    assert!(fixture.ended().is_empty());
}

#[test]
fn an_abort_races_with_the_response() {
    for _ in 0..200 {
        let fixture = Fixture::new();
        let (id, task) = fixture.start_write(&[(DATA, 100)]);
        fixture.link.arrive(&fixture.encode(&response(task), b""));
        let aborted = std::thread::scope(|scope| {
            let abort = scope.spawn(|| fixture.qp.abort(id));
            fixture.report_readable();
            abort.join().unwrap()
        });
        fixture.settle();
        let got = fixture.got_one();
        let expected = if aborted.is_ok() { Opcode::RefusedPdu } else { Opcode::Response };
        assert_eq!(got.opcode, expected);
        assert!(fixture.ended().is_empty());
    }
}

#[test]
fn an_early_response_ends_the_answer_to_an_r2t() {
    for digests in [false, true] {
        let fixture = Fixture::with_session(|session| {
            (session.digests.data, session.immediate_data, session.max_send_data) = (digests, false, 100);
        });
        let data = fixture.fill(DATA, 1000, 1);
        let (id, task) = fixture.start_write(&[(DATA, 1000)]);
        fixture.link.block();
        fixture.deliver(TargetPdu::R2t(r2t(task, 0, 1000)), b"");
        fixture.give_room(60);
        fixture.deliver(response(task), b"");
        fixture.assert_completed(id);
        fixture.host.bytes()[DATA as usize..].fill(0x33); // the program uses its memory again
        fixture.give_room(1 << 20);
        let sent = fixture.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].data, data[..100]);
        assert!(fixture.ended().is_empty());
    }
}

#[test]
fn aborts_of_unknown_commands_fail() {
    let fixture = Fixture::new();
    let (id, _) = fixture.start_read(&[(DATA, 8)]);
    for unknown in [CommandId(0), CommandId(id.0 ^ 0x10000), CommandId(id.0 ^ 1), CommandId(u32::MAX)] {
        assert_eq!(fixture.qp.abort(unknown), Err(CommandEnded(unknown)));
    }
    fixture.qp.abort(id).unwrap();
}
