//! Closing sockets. Nothing that a call accepted is lost.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::socket::{Role, Socket};
use super::state::Phase;
use super::stream::Stream;
use super::table::{all, find, insert, take};
use super::{forked, repoll};
use crate::support::errno::{Errno, minus_one};
use crate::support::exit;
use ironwarp_rnic::qp::State as PairState;
use ironwarp_rnic::sync::lock;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// How long closing waits for the peer's adapter to receive everything, unless the program sets SO_LINGER. It
/// takes that long only if the peer has stopped. After that, the rest is sent as long as the process lives.
const LINGER: Duration = Duration::from_secs(2);

/// Connections that the program has closed and the peer has not.
static CLOSING: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    minus_one!(find(socket).and_then(|socket| shut_down(&socket, how)))
}

fn shut_down(socket: &Socket, how: c_int) -> Result<(), Errno> {
    let stream = socket.stream()?;
    let mut state = stream.latest();
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
        stream.finish(&mut state);
    }
    if reading {
        state.incoming.close();
        stream.give_credit(&mut state);
    }
    drop(state);
    socket.waiters().wake();
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    if find(socket).is_err() && repoll::close(socket) {
        return 0;
    }
    minus_one!(find(socket).and_then(|_| take(socket).ok_or(Errno(libc::EBADF))).map(|socket| {
        let timeout = match lock(socket.options()).linger {
            Some(linger) => linger,
            None if socket.is_nonblocking() => Duration::ZERO,
            None => LINGER,
        };
        socket.close_descriptor();
        release(&socket);
        if let Ok(stream) = socket.stream() {
            // The peer's adapter closes as well once it has everything, whatever its program does.
            stream.pair().wait_closed(timeout);
        }
        sweep();
    }))
}

/// Adds a socket under its descriptor.
pub(super) fn add(socket: Socket) -> RawFd {
    let fd = socket.fd();
    if let Some(before) = insert(socket) {
        before.forget_descriptor();
        release(&before);
    }
    fd
}

/// Closes the connections of a socket that the program no longer has.
fn release(socket: &Socket) {
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
        close(&stream);
        lock(&CLOSING).push(stream);
    }
    socket.waiters().wake();
}

/// Sends what was accepted and the end of the data, then closes.
fn close(stream: &Stream) {
    let mut state = stream.latest();
    stream.finish(&mut state);
    state.incoming.close();
    drop(state);
    stream.pair().disconnect();
}

/// Drops connections that both ends have closed.
pub(super) fn sweep() {
    // Dropped after the list is unlocked.
    let gone: Vec<_> =
        lock(&CLOSING).extract_if(.., |stream| stream.pair().wait_closed(Duration::ZERO)).collect();
    drop(gone);
}

/// Has all connections closed at the end of the process.
pub(super) fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| exit::add_hook(|| Box::new(wait_closed(close_all()))));
}

fn close_all() -> Vec<Arc<Stream>> {
    if forked::is_child() {
        return Vec::new(); // the sockets belong to the parent
    }
    let mut closing = lock(&CLOSING).clone();
    for socket in all() {
        if let Role::Connects(stream) = socket.role() {
            close(&stream);
            closing.push(stream);
        }
    }
    closing
}

fn wait_closed(streams: Vec<Arc<Stream>>) -> impl FnOnce(Instant) {
    move |deadline| {
        for stream in streams {
            stream.pair().wait_closed(deadline.saturating_duration_since(Instant::now()));
        }
    }
}
