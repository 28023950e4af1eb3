//! What stock initiators do not use or cannot show: data digests, small PDUs, negotiation, and violations of the protocol.

use super::super::{BLOCK, Settings};
use super::initiator::{Initiator, Received, command};
use super::{honest, pattern};
use ironwarp_wire::iscsi::{
    Command, DataIn, DataOut, InitiatorPdu, NO_TASK, NopOut, R2t, Residual, Response, TargetPdu,
};

#[test]
fn parameters_are_negotiated_by_the_rules() {
    let settings =
        Settings { max_burst: 4096, max_outstanding_r2t: 3, initial_r2t: true, ..Settings::default() };
    let target = honest(settings);
    let (_, answers) = Initiator::log_in(
        &target,
        &[
            "HeaderDigest=None,CRC32C",
            "DataDigest=Other,CRC32C,None",
            "MaxRecvDataSegmentLength=1024",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=8192",
            "FirstBurstLength=2048",
            "MaxOutstandingR2T=9",
            "ErrorRecoveryLevel=2",
            "MaxConnections=4",
            "DataPDUInOrder=No",
            "DataSequenceInOrder=No",
            "DefaultTime2Wait=5",
            "DefaultTime2Retain=20",
            "X-test=1",
        ],
    );
    let expected = [
        "HeaderDigest=None",
        "DataDigest=CRC32C",
        "MaxRecvDataSegmentLength=65536",
        "InitialR2T=Yes",
        "ImmediateData=Yes",
        "MaxBurstLength=4096",
        "FirstBurstLength=2048",
        "MaxOutstandingR2T=3",
        "ErrorRecoveryLevel=0",
        "MaxConnections=1",
        "DataPDUInOrder=Yes",
        "DataSequenceInOrder=Yes",
        "DefaultTime2Wait=5",
        "DefaultTime2Retain=0",
        "X-test=NotUnderstood",
        "TargetPortalGroupTag=1",
    ];
    assert_eq!(answers, expected);
}

#[test]
fn data_in_is_cut_by_the_limits_of_the_initiator() {
    let target = honest(Settings::default());
    let (mut initiator, _) = Initiator::log_in(
        &target,
        &["MaxRecvDataSegmentLength=1024", "MaxBurstLength=2560", "HeaderDigest=CRC32C", "DataDigest=CRC32C"],
    );
    initiator.transfer(7, false, true, 2, 8, &[]);
    // Offset, length and F of each PDU: bursts end at multiples of 2560.
    let pieces =
        [(0, 1024, false), (1024, 1024, false), (2048, 512, true), (2560, 1024, false), (3584, 512, true)];
    for (data_sn, (offset, len, last)) in (0..).zip(pieces) {
        let Received { pdu: TargetPdu::DataIn(pdu), data, is_valid } = initiator.receive() else {
            panic!("not Data-In")
        };
        let status = (offset == 3584).then_some((0, Residual::None));
        let expected = DataIn {
            last,
            acknowledge: false,
            status,
            lun: 0,
            task: 7,
            target_task: NO_TASK,
            numbers: pdu.numbers,
            data_sn,
            offset,
        };
        assert_eq!((pdu, data.len(), is_valid), (expected, len, true));
        let at = 2 * BLOCK + offset as usize;
        assert_eq!(data, target.disk().bytes()[at..at + len]);
    }
    assert_eq!(target.violations(), [""; 0]);
}

