//! Gaps in the sequence numbers of the target: a PDU is missing, so that nothing behind the gap counts.

use crate::lab::{Control, Kind, ends_the_session};
use ironwarp_testkit::iscsi::Sending;
use ironwarp_wire::iscsi::{SequenceNumbers, TargetPdu};

#[test]
fn a_gap_in_data_sn_ends_the_session() {
    for gap in [1, 2, u32::MAX] {
        ends_the_session(Kind::Read, move |sending, _| {
            if let TargetPdu::DataIn(data) = &mut sending.now[0].pdu
                && data.data_sn > 0
            {
                data.data_sn = data.data_sn.wrapping_add(gap);
            }
        });
    }
}

/// A whole Data-In is missing.
#[test]
fn a_missing_data_in_ends_the_session() {
    ends_the_session(Kind::Read, |sending, _| {
        if matches!(&sending.now[0].pdu, TargetPdu::DataIn(data) if data.data_sn == 0) {
            sending.now.clear();
        }
    });
}

/// Changes StatSN of the status of a command by `gap`.
fn change_stat_sn(sending: &mut Sending, control: &Control, gap: u32) {
    let command = control.last_command();
    let stat_sn = command.exp_stat_sn.wrapping_add(gap);
    let (exp_cmd_sn, max_cmd_sn) = (command.cmd_sn + 1, command.cmd_sn + 64);
    let own = SequenceNumbers { stat_sn, exp_cmd_sn, max_cmd_sn };
    let outgoing = &mut sending.now[0];
    match &mut outgoing.pdu {
        TargetPdu::DataIn(data) if data.status.is_some() => data.numbers = own,
        TargetPdu::Response(response) => response.numbers = own,
        _ => return,
    }
    outgoing.own_numbers = true;
}

#[test]
fn a_gap_in_stat_sn_ends_the_session() {
    for gap in [1, 2, u32::MAX, 1 << 31] {
        for kind in [Kind::Read, Kind::Write] {
            ends_the_session(kind, move |sending, control| change_stat_sn(sending, control, gap));
        }
    }
}
