//! The Unix sockets of both sides: the one at which the peer waits for a victim that wants its memory, and those by which
//! it connects to the victim's own.

use super::TIMEOUT;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What both ends say first.
pub(crate) const MAGIC: [u8; 8] = *b"IRWSHM\0\x01";
/// Maximum number of descriptors in one message (`SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

pub(crate) type AdapterId = [u8; 7];
pub(crate) type Token = [u8; 16];

static IDS: AtomicU32 = AtomicU32::new(0);

/// A socket at which the peer waits for the victim.
#[derive(Debug)]
pub(crate) struct Doorway {
    pub(crate) id: AdapterId,
    pub(crate) listener: UnixListener,
}

impl Doorway {
    pub(crate) fn new() -> Self {
        let mut id = [0xee; 7];
        id[..4].copy_from_slice(&std::process::id().to_be_bytes());
        id[4..].copy_from_slice(&IDS.fetch_add(1, Ordering::Relaxed).to_be_bytes()[1..]);
        Self { id, listener: UnixListener::bind_addr(&address(&id)).unwrap() }
    }

    /// Checks that the victim has not connected so far.
    pub(crate) fn assert_unused(&self) {
        self.listener.set_nonblocking(true).unwrap();
        assert_eq!(
            self.listener.accept().map(drop).map_err(|error| error.kind()),
            Err(ErrorKind::WouldBlock)
        );
    }

    /// Waits for the victim, and returns its token.
    pub(crate) fn accept(&self) -> (UnixStream, Hello) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = [0; 32];
        (&stream).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..8], MAGIC);
        let hello = Hello {
            token: bytes[8..24].try_into().unwrap(),
            adapter: bytes[24..31].try_into().unwrap(),
            lane: bytes[31],
        };
        (stream, hello)
    }
}

/// The address of an adapter's socket.
fn address(id: &AdapterId) -> SocketAddr {
    let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("ironwarp-shm/{name}")).unwrap()
}

/// Connects to the socket of an adapter.
pub(crate) fn knock(id: &AdapterId) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&address(id))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// What a process says when it has connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) token: Token,
    pub(crate) adapter: AdapterId,
    pub(crate) lane: u8,
}

impl Hello {
    pub(crate) fn new(token: Token) -> Self {
        Self { token, adapter: [0xdd; 7], lane: 0 }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        [&MAGIC[..], &self.token, &self.adapter, &[self.lane]].concat()
    }

    /// Says hello to the socket of the victim with this number.
    pub(crate) fn say(self, victim: &AdapterId) -> UnixStream {
        let mut stream = knock(victim).unwrap();
        stream.write_all(&self.bytes()).unwrap();
        stream
    }
}

/// Sends bytes with descriptors.
pub(crate) fn send_with(
    stream: &UnixStream,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(rights.push(SendAncillaryMessage::ScmRights(files)));
    }
    sendmsg(stream, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL)
}

/// Sends bytes with one file.
pub(crate) fn answer(stream: &UnixStream, bytes: &[u8], file: &impl AsFd) {
    send_with(stream, bytes, &[file.as_fd()]).unwrap();
}

/// Receives the answer of the victim. Returns `None` if it has closed the socket.
pub(crate) fn receive_file(stream: &UnixStream) -> Option<File> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut rights, RecvFlags::CMSG_CLOEXEC);
    match received {
        Ok(received) if received.bytes > 0 => assert_eq!(bytes, MAGIC),
        Ok(_) | Err(rustix::io::Errno::CONNRESET) => return None,
        Err(error) => panic!("no answer of the victim: {error}"),
    }
    let mut files = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Some(files.next().expect("the answer has a descriptor").into())
}

/// Waits until the victim closes the socket, on which it may have rung.
pub(crate) fn assert_closed(mut stream: &UnixStream) {
    let mut rings = [0; 64];
    while !matches!(stream.read(&mut rings), Ok(0)) {}
}

/// Waits until the victim closes the socket, without an answer.
pub(crate) fn assert_refused(stream: &UnixStream) {
    assert!(receive_file(stream).is_none(), "the victim has answered");
}

/// Returns the numbers of all adapters of this process that listen for others. Every user can read them.
pub(crate) fn adapters() -> Vec<AdapterId> {
    let own: Vec<_> = Path::new("/proc/self/fd")
        .read_dir()
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    let id = |line: &str| {
        let (fields, name) = line.split_once("@ironwarp-shm/")?;
        let socket = PathBuf::from(format!("socket:[{}]", fields.split_whitespace().last()?));
        own.contains(&socket).then(|| parse_id(name))
    };
    let mut ids: Vec<_> = std::fs::read_to_string("/proc/net/unix").unwrap().lines().filter_map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn parse_id(hex: &str) -> AdapterId {
    std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
}
