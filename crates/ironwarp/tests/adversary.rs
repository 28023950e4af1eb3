//! A correct program gets all its data, in order, whatever the adversary does.

use ironwarp::completion::Opcode;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Config, Shutdown};
use ironwarp_testkit::native::{ALL, Case, Completions, SOON, pair_with, pattern};

/// Payload of a message: several segments.
const SIZE: usize = 40_000;
/// Number of rounds of each seed.
const ROUNDS: u8 = 6;

/// In each round a Write, a Send that the peer receives, and a Read that sees the Write, with every byte verified as soon
/// as the completion allows it.
#[test]
fn completions_still_promise_what_they_did() {
    let cases = [(Completes::WhenAcknowledged, true), (Completes::WhenSent, false)];
    for (seed, (completes, crc)) in (1..=4).zip(cases.into_iter().cycle()) {
        let config = Config::default().adversary(seed.into()).crc(crc);
        let case = Case { at: "127.0.0.1:0", completes };
        let (client, server) = pair_with(case, config.clone(), config);
        let (here, there) = (client.region(&[0; 3 * SIZE], ALL), server.region(&[0; 2 * SIZE], ALL));
        for round in 0..ROUNDS {
            let id = u64::from(round);
            let sent = pattern(round + 1, 2 * SIZE);
            here.write(0, &sent).unwrap();
            server.qp.post_receive(id, &[there.slice(SIZE..).unwrap()]).unwrap();
            let list = vec![
                WorkRequest::write(id, &[here.slice(..SIZE).unwrap()], there.remote_addr(0).unwrap()),
                WorkRequest::send(id, &[here.slice(SIZE..2 * SIZE).unwrap()]).into(),
                WorkRequest::read(id, &[here.slice(2 * SIZE..).unwrap()], there.remote_addr(0).unwrap()),
            ];
            client.qp.post_send_all(list).unwrap();
            let received = server.done(Opcode::Receive, id);
            assert_eq!(received.byte_len as usize, SIZE, "seed {seed}");
            assert!(there.to_vec().unwrap() == sent, "seed {seed}, round {round}: received");
            for opcode in [Opcode::Write, Opcode::Send, Opcode::Read] {
                client.done(opcode, id);
            }
            assert!(here.to_vec().unwrap()[2 * SIZE..] == sent[..SIZE], "seed {seed}, round {round}: read");
        }
    }
}

/// A Write is acknowledged once it was placed: IBTA's acknowledgement, on which programs for RoCE rely.
#[test]
fn an_acknowledged_write_is_complete() {
    let case = Case { at: "127.0.0.1:0", completes: Completes::WhenAcknowledged };
    for seed in 1..=4_u64 {
        let config = Config::default().adversary(seed.into());
        let (client, server) = pair_with(case, config.clone(), config);
        let (here, there) = (client.region(&[0; SIZE], ALL), server.region(&[0; SIZE], ALL));
        // The first Send tells both ends that the other one acknowledges.
        server.qp.post_receive(99, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(99, &[])).unwrap();
        client.done(Opcode::Send, 99);
        server.done(Opcode::Receive, 99);
        for round in 0..ROUNDS {
            let sent = pattern(round + 1, SIZE);
            here.write(0, &sent).unwrap();
            let write =
                WorkRequest::write(round.into(), &[here.slice(..).unwrap()], there.remote_addr(0).unwrap());
            client.qp.post_send(write).unwrap();
            client.done(Opcode::Write, round.into());
            assert!(there.to_vec().unwrap() == sent, "seed {seed}, round {round}");
        }
    }
}

/// A Write may overtake the response to a Read before it, but the Read sees no bytes that neither had.
#[test]
fn a_read_sees_no_other_bytes_of_a_later_write() {
    let case = Case { at: "127.0.0.1:0", completes: Completes::WhenAcknowledged };
    for seed in 1..=8_u64 {
        let config = Config::default().adversary(seed.into());
        let (client, server) = pair_with(case, config.clone(), config);
        let (here, there) = (client.region(&[0; 2 * SIZE], ALL), server.region(&[0; SIZE], ALL));
        let mut before = vec![0; SIZE];
        for round in 0..4 * ROUNDS {
            let id = u64::from(round);
            let after = pattern(round + 1, SIZE);
            here.write(0, &after).unwrap();
            let list = [
                WorkRequest::read(id, &[here.slice(SIZE..).unwrap()], there.remote_addr(0).unwrap()),
                WorkRequest::write(id, &[here.slice(..SIZE).unwrap()], there.remote_addr(0).unwrap()),
            ];
            client.qp.post_send_all(list).unwrap();
            client.done(Opcode::Read, id);
            client.done(Opcode::Write, id);
            let read = here.to_vec().unwrap().split_off(SIZE);
            let mut bytes = read.iter().zip(before.iter().zip(&after));
            assert!(
                bytes.all(|(read, (before, after))| read == before || read == after),
                "seed {seed}, {round}"
            );
            before = after;
        }
    }
}

/// Completions that are held back when the adapter ends can be polled afterwards.
#[test]
fn a_drain_releases_all_completions() {
    let case = Case { at: "127.0.0.1:0", completes: Completes::WhenSent };
    for seed in 1..=20_u64 {
        let config = Config::default().adversary(seed.into());
        let (client, server) = pair_with(case, config, Config::default());
        for id in 0..32 {
            server.qp.post_receive(id, &[]).unwrap();
            client.qp.post_send(WorkRequest::send(id, &[])).unwrap();
        }
        client.adapter.shutdown(Shutdown::Drain(SOON));
        let polled: Vec<_> =
            std::iter::from_fn(|| client.cq.poll_one().unwrap()).map(|done| done.wr_id).collect();
        assert!(polled.iter().copied().eq(0..32), "seed {seed}: {polled:?}");
    }
}
