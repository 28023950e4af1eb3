//! Data in both directions: placement, answers to R2Ts, immediate and unsolicited data, in fragments of all sizes, and the
//! receives that PDUs use.

use super::*;
use crate::host::{Held, Host, Span};
use crate::memory::Translation;
use ironwarp_wire::iscsi::{AsyncMessage, NopIn, Reject, TaskResponse};

/// A large read needs a session that allows large PDUs.
fn large() -> Fixture {
    Fixture::with_session(|session| {
        (session.max_recv_data, session.max_send_data) = (200_000, 200_000);
    })
}

/// The program's memory as one that stays mapped, from an offset on.
#[derive(Debug)]
struct HeldMemory(Arc<MockHost>, u64);

impl Held for HeldMemory {
    fn read(&self, at: u64, into: &mut [u8]) {
        self.0.gather(&[Span::new(BASE + self.1 + at, into.len())], into).unwrap();
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.0.scatter(from, &[Span::new(BASE + self.1 + at, from.len())]).unwrap();
    }
}

#[test]
fn data_in_is_placed_in_all_segments_under_one_tag() {
    let fixture = Fixture::new();
    let before = fixture.host.bytes().clone();
    let parts = [(DATA + 5000, 100), (DATA, 1), (DATA + 100, 4000), (DATA + 9000, 50)];
    let (id, task) = fixture.start_read(&parts);
    let data = pattern(4151, 1);
    fixture.deliver(data_in(task, 2000), &data[2000..]);
    fixture.deliver(data_in(task, 0), &data[..2000]);
    let got = fixture.got();
    assert_eq!(got.len(), 2);
    for (got, offset) in got.iter().zip([2000, 0]) {
        // Only the header goes to the receive.
        assert_eq!((got.opcode, got.command, got.data.len()), (Opcode::Pdu, Some(id), 0));
        assert_eq!(got.pdu, data_in(task, offset));
    }
    let mut expected = before;
    let mut done = 0;
    for (at, len) in parts {
        expected[at as usize..][..len as usize].copy_from_slice(&data[done..][..len as usize]);
        done += len as usize;
    }
    assert!(fixture.host.bytes()[DATA as usize..] == expected[DATA as usize..]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    fixture.deliver(data_in(task, 0), &[0; 64]);
    assert_eq!(fixture.got_one().failed_check(), Check::Valid);
    assert!(fixture.host.bytes()[DATA as usize..] == expected[DATA as usize..]);
}

#[test]
fn held_memory_is_used_in_several_segments() {
    let fixture = Fixture::new();
    let (first, second) = (DATA + 64, DATA + 70_000);
    let region = |at| {
        let held = Arc::new(HeldMemory(Arc::clone(&fixture.host), at));
        let translation = Translation::direct(BASE + at, 60_000).unwrap().hold(held);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let memory =
            Memory { translation: Arc::new(translation), ..Memory::direct(0, 60_000, rights).unwrap() };
        fixture.device.register(fixture.domain, memory).unwrap()
    };
    let (a, b) = (region(first), region(second));
    let sges = [Sge { tag: a, addr: 10, len: 500 }, Sge { tag: b, addr: 20, len: 700 }];
    let id = fixture.post(Some((Direction::In, Sges::from(&sges[..]))));
    let task = fixture.sent_command().task;
    let data = pattern(1200, 2);
    fixture.deliver(data_in(task, 300), &data[300..]);
    fixture.deliver(last_data_in(task, 0), &data[..300]);
    fixture.assert_completed(id);
    assert_eq!(fixture.bytes(first + 10, 500), data[..500]);
    assert_eq!(fixture.bytes(second + 20, 700), data[500..]);

    let id = fixture.post(Some((Direction::Out, Sges::from(&sges[..]))));
    let sent = fixture.sent();
    assert_eq!(sent[0].data, data);
    let InitiatorPdu::Command(Command { task, .. }) = sent[0].pdu else { panic!("{sent:?}") };
    let r2t = r2t(task, 450, 600);
    fixture.deliver(TargetPdu::R2t(r2t), b"");
    fixture.assert_answered(&r2t, &data[450..1050]);
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);

    // Memory of both kinds in one command is refused.
    let mixed = [sges[0], Sge { tag: fixture.tag, addr: BASE + DATA, len: 8 }];
    let id = fixture.post(Some((Direction::In, Sges::from(&mixed[..]))));
    assert_eq!(fixture.failed(), [(id, Status::WindowBind)]);
}

