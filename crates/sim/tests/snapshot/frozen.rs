//! What a program can do to objects that are frozen, and what it finds after they were thawed.

use super::function::{BOTH, Function};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sges, Status, WorkRequest};

const SEND: Operation = Operation::Send { invalidate: None };

/// Returns identifier and status of the completions of sends.
fn ended(function: &Function) -> Vec<(u64, Status)> {
    let mut ended = Vec::new();
    let polled = function.cqs[0].poll(64, |completion| ended.push((completion.wr_id, completion.status)));
    polled.unwrap();
    ended
}

/// Returns a function whose first message is cut, and whose requests 1 to 6 are not complete. The fourth is unsignaled.
fn function() -> Function {
    Function::new(&[Function::send_in_part])
}

#[test]
fn posts_to_frozen_queues_are_refused_and_nothing_is_lost() {
    let function = function();
    let qp = &function.qps[0];
    let send = || WorkRequest::new(7, SEND, Data::Memory(Sges::default()));
    let receive = || ReceiveRequest { id: 8, buffers: Sges::default() };
    let frozen = qp.freeze().unwrap();
    let srq = function.srqs[0].freeze();
    assert_eq!(qp.post_send([send()]).unwrap_err(), PostError::Frozen);
    assert_eq!(qp.post_receive(receive()).unwrap_err(), PostError::Frozen);
    assert_eq!(function.srqs[0].post(receive()).unwrap_err(), PostError::Frozen);
    *function.wires.lock().unwrap()[0].room.lock().unwrap() = usize::MAX;
    qp.drive(BOTH);
    assert_eq!(ended(&function), [], "nothing is sent");
    function.srqs[0].thaw(srq);
    qp.thaw(frozen);
    assert_eq!(ended(&function)[..2], [(1, Status::Success), (2, Status::Success)]);
    qp.post_receive(receive()).unwrap();
    function.srqs[0].post(receive()).unwrap();
    qp.post_send([send()]).unwrap();
}

#[test]
fn a_queue_pair_that_fails_while_it_is_frozen_flushes_everything_once() {
    let function = function();
    let qp = &function.qps[0];
    qp.post_receive(ReceiveRequest { id: 8, buffers: Sges::default() }).unwrap();
    let frozen = qp.freeze().unwrap();
    qp.modify(State::Error).unwrap();
    qp.drive(BOTH);
    assert_eq!(ended(&function), [], "the requests are frozen");
    qp.thaw(frozen);
    qp.drive(BOTH);
    let all = [1, 2, 3, 4, 5, 6].map(|id| (id, Status::Flushed));
    assert_eq!(ended(&function), all);
    let mut received = Vec::new();
    function.cqs[1].poll(64, |completion| received.push((completion.wr_id, completion.status))).unwrap();
    assert_eq!(received.iter().filter(|(id, _)| *id == 8).collect::<Vec<_>>(), [&(8, Status::Flushed)]);
}

#[test]
fn a_queue_pair_that_is_reset_while_it_is_frozen_completes_nothing() {
    let function = function();
    let qp = &function.qps[0];
    let frozen = qp.freeze().unwrap();
    qp.reset();
    qp.thaw(frozen);
    qp.drive(BOTH);
    assert_eq!(ended(&function), []);
}
