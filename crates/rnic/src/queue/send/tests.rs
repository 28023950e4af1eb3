use super::*;
use crate::error::PostError;
use crate::queue::{Data, Sges};

fn request(id: u64) -> WorkRequest {
    let send = Operation::Send { invalidate: None };
    WorkRequest { signaled: false, ..WorkRequest::new(id, send, Data::Memory(Sges::default())) }
}

fn queue() -> SendQueue {
    SendQueue::new(2, 1, true, Completes::WhenSent, None)
}

/// A request bypasses the queue, and the link takes only a part of it. Another thread has posted two requests meanwhile.
#[test]
fn a_started_request_is_inserted_before_those_that_were_not_started() {
    let mut sq = queue();
    sq.post([request(10), request(12)]).unwrap();
    sq.assign_number(0, 1, 1);
    sq.insert_started(&mut Some(request(11)), 1, (2, 2));
    assert_eq!([0, 1, 2].map(|seq| sq.request(seq).unwrap().id), [10, 11, 12]);
    assert_eq!(sq.find_msn(2, false), Some(1));
    sq.roll_back_numbers(2);
    sq.mark_sent(0);
    sq.mark_sent(1);
    sq.retire(7, |completion| panic!("{completion:?}"));
    assert_eq!(sq.oldest(), Some(2));
}

#[test]
fn a_started_request_of_a_failed_stream_is_dropped() {
    let mut sq = queue();
    sq.fail(7, None, &Arc::new(QpError::Moved), drop);
    let mut only = Some(request(1));
    sq.insert_started(&mut only, 0, (1, 1));
    assert!(only.is_none() && sq.is_idle());
}

#[test]
fn a_request_that_does_not_fit_is_not_taken() {
    let mut sq = queue();
    sq.post([request(1), request(2)]).unwrap();
    let mut more = Some(request(3));
    assert!(matches!(sq.post_one(&mut more), Err(PostError::Full { capacity: 2 })));
    assert!(more.is_some() && sq.len() == 2);
    assert!(sq.post([request(3)]).is_err() && sq.len() == 2);
}
