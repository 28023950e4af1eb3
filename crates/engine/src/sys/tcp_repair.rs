//! A TCP connection that moves to another host (requirement X2): the source makes an image of it, the destination makes the
//! same connection from the image, and the peer only sees a pause. Uses the kernel's repair mode (TCP_REPAIR), in which a
//! socket is opened, filled and closed without a segment being sent. Needs CAP_NET_ADMIN in the network namespace of the socket.
//!
//! | step | source | destination |
//! |---|---|---|
//! | 1 | | [`Destination::prepare`](super::fence::Destination::prepare): the interface is there |
//! | 2 | [`Fence::raise`]: the address is gone | |
//! | 3 | [`dump`] for each connection | |
//! | 4 | | [`restore`] for each image |
//! | 5 | closes the sockets, which sends nothing | [`Destination::take_address`](super::fence::Destination::take_address) |
//! | 6 | | [`Restored::resume`] for each connection |
//!
//! Before step 5 the source can take everything back: [`Fence::put_back`], then [`thaw`] for each connection.
//!
//! The congestion window, the measured round-trip time and ECN start anew: the path has changed. Segments that arrived out of
//! order are dropped, as a receiver may do (RFC 2018 §8), and the peer sends them again.

use super::fence::{Fence, FenceError};
use super::fork::Fd;
use super::raw::{SendQueue, Structure, read_structure, send_queue_len, write_structure};
use super::socket::{TcpLink, option, set_option};
use ironwarp_rnic::link::Link;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

mod image;
mod info;
mod options;
#[cfg(test)]
mod tests;

use info::Info;
use options::{
    read_agreed, read_socket_options, set_agreed, set_receive_buffer, set_send_buffer, set_socket_options,
};

pub use image::{Agreed, ImageError, SocketOptions, TcpImage, Window};
pub use info::TcpState;

/// Values of the option TCP_REPAIR. Leaving repair mode sends a window probe, which the peer answers with an acknowledgement.
const REPAIR_ON: c_int = 1;
const REPAIR_OFF: c_int = 0;
const REPAIR_OFF_SILENTLY: c_int = -1;
/// Values of the option TCP_REPAIR_QUEUE.
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;
/// Room for bytes that were acknowledged and are still in the send queue: a part of one segment.
const PARTLY_ACKNOWLEDGED: usize = 64 << 10;

/// Maximum number of attempts to read a connection that does not change meanwhile. Behind a fence, a last segment can be
/// delivered after the address was removed.
const MAX_TRIES: usize = 3;

/// Why a connection cannot be dumped or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The process lacks CAP_NET_ADMIN.
    #[error(
        "not permitted to set TCP_REPAIR: run as root, or grant CAP_NET_ADMIN in the network namespace of the socket"
    )]
    NotPermitted,
    /// The fence does not protect the connection.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The connection is in a state that cannot be restored.
    #[error("a TCP connection in state {0} cannot move: only one that was established and is not closed can")]
    State(TcpState),
    /// Something arrived while the connection was dumped.
    #[error(
        "segments still arrive at {local}: the host must not answer for the address, nor forward to the socket"
    )]
    NotQuiet {
        /// The local address.
        local: SocketAddr,
    },
    /// The kernel does not allow a send buffer for the bytes that must be restored.
    #[error(
        "{need} unacknowledged bytes do not fit into a send buffer of {have} bytes: raise net.core.wmem_max at the \
         destination, or grant CAP_NET_ADMIN in the initial user namespace"
    )]
    SendBuffer {
        /// Number of bytes.
        need: usize,
        /// Size of the send buffer.
        have: usize,
    },
    /// A system call failed.
    #[error("failed to {action}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl RepairError {
    /// Returns a function that converts the error of an action.
    fn during<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::Io { action, source: source.into() }
    }
}

