//! Closes sockets: `rshutdown`, `rclose`, and the end of the process. Data that a call has accepted still arrives.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::socket::{Role, Socket};
use super::state::Phase;
use super::stream::Stream;
use super::table::{all, find, insert, remove};
use super::{forked, repoll};
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::exit;
use ironwarp_rnic::qp::State as PairState;
use ironwarp_rnic::sync::lock;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// How long `rclose` waits for the peer's adapter to receive all data, unless the program sets SO_LINGER. It takes
/// that long only if the peer is stuck. After that, the rest is sent in the background as long as the process lives.
const DEFAULT_LINGER: Duration = Duration::from_secs(2);

/// Connections that the program has closed, and whose data the peer may not have received yet.
static CLOSING: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    minus_one!(find(socket).and_then(|socket| shut_down(&socket, how)))
}

/// Stops reading, writing or both, as shutdown(2) does.
fn shut_down(socket: &Socket, how: c_int) -> Result<(), Errno> {
    let stream = socket.stream()?;
    let mut state = stream.progressed_state();
    if state.phase != Phase::Connected {
        return Err(Errno(libc::ENOTCONN));
    }
    let (reading, writing) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(Errno::INVALID),
    };
    if writing {
        stream.send_end(&mut state);
    }
    if reading {
        state.incoming.close();
        stream.give_credit(&mut state);
    }
    drop(state);
    socket.waiters().wake_all();
    Ok(())
}

/// Closes a socket over RDMA, or a set of `repoll_create`.
#[unsafe(no_mangle)]
pub extern "C" fn rclose(fd: c_int) -> c_int {
    if find(fd).is_err() && repoll::close(fd) {
        return 0;
    }
    // Unlike other calls that block, this one cannot be cancelled: the socket is half closed while it waits.
    let closed = without_cancellation(|| close_socket(fd));
    minus_one!(closed)
}

/// Closes a socket, and waits until the peer's adapter has received all data, but no longer than the socket lingers.
fn close_socket(fd: RawFd) -> Result<(), Errno> {
    find(fd)?; // fails in a forked child, whose sockets belong to the parent
    let socket = remove(fd).ok_or(Errno(libc::EBADF))?;
    let timeout = match lock(socket.options()).linger {
        Some(linger) => linger,
        None if socket.is_nonblocking() => Duration::ZERO,
        None => DEFAULT_LINGER,
    };
    socket.close_descriptor();
    close_connections(&socket);
    if let Ok(stream) = socket.stream() {
        // The peer's adapter closes its end as soon as it has all data, even if its program does nothing.
        stream.pair().wait_closed(timeout);
    }
    drop_closed();
    Ok(())
}

/// Adds a socket to the table, and returns its descriptor. Closes the connections of an earlier socket with the same
/// descriptor, which the program has closed with close(2).
pub(super) fn add(socket: Socket) -> RawFd {
    let fd = socket.fd();
    if let Some(earlier) = insert(socket) {
        earlier.forget_descriptor();
        close_connections(&earlier);
    }
    fd
}

/// Starts to close the connections of a socket that is no longer in the table. With a linger time of zero, drops the
/// data that was not sent yet.
fn close_connections(socket: &Socket) {
    let streams = match socket.role() {
        Role::None => Vec::new(),
        Role::Listens(listener) => listener.close(),
        Role::Connects(stream) => vec![stream],
    };
    let abort = lock(socket.options()).linger == Some(Duration::ZERO);
    for stream in streams {
        stream.unmap_all();
        if abort {
            let _ = stream.pair().modify(PairState::Error);
        }
        close_stream(&stream);
        lock(&CLOSING).push(stream);
    }
    socket.waiters().wake_all();
}

/// Starts to close a connection. The data that calls have accepted is sent first, then the end of the data.
fn close_stream(stream: &Stream) {
    let mut state = stream.progressed_state();
    stream.send_end(&mut state);
    state.incoming.close();
    drop(state);
    stream.pair().disconnect();
}

/// Drops the closing connections that both ends have closed.
pub(super) fn drop_closed() {
    let closed: Vec<_> =
        lock(&CLOSING).extract_if(.., |stream| stream.pair().wait_closed(Duration::ZERO)).collect();
    drop(closed); // after the list is unlocked
}

/// Registers a hook, once, that closes all connections at the end of the process and waits until they are closed.
pub(super) fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| exit::add_hook(|| Box::new(wait_closed(close_all()))));
}

/// Starts to close all connections of the process, and returns those that are closing.
fn close_all() -> Vec<Arc<Stream>> {
    if forked::is_child() {
        return Vec::new(); // the sockets belong to the parent
    }
    let mut closing = lock(&CLOSING).clone();
    for socket in all() {
        if let Role::Connects(stream) = socket.role() {
            close_stream(&stream);
            closing.push(stream);
        }
    }
    closing
}

/// Returns a function that waits until the connections are closed, or until a deadline.
fn wait_closed(streams: Vec<Arc<Stream>>) -> impl FnOnce(Instant) {
    move |deadline| {
        for stream in streams {
            stream.pair().wait_closed(deadline.saturating_duration_since(Instant::now()));
        }
    }
}
