//! The processors of completion handlers (requirement N5), which limit the lanes.

use super::*;
use ironwarp::datagram::{DatagramRequest, Destination};

/// Returns the first and the last processor that the process may use.
fn two_processors(adapter: &Adapter) -> [usize; 2] {
    let all = adapter.steering().processors(0).unwrap();
    [all[0], all[all.len() - 1]]
}

/// Waits until lanes that run on this processor only serve all queue pairs of a side.
fn wait_for_processor(side: &Side, processor: usize) {
    let deadline = Instant::now() + SOON;
    let steering = side.adapter.steering();
    let runs_there = |lane| steering.processors(lane).unwrap() == [processor];
    while !side.qps.iter().all(|qp| qp.lane().is_some_and(runs_there)) {
        assert!(Instant::now() < deadline, "queue pairs are served elsewhere");
        std::thread::yield_now();
    }
}

/// Requirement N5: the processors of the handler limit the lanes, whatever table and load say.
#[test]
fn queue_pairs_are_served_on_the_processors_of_their_handler() {
    let config = Config::default().rebalance(1).shm(false);
    let client = Side::new(config.clone(), Waits::ForEvents);
    let server = Side::new(config, Waits::ForEvents);
    let [_, last] = two_processors(&server.adapter);
    let handler = server.cq.own_handler();
    handler.set_processors(&[last]).unwrap();
    assert_eq!(handler.processors(), [last]);
    connect(&client, &server); // the table has lane 0 for all of them
    wait_for_processor(&server, last);
    let lane = server.qps[0].lane().unwrap();
    assert!(lane_processors(lane).contains(&last.to_string()), "{:?}", lane_processors(lane));
    talk_while(&client, &server, |messages| messages < 10_000);
    wait_for_processor(&server, last);
    let other = (0..server.adapter.steering().lanes()).find(|other| *other != lane).unwrap();
    let error = server.adapter.steering().move_queue_pair(&server.qps[0], other).unwrap_err().to_string();
    let expected =
        format!("lane {other} may leave processors [{last}], to which the completion handler is restricted");
    assert_eq!(error, expected);
    let busy = server.adapter.steering().load();
    assert_eq!(busy[other].sockets, 0, "{busy:?}");
}

/// Requirement N5: changing the processors of the handler.
#[test]
fn nothing_is_lost_while_a_handler_changes_its_processors() {
    let config = Config::default().shm(false);
    let (client, server) = connected(&config, [Waits::ForEvents, Waits::ForEvents]);
    let processors = two_processors(&server.adapter);
    let mut changes = 0;
    talk_while(&client, &server, |messages| {
        for side in [&client, &server] {
            side.cq.own_handler().set_processors(&[processors[changes % 2]]).unwrap();
            wait_for_processor(side, processors[changes % 2]);
        }
        changes += 1;
        changes < 1000 || messages < 5000
    });
}

/// Requirements N4 and N5: *Modify CQ* moves the queue pairs to the processors of the new handler.
#[test]
fn nothing_is_lost_while_a_queue_changes_to_a_handler_on_other_processors() {
    let config = Config::default().shm(false);
    let (client, server) = connected(&config, [Waits::AtEither, Waits::AtEither]);
    let processors = two_processors(&server.adapter);
    for side in [&client, &server] {
        for (handler, processor) in side.handlers.iter().zip(processors) {
            handler.set_class(Class::DEFAULT).unwrap();
            handler.set_processors(&[processor]).unwrap();
        }
    }
    let mut changes = 0;
    talk_while(&client, &server, |messages| {
        for side in [&client, &server] {
            side.cq.set_handler(&side.handlers[changes % 2]);
            wait_for_processor(side, processors[changes % 2]);
        }
        changes += 1;
        changes < 1000 || messages < 5000
    });
}

/// Lanes that the program has bound elsewhere stay there, and so does the low-latency lane.
#[test]
fn processors_that_no_lane_can_run_on_are_refused() {
    let adapter = Adapter::open(Config::default()).unwrap();
    let [first, last] = two_processors(&adapter);
    let steering = adapter.steering();
    (0..steering.lanes()).for_each(|lane| steering.set_processors(lane, &[first]).unwrap());
    let handler = adapter.completion_handler().unwrap();
    let error = handler.set_processors(&[last]).unwrap_err().to_string();
    let reason = "every lane is restricted to others";
    assert_eq!(error, format!("no lane of the adapter can be restricted to processors [{last}]: {reason}"));
    assert!(handler.processors().is_empty());
    handler.set_class(Class::LowLatency).unwrap();
    handler.set_processors(&[last]).unwrap();
    assert!(handler.set_processors(&[first]).is_err(), "the low-latency lane runs on the last processor");
    handler.set_processors(&[]).unwrap();
    assert!(handler.processors().is_empty());
}

/// Requirement N5: connectionless queue pairs move as connections do.
#[test]
fn a_datagram_queue_pair_is_served_on_the_processors_of_its_handler() {
    let adapter = Adapter::open(Config::default()).unwrap();
    let processors = two_processors(&adapter);
    let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(64).unwrap());
    let address = "127.0.0.1".parse().unwrap();
    let [near, far] =
        [(); 2].map(|()| domain.datagram_queue_pair(&cq).addresses(&[address]).create().unwrap());
    let to = Destination { address: near.address_handle(address.into()).unwrap(), qpn: far.qpn(), qkey: 0 };
    let sink = domain.register(Buffer::new(128).unwrap(), ALL).unwrap();
    for (number, processor) in (0..50_u8).zip(processors.iter().cycle()) {
        cq.own_handler().set_processors(&[*processor]).unwrap();
        for qp in [&near, &far] {
            assert_eq!(adapter.steering().processors(qp.lane()).unwrap(), [*processor]);
        }
        far.post_receive(number.into(), &[sink.slice(..).unwrap()]).unwrap();
        near.post_send(DatagramRequest::send_inline(99, &[number; 7], to).unsignaled()).unwrap();
        // The lane receives: the program sleeps until the event.
        if !cq.arm(Arm::Next) {
            cq.own_handler().wait(SOON).unwrap();
        }
        let completion = cq.wait(SOON).unwrap().success().unwrap();
        assert_eq!((completion.wr_id, completion.byte_len), (number.into(), 47));
        let mut bytes = [0; 47];
        sink.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[40..], [number; 7]);
    }
}
