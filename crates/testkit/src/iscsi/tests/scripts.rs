//! A script can change, drop, hold, repeat and add PDUs.

use super::super::{BLOCK, Outgoing, Script, Sending, Settings, Target};
use super::initiator::{Initiator, Received, command};
use ironwarp_wire::iscsi::{
    DataIn, InitiatorPdu, NO_TASK, NopIn, R2t, SequenceNumbers, TargetPdu, TaskFunction, TaskRequest,
};
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};

/// Starts a target with a script, and logs in with both digests.
fn start(script: impl Script) -> (Target, Initiator) {
    let target = Target::start(Settings::default(), script);
    let (initiator, _) = Initiator::log_in(&target, &["HeaderDigest=CRC32C", "DataDigest=CRC32C"]);
    (target, initiator)
}

/// Returns the PDU if it is Data-In.
fn data_in(sending: &mut Sending) -> Option<&mut DataIn> {
    match sending.now.first_mut().map(|it| &mut it.pdu) {
        Some(TargetPdu::DataIn(data)) => Some(data),
        _ => None,
    }
}

fn receive_data_in(initiator: &mut Initiator) -> DataIn {
    let received = initiator.receive();
    let TargetPdu::DataIn(data) = received.pdu else { panic!("not Data-In: {received:?}") };
    data
}

#[test]
fn a_script_changes_fields() {
    let (_target, mut initiator) = start(|sending: &mut Sending| {
        if let Some(data) = data_in(sending) {
            (data.task, data.offset, data.data_sn) = (data.task + 1, u32::MAX - 3, 5);
        }
    });
    initiator.transfer(7, false, true, 0, 1, &[]);
    let data = receive_data_in(&mut initiator);
    assert_eq!((data.task, data.offset, data.data_sn), (8, u32::MAX - 3, 5));
}

#[test]
fn a_script_sends_less_data_with_good_status_and_wrong_digests() {
    let (_target, mut initiator) = start(|sending: &mut Sending| {
        let pdu = &mut sending.now[0];
        if let TargetPdu::DataIn(data) = &pdu.pdu {
            pdu.data.truncate(100);
            pdu.wrong_header_digest = data.task == 7;
            pdu.wrong_data_digest = data.task == 8;
        }
    });
    for (task, expected) in [(7, false), (8, false), (9, true)] {
        initiator.transfer(task, false, true, 0, 1, &[]);
        let Received { pdu, data, is_valid } = initiator.receive();
        assert!(matches!(pdu, TargetPdu::DataIn(it) if it.status.is_some()), "{pdu:?}");
        assert_eq!((data.len(), is_valid), (100, expected), "task {task}");
    }
}

/// The target counts what it really sends, unless the script has numbers of its own.
#[test]
fn a_script_drops_repeats_and_adds_pdus() {
    let (_target, mut initiator) = start(|sending: &mut Sending| {
        let Some(data) = data_in(sending).copied() else { return };
        let r2t = R2t {
            lun: 0,
            task: data.task,
            target_task: 1,
            numbers: SequenceNumbers { stat_sn: 42, ..SequenceNumbers::default() },
            r2t_sn: 0,
            offset: 0,
            len: 0,
        };
        match data.task {
            7 => sending.now.clear(),
            8 => sending.now.push(sending.now[0].clone()),
            _ => {
                sending
                    .now
                    .push(Outgoing { own_numbers: true, ..Outgoing::new(TargetPdu::R2t(r2t), vec![]) });
            }
        }
    });
    for task in 7..10 {
        initiator.transfer(task, false, true, 0, 1, &[]);
    }
    let received: Vec<_> = (0..3).map(|_| receive_data_in(&mut initiator)).collect();
    assert_eq!(received.iter().map(|it| it.task).collect::<Vec<_>>(), [8, 8, 9]);
    let first = received[0].numbers.stat_sn;
    assert_eq!(received.iter().map(|it| it.numbers.stat_sn - first).collect::<Vec<_>>(), [0, 1, 2]);
    let TargetPdu::R2t(r2t) = initiator.receive().pdu else { panic!("not R2T") };
    assert_eq!((r2t.task, r2t.len, r2t.numbers.stat_sn), (9, 0, 42));
}

/// A read is aborted while its data are on their way.
#[test]
fn held_pdus_are_sent_when_the_test_says_so() {
    let (target, mut initiator) = start(|sending: &mut Sending| {
        if data_in(sending).is_some() {
            sending.hold();
        }
    });
    target.disk().bytes()[..BLOCK].fill(0x5a);
    initiator.transfer(7, false, true, 0, 1, &[]);
    target.wait_until_held(1);
    target.disk().bytes()[..BLOCK].fill(0xa5);
    let request = TaskRequest {
        immediate: true,
        function: TaskFunction::AbortTask,
        lun: 0,
        task: 8,
        referenced_task: 7,
        cmd_sn: initiator.cmd_sn,
        exp_stat_sn: 0,
        referenced_cmd_sn: initiator.cmd_sn.wrapping_sub(1),
    };
    initiator.send(InitiatorPdu::TaskRequest(request), &[]);
    assert!(matches!(initiator.receive().pdu, TargetPdu::TaskResponse(it) if it.task == 8));
    target.release();
    let Received { pdu: TargetPdu::DataIn(data), data: bytes, is_valid } = initiator.receive() else {
        panic!("not Data-In")
    };
    assert_eq!((data.task, is_valid), (7, true));
    assert_eq!(bytes, [0x5a; BLOCK]);
}

#[test]
fn a_test_sends_pdus_and_disconnects() {
    let (target, mut initiator) = start(|_: &mut Sending| {});
    let ping = NopIn { lun: 0, task: NO_TASK, target_task: 5, numbers: SequenceNumbers::default() };
    target.send(&Outgoing::new(TargetPdu::NopIn(ping), Vec::new()));
    assert!(matches!(initiator.receive().pdu, TargetPdu::NopIn(it) if it.target_task == 5));
    target.disconnect();
    initiator.assert_closed();
}

/// Forwards what it receives.
struct Recorder(Mutex<Sender<(InitiatorPdu, usize)>>);

impl Script for Recorder {
    fn send(&self, _: &mut Sending) {}

    fn received(&self, pdu: &InitiatorPdu, data: &[u8]) {
        let _ = self.0.lock().unwrap().send((*pdu, data.len()));
    }
}

#[test]
fn a_script_sees_what_the_initiator_sends() {
    let (sender, received) = mpsc::channel();
    let (_target, mut initiator) = start(Recorder(Mutex::new(sender)));
    initiator.transfer(7, true, true, 0, 1, &[1; 512]);
    initiator.command(command(8), &[]);
    assert!(matches!(received.recv().unwrap(), (InitiatorPdu::LoginRequest(_), _)));
    assert!(matches!(received.recv().unwrap(), (InitiatorPdu::Command(it), 512) if it.task == 7));
    assert!(matches!(received.recv().unwrap(), (InitiatorPdu::Command(it), 0) if it.task == 8));
}
