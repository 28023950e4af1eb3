//! Control queues (requirement X6) through the native API.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::{CompletionQueue, Opcode, Status};
use ironwarp::control::ControlError;
use ironwarp::example::{End, pair};
use ironwarp::memory::{Access, Buffer, RegisterError};
use ironwarp::queue::{PostError, QpError, WorkRequest};
use ironwarp::{Adapter, Config};
use std::collections::HashSet;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

fn next(cq: &CompletionQueue) -> ironwarp::completion::Completion {
    cq.wait(TIMEOUT).unwrap()
}

/// Many registrations, and requests that use the regions at once. Operations complete in order, and all data arrives.
#[test]
fn requests_can_be_posted_before_their_registrations_complete() {
    let (client, server) = pair().unwrap();
    let done = client.adapter.completion_queue(256).unwrap();
    let control = client.adapter.control_queue(&done, 256).unwrap();
    let target = server.domain.register(Buffer::new(200 * 64).unwrap(), Access::all()).unwrap();
    let mut regions = Vec::new();
    let mut written = HashSet::new();
    for number in 0..200_u64 {
        let bytes = [u8::try_from(number).unwrap(); 64];
        let buffer = Buffer::copy_of(&bytes).unwrap();
        let region = if number % 2 == 0 {
            control.register(number, &client.domain, buffer, Access::LOCAL_READ)
        } else {
            control.register_prefaulted(number, &client.domain, buffer, Access::LOCAL_READ)
        };
        let region = region.unwrap();
        let to = target.remote_addr(usize::try_from(number).unwrap() * 64).unwrap();
        while written.len() + 32 < regions.len() {
            written.insert(next(&client.cq).success().unwrap().wr_id);
        }
        client.qp.post_send(WorkRequest::write(number, &[region.slice(..64).unwrap()], to)).unwrap();
        regions.push(region);
    }
    for number in 0..200 {
        let completion = next(&done).success().unwrap();
        assert_eq!(
            (completion.wr_id, completion.opcode, completion.qp),
            (number, Opcode::Register, control.id())
        );
    }
    while written.len() < 200 {
        written.insert(next(&client.cq).success().unwrap().wr_id);
    }
    server.qp.post_receive(1, &[]).unwrap();
    client.qp.post_send(WorkRequest::send(1000, &[]).unsignaled()).unwrap();
    next(&server.cq).success().unwrap();
    let bytes = target.to_vec().unwrap();
    assert!(bytes.chunks(64).zip(0_u8..).all(|(chunk, number)| chunk == [number; 64]));
    for (number, region) in regions.into_iter().enumerate() {
        control.deregister(number as u64, region).unwrap();
    }
    for number in 0..200 {
        let completion = next(&done).success().unwrap();
        assert_eq!((completion.wr_id, completion.opcode), (number, Opcode::Deregister));
    }
}

/// A registration that fails makes the requests that use it fail; later operations succeed.
#[test]
fn a_registration_that_fails_completes_with_its_cause() {
    let (client, _server) = pair().unwrap();
    let done = client.adapter.completion_queue(16).unwrap();
    let control = client.adapter.control_queue(&done, 16).unwrap();
    let wrong = Access::REMOTE_WRITE; // lacks the local right
    let region = control.register(1, &client.domain, Buffer::new(64).unwrap(), wrong).unwrap();
    client.qp.post_send(WorkRequest::send(2, &[region.slice(..8).unwrap()])).unwrap();
    let pending = control.create_queue_pair(3, client.domain.queue_pair(&client.cq)).unwrap();

    let failed = next(&done);
    assert_eq!((failed.wr_id, failed.status), (1, Status::LocalQpOperation));
    let Some(QpError::Register { tag, error: RegisterError::Rights(_) }) = failed.cause.as_deref() else {
        panic!("{failed:?}")
    };
    assert_eq!(*tag, region.tag());
    assert!(!region.is_pending());
    assert_eq!(next(&client.cq).status, Status::LocalProtection);
    assert_eq!(next(&done).success().unwrap().opcode, Opcode::CreateQueuePair);
    assert!(pending.take().unwrap().is_ok());
    assert!(pending.take().is_none(), "the result can be taken once");
}