/// Makes an image of a connection whose address is fenced. Afterwards the socket is in repair mode: closing it sends nothing,
/// and [`thaw`] lets it continue. If this fails, the socket is as before.
///
/// Nothing is dumped if the host answers for the address, because closing the socket would then reset the connection.
pub fn dump(socket: &impl AsFd, fence: &Fence) -> Result<TcpImage, RepairError> {
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    fence.check(socket, local.map_err(RepairError::during("read the local address"))?)?;
    dump_unfenced(socket)
}

/// Lets a dumped connection continue at the source, after [`Fence::put_back`].
pub fn thaw(socket: &impl AsFd, image: &TcpImage) -> io::Result<()> {
    leave_repair(socket, REPAIR_OFF, &image.options)
}

/// Makes the socket of an image, in repair mode. Nothing is sent, and nothing arrives as long as the host does not have the
/// address, which it should not have yet. Dropping the value closes the socket silently.
pub fn restore(image: TcpImage) -> Result<Restored, RepairError> {
    let family = if image.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = Fd::open(|| rustix::net::socket_with(family, SocketType::STREAM, flags, None));
    let fd = fd.map_err(RepairError::during("open a socket"))?;
    enter_repair(&fd)?;
    open_connection(&fd, &image)?;
    set_agreed(&fd, &image.agreed).map_err(RepairError::during("set options of the connection"))?;
    set_socket_options(&fd, &image.options).map_err(RepairError::during("set options of the socket"))?;
    fill_send_queue(&fd, &image)?;
    let window: Vec<u8> = image.window.fields().iter().flat_map(|field| field.to_ne_bytes()).collect();
    write_structure(&fd, Structure::RepairWindow, &window).map_err(RepairError::during("set the windows"))?;
    Ok(Restored { fd, image })
}

/// A connection that was restored, and is still in repair mode.
#[derive(Debug)]
pub struct Restored {
    fd: Fd,
    image: TcpImage,
}

/// A connection that continues.
#[derive(Debug)]
pub struct Resumed {
    /// The connection.
    pub link: TcpLink,
    /// Bytes that had arrived at the source, to be read before those of `link`.
    pub received: Vec<u8>,
    /// Bytes for which the send buffer has no room: they must be sent before any others. Usually empty.
    pub unsent: Vec<u8>,
}

impl Restored {
    /// Leaves repair mode. Call this when the host has the address. The peer is asked for an acknowledgement at once.
    ///
    /// If the sending direction was closed at the source, it is closed again, unless `unsent` is not empty: then the caller
    /// closes it after those bytes.
    pub fn resume(mut self) -> io::Result<Resumed> {
        self.leave_repair()?;
        let Self { fd, image } = self;
        let link = TcpLink::new(fd);
        if image.finished && image.unsent.is_empty() {
            link.finish();
        }
        Ok(Resumed { link, received: image.received, unsent: image.unsent })
    }

    /// Leaves repair mode like [`resume`](Self::resume), for a caller that has a [copy](Self::try_clone_fd) of the
    /// descriptor.
    pub fn leave_repair(&mut self) -> io::Result<()> {
        let Self { fd, image } = self;
        set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 0)?;
        leave_repair(fd, REPAIR_OFF, &image.options)?;
        if image.peer_finished {
            rustix::net::shutdown(&*fd, Shutdown::Read)?; // from now on the end of the stream is read
        }
        let accepted = send_all(fd, &image.unsent)?;
        image.unsent.drain(..accepted);
        if image.finished && image.unsent.is_empty() {
            rustix::net::shutdown(&*fd, Shutdown::Write)?;
        }
        Ok(())
    }

    /// Returns another descriptor of the socket.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.as_fd().try_clone_to_owned()
    }

    /// Takes the bytes that the caller hands to the stream: those that had arrived, and those to be sent before any others.
    /// If the sending direction was closed at the source, the latter stay in the socket, because the stream sends nothing more.
    pub fn take_buffered(&mut self) -> (Vec<u8>, Vec<u8>) {
        let unsent = if self.image.finished { Vec::new() } else { std::mem::take(&mut self.image.unsent) };
        (std::mem::take(&mut self.image.received), unsent)
    }
}

