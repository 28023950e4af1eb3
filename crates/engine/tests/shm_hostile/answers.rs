//! What a peer passes to the victim instead of memory, and what it does to the file afterwards.

use super::common::attack::{Attack, Link, TOKEN};
use super::common::doorway::{self, Doorway, MAGIC, MAX_DESCRIPTORS, send_with};
use super::common::ring::{ACCEPT, RingEnd, memory_file, seals};
use super::common::victim::{Attacked, Victim};
use super::guests::pass_lingering;
use ironwarp_shm::{RING_LEN, SEGMENT_LEN};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

const LEN: u64 = SEGMENT_LEN as u64;

/// Offers memory to the victim, which connects. Returns its socket.
fn asked(attacked: &mut Attacked) -> UnixStream {
    let doorway = Doorway::new();
    attacked.peer.offer(&TOKEN, &doorway.id, 0);
    doorway.accept().0
}

/// Answers with `bytes` and these descriptors, and checks that the victim closes the socket and stays with TCP.
fn refused(victim: &Victim, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut attacked = victim.connect_peer();
    let stream = asked(&mut attacked);
    send_with(&stream, bytes, files).unwrap();
    doorway::assert_refused(&stream);
    attacked.assert_works_over_tcp(1);
}

#[test]
fn memory_with_other_seals_is_refused() {
    let victim = Victim::new();
    let other = [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::GROW | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::GROW,
        seals() | SealFlags::WRITE,
        seals() | SealFlags::FUTURE_WRITE,
    ];
    for seals in other {
        let file = memory_file(MemfdFlags::empty(), LEN, seals);
        refused(&victim, &MAGIC, &[file.as_fd()]);
    }
    victim.assert_survives(());
}

#[test]
fn memory_of_another_size_is_refused() {
    let victim = Victim::new();
    for len in [0, 1, 4096, LEN - 1, LEN + 1, LEN + 4096, 1 << 40] {
        refused(&victim, &MAGIC, &[memory_file(MemfdFlags::empty(), len, seals()).as_fd()]);
    }
    victim.assert_survives(());
}

#[test]
fn huge_pages_are_refused() {
    let victim = Victim::new();
    // Huge pages may not be available here.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(file) = rustix::fs::memfd_create("ironwarp-ring", flags) {
        rustix::fs::ftruncate(&file, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals()).unwrap();
        refused(&victim, &MAGIC, &[file.as_fd()]);
    }
    victim.assert_survives(());
}

#[test]
fn descriptors_that_are_not_memory_are_refused() {
    let victim = Victim::new();
    let path = std::env::temp_dir().join(format!("ironwarp-hostile-{}", std::process::id()));
    let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(LEN).unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let others: Vec<OwnedFd> = vec![
        file.into(),
        pipe,
        UnixStream::pair().unwrap().0.into(),
        File::open("/dev/null").unwrap().into(),
        File::open("/dev/zero").unwrap().into(),
        File::open("/proc/self/mem").unwrap().into(),
        File::open("/").unwrap().into(),
        rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap(),
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty()).unwrap(),
    ];
    others.iter().for_each(|other| refused(&victim, &MAGIC, &[other.as_fd()]));
    victim.assert_survives(others);
}

#[test]
fn a_read_only_descriptor_of_the_memory_is_refused() {
    use std::os::fd::AsRawFd;
    let victim = Victim::new();
    let file = memory_file(MemfdFlags::empty(), LEN, seals());
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    refused(&victim, &MAGIC, &[read_only.as_fd()]);
    victim.assert_survives((file, read_only));
}

#[test]
fn malformed_answers_are_refused() {
    let victim = Victim::new();
    let file = memory_file(MemfdFlags::empty(), LEN, seals());
    refused(&victim, &MAGIC, &[]);
    refused(&victim, &MAGIC[..7], &[file.as_fd()]);
    refused(&victim, &[0; 8], &[file.as_fd()]);
    refused(&victim, &[0; 1], &[]);
    victim.assert_survives(file);
}

#[test]
fn more_than_one_descriptor_leaks_none() {
    let victim = Victim::new();
    for count in [2, 3, MAX_DESCRIPTORS] {
        let mut attacked = victim.connect_peer();
        let stream = asked(&mut attacked);
        let ring = RingEnd::create();
        send_with(&stream, &MAGIC, &vec![ring.file.as_fd(); count]).unwrap();
        drop(stream);
        attacked.assert_works_over_tcp(1);
    }
    victim.assert_survives(());
}

