//! Blocks are written, read back and compared, with and without digests.

use super::common::{TIMEOUT, connect, enable_digests, options};
use ironwarp::memory::{Access, Buffer};
use ironwarp_iscsi::{DigestPolicy, Direction, Error, Request};
use ironwarp_testkit::pattern::pattern;
use ironwarp_testkit::tgtd::Tgtd;
use std::os::unix::fs::FileExt;

#[test]
fn a_logical_unit_tells_what_it_is() {
    let target = Tgtd::start(8 << 20);
    let mut session = connect(&target, &options(DigestPolicy::None));
    let inquiry = session.inquiry(1).unwrap();
    assert!(inquiry.is_disk(), "{inquiry:?}");
    assert_eq!(inquiry.vendor, "IET");
    let capacity = session.capacity(1).unwrap();
    assert_eq!((capacity.blocks, capacity.block_size, capacity.bytes()), (16_384, 512, 8 << 20));
    session.logout().unwrap();
}

/// Writes and reads with several commands at once, of one block up to 1 MiB, and compares with the file of the target.
#[test]
fn blocks_are_written_and_read_back() {
    for digest in [DigestPolicy::None, DigestPolicy::Require] {
        let mut target = Tgtd::start(16 << 20);
        if digest == DigestPolicy::Require {
            enable_digests(&mut target);
        }
        let mut session = connect(&target, &options(digest));
        let digests = session.negotiated().unwrap().digests;
        assert_eq!(
            (digests.header, digests.data),
            (digest == DigestPolicy::Require, digest == DigestPolicy::Require)
        );
        let capacity = session.capacity(1).unwrap();
        for len in [512, 4096, 65_536, 1 << 20] {
            let count = ((4 << 20) / len).min(64);
            let memory = session
                .domain()
                .register(
                    Buffer::copy_of(&pattern(len as u64, len * count)).unwrap(),
                    Access::LOCAL_READ | Access::LOCAL_WRITE,
                )
                .unwrap();
            let expected = memory.to_vec().unwrap();
            let requests = |write: bool| -> Vec<Request> {
                (0..count)
                    .map(|index| {
                        let list = [memory.slice(index * len..(index + 1) * len).unwrap()];
                        let lba = (index * len / 512) as u64;
                        if write {
                            Request::write(1, &capacity, lba, &list)
                        } else {
                            Request::read(1, &capacity, lba, &list)
                        }
                        .unwrap()
                    })
                    .collect()
            };
            for write in [true, false] {
                session.start_all(requests(write)).unwrap();
                for _ in 0..count {
                    let finished = session.next(TIMEOUT).unwrap().expect("a command ends in time");
                    assert_eq!(finished.result.unwrap() as usize, len);
                }
                let file = std::fs::File::open(target.disk()).unwrap();
                let mut found = vec![0; len * count];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == expected, "wrong bytes in the file, length {len}");
                if write {
                    memory.fill(0).unwrap();
                } else {
                    assert!(memory.to_vec().unwrap() == expected, "wrong bytes were read, length {len}");
                }
            }
        }
        session.logout().unwrap();
    }
}

#[test]
fn a_command_that_the_target_refuses_fails_alone() {
    let target = Tgtd::start(8 << 20);
    let mut session = connect(&target, &options(DigestPolicy::None));
    let capacity = session.capacity(1).unwrap();
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[2..10].copy_from_slice(&capacity.blocks.to_be_bytes()); // beyond the end
    cdb[13] = 1;
    let memory = session.domain().register(Buffer::new(512).unwrap(), Access::LOCAL_WRITE).unwrap();
    let list = [memory.slice(..).unwrap()];
    let request = Request::new(1, cdb, Some((Direction::In, &list)));
    let Err(Error::Scsi(error)) = session.execute(request, TIMEOUT) else { panic!("the target accepts it") };
    assert_eq!(error.to_string(), "CHECK CONDITION: illegal request (sense 5/21/00)");
    session.execute(Request::read(1, &capacity, 0, &list).unwrap(), TIMEOUT).unwrap();
}

/// The program makes a mistake: that ends neither the session nor other commands.
#[test]
fn a_command_with_memory_of_wrong_access_fails_alone() {
    let target = Tgtd::start(8 << 20);
    let mut session = connect(&target, &options(DigestPolicy::None));
    let capacity = session.capacity(1).unwrap();
    let readable = session.domain().register(Buffer::new(4096).unwrap(), Access::LOCAL_READ).unwrap();
    let writable = session.domain().register(Buffer::new(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
    for round in 0..20 {
        let request = |index: u64| {
            let memory = if index == 7 { &readable } else { &writable };
            let list = [memory.slice(..).unwrap()];
            Request::read(1, &capacity, index * 8, &list).unwrap()
        };
        let ids = session.start_all((0..16).map(request)).unwrap();
        for _ in 0..16 {
            let finished = session.next(TIMEOUT).unwrap().expect("a command ends in time");
            let is_mistake = finished.task == ids[7];
            match finished.result {
                Ok(len) => assert!(!is_mistake && len == 4096, "round {round}"),
                Err(Error::Adapter(..)) => assert!(is_mistake, "round {round}"),
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
    assert_eq!(session.outstanding(), 0);
    session.logout().unwrap();
}