/// Makes an image of a connection, whether its address is fenced or not.
fn dump_unfenced(socket: &impl AsFd) -> Result<TcpImage, RepairError> {
    let info = Info::read(socket).map_err(RepairError::during("read TCP_INFO"))?;
    if info.state.finished().is_none() {
        return Err(RepairError::State(info.state));
    }
    let options = read_socket_options(socket).map_err(RepairError::during("read options of the socket"))?;
    enter_repair(socket)?;
    let mut image = read_image(socket, options);
    for _ in 1..MAX_TRIES {
        let Err(RepairError::NotQuiet { .. }) = image else { break };
        image = read_image(socket, options);
    }
    if image.is_err() {
        // A failure here has the same reason as the failure before, which is returned.
        let _ = leave_repair(socket, REPAIR_OFF_SILENTLY, &options);
    }
    image
}

/// Reads the state of a connection in repair mode.
fn read_image(socket: &impl AsFd, options: SocketOptions) -> Result<TcpImage, RepairError> {
    let during = RepairError::during("read the addresses of the socket");
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from).map_err(&during)?;
    let peer = rustix::net::getpeername(socket).and_then(|peer| peer.ok_or(Errno::NOTCONN));
    let peer = peer.and_then(SocketAddr::try_from).map_err(&during)?;
    let before = Info::read(socket).map_err(RepairError::during("read TCP_INFO"))?;
    let (finished, peer_finished) = before.state.finished().ok_or(RepairError::State(before.state))?;
    let agreed =
        read_agreed(socket, &before).map_err(RepairError::during("read options of the connection"))?;
    let mut window = [0; 20];
    read_structure(socket, Structure::RepairWindow, &mut window)
        .map_err(RepairError::during("read the windows"))?;
    let field = |at: usize| super::nlmsg::u32_at(&window, 4 * at).unwrap_or_default();

    let receive_seq =
        select_queue(socket, RECEIVE_QUEUE).map_err(RepairError::during("select the receive queue"))?;
    let received = read_receive_queue(socket).map_err(RepairError::during("read the receive queue"))?;
    // While this queue is selected, the kernel sends no new bytes. So its lengths do not change any more.
    let write_seq = select_queue(socket, SEND_QUEUE).map_err(RepairError::during("select the send queue"))?;
    let queue = read_send_queue(socket, finished).map_err(RepairError::during("read the send queue"))?;
    if Info::read(socket).map_err(RepairError::during("read TCP_INFO"))? != before {
        return Err(RepairError::NotQuiet { local });
    }
    let len = u32::try_from(queue.sent.len() + queue.unsent.len()).unwrap_or(u32::MAX);
    Ok(TcpImage {
        local,
        peer,
        finished,
        peer_finished,
        // The FIN has the last sequence number.
        send_seq: write_seq.wrapping_sub(len).wrapping_sub(finished.into()),
        receive_seq,
        agreed,
        window: Window::from_fields(std::array::from_fn(field)),
        options,
        sent: queue.sent,
        unsent: queue.unsent,
        received,
    })
}

/// The send queue of a connection.
struct SentAndUnsent {
    sent: Vec<u8>,
    unsent: Vec<u8>,
}

/// Reads the unacknowledged and the unsent bytes of a socket whose send queue is selected.
fn read_send_queue(socket: &impl AsFd, finished: bool) -> io::Result<SentAndUnsent> {
    let all = send_queue_len(socket, SendQueue::Unacknowledged)?;
    let unsent = send_queue_len(socket, SendQueue::Unsent)?.min(all);
    // A FIN has a sequence number, but no byte. It is the last to be sent, and the last to be acknowledged.
    let without_fin = |len: usize| if finished { len.saturating_sub(1) } else { len };
    let (len, unsent) = (without_fin(all), without_fin(unsent));
    if len == 0 {
        return Ok(SentAndUnsent { sent: Vec::new(), unsent: Vec::new() });
    }
    // If the peer has acknowledged a part of a segment, the queue still begins with the whole segment.
    let mut bytes = peek(socket, len + PARTLY_ACKNOWLEDGED)?;
    let Some(acknowledged) = bytes.len().checked_sub(len).filter(|&more| more < PARTLY_ACKNOWLEDGED) else {
        return Err(short_queue(bytes.len(), len));
    };
    bytes.drain(..acknowledged);
    let unsent = bytes.split_off(len - unsent);
    Ok(SentAndUnsent { sent: bytes, unsent })
}

