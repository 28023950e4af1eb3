//! The Unix sockets by which two processes of one host set up shared memory, and wake each other afterwards.
//!
//! A process listens at a name in the abstract namespace, or in a directory that both processes share ([`BellListener`]).
//! The other one connects ([`Bell::connect`]) and says hello; the listener answers with the descriptor of a segment. From
//! then on each byte in either direction is a doorbell, and the end of the socket is the end of the other process.
//!
//! An eventfd would cost the same, but a process could block another one with it: whether a write blocks is a property
//! of the open file, which both processes share. A send with MSG_DONTWAIT never blocks.
//!
//! The other process can send descriptors at any time, and a thread that takes such a message, or closes the socket, may
//! close the last one of an open file. That may block for as long as the other process wants: a socket that lingers is an
//! example. So the sockets refuse descriptors. The only one that is wanted, of the segment, is received by a thread that
//! may block. Where the kernel cannot refuse descriptors, before Linux 6.16, processes of other users are refused.

use super::denied::Denied;
use super::fork::Fd;
use super::socket::{peer_credentials, set_option};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::geteuid;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of processes that wait to be accepted.
const BACKLOG: i32 = 64;
/// Number of bytes of pending doorbells that one call takes.
const RINGS: usize = 64;
/// Maximum number of such calls. A socket buffer holds fewer rings, which are sent one by one, so a process that exceeds
/// this rings continuously.
const MAX_CALLS: usize = 64;

/// What has arrived at a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Rings, or nothing.
    Rings,
    /// More rings than a process has reason to send.
    Flood,
    /// The end: the other process has closed the socket.
    End,
}

/// SO_PASSRIGHTS of Linux 6.16, which `libc` does not define.
const SO_PASSRIGHTS: i32 = 83;

/// A socket to another process.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Fd,
    /// The memory is set up.
    in_use: AtomicBool,
}

/// The listening socket of a process.
#[derive(Debug)]
pub(crate) struct BellListener {
    fd: Fd,
    /// The file to remove in the end; `None` for an abstract name.
    file: Option<PathBuf>,
    /// Whether processes of all users are accepted.
    all_users: bool,
}

/// Has the kernel accept or refuse descriptors in messages to this socket, and to those accepted from it. Fails before
/// Linux 6.16.
fn pass_descriptors(fd: &Fd, pass: bool) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, pass.into())
}

/// Returns whether the process at the other end has the same user.
fn is_same_user(fd: &Fd) -> bool {
    peer_credentials(fd).is_ok_and(|peer| peer.uid == geteuid().as_raw())
}

/// Where a process with this name listens: in the directory that both processes share, or without one at an abstract
/// name, which exists only in the network namespace.
fn address(directory: &Path, name: &str) -> io::Result<(SocketAddrUnix, Option<PathBuf>)> {
    if directory.as_os_str().is_empty() {
        return Ok((SocketAddrUnix::new_abstract_name(format!("ironwarp-shm/{name}").as_bytes())?, None));
    }
    let file = directory.join(format!("ironwarp-{name}"));
    Ok((SocketAddrUnix::new(&file)?, Some(file)))
}

/// Opens a Unix socket that does not block.
fn socket() -> io::Result<Fd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // `Fd::open` calls the function while no thread can fork: forked children close the socket.
    let fd = Fd::open(|| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None));
    Denied::check("socket", fd)
}

impl BellListener {
    /// Listens under this name, in `directory` if it is not empty.
    pub(crate) fn new(directory: &Path, name: &str) -> io::Result<Self> {
        let fd = socket()?;
        let all_users = pass_descriptors(&fd, false).is_ok();
        let (address, file) = address(directory, name)?;
        bind(&fd, &address)?;
        listen(&fd, BACKLOG)?;
        Ok(Self { fd, file, all_users })
    }

    /// Accepts a process that has connected; `None` if there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<Bell>> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match Fd::open(|| accept_with(&self.fd, flags)) {
                Ok(fd) if self.all_users || is_same_user(&fd) => return Ok(Some(Bell::new(fd))),
                Ok(_) | Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for BellListener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file); // another process may have removed it
        }
    }
}

impl AsFd for BellListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Bell {
    fn new(fd: Fd) -> Self {
        Self { fd, in_use: AtomicBool::new(false) }
    }

    /// Records that the memory is set up.
    pub(crate) fn set_in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// Returns whether the memory is set up.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Closes both directions: both processes notice.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both); // fails if the other process has closed its end
    }

    /// Connects to the process that listens under this name, without waiting. Fails if there is none, or if too many
    /// processes wait there.
    pub(crate) fn connect(directory: &Path, name: &str) -> io::Result<Self> {
        let fd = socket()?;
        connect(&fd, &address(directory, name)?.0)?;
        // Later, after the segment has arrived, descriptors must be refused: see whether the kernel can.
        if pass_descriptors(&fd, true).is_err() && !is_same_user(&fd) {
            return Err(Errno::PERM.into());
        }
        Ok(Self::new(fd))
    }

    /// Rings the doorbell. If the other process has not heard the last rings yet, and the socket is full, it hears them.
    pub(crate) fn ring(&self) {
        let _ = send(&self.fd, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes pending rings.
    pub(crate) fn hear(&self) -> Heard {
        let mut rings = [0; RINGS];
        for _ in 0..MAX_CALLS {
            match recv(&self.fd, &mut rings[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Heard::End,
                Ok((_, RINGS)) | Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => return Heard::Rings,
                Err(_) => return Heard::End,
            }
        }
        Heard::Flood
    }

    /// Sends bytes at once, with the descriptor of a file if there is one. The socket is new, so there is room.
    pub(crate) fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let files = file.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut rights, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::AGAIN.into()) }
    }

    /// Receives up to `bytes.len()` bytes from a process whose descriptors are refused. Returns the number of bytes.
    pub(crate) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.fd, bytes, RecvFlags::DONTWAIT)?.1)
    }

    /// Receives exactly `bytes.len()` bytes, at once, and the descriptor that comes with them. Waits for them at most this
    /// time, and for as long as the other process wants if it sends other descriptors. Refuses all further ones.
    pub(crate) fn receive_file(&self, bytes: &mut [u8], timeout: Duration) -> io::Result<OwnedFd> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let len = bytes.len();
        let received = recvmsg(&self.fd, &mut [IoSliceMut::new(bytes)], &mut rights, flags)?.bytes;
        let mut files = rights.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = files.next().filter(|_| received == len);
        // A process of the same user may pass descriptors on a kernel that cannot refuse them.
        let _ = pass_descriptors(&self.fd, false);
        // Those that were sent before. This also waits for a send that has not seen the change yet.
        if self.hear() != Heard::Rings {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is malformed"))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
