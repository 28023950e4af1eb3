//! Lies about a read, and PDUs that no command has asked for.

use crate::lab::{Control, Kind, LEN, Lab, Mode, PART, TIMEOUT, ends_the_session, ends_the_session_with};
use crate::lab::{options, settings};
use ironwarp_iscsi::Error;
use ironwarp_testkit::iscsi::{Outgoing, Sending};
use ironwarp_wire::iscsi::{
    AsyncMessage, DataIn, LogoutResponse, NO_TASK, NopIn, R2t, Reject, Residual, Response, SequenceNumbers,
    TargetPdu, TaskResponse, TextResponse,
};
use std::time::Duration;

const NUMBERS: SequenceNumbers = SequenceNumbers { stat_sn: 0, exp_cmd_sn: 0, max_cmd_sn: 0 };

/// Returns a lie that changes each Data-In.
fn change(
    lie: impl Fn(&mut DataIn) + Clone + Send + Sync + 'static,
) -> impl Fn(&mut Sending, &Control) + Clone {
    move |sending, _| {
        if let TargetPdu::DataIn(data) = &mut sending.now[0].pdu {
            lie(data);
        }
    }
}

/// Returns a lie that changes the last Data-In, with its data.
fn change_last(
    lie: impl Fn(&mut DataIn, &mut Vec<u8>) + Clone + Send + Sync + 'static,
) -> impl Fn(&mut Sending, &Control) + Clone {
    move |sending, _| {
        let Outgoing { pdu, data: bytes, .. } = &mut sending.now[0];
        if let TargetPdu::DataIn(data) = pdu
            && data.status.is_some()
        {
            lie(data, bytes);
        }
    }
}

/// Returns a lie that sends another PDU instead of each Data-In.
fn replace(
    pdu: impl Fn(u32) -> TargetPdu + Clone + Send + Sync + 'static,
) -> impl Fn(&mut Sending, &Control) + Clone {
    move |sending, control| sending.now = vec![Outgoing::new(pdu(control.last_command().task), Vec::new())]
}

fn good(task: u32, residual: Residual) -> TargetPdu {
    TargetPdu::Response(Response { residual, response: 0, status: 0, task, numbers: NUMBERS, exp_data_sn: 0 })
}

#[test]
fn data_with_a_wrong_tag_ends_the_session() {
    for bit in [0, 7, 8, 15, 16, 31] {
        ends_the_session(Kind::Read, change(move |data| data.task ^= 1 << bit));
    }
    ends_the_session(Kind::Read, change(|data| data.task = 0));
    ends_the_session(Kind::Read, change(|data| data.task = NO_TASK));
}

/// The first commands of the session have ended.
#[test]
fn data_with_the_tag_of_a_command_that_has_ended_ends_the_session() {
    ends_the_session(Kind::Read, |sending, control| {
        if let TargetPdu::DataIn(data) = &mut sending.now[0].pdu {
            let commands = control.commands();
            let mut ended = commands.iter().rev().map(|command| command.task).skip(2);
            data.task = ended.find(|task| *task != data.task).expect("reads have ended before");
        }
    });
}

/// Data for an aborted read is late, even if it is that of another one: nothing changes, and the session goes on.
#[test]
fn data_with_the_tag_of_an_aborted_command_is_ignored() {
    for digests in [false, true] {
        let mut lab = Lab::start(settings(), &options(digests), |sending, control| {
            if let TargetPdu::DataIn(data) = &mut sending.now[0].pdu {
                let commands = control.commands();
                data.task = commands[commands.len() - 2].task; // the aborted one
            }
        });
        lab.control.set(Mode::Hold);
        let request = lab.read(0);
        let task = lab.session.start(request).unwrap();
        lab.target.wait_until_held(2);
        assert!(lab.session.abort(task));
        lab.control.set(Mode::Lie);
        let (before, request) = (lab.bytes(), lab.read(32));
        let result = lab.session.execute(request, Duration::from_millis(200));
        assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
        assert_eq!(lab.session.late_pdus(), 2);
        assert!(lab.bytes() == before, "the buffer has changed");
        lab.check_outside();
        lab.control.set(Mode::Honest);
        lab.target.release();
        lab.check_works();
        assert_eq!(lab.session.late_pdus(), 4);
    }
}