/// Reads the bytes that have arrived at a socket whose receive queue is selected.
fn read_receive_queue(socket: &impl AsFd) -> io::Result<Vec<u8>> {
    let len = usize::try_from(rustix::io::ioctl_fionread(socket)?).unwrap_or(usize::MAX);
    let bytes = if len == 0 { Vec::new() } else { peek(socket, len)? };
    if bytes.len() == len { Ok(bytes) } else { Err(short_queue(bytes.len(), len)) }
}

/// Returns up to `len` bytes of the selected queue, which stay there.
fn peek(socket: &impl AsFd, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let (_, found) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    bytes.truncate(found);
    Ok(bytes)
}

fn short_queue(found: usize, expected: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("queue has {found} bytes, expected {expected}"))
}

/// Selects a queue of a socket in repair mode, and returns its sequence number: the one after its last byte.
fn select_queue(socket: &impl AsFd, queue: c_int) -> io::Result<u32> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)?;
    Ok(option(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)?.cast_unsigned())
}

/// Puts a socket into repair mode.
fn enter_repair(socket: &impl AsFd) -> Result<(), RepairError> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => RepairError::NotPermitted,
        _ => RepairError::Io { action: "set TCP_REPAIR", source: error },
    })
}

/// Leaves repair mode, which clears SO_REUSEADDR.
fn leave_repair(socket: &impl AsFd, how: c_int, options: &SocketOptions) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, how)?;
    Ok(sockopt::set_socket_reuseaddr(socket, options.reuse_addr)?)
}

/// Binds and connects a socket in repair mode, at the sequence numbers of the image.
fn open_connection(fd: &Fd, image: &TcpImage) -> Result<(), RepairError> {
    let open = || -> io::Result<()> {
        // Allows a local address that the host does not have yet.
        set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1)?;
        sockopt::set_socket_reuseport(fd, image.options.reuse_port)?;
        set_send_buffer(fd, image.options.send_buffer)?;
        if image.local.is_ipv6() {
            sockopt::set_ipv6_v6only(fd, false)?; // it may be a connection over IPv4
        }
        rustix::net::bind(fd, &image.local)?;
        for (queue, seq) in [(RECEIVE_QUEUE, image.receive_seq), (SEND_QUEUE, image.send_seq)] {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)?;
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, seq.cast_signed())?;
        }
        rustix::net::connect(fd, &image.peer)?;
        // Later than the send buffer: a size that is set before a connection begins limits its window for good.
        set_receive_buffer(fd, image.options.receive_buffer)
    };
    open().map_err(RepairError::during("open the connection"))
}

/// Puts the bytes that were sent into the send queue, and the FIN if it was sent. They count as sent: the peer may have
/// received them, and acknowledge them at any time.
fn fill_send_queue(fd: &Fd, image: &TcpImage) -> Result<(), RepairError> {
    let accepted = send_all(fd, &image.sent).map_err(RepairError::during("fill the send queue"))?;
    if accepted < image.sent.len() {
        let have = sockopt::socket_send_buffer_size(fd).unwrap_or_default();
        return Err(RepairError::SendBuffer { need: image.sent.len(), have });
    }
    if image.finished && image.unsent.is_empty() {
        rustix::net::shutdown(fd, Shutdown::Write)
            .map_err(RepairError::during("close the sending direction"))?;
    }
    Ok(())
}

/// Sends bytes until the send buffer is full. Returns how many were accepted.
fn send_all(fd: &Fd, bytes: &[u8]) -> io::Result<usize> {
    let mut accepted = 0;
    while accepted < bytes.len() {
        match rustix::net::send(fd, &bytes[accepted..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(more) => accepted += more,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(accepted)
}