#[test]
fn a_peer_that_closes_instead_of_answering_keeps_tcp() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    for msn in 1..=4 {
        drop(asked(&mut attacked));
        attacked.assert_works_over_tcp(msn);
    }
    victim.assert_survives(attacked);
}

#[test]
fn an_answer_after_the_timeout_comes_too_late() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let stream = asked(&mut attacked);
    attacked.assert_works_over_tcp(1);
    doorway::assert_refused(&stream); // after the timeout
    let ring = RingEnd::create();
    let _ = send_with(&stream, &MAGIC, &[ring.file.as_fd()]);
    attacked.assert_works_over_tcp(2);
    victim.before.assert_bounded(0, 16);
    victim.assert_survives((attacked, stream, ring));
}

#[test]
fn an_answer_whose_close_blocks_delays_nobody() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let answers: Vec<_> = (0..4)
        .map(|_| {
            let stream = asked(&mut attacked);
            (pass_lingering(&stream, &MAGIC), stream)
        })
        .collect();
    attacked.assert_works_over_tcp(1);
    victim.go_on();
    victim.assert_survives((attacked, answers));
}

#[test]
fn the_memory_cannot_shrink_grow_or_be_sealed() {
    let victim = Victim::new();
    let mut attack = Attack::switched(Attack::joining, &victim);
    let file = &attack.link.ring.file;
    assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(file, LEN - 4096), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(file, LEN + 4096), Err(Errno::PERM));
    assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
    attack.assert_works(1);
    victim.assert_survives(attack);
}

#[test]
fn holes_in_the_memory_end_at_most_the_connection() {
    for connect in Attack::both() {
        let victim = Victim::new();
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let file = attack.link.ring.file.try_clone().unwrap();
        for i in 0..2000_u64 {
            let (from, len) =
                [(0, LEN), (0, 8192), (8192, RING_LEN as u64), (i % 128 * 4096, 4096)][(i % 4) as usize];
            rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len)
                .unwrap();
            attack.link.publish();
            attack.link.ring_bell();
        }
        attack.grant(1 << 20);
        attack.post_send(1, 64 << 10);
        victim.assert_survives(attack);
    }
}

/// Both processes have the same open file, so the peer can change its flags.
#[test]
fn other_flags_of_the_file_end_at_most_the_connection() {
    for connect in Attack::both() {
        for flags in [OFlags::APPEND, OFlags::NONBLOCK, OFlags::DIRECT] {
            let victim = Victim::new();
            let attack = Attack::switched(connect, &victim);
            // tmpfs has O_DIRECT only since Linux 6.6.
            let _ = rustix::fs::fcntl_setfl(&attack.link.ring.file, flags);
            attack.post_send(1, 100);
            attack.completions(1);
            victim.assert_survives(attack);
        }
    }
}

#[test]
fn memory_full_of_garbage_is_not_used() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let stream = asked(&mut attacked);
    let ring = RingEnd::create();
    let garbage: Vec<u8> =
        (0..SEGMENT_LEN).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11).to_le_bytes()[0]).collect();
    for at in [0, 8192] {
        std::os::unix::fs::FileExt::write_all_at(&ring.file, &garbage[at..], at as u64).unwrap();
    }
    doorway::answer(&stream, &MAGIC, &ring.file);
    let _ = (&stream).write(&[0]);
    doorway::assert_closed(&stream);
    attacked.assert_works_over_tcp(1);
    victim.assert_survives((attacked, stream, ring));
}

#[test]
fn the_same_memory_for_two_carriers_harms_only_their_connections() {
    let victim = Victim::new();
    let (mut one, mut two) = (victim.connect_peer(), victim.connect_peer());
    let (mut link, channel) = Link::offered(&mut one.peer);
    link.send(channel, ACCEPT, &7_u32.to_ne_bytes());
    let stream = asked(&mut two);
    doorway::answer(&stream, &MAGIC, &link.ring.file);
    let _ = (&stream).write(&[0]);
    one.post_send(1, 1000);
    two.post_send(1, 1000);
    victim.assert_survives((one, two, link, stream));
}