#[test]
fn large_data_in_is_received_directly_into_the_buffers() {
    let fixture = large();
    let (id, task) = fixture.start_read(&[(DATA + 3, 50_000), (DATA + 60_000, 50_000)]);
    let data = pattern(100_000, 3);
    let pdu = fixture.encode(&last_data_in(task, 0), &data);
    // The header arrives first, so that the data can be read directly.
    fixture.arrive(&pdu[..48]);
    fixture.arrive(&pdu[48..]);
    fixture.assert_completed(id);
    assert!(fixture.bytes(DATA + 3, 50_000) == data[..50_000]);
    assert!(fixture.bytes(DATA + 60_000, 50_000) == data[50_000..]);
    assert_eq!(fixture.link.direct.load(Ordering::Relaxed), 100_000);
}

#[test]
fn small_pdus_after_a_large_one_are_read_in_few_calls() {
    let fixture = large();
    let (large, task) = fixture.start_read(&[(DATA, 100_000)]);
    fixture.deliver(last_data_in(task, 0), &pattern(100_000, 4));
    fixture.assert_completed(large);
    let (small, task) = fixture.start_read(&[(DATA, 6000)]);
    let before = fixture.link.recvs.load(Ordering::Relaxed);
    fixture.deliver(last_data_in(task, 0), &pattern(6000, 5));
    fixture.assert_completed(small);
    assert_eq!(fixture.bytes(DATA, 6000), pattern(6000, 5));
    let calls = fixture.link.recvs.load(Ordering::Relaxed) - before;
    assert!(calls <= 4, "{calls} calls");
}

#[test]
fn an_r2t_is_answered_in_pdus_of_the_agreed_size() {
    let fixture = Fixture::with_session(|session| {
        (session.max_send_data, session.immediate_data) = (512, false);
    });
    let data = fixture.fill(DATA, 5000, 6);
    let (id, task) = fixture.start_write(&[(DATA, 2000), (DATA + 2000, 3000)]);
    for (offset, len) in [(0, 512), (512, 1), (1500, 1025), (4999, 1), (0, 5000)] {
        let r2t = r2t(task, offset, len);
        fixture.deliver(TargetPdu::R2t(r2t), b"");
        let got = fixture.got_one();
        assert_eq!((got.opcode, got.command, got.pdu), (Opcode::Pdu, Some(id), TargetPdu::R2t(r2t)));
        fixture.assert_answered(&r2t, &data[offset as usize..][..len as usize]);
    }
    fixture.deliver(response(task), b"");
    fixture.assert_completed(id);
    assert!(fixture.ended().is_empty());
}

#[test]
fn several_r2ts_are_answered_in_their_order() {
    let fixture = Fixture::with_session(|session| {
        (session.max_outstanding_r2t, session.immediate_data) = (3, false);
    });
    let data = fixture.fill(DATA, 300, 7);
    let (_, task) = fixture.start_write(&[(DATA, 300)]);
    let all = [r2t(task, 200, 100), r2t(task, 0, 100), r2t(task, 100, 100)];
    let bytes: Vec<u8> = all.iter().flat_map(|r2t| fixture.encode(&TargetPdu::R2t(*r2t), b"")).collect();
    fixture.arrive(&bytes);
    let sent = fixture.sent();
    assert_eq!(sent.len(), 3);
    for (sent, r2t) in sent.chunks(1).zip(&all) {
        let expected = &data[r2t.offset as usize..][..r2t.len as usize];
        assert_eq!(answer(sent, task, r2t.target_task, r2t.offset), expected);
    }
}

