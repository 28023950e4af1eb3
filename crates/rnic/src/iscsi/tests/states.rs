//! The states of a queue pair: both options of requirement M7, and registrations in progress (requirement X6).

use super::*;

/// Buffers that cannot be registered: their tag is not valid.
fn bad() -> Option<(Direction, Sges)> {
    Some((Direction::In, Sges::from(&[Sge { tag: Tag(1), addr: 0, len: 8 }][..])))
}

fn reactive(tags: usize) -> Fixture {
    Fixture::with(|settings| {
        settings.failure = RegistrationFailure::Reactive;
        settings.config.tags = tags;
        settings.session.immediate_data = false;
    })
}

#[test]
fn a_reactive_queue_pair_is_drained_and_goes_on_after_a_retry() {
    let fixture = reactive(3); // the memory of the test, and two commands
    let data = fixture.fill(DATA, 100, 1);
    let (write, write_task) = fixture.start_write(&[(DATA, 100)]);
    let (read, read_task) = fixture.start_read(&[(DATA + 1000, 8)]);
    let request = |at| {
        let data = Some((Direction::In, fixture.sges(&[(at, 8)])));
        CommandRequest { header: Command::default(), data }
    };
    let ids = fixture.qp.post_commands(vec![request(DATA), request(DATA)]).unwrap();
    assert_eq!(fixture.failed(), [(ids[0], Status::WindowBind), (ids[1], Status::Flushed)]);
    assert_eq!(fixture.qp.state(), State::Drained);
    assert!(fixture.link.sent().is_empty());

    // Everything that was posted since is flushed, PDUs of other kinds too.
    let later = fixture.read(&[(DATA, 8)]);
    assert_eq!(fixture.failed(), [(later, Status::Flushed)]);
    fixture.qp.post_pdu(PduRequest { id: 77, header: [0; 48], data: Box::default() }).unwrap();
    let [end] = &fixture.ended()[..] else { panic!() };
    assert_eq!((end.wr_id, end.opcode, end.status), (77, Opcode::Send, Status::Flushed));

    // Commands from before are served: R2T, Data-In, and responses, which make room.
    let r2t = r2t(write_task, 10, 90);
    fixture.deliver(TargetPdu::R2t(r2t), b"");
    fixture.assert_answered(&r2t, &data[10..]);
    fixture.deliver(last_data_in(read_task, 0), &[5; 8]);
    fixture.assert_completed(read);
    assert_eq!(fixture.bytes(DATA + 1000, 8), [5; 8]);

    fixture.qp.modify(State::ReadyToSend).unwrap();
    let (retried, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(retried);
    fixture.deliver(response(write_task), b"");
    fixture.assert_completed(write);
    assert!(fixture.ended().is_empty());
}

#[test]
fn a_reactive_queue_pair_is_drained_by_invalid_buffers() {
    let fixture = reactive(100);
    let entries = fixture.device.table().len();
    for _ in 0..300 {
        let id = fixture.post(bad());
        let [end] = &fixture.ended()[..] else { panic!() };
        assert_eq!((CommandId::of(end), end.status), (Some(id), Status::LocalProtection));
        assert!(matches!(end.cause.as_deref(), Some(QpError::Local(denied)) if denied.check == Check::Valid));
        assert_eq!(fixture.qp.state(), State::Drained);
        fixture.qp.modify(State::ReadyToSend).unwrap();
    }
    assert_eq!(fixture.device.table().len(), entries + 1); // one for the next command
    let (id, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
}

#[test]
fn an_anticipatory_queue_pair_ends_the_connection() {
    let fixture = Fixture::new();
    let (outstanding, _) = fixture.start_read(&[(DATA, 8)]);
    let good = CommandRequest { header: Command::default(), data: None };
    let refused = CommandRequest { data: bad(), ..good.clone() };
    let ids = fixture.qp.post_commands(vec![refused, good]).unwrap();
    fixture.settle();
    assert_eq!(fixture.qp.state(), State::Error);
    assert!(fixture.link.aborted.load(Ordering::Relaxed));
    assert!(matches!(&*fixture.qp.error().unwrap(), QpError::Local(_)));
    let mut failed = fixture.failed();
    failed.sort_unstable_by_key(|(id, _)| *id);
    let mut expected =
        [(outstanding, Status::Flushed), (ids[0], Status::LocalProtection), (ids[1], Status::Flushed)];
    expected.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(failed, expected);
    assert!(fixture.link.sent().is_empty());
    assert!(poll(&fixture.receive_cq).iter().all(|receive| receive.status == Status::Flushed));
    assert_eq!(fixture.qp.modify(State::ReadyToSend).unwrap_err().from, State::Error);
}

#[test]
fn other_transitions_are_illegal() {
    let fixture = Fixture::new();
    fixture.qp.modify(State::ReadyToSend).unwrap();
    for to in [State::Init, State::ReadyToReceive, State::Drained] {
        fixture.qp.modify(to).unwrap_err();
    }
    fixture.qp.modify(State::Error).unwrap();
    fixture.qp.modify(State::Error).unwrap();
    assert_eq!(fixture.qp.state(), State::Error);
}

#[test]
fn a_command_waits_for_memory_that_is_being_registered() {
    let fixture = Fixture::new();
    let table = fixture.device.table();
    let pending = table.begin_registration(fixture.domain).unwrap();
    let buffers = Sges::from(&[Sge { tag: pending, addr: BASE + DATA, len: 8 }][..]);
    let waiting = fixture.post(Some((Direction::In, buffers.clone())));
    let later = fixture.read(&[(DATA + 100, 8)]);
    let aborted = fixture.post(Some((Direction::In, buffers)));
    fixture.qp.abort(aborted).unwrap();
    assert!(fixture.link.sent().is_empty());

    let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    let memory = Memory::direct(BASE + DATA, 8, rights).unwrap();
    fixture.device.finish_registration(fixture.domain, pending, memory, false).unwrap();
    fixture.settle();
    let sent = fixture.sent();
    assert_eq!(sent.len(), 2);
    for (id, sent) in [waiting, later].iter().zip(&sent) {
        let InitiatorPdu::Command(Command { task, .. }) = sent.pdu else { panic!("{sent:?}") };
        fixture.deliver(last_data_in(task, 0), &[3; 8]);
        fixture.assert_completed(*id);
    }
    assert_eq!(fixture.bytes(DATA, 8), [3; 8]);
    assert!(fixture.ended().is_empty());
}

#[test]
fn a_pdu_waits_for_a_receive_that_is_being_registered() {
    let fixture = Fixture::without_receives(|_| {});
    let pending = fixture.device.table().begin_registration(fixture.domain).unwrap();
    let buffers = Sges::from(&[Sge { tag: pending, addr: BASE, len: SLOT }][..]);
    fixture.qp.post_receive(ReceiveRequest { id: 0, buffers }).unwrap();
    let (id, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.deliver(response(task), b"");
    assert!(fixture.receive_cq.is_empty());
    let memory = Memory::direct(BASE, u64::from(SLOT), Rights::LOCAL_WRITE).unwrap();
    fixture.device.finish_registration(fixture.domain, pending, memory, false).unwrap();
    fixture.settle();
    fixture.assert_completed(id);
}
