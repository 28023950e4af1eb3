//! Header and data digests, right and wrong, with padding of all lengths.

use super::*;
use crate::error::IscsiFault;

const ALL: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn with_digests((header, data): (bool, bool)) -> Fixture {
    Fixture::with_session(|session| {
        (session.digests.header, session.digests.data) = (header, data);
        (session.max_recv_data, session.max_send_data) = (50_000, 50_000);
    })
}

#[test]
fn data_of_all_lengths_passes_in_both_directions() {
    for digests in ALL {
        let fixture = with_digests(digests);
        for len in (0..=9).chain([1021, 1022, 1023, 1024, 40_001]) {
            let data = pattern(len as usize, len as u8);
            let (read, task) = fixture.start_read(&[(DATA, len)]);
            fixture.deliver(last_data_in(task, 0), &data);
            fixture.assert_completed(read);
            assert_eq!(fixture.bytes(DATA, len), data);

            let write = fixture.write(&[(DATA, len)]); // immediate
            let sent = fixture.sent(); // checks padding and digests
            assert_eq!(sent[0].data, data);
            let InitiatorPdu::Command(Command { task, .. }) = sent[0].pdu else { panic!("{sent:?}") };
            if len > 0 {
                let r2t = r2t(task, 0, len);
                fixture.deliver(TargetPdu::R2t(r2t), b"");
                fixture.assert_answered(&r2t, &data);
            }
            let sense = pattern(len.min(100) as usize, 3);
            fixture.deliver(response(task), &sense);
            let got = fixture.got();
            let last = got.last().unwrap();
            assert_eq!((last.command, &last.data), (Some(write), &sense));
            fixture.post_receives(3);
        }
    }
}

#[test]
fn a_wrong_digest_ends_the_connection_and_completes_nothing() {
    for (digests, len) in ALL.into_iter().flat_map(|digests| [0, 5, 20_000].map(|len| (digests, len))) {
        let fixture = with_digests(digests);
        let (id, task) = fixture.start_read(&[(DATA, len)]);
        let good = fixture.encode(&last_data_in(task, 0), &pattern(len as usize, 1));
        let head = 48 + if digests.0 { 4 } else { 0 };
        let mut at: Vec<(usize, IscsiFault)> = Vec::new();
        if digests.0 {
            at.extend([2, 25, 47, 48, 51].map(|at| (at, IscsiFault::HeaderDigest)));
        }
        if digests.1 && len > 0 {
            at.extend([head, head + len as usize - 1, good.len() - 1].map(|at| (at, IscsiFault::DataDigest)));
        }
        drop(fixture);
        for (at, fault) in at {
            let fixture = with_digests(digests);
            let (id_again, task_again) = fixture.start_read(&[(DATA, len)]);
            assert_eq!((id_again, task_again), (id, task));
            let mut bad = good.clone();
            bad[at] ^= 1;
            fixture.arrive(&bad);
            assert_eq!(fixture.qp.state(), State::Error);
            assert!(matches!(&*fixture.qp.error().unwrap(), QpError::Iscsi(cause) if *cause == fault));
            assert_eq!(fixture.failed(), [(id, Status::Flushed)]);
            let receives = poll(&fixture.receive_cq);
            assert_eq!(receives.len() as u64, SLOTS);
            assert!(receives.iter().all(|receive| receive.status == Status::Flushed), "{receives:?}");
        }
    }
}

#[test]
fn large_data_with_digests_is_read_in_few_calls() {
    let fixture = with_digests((true, true));
    for round in 0..3 {
        let (id, task) = fixture.start_read(&[(DATA, 40_000)]);
        let before = fixture.link.recvs.load(Ordering::Relaxed);
        fixture.deliver(last_data_in(task, 0), &pattern(40_000, round));
        fixture.assert_completed(id);
        assert!(fixture.bytes(DATA, 40_000) == pattern(40_000, round));
        let calls = fixture.link.recvs.load(Ordering::Relaxed) - before;
        assert!(calls <= 8, "{calls} calls");
    }
}

#[test]
fn the_digest_of_sent_data_is_that_of_the_bytes_sent() {
    let fixture = with_digests((true, true));
    fixture.fill(DATA, 1000, 1);
    fixture.link.block();
    fixture.write(&[(DATA, 1000)]);
    fixture.give_room(500);
    fixture.host.bytes()[DATA as usize..].fill(0x33); // the program changes its memory meanwhile
    fixture.give_room(1 << 20);
    assert_eq!(fixture.sent()[0].data, pattern(1000, 1));
}
