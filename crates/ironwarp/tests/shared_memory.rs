//! Buffers that another process maps.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::Config;
use ironwarp::completion::Opcode;
use ironwarp::memory::{AllocateError, Buffer};
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::mapping::Mapping;
use ironwarp_testkit::native::{ALL, CASES, Completions, End, pair, pattern};
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Long enough that the kernel receives the payload directly into the shared memory, and no multiple of a page.
const LEN: usize = 300_001;
/// Offset and length of what the peer writes.
const BY_PEER: (usize, usize) = (1_003, 200_002);
/// Offset and length of what the other process writes.
const BY_PROCESS: (usize, usize) = (150_001, 100_003);

/// What the other process must find after the peer has written, and the peer after the other process has.
fn expected(with_process: bool) -> Vec<u8> {
    let mut bytes = pattern(1, LEN);
    bytes[BY_PEER.0..][..BY_PEER.1].copy_from_slice(&pattern(2, BY_PEER.1));
    if with_process {
        bytes[BY_PROCESS.0..][..BY_PROCESS.1].copy_from_slice(&pattern(3, BY_PROCESS.1));
    }
    bytes
}

#[test]
fn another_process_maps_memory_that_peers_write_and_read() {
    if child::role().is_some() {
        return map_and_check();
    }
    let mut partner =
        Partner::start(child::command("another_process_maps_memory_that_peers_write_and_read", "maps"));
    let name = format!("ironwarp-test/{}/shared-memory", std::process::id());
    let listener = UnixListener::bind_addr(&address(&name)).unwrap();
    partner.tell(&format!("socket {name}"));
    let (socket, _) = listener.accept().unwrap();

    let (client, server) = pair(CASES[1]);
    let buffer = Buffer::builder().shareable().allocate(LEN).unwrap();
    send_file(&socket, buffer.shared_fd().unwrap());
    let region = server.domain.register(buffer, ALL).unwrap();
    region.write(0, &pattern(1, LEN)).unwrap();
    partner.tell("initialized");
    partner.wait_for("found that");

    let source = client.region(&pattern(2, BY_PEER.1), ALL);
    let (from, to) = (source.slice(..BY_PEER.1).unwrap(), region.remote_addr(BY_PEER.0).unwrap());
    client.qp.post_send(WorkRequest::write(1, &[from], to)).unwrap();
    client.done(Opcode::Write, 1);
    partner.tell("peer wrote");
    partner.wait_for("process wrote");

    let sink = client.region(&vec![0; LEN], ALL);
    let read = WorkRequest::read(2, &[sink.slice(..LEN).unwrap()], region.remote_addr(0).unwrap());
    client.qp.post_send(read).unwrap();
    client.done(Opcode::Read, 2);
    assert!(sink.to_vec().unwrap() == expected(true), "what the peer read");
    assert!(region.to_vec().unwrap() == expected(true));

    // The mapping of the other process remains.
    drop(region);
    partner.tell("dropped");
    partner.finish();
}

/// The other process.
fn map_and_check() {
    let socket = UnixStream::connect_addr(&address(&child::wait_for("socket "))).unwrap();
    let file = File::from(receive_file(&socket));
    assert_eq!(file.metadata().unwrap().len(), LEN as u64);
    let mapping = Mapping::of_file(&file, LEN);
    child::wait_for("initialized");
    assert!(mapping.read(0, LEN) == pattern(1, LEN), "what the other process wrote with `write`");
    child::tell("found that");
    child::wait_for("peer wrote");
    assert!(mapping.read(0, LEN) == expected(false), "what the peer wrote");
    mapping.write(BY_PROCESS.0, &pattern(3, BY_PROCESS.1));
    for len in [0, LEN as u64 - 1, LEN as u64 + 1, 1 << 30] {
        let error = file.set_len(len).expect_err("the length is sealed");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    assert_eq!(fcntl_add_seals(&file, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
    child::tell("process wrote");
    child::wait_for("dropped");
    assert!(mapping.read(0, LEN) == expected(true));
}

#[test]
fn descriptors_belong_to_shareable_buffers_only() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let shareable = || Buffer::builder().shareable().allocate(10).unwrap();
    let buffer = shareable();
    assert!(fcntl_getfd(buffer.shared_fd().unwrap()).unwrap().contains(FdFlags::CLOEXEC));
    let number = buffer.shared_fd().unwrap().as_raw_fd();
    let name = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert_eq!(name.to_str(), Some("/memfd:ironwarp-buffer (deleted)"));
    let region = end.domain.register(buffer, ALL).unwrap();
    let inode = |fd: Option<BorrowedFd<'_>>| rustix::fs::fstat(fd.unwrap()).unwrap().st_ino;
    let again = region.share(ALL).unwrap();
    assert_eq!(inode(region.shared_fd()), inode(again.shared_fd()));
    assert!(end.domain.allocate_region(vec![shareable()]).unwrap().shared_fd().is_some());

    assert!(Buffer::new(10).unwrap().shared_fd().is_none());
    assert!(Buffer::builder().allocate(10).unwrap().shared_fd().is_none());
    assert!(end.region(&[0; 10], ALL).shared_fd().is_none());
    let two = end.domain.register_list(vec![shareable(), shareable()], ALL).unwrap();
    assert!(two.shared_fd().is_none(), "no file has all bytes");
}

#[test]
fn shared_memory_that_cannot_be_allocated_is_an_error() {
    if !child::in_child("shared_memory_that_cannot_be_allocated_is_an_error") {
        return;
    }
    let shareable = Buffer::builder().shareable();
    for len in [usize::MAX, isize::MAX as usize] {
        let error = shareable.allocate(len).unwrap_err();
        assert!(matches!(error, AllocateError::Shared { len: found, .. } if found == len), "{error}");
        assert!(matches!(Buffer::builder().allocate(len), Err(AllocateError::OutOfMemory(_))));
    }
    let empty = shareable.allocate(0).unwrap();
    assert!(empty.is_empty() && empty.shared_fd().is_some());
    // An attempt to exceed this limit would end the process with a signal.
    setrlimit(Resource::Fsize, Rlimit { current: Some(1000), maximum: Some(1000) }).unwrap();
    assert!(shareable.allocate(1000).is_ok());
    let error = shareable.allocate(1001).unwrap_err().to_string();
    assert!(error.starts_with("failed to allocate 1001 bytes of shared memory: File too large"), "{error}");
}

/// Returns the address of a Unix socket that has no file.
fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// Sends a descriptor, with one byte of data, which the kernel requires.
fn send_file(to: &UnixStream, file: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
    assert_eq!(sendmsg(to, &[IoSlice::new(&[0])], &mut rights, SendFlags::empty()), Ok(1));
}

/// Receives a descriptor.
fn receive_file(from: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut received, RecvFlags::CMSG_CLOEXEC).unwrap();
    let message = received.drain().next();
    let Some(RecvAncillaryMessage::ScmRights(mut files)) = message else { panic!("a descriptor") };
    files.next().unwrap()
}