#[test]
fn data_outside_of_the_buffer_ends_the_session() {
    for offset in [LEN - PART + 1, LEN - 1, LEN, LEN + 1, u32::MAX as usize - PART, u32::MAX as usize] {
        ends_the_session(Kind::Read, change(move |data| data.offset = offset as u32));
    }
}

#[test]
fn data_out_of_order_ends_the_session() {
    ends_the_session(Kind::Read, change(|data| data.offset = PART as u32 - data.offset));
    ends_the_session(Kind::Read, change(|data| data.offset = 0));
}

#[test]
fn data_beyond_the_end_of_the_buffer_ends_the_session() {
    ends_the_session(
        Kind::Read,
        change_last(|data, bytes| {
            data.offset += 4;
            bytes.truncate(PART);
        }),
    );
    // In a PDU more than was asked for.
    ends_the_session(Kind::Read, |sending, _| {
        let more = Outgoing { own_numbers: false, ..sending.now[0].clone() };
        if let TargetPdu::DataIn(data) = &mut sending.now[0].pdu
            && data.status.take().is_some()
        {
            let mut more = more;
            if let TargetPdu::DataIn(data) = &mut more.pdu {
                (data.offset, data.data_sn) = (LEN as u32, data.data_sn + 1);
            }
            sending.now.push(more);
        }
    });
}

#[test]
fn an_r2t_for_a_read_ends_the_session() {
    ends_the_session(
        Kind::Read,
        replace(|task| {
            TargetPdu::R2t(R2t {
                lun: 0,
                task,
                target_task: 7,
                numbers: NUMBERS,
                r2t_sn: 0,
                offset: 0,
                len: 512,
            })
        }),
    );
}

#[test]
fn success_without_all_data_ends_the_session() {
    ends_the_session(Kind::Read, change_last(|_, bytes| bytes.truncate(PART - 1)));
    ends_the_session(Kind::Read, change_last(|_, bytes| bytes.clear()));
    ends_the_session(
        Kind::Read,
        change_last(|data, bytes| {
            data.status = Some((0, Residual::Underflow(512)));
            bytes.truncate(PART - 513);
        }),
    );
    ends_the_session(Kind::Read, replace(|task| good(task, Residual::None)));
    ends_the_session(Kind::Read, replace(|task| good(task, Residual::Overflow(1))));
    ends_the_session(Kind::Read, replace(|task| good(task, Residual::Underflow(1))));
}

#[test]
fn a_residual_count_above_the_length_ends_the_session() {
    for count in [LEN as u32 + 1, u32::MAX] {
        let residual = Residual::Underflow(count);
        ends_the_session(Kind::Read, change_last(move |data, _| data.status = Some((0, residual))));
        ends_the_session(Kind::Read, replace(move |task| good(task, residual)));
    }
}

/// An honest underflow: the number of bytes is that of the target.
#[test]
fn a_read_of_less_data_returns_how_much_there_is() {
    let mut lab = Lab::start(
        settings(),
        &options(true),
        change_last(|data, bytes| {
            bytes.truncate(PART - 512);
            data.status = Some((0, Residual::Underflow(512)));
        }),
    );
    lab.control.set(Mode::Lie);
    let (before, request) = (lab.bytes(), lab.read(0));
    assert_eq!(lab.session.execute(request, TIMEOUT).unwrap() as usize, LEN - 512);
    assert!(lab.bytes()[..LEN - 512] == lab.disk(0)[..LEN - 512], "wrong bytes were read");
    assert!(lab.bytes()[LEN - 512..] == before[LEN - 512..], "bytes that did not arrive have changed");
    lab.check_outside();
    lab.check_works();
}