#[test]
fn a_write_is_answered_while_other_commands_run() {
    let fixture = Fixture::with_session(|session| session.immediate_data = false);
    let data = fixture.fill(DATA, 64, 8);
    let (write, write_task) = fixture.start_write(&[(DATA, 64)]);
    let (read, read_task) = fixture.start_read(&[(DATA + 1000, 64)]);
    fixture.deliver(data_in(read_task, 0), &[1; 64]);
    let r2t = r2t(write_task, 0, 64);
    fixture.deliver(TargetPdu::R2t(r2t), b"");
    fixture.assert_answered(&r2t, &data);
    fixture.deliver(response(read_task), b"");
    fixture.assert_completed(read);
    fixture.deliver(response(write_task), b"");
    fixture.assert_completed(write);
    assert_eq!(fixture.bytes(DATA + 1000, 64), [1; 64]);
}

/// What a write must send before any R2T: immediate data, and unsolicited data after it. Written for all cases of
/// RFC 7143 §13.10 to §13.14, not as the adapter computes it.
fn expected_first_burst(session: &SessionParameters, len: u32) -> (u32, u32) {
    let mut immediate = 0;
    let mut unsolicited = 0;
    for at in 0..len {
        if at >= session.first_burst {
            break;
        }
        if session.immediate_data && at < session.max_send_data {
            immediate += 1;
        } else if !session.initial_r2t {
            unsolicited += 1;
        }
    }
    (immediate, unsolicited)
}

#[test]
fn immediate_and_unsolicited_data_follow_the_agreement() {
    for (immediate_data, initial_r2t) in [(false, false), (false, true), (true, false), (true, true)] {
        for (first_burst, max_send_data) in [(512, 512), (512, 2048), (2048, 512), (1000, 300), (0, 512)] {
            for len in [0, 1, 299, 300, 301, 511, 512, 513, 1000, 2047, 2048, 2049, 5000] {
                let fixture = Fixture::with_session(|session| {
                    (session.first_burst, session.max_send_data) = (first_burst, max_send_data);
                    (session.immediate_data, session.initial_r2t) = (immediate_data, initial_r2t);
                });
                let data = fixture.fill(DATA, len, 9);
                let id = fixture.write(&[(DATA, len)]);
                let sent = fixture.sent();
                let session = fixture.qp.attributes().session;
                let (immediate, unsolicited) = expected_first_burst(&session, len);
                let InitiatorPdu::Command(command) = sent[0].pdu else { panic!("{sent:?}") };
                assert_eq!((command.last, command.expected_len), (unsolicited == 0, len));
                let (front, rest) = data.split_at(immediate as usize);
                assert_eq!(sent[0].data, front, "{session:?} {len}");
                let out = answer(&sent[1..], command.task, NO_TASK, immediate);
                assert_eq!(out, rest[..unsolicited as usize], "{session:?} {len}");
                assert!(sent[1..].iter().all(|pdu| pdu.data.len() <= max_send_data as usize));
                fixture.deliver(response(command.task), b"");
                fixture.assert_completed(id);
            }
        }
    }
}

#[test]
fn a_limit_that_no_pdu_can_have_is_corrected() {
    for (limit, corrected) in [(0, 1), (u32::MAX, 0xff_ffff)] {
        let fixture = Fixture::with_session(|session| {
            (session.max_send_data, session.initial_r2t) = (limit, false);
        });
        let data = fixture.fill(DATA, 5, 9);
        fixture.write(&[(DATA, 5)]);
        assert_eq!(fixture.qp.attributes().session.max_send_data, corrected);
        let sent: Vec<u8> = fixture.sent().into_iter().flat_map(|pdu| pdu.data).collect();
        assert_eq!(sent, data);
    }
}