#[test]
fn a_write_takes_immediate_unsolicited_and_solicited_data() {
    let target = honest(Settings { max_outstanding_r2t: 2, max_burst: 2048, ..Settings::default() });
    let keys = ["InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=1024", "MaxBurstLength=2048"];
    let more = ["MaxOutstandingR2T=2", "HeaderDigest=CRC32C", "DataDigest=CRC32C"];
    let (mut initiator, _) = Initiator::log_in(&target, &[&keys[..], &more].concat());
    let data: Vec<u8> = pattern(9).take(14 * BLOCK).collect();
    let mut expected = target.disk().bytes().clone();
    expected[3 * BLOCK..17 * BLOCK].copy_from_slice(&data);
    initiator.transfer(7, true, false, 3, 14, &data[..511]);
    let data_out = |target_task, data_sn, offset, last| DataOut {
        last,
        lun: 0,
        task: 7,
        target_task,
        exp_stat_sn: 0,
        data_sn,
        offset,
    };
    initiator.send(InitiatorPdu::DataOut(data_out(NO_TASK, 0, 511, true)), &data[511..1024]);
    let ask = |initiator: &mut Initiator, r2t_sn, offset, len| {
        let TargetPdu::R2t(r2t) = initiator.receive().pdu else { panic!("not R2T") };
        let (target_task, numbers) = (r2t.target_task, r2t.numbers);
        assert_eq!(r2t, R2t { lun: 0, task: 7, target_task, numbers, r2t_sn, offset, len });
        target_task
    };
    let answer = |initiator: &mut Initiator, target_task, offset: u32, len: u32| {
        for (data_sn, from, to) in [(0, offset, offset + 1021), (1, offset + 1021, offset + len)] {
            let pdu = data_out(target_task, data_sn, from, to == offset + len);
            initiator.send(InitiatorPdu::DataOut(pdu), &data[from as usize..to as usize]);
        }
    };
    let (first, second) = (ask(&mut initiator, 0, 1024, 2048), ask(&mut initiator, 1, 3072, 2048));
    answer(&mut initiator, first, 1024, 2048);
    let third = ask(&mut initiator, 2, 5120, 2048);
    answer(&mut initiator, second, 3072, 2048);
    answer(&mut initiator, third, 5120, 2048);
    let TargetPdu::Response(response) = initiator.receive().pdu else { panic!("not a response") };
    let (numbers, residual) = (response.numbers, Residual::None);
    assert_eq!(response, Response { residual, response: 0, status: 0, task: 7, numbers, exp_data_sn: 3 });
    assert!(expected == *target.disk().bytes());
    assert_eq!(target.violations(), [""; 0]);
}

#[test]
fn failed_commands_have_sense_data() {
    let target = honest(Settings { size: 4 * BLOCK, ..Settings::default() });
    let (mut initiator, _) = Initiator::log_in(&target, &[]);
    let mut read = [0; 16];
    (read[0], read[8]) = (0x28, 5); // one block too many
    for (cdb, lun, [key, code]) in
        [(read, 0, [5, 0x21]), ([0xff; 16], 0, [5, 0x20]), ([0; 16], 1 << 48, [5, 0x25])]
    {
        initiator.command(Command { cdb, lun, read: true, expected_len: 2560, ..command(7) }, &[]);
        let Received { pdu: TargetPdu::Response(response), data, .. } = initiator.receive() else {
            panic!("not a response")
        };
        assert_eq!((response.status, response.residual), (2, Residual::Underflow(2560)));
        assert_eq!((&data[..3], data[4], data[14]), (&[0, 18, 0x70][..], key, code));
    }
    assert_eq!(target.violations(), [""; 0]);
}

#[test]
fn violations_close_the_connection_and_are_reported() {
    type Violate = fn(&mut Initiator);
    let cases: [(&str, Violate); 7] = [
        ("wrong header digest", |it| it.send_with(InitiatorPdu::Command(command(7)), &[], [1, 0])),
        ("wrong data digest", |it| it.send_with(InitiatorPdu::NopOut(ping(it.cmd_sn)), b"ping", [0, 1])),
        ("CmdSN", |it| {
            it.cmd_sn += 1;
            it.command(command(7), &[]);
        }),
        ("Data-Out for an unknown task", |it| {
            it.send(InitiatorPdu::DataOut(data_out(NO_TASK, 0)), &[0; 512]);
        }),
        ("invalid lengths", |it| it.send(InitiatorPdu::NopOut(ping(it.cmd_sn)), &[0; 65_540])),
        ("unsolicited data", |it| it.transfer(7, true, false, 0, 1, &[])),
        ("due is", |it| {
            it.transfer(7, true, true, 0, 2, &[0; 512]);
            let TargetPdu::R2t(r2t) = it.receive().pdu else { panic!("not R2T") };
            it.send(InitiatorPdu::DataOut(data_out(r2t.target_task, 0)), &[0; 512]);
        }),
    ];
    for (expected, violate) in cases {
        let target = honest(Settings::default());
        let keys = ["HeaderDigest=CRC32C", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=8192"];
        let (mut initiator, _) = Initiator::log_in(&target, &keys);
        violate(&mut initiator);
        initiator.assert_closed();
        let violations = target.violations();
        assert!(matches!(&violations[..], [one] if one.contains(expected)), "{expected}: {violations:?}");
    }
}

fn ping(cmd_sn: u32) -> NopOut {
    NopOut { immediate: true, lun: 0, task: 7, target_task: NO_TASK, cmd_sn, exp_stat_sn: 0 }
}

fn data_out(target_task: u32, offset: u32) -> DataOut {
    DataOut { last: true, lun: 0, task: 7, target_task, exp_stat_sn: 0, data_sn: 0, offset }
}
