//! tgtd is killed in the middle of writes: nothing wrong is reported as done.

use super::common::{TIMEOUT, connect, options};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp_iscsi::{DigestPolicy, Error, Request, Session, TaskId};
use ironwarp_testkit::long_form;
use ironwarp_testkit::pattern::pattern;
use ironwarp_testkit::tgtd::Tgtd;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const LEN: usize = 64 << 10;
const COUNT: usize = 256;

/// Starts a write of different bytes to each part of the disk. Also returns the bytes and their memory, which commands name
/// that are issued again.
fn start_writes(session: &mut Session, round: u64) -> (HashMap<TaskId, usize>, Vec<u8>, MemoryRegion) {
    let capacity = session.capacity(1).unwrap();
    let bytes = pattern(round + 1, LEN * COUNT);
    let memory = session.domain().register(Buffer::copy_of(&bytes).unwrap(), Access::LOCAL_READ).unwrap();
    let request = |index: usize| {
        let list = [memory.slice(index * LEN..(index + 1) * LEN).unwrap()];
        Request::write(1, &capacity, (index * LEN / 512) as u64, &list).unwrap()
    };
    let ids = session.start_all((0..COUNT).map(request)).unwrap();
    (ids.into_iter().zip(0..).collect(), bytes, memory)
}

/// Panics unless a part of the target's file has these bytes.
fn assert_written(target: &Tgtd, bytes: &[u8], index: usize) {
    let mut found = vec![0; LEN];
    File::open(target.disk()).unwrap().read_exact_at(&mut found, (index * LEN) as u64).unwrap();
    assert!(found == bytes[index * LEN..(index + 1) * LEN], "part {index} was reported as written");
}

fn rounds() -> u64 {
    if long_form::is_requested() { 50 } else { 4 }
}

#[test]
fn writes_that_were_not_acknowledged_fail() {
    for round in 0..rounds() {
        let mut target = Tgtd::start((LEN * COUNT) as u64);
        let mut session = connect(&target, &options(DigestPolicy::None));
        let (mut writes, bytes, _memory) = start_writes(&mut session, round);
        let kill_after = usize::try_from(round * 37).unwrap() % (COUNT / 2);
        let (mut done, mut failed) = (0, 0);
        while !writes.is_empty() {
            if done == kill_after {
                target.kill();
            }
            let finished = session.next(TIMEOUT).unwrap().expect("a command ends in time");
            let index = writes.remove(&finished.task).expect("each ends once");
            match finished.result {
                Ok(len) => {
                    assert_eq!(len as usize, LEN);
                    assert_written(&target, &bytes, index);
                    done += 1;
                }
                Err(Error::Lost(_)) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(done >= kill_after && failed > 0, "{done} done, {failed} failed");
        assert!(matches!(session.next(Duration::ZERO), Ok(None)));
    }
}

#[test]
fn writes_are_issued_again_after_a_reconnect() {
    for round in 0..rounds() {
        let mut target = Tgtd::start((LEN * COUNT) as u64);
        let mut session = connect(&target, &options(DigestPolicy::None).reconnect(TIMEOUT));
        let (mut writes, bytes, _memory) = start_writes(&mut session, round);
        let kill_after = usize::try_from(round * 37).unwrap() % (COUNT / 2);
        let mut done = 0;
        while !writes.is_empty() {
            if done == kill_after {
                target.restart();
            }
            let finished = session.next(TIMEOUT).unwrap().expect("a command ends in time");
            let index = writes.remove(&finished.task).expect("each ends once");
            assert_eq!(finished.result.unwrap() as usize, LEN);
            assert_written(&target, &bytes, index);
            done += 1;
        }
        assert_eq!((done, session.reconnects()), (COUNT, 1));
        session.logout().unwrap();
    }
}