/// A script of PDUs with all kinds of transfers, and what it must cause.
fn script(fixture: &Fixture) -> (Vec<u8>, impl Fn(&Fixture)) {
    let (read, read_task) = fixture.start_read(&[(DATA, 100), (DATA + 1000, 23)]);
    let (write, write_task) = fixture.start_write(&[(DATA + 5000, 77)]);
    let written = fixture.fill(DATA + 5000, 77, 11);
    let data = pattern(123, 10);
    let r2t = r2t(write_task, 1, 76);
    let ping = TargetPdu::NopIn(NopIn { lun: 0, task: NO_TASK, target_task: 1, numbers: numbers(0) });
    let bytes = [
        fixture.encode(&data_in(read_task, 50), &data[50..111]),
        fixture.encode(&TargetPdu::R2t(r2t), b""),
        fixture.encode(&ping, b"ping!"),
        fixture.encode(&data_in(read_task, 0), &data[..50]),
        fixture.encode(&last_data_in(read_task, 111), &data[111..]),
    ];
    let check = move |fixture: &Fixture| {
        let got = fixture.got();
        let outcome: Vec<_> = got.iter().map(|got| (got.opcode, got.command, got.data.clone())).collect();
        let expected = [
            (Opcode::Pdu, Some(read), vec![]),
            (Opcode::Pdu, Some(write), vec![]),
            (Opcode::Pdu, None, b"ping!".to_vec()),
            (Opcode::Pdu, Some(read), vec![]),
            (Opcode::Response, Some(read), vec![]),
        ];
        assert_eq!(outcome, expected);
        assert_eq!(fixture.bytes(DATA, 100), data[..100]);
        assert_eq!(fixture.bytes(DATA + 1000, 23), data[100..]);
        fixture.assert_answered(&r2t, &written[1..]);
        fixture.deliver(response(write_task), b"");
        fixture.assert_completed(write);
        for _ in 0..=got.len() {
            fixture.post_receive();
        }
    };
    (bytes.concat(), check)
}