/// Creates, connects and destroys a queue pair and its completion queue with a control queue.
#[test]
fn queues_are_created_and_destroyed() {
    let End { adapter, domain, .. } = pair().unwrap().0;
    let done = adapter.completion_queue(16).unwrap();
    let control = adapter.control_queue(&done, 16).unwrap();
    let made = control.create_completion_queue(1, 64).unwrap();
    next(&done).success().unwrap();
    let cq = made.take().unwrap().unwrap();
    let [one, another] =
        [2, 3].map(|id| control.create_queue_pair(id, domain.queue_pair(&cq).manual()).unwrap());
    for id in [2, 3] {
        assert_eq!(next(&done).success().unwrap().wr_id, id);
    }
    let [one, another] = [one, another].map(|made| made.take().unwrap().unwrap());
    let gid = "127.0.0.1".parse().unwrap();
    for (near, far) in [(&one, &another), (&another, &one)] {
        let remote = ironwarp::connection::Remote { gid, qpn: far.id() };
        near.bring_up(remote, &ironwarp::connection::BringUpOptions::new().gid(gid)).unwrap();
    }
    another.post_receive(7, &[]).unwrap();
    one.post_send(WorkRequest::send(8, &[]).unsignaled()).unwrap();
    assert_eq!(next(&cq).success().unwrap().wr_id, 7);
    control.destroy_queue_pair(4, one).unwrap();
    control.destroy_queue_pair(5, another).unwrap();
    control.destroy_completion_queue(6, cq).unwrap();
    for id in [4, 5, 6] {
        assert_eq!(next(&done).success().unwrap().wr_id, id);
    }
}

/// A control queue has a limited depth, and refuses objects of another adapter.
#[test]
fn a_full_control_queue_refuses_operations() {
    let adapter = Adapter::open(Config::default()).unwrap();
    let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
    let none = adapter.control_queue(&cq, 0).unwrap();
    let full = none.register(1, &domain, Buffer::new(64).unwrap(), Access::LOCAL_READ);
    assert_eq!(full.unwrap_err(), ControlError::Post(PostError::Full { capacity: 0 }));
    let other = Adapter::open(Config::default()).unwrap();
    assert!(other.control_queue(&cq, 16).is_err());
    let control = adapter.control_queue(&cq, 16).unwrap();
    let foreign =
        control.register(1, &other.protection_domain(), Buffer::new(64).unwrap(), Access::LOCAL_READ);
    assert_eq!(foreign.unwrap_err(), ControlError::OtherAdapter);
}

/// Operations that were posted before the queue is dropped are executed.
#[test]
fn a_dropped_control_queue_executes_posted_operations() {
    let adapter = Adapter::open(Config::default()).unwrap();
    let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
    let control = adapter.control_queue(&cq, 16).unwrap();
    let buffer = || Buffer::new(1 << 20).unwrap();
    let regions: Vec<_> = (0..8)
        .map(|id| control.register_prefaulted(id, &domain, buffer(), Access::LOCAL_READ).unwrap())
        .collect();
    drop(control);
    assert!(regions.iter().all(|region| !region.is_pending()));
    for id in 0..8 {
        assert_eq!(next(&cq).success().unwrap().wr_id, id);
    }
}

/// Prefaulted memory is resident, registered directly and with a control queue; other memory is not.
#[test]
fn prefaulted_memory_is_resident_before_it_is_used() {
    const LEN: usize = 64 << 20;
    let adapter = Adapter::open(Config::default()).unwrap();
    let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
    let control = adapter.control_queue(&cq, 16).unwrap();
    let grown = |register: &dyn Fn(Buffer) -> ironwarp::memory::MemoryRegion| {
        let before = resident();
        let region = register(Buffer::new(LEN).unwrap());
        while region.is_pending() {
            next(&cq).success().unwrap();
        }
        let grown = resident() - before;
        assert_eq!(region.len(), LEN);
        grown
    };
    let posted = |buffer| control.register_prefaulted(1, &domain, buffer, Access::LOCAL_READ).unwrap();
    assert!(grown(&|buffer| domain.register(buffer, Access::LOCAL_READ).unwrap()) < LEN / 2);
    assert!(grown(&|buffer| domain.register_prefaulted(buffer, Access::LOCAL_READ).unwrap()) > LEN / 2);
    assert!(grown(&posted) > LEN / 2);
}

/// Returns the resident memory of this process, in bytes. Each test runs in its own process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