#[test]
fn a_response_for_an_unknown_task_ends_the_session() {
    ends_the_session(Kind::Read, replace(|task| good(task ^ 0x100, Residual::None)));
    ends_the_session(Kind::Read, replace(|_| good(NO_TASK, Residual::None)));
    // The status comes twice.
    ends_the_session(Kind::Read, |sending, control| {
        let task = control.last_command().task;
        let mut pdu = sending.now[0].clone();
        if let TargetPdu::DataIn(data) = &mut pdu.pdu {
            data.task = task ^ 0x100;
        }
        sending.now.insert(0, pdu);
    });
}

/// The target answers requests that were not made.
#[test]
fn an_answer_to_no_request_ends_the_session() {
    ends_the_session(
        Kind::Read,
        replace(|task| TargetPdu::TaskResponse(TaskResponse { response: 0, task, numbers: NUMBERS })),
    );
    ends_the_session(
        Kind::Read,
        replace(|task| TargetPdu::NopIn(NopIn { lun: 0, task, target_task: NO_TASK, numbers: NUMBERS })),
    );
    ends_the_session(
        Kind::Read,
        replace(|task| {
            let (time_to_wait, time_to_retain) = (0, 0);
            let numbers = NUMBERS;
            TargetPdu::LogoutResponse(LogoutResponse {
                response: 0,
                task,
                numbers,
                time_to_wait,
                time_to_retain,
            })
        }),
    );
    ends_the_session(
        Kind::Read,
        replace(|task| {
            let (last, continues, target_task) = (true, false, NO_TASK);
            TargetPdu::TextResponse(TextResponse {
                last,
                continues,
                lun: 0,
                task,
                target_task,
                numbers: NUMBERS,
            })
        }),
    );
}

#[test]
fn a_wrong_digest_ends_the_session() {
    ends_the_session_with(Kind::Read, true, |sending, _| sending.now[0].wrong_header_digest = true);
    ends_the_session_with(Kind::Read, true, |sending, _| sending.now[0].wrong_data_digest = true);
    ends_the_session_with(Kind::Write, true, |sending, _| sending.now[0].wrong_header_digest = true);
}

#[test]
fn data_above_the_agreed_maximum_ends_the_session() {
    ends_the_session(Kind::Read, |sending, _| sending.now[0].data.resize(PART + 1, 0xaa));
    ends_the_session(Kind::Read, |sending, _| sending.now[0].data.resize(LEN, 0xaa));
}

#[test]
fn an_unknown_opcode_ends_the_session() {
    for opcode in [0x00, 0x01, 0x27, 0x2a, 0x3c, 0x3e] {
        ends_the_session(Kind::Read, move |sending, _| sending.now[0].opcode = Some(opcode));
    }
}

#[test]
fn a_reject_ends_the_session() {
    ends_the_session(
        Kind::Read,
        replace(|_| TargetPdu::Reject(Reject { reason: 4, numbers: NUMBERS, data_sn: 0 })),
    );
}

/// The target requests a logout, or announces that it ends the connection or the session.
#[test]
fn an_announced_end_ends_the_session() {
    for event in 1..=3 {
        ends_the_session(
            Kind::Read,
            replace(move |_| {
                let (vendor_code, parameters) = (0, [0, 0, 0]);
                TargetPdu::AsyncMessage(AsyncMessage {
                    lun: 0,
                    numbers: NUMBERS,
                    event,
                    vendor_code,
                    parameters,
                })
            }),
        );
    }
}

/// A target that has failed to execute the command says so in the response, whose status means nothing then.
#[test]
fn a_response_that_the_target_has_failed_ends_the_session() {
    ends_the_session(
        Kind::Read,
        replace(|task| {
            let (residual, exp_data_sn) = (Residual::None, 0);
            TargetPdu::Response(Response {
                residual,
                response: 1,
                status: 0,
                task,
                numbers: NUMBERS,
                exp_data_sn,
            })
        }),
    );
}