#[test]
fn pdus_arrive_in_fragments_of_all_sizes() {
    for digests in [(false, false), (true, true)] {
        let fixture = Fixture::with_session(|session| {
            (session.digests.header, session.digests.data) = digests;
            session.immediate_data = false;
        });
        for tells_empty in [false, true] {
            fixture.link.tells_empty.store(tells_empty, Ordering::Relaxed);
            for size in (1..80).chain([100, 1000]) {
                let (bytes, check) = script(&fixture);
                bytes.chunks(size).for_each(|chunk| fixture.arrive(chunk));
                check(&fixture);
                // All there at once, but received in pieces.
                fixture.link.max_recv.store(size, Ordering::Relaxed);
                let (bytes, check) = script(&fixture);
                fixture.arrive(&bytes);
                check(&fixture);
                fixture.link.max_recv.store(usize::MAX, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn pdus_are_split_at_every_byte() {
    let fixture = Fixture::with_session(|session| session.immediate_data = false);
    let len = script(&fixture).0.len();
    let fixture = Fixture::with_session(|session| session.immediate_data = false);
    for at in 0..=len {
        let (bytes, check) = script(&fixture);
        let (front, rest) = bytes.split_at(at);
        fixture.arrive(front);
        fixture.arrive(rest);
        check(&fixture);
    }
}

#[test]
fn large_data_in_arrives_in_fragments() {
    for size in [47, 51, 53, 1000, 7000, 8191, 8192, 16_384, 40_000] {
        let fixture = large();
        let (id, task) = fixture.start_read(&[(DATA + 1, 30_000), (DATA + 40_001, 20_001)]);
        let data = pattern(50_001, 12);
        let bytes = [
            fixture.encode(&data_in(task, 20_000), &data[20_000..]),
            fixture.encode(&last_data_in(task, 0), &data[..20_000]),
        ];
        bytes.concat().chunks(size).for_each(|chunk| fixture.arrive(chunk));
        fixture.assert_completed(id);
        assert!(fixture.bytes(DATA + 1, 30_000) == data[..30_000]);
        assert!(fixture.bytes(DATA + 40_001, 20_001) == data[30_000..]);
        assert_eq!(fixture.bytes(DATA, 1), [0xee]);
        assert_eq!(fixture.bytes(DATA + 30_001, 10_000), [0xee; 10_000]);
    }
}

#[test]
fn the_link_takes_pdus_in_pieces_of_any_size() {
    for digests in [(false, false), (true, true)] {
        for size in (1..60).chain([100, 300]) {
            let fixture = Fixture::with_session(|session| {
                (session.digests.header, session.digests.data) = digests;
                (session.max_send_data, session.initial_r2t) = (64, false);
                session.first_burst = 130;
            });
            let data = fixture.fill(DATA, 333, 13);
            fixture.link.block();
            fixture.write(&[(DATA, 100), (DATA + 100, 233)]);
            for _ in 0..2000 / size {
                fixture.give_room(size);
            }
            let sent = fixture.sent();
            let InitiatorPdu::Command(command) = sent[0].pdu else { panic!("{sent:?}") };
            assert_eq!(sent[0].data, data[..64]);
            assert_eq!(answer(&sent[1..], command.task, NO_TASK, 64), data[64..130]);
            let r2t = r2t(command.task, 130, 203);
            fixture.deliver(TargetPdu::R2t(r2t), b"");
            for _ in 0..2000 / size {
                fixture.give_room(size);
            }
            fixture.assert_answered(&r2t, &data[130..]);
        }
    }
}

#[test]
fn all_other_pdus_go_to_the_receive_queue_whole() {
    let fixture = Fixture::new();
    let (numbers, task) = (numbers(0), 0x1234);
    let message = AsyncMessage { lun: 0, numbers, event: 1, vendor_code: 2, parameters: [3, 4, 5] };
    let all = [
        TargetPdu::NopIn(NopIn { lun: 1, task, target_task: NO_TASK, numbers }),
        TargetPdu::TaskResponse(TaskResponse { response: 1, task, numbers }),
        TargetPdu::AsyncMessage(message),
        TargetPdu::Reject(Reject { reason: 9, numbers, data_sn: 0 }),
    ];
    for (pdu, len) in all.into_iter().cycle().zip(0..12) {
        let data = pattern(len, 14);
        fixture.deliver(pdu, &data);
        let got = fixture.got_one();
        assert_eq!((got.opcode, got.command, got.pdu), (Opcode::Pdu, None, pdu));
        assert_eq!(got.data, data);
    }
}

#[test]
fn data_beyond_a_receive_is_discarded() {
    let fixture = Fixture::without_receives(|_| {});
    let ping = TargetPdu::NopIn(NopIn { lun: 0, task: NO_TASK, target_task: 1, numbers: numbers(0) });
    let data = pattern(3000, 15);
    let bytes = fixture.encode(&ping, &data);
    for (id, len) in [(0, 0), (1, 47), (2, 48), (3, 50), (4, 500)] {
        let before = fixture.bytes(0, 600);
        let buffers = fixture.sges(&[(0, len)]);
        fixture.qp.post_receive(ReceiveRequest { id, buffers }).unwrap();
        fixture.arrive(&bytes);
        let [completion] = &poll(&fixture.receive_cq)[..] else { panic!() };
        assert_eq!((completion.wr_id, completion.byte_len, completion.status), (id, len, Status::Success));
        assert_eq!(fixture.bytes(0, len), bytes[..len as usize]);
        assert_eq!(fixture.bytes(len.into(), 600 - len), before[len as usize..]);
    }
}

#[test]
fn nothing_is_read_while_no_receive_is_posted() {
    let fixture = Fixture::without_receives(|_| {});
    let (id, task) = fixture.start_read(&[(DATA, 4)]);
    let bytes = fixture.encode(&data_in(task, 0), &[1, 2, 3, 4]);
    fixture.arrive(&bytes);
    let calls = fixture.link.recvs.load(Ordering::Relaxed);
    fixture.arrive(&fixture.encode(&response(task), b""));
    assert_eq!(fixture.link.recvs.load(Ordering::Relaxed), calls);
    assert_eq!(fixture.link.unread(), 48);
    assert_eq!(fixture.bytes(DATA, 4), [0xee; 4]);

    fixture.post_receive();
    assert_eq!(fixture.got_one().opcode, Opcode::Pdu);
    assert_eq!(fixture.bytes(DATA, 4), [1, 2, 3, 4]);
    fixture.post_receive();
    fixture.assert_completed(id);
}

#[test]
fn bytes_that_arrive_while_no_receive_is_posted_are_not_forgotten() {
    let fixture = Fixture::without_receives(|_| {});
    fixture.link.tells_empty.store(true, Ordering::Relaxed);
    let (id, task) = fixture.start_read(&[(DATA, 8)]);
    fixture.arrive(&fixture.encode(&data_in(task, 0), &[1; 4]));
    // The link reports this arrival once, and the queue pair cannot read then.
    fixture.arrive(&fixture.encode(&last_data_in(task, 4), &[2; 4]));
    fixture.post_receive();
    fixture.post_receive();
    fixture.assert_completed(id);
    assert_eq!(fixture.bytes(DATA, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
}
