//! Posting commands, starting and ending them: numbers, tags, and the depth of the queue.

use super::*;
use std::collections::HashSet;

#[test]
fn the_number_of_a_command_is_returned_at_once() {
    let fixture = Fixture::new();
    fixture.link.block();
    let first = fixture.read(&[(DATA, 100)]);
    let second = fixture.write(&[(DATA, 100)]);
    assert_ne!(first, second);
    assert!(fixture.link.sent().is_empty() && fixture.ended().is_empty() && fixture.got().is_empty());
}

#[test]
fn the_adapter_sets_tag_lengths_and_flags_of_a_command() {
    let fixture = Fixture::with_session(|session| session.immediate_data = false);
    let posted = Command { lun: LUN, cmd_sn: 42, cdb: [9; 16], attribute: 1, ..Command::default() };
    for (direction, len) in [(Some(Direction::In), 300), (Some(Direction::Out), 77), (None, 0)] {
        let data = direction.map(|direction| (direction, fixture.sges(&[(DATA, len)])));
        let id = fixture.post(data);
        let sent = fixture.sent_command();
        let (read, write) = (direction == Some(Direction::In), direction == Some(Direction::Out));
        let expected = Command {
            last: true,
            read,
            write,
            task: sent.task,
            expected_len: len,
            exp_stat_sn: sent.exp_stat_sn,
            ..posted
        };
        assert_eq!(sent, expected);
        fixture.deliver(response(sent.task), b"");
        fixture.assert_completed(id);
    }
}

#[test]
fn commands_are_posted_all_or_none() {
    let fixture = Fixture::with(|settings| settings.send_depth = 3);
    let good = CommandRequest {
        header: Command::default(),
        data: Some((Direction::In, fixture.sges(&[(DATA, 8)]))),
    };
    let parts = [(DATA, 1); 5];
    let bad = CommandRequest { data: Some((Direction::In, fixture.sges(&parts))), ..good.clone() };
    let error = fixture.qp.post_commands(vec![good.clone(), bad]).unwrap_err();
    assert_eq!(error, PostError::TooManySges { have: 5, limit: 4 });
    let long = [(DATA, u32::MAX), (DATA, 1)];
    let bad = CommandRequest { data: Some((Direction::In, fixture.sges(&long))), ..good.clone() };
    let error = fixture.qp.post_commands(vec![good.clone(), bad]).unwrap_err();
    assert_eq!(error, PostError::MessageTooLong { len: 1 << 32, limit: u32::MAX });
    let error = fixture.qp.post_commands(vec![good.clone(); 4]).unwrap_err();
    assert_eq!(error, PostError::Full { capacity: 3 });
    assert!(fixture.link.sent().is_empty());

    fixture.qp.post_commands(vec![good.clone(); 3]).unwrap();
    assert_eq!(fixture.qp.post_commands(vec![good]).unwrap_err(), PostError::Full { capacity: 3 });
    assert_eq!(fixture.sent().len(), 3);
}

#[test]
fn a_command_of_the_target_makes_room_for_another() {
    let fixture = Fixture::with(|settings| settings.send_depth = 1);
    for _ in 0..5 {
        let (id, task) = fixture.start_read(&[(DATA, 8)]);
        assert_eq!(
            fixture.qp.post_commands(vec![CommandRequest { header: Command::default(), data: None }]),
            Err(PostError::Full { capacity: 1 })
        );
        fixture.deliver(response(task), b"");
        fixture.assert_completed(id);
    }
}

#[test]
fn other_pdus_are_sent_as_they_are() {
    let fixture = Fixture::new();
    let nop = ironwarp_wire::iscsi::NopOut {
        immediate: true,
        lun: 3,
        task: NO_TASK,
        target_task: 8,
        cmd_sn: 5,
        exp_stat_sn: 0,
    };
    let header = InitiatorPdu::NopOut(nop).emit(5);
    fixture.qp.post_pdu(PduRequest { id: 1, header, data: b"hello".as_slice().into() }).unwrap();
    let sent = fixture.sent();
    assert_eq!((sent[0].pdu, &sent[0].data[..]), (InitiatorPdu::NopOut(nop), &b"hello"[..]));
    let data = vec![0; 8193].into_boxed_slice();
    let error = fixture.qp.post_pdu(PduRequest { id: 1, header, data }).unwrap_err();
    assert_eq!(error, PostError::MessageTooLong { len: 8193, limit: 8192 });
    assert!(fixture.ended().is_empty());
}

#[test]
fn tags_of_many_commands_use_few_entries() {
    const DEPTH: usize = 4;
    let fixture = Fixture::with(|settings| settings.send_depth = DEPTH);
    let before = fixture.device.table().usage();
    let mut tags = HashSet::new();
    let mut ids = HashSet::new();
    for round in 0..256 * 3 {
        let started: Vec<_> = (0..DEPTH).map(|_| fixture.start_read(&[(DATA, 4)])).collect();
        let distinct: HashSet<u32> = started.iter().map(|(_, task)| *task).collect();
        assert_eq!(distinct.len(), DEPTH);
        for (id, task) in started {
            assert_ne!(task, NO_TASK);
            assert!(ids.insert(id), "number {id} used again");
            // The tags of an entry are used again after 256 commands of it, and not before.
            assert_eq!(tags.insert(task), round < 256, "round {round}");
            fixture.deliver(last_data_in(task, 0), &[round as u8; 4]);
            fixture.assert_completed(id);
            assert_eq!(fixture.bytes(DATA, 4), [round as u8; 4]);
            fixture.post_receive();
        }
    }
    let after = fixture.device.table().usage();
    assert_eq!((after.entries, after.retired), (before.entries + DEPTH, before.retired));
    assert_eq!(after.bytes, before.bytes);
    fixture.qp.shut_down();
    assert_eq!(fixture.device.table().usage().entries, before.entries);
}

#[test]
fn the_expected_status_number_follows_the_target_and_wraps_around() {
    let fixture = Fixture::with_session(|session| session.exp_stat_sn = u32::MAX - 1);
    let read = || {
        fixture.read(&[(DATA, 4)]);
        fixture.sent_command()
    };
    let first = read();
    assert_eq!(first.exp_stat_sn, u32::MAX - 1);
    fixture.deliver(response_at(first.task, u32::MAX - 1), b"");
    let second = read();
    assert_eq!(second.exp_stat_sn, u32::MAX);
    // Data-In without status, R2T and a ping of the target use up no number.
    fixture.deliver(data_in(second.task, 0), &[1; 4]);
    let ping =
        ironwarp_wire::iscsi::NopIn { lun: 0, task: NO_TASK, target_task: 1, numbers: numbers(u32::MAX) };
    fixture.deliver(TargetPdu::NopIn(ping), b"");
    let third = read();
    assert_eq!(third.exp_stat_sn, u32::MAX);
    fixture.deliver(response_at(second.task, u32::MAX), b"");
    assert_eq!(read().exp_stat_sn, 0);
    fixture.deliver(response_at(third.task, 0), b"");
    assert_eq!(read().exp_stat_sn, 1);
    // An old number changes nothing.
    fixture.deliver(response_at(third.task, u32::MAX), b"");
    assert_eq!(read().exp_stat_sn, 1);
}
