//! Lies about a write.

use crate::lab::{Control, Kind, LEN, Lab, Mode, PART, ends_the_session, options, pattern, settings};
use ironwarp::memory::{Access, Buffer};
use ironwarp_iscsi::{Error, Request};
use ironwarp_testkit::iscsi::{Outgoing, Sending, Settings};
use ironwarp_wire::iscsi::{DataIn, NO_TASK, R2t, Residual, Response, SequenceNumbers, TargetPdu};

const NUMBERS: SequenceNumbers = SequenceNumbers { stat_sn: 0, exp_cmd_sn: 0, max_cmd_sn: 0 };

/// Returns a lie that changes each R2T.
fn change(lie: impl Fn(&mut R2t) + Clone + Send + Sync + 'static) -> impl Fn(&mut Sending, &Control) + Clone {
    move |sending, _| {
        if let TargetPdu::R2t(r2t) = &mut sending.now[0].pdu {
            lie(r2t);
        }
    }
}

fn good(task: u32, residual: Residual) -> Outgoing {
    let response = Response { residual, response: 0, status: 0, task, numbers: NUMBERS, exp_data_sn: 0 };
    Outgoing::new(TargetPdu::Response(response), Vec::new())
}

#[test]
fn an_r2t_of_a_wrong_length_ends_the_session() {
    for len in [0, PART as u32 + 1, LEN as u32, LEN as u32 + 1, u32::MAX] {
        ends_the_session(Kind::Write, change(move |r2t| r2t.len = len));
    }
}

#[test]
fn an_r2t_outside_of_the_buffer_ends_the_session() {
    for offset in [LEN - PART + 1, LEN, u32::MAX as usize - PART + 1, u32::MAX as usize] {
        ends_the_session(Kind::Write, change(move |r2t| r2t.offset = offset as u32));
    }
}

#[test]
fn an_r2t_with_a_wrong_tag_ends_the_session() {
    ends_the_session(Kind::Write, change(|r2t| r2t.task ^= 0x100));
    // That of the read that is outstanding.
    ends_the_session(Kind::Write, |sending, control| {
        if let TargetPdu::R2t(r2t) = &mut sending.now[0].pdu {
            let commands = control.commands();
            r2t.task = commands[commands.len() - 2].task;
        }
    });
}

#[test]
fn r2ts_out_of_order_end_the_session() {
    ends_the_session(Kind::Write, change(|r2t| r2t.offset = PART as u32 - r2t.offset));
    ends_the_session(Kind::Write, change(|r2t| r2t.r2t_sn += 1));
}

/// One at a time was agreed on. The second may come after the answer to the first, but asks for the same data again.
#[test]
fn two_outstanding_r2ts_end_the_session() {
    ends_the_session(Kind::Write, |sending, _| {
        let again = sending.now[0].clone();
        sending.now.push(again);
    });
}

#[test]
fn data_for_a_write_ends_the_session() {
    for status in [None, Some((0, Residual::None))] {
        ends_the_session(Kind::Write, move |sending, control| {
            let task = control.last_command().task;
            let (last, acknowledge, target_task, numbers) = (true, false, NO_TASK, NUMBERS);
            let (lun, data_sn, offset) = (0, 0, 0);
            let data = DataIn { last, acknowledge, status, lun, task, target_task, numbers, data_sn, offset };
            sending.now = vec![Outgoing::new(TargetPdu::DataIn(data), vec![0xaa; 512])];
        });
    }
}

#[test]
fn success_although_the_target_has_not_asked_for_all_data_ends_the_session() {
    for residual in
        [Residual::None, Residual::Overflow(5), Residual::Underflow(1), Residual::Underflow(u32::MAX)]
    {
        // It has asked for nothing.
        ends_the_session(Kind::Write, move |sending, control| {
            sending.now = vec![good(control.last_command().task, residual)];
        });
        // It has asked for the first half.
        ends_the_session(Kind::Write, move |sending, control| {
            if matches!(&sending.now[0].pdu, TargetPdu::R2t(r2t) if r2t.offset > 0) {
                sending.now = vec![good(control.last_command().task, residual)];
            }
        });
    }
}

/// The status comes with the R2T, and the target stops receiving: the data is more than sockets hold.
#[test]
fn success_before_the_data_was_sent_ends_the_session() {
    const BIG: usize = 15 << 20;
    for digests in [false, true] {
        let settings = Settings { max_burst: BIG, size: BIG, ..settings() };
        let options = options(digests).max_burst(BIG as u32);
        let mut lab = Lab::start(settings, &options, |sending, control| {
            control.stop(true);
            sending.now.push(good(control.last_command().task, Residual::None));
        });
        let memory = lab.session.domain().register(Buffer::new(BIG).unwrap(), Access::LOCAL_READ).unwrap();
        lab.control.set(Mode::Lie);
        let request = Request::write(0, &lab.capacity, 0, &[memory.slice(..).unwrap()]).unwrap();
        lab.session.start(request).unwrap();
        let finished = lab.next();
        assert!(matches!(finished.result, Err(Error::Protocol(_))), "{finished:?}");
        assert!(lab.disk(0) == pattern(0xd15c, LEN), "the target has written");
        lab.control.stop(false);
    }
}
