//! How sockets end: nothing that a call took is lost.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::socket::{Role, Socket};
use super::stream::{Phase, Stream};
use super::{all, find, forked, lock, repoll, take};
use crate::errno::{Errno, minus_one};

use ironwarp_rnic::qp::State as PairState;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Closing waits so long for the peer's adapter to have everything, unless the program says otherwise (SO_LINGER). It needs
/// that time only if the peer has stopped; after it, the rest is sent as long as the process lives.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections that the program has closed, and whose peers have not yet.
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
        let patience = match lock(socket.options()).linger {
            Some(linger) => linger,
            None if socket.is_nonblocking() => Duration::ZERO,
            None => PATIENCE,
        };
        socket.close_descriptor();
        let_go(&socket);
        if let Ok(stream) = socket.stream() {
            // The peer's adapter closes as well once it has everything, whatever its program does.
            stream.pair().wait_closed(patience);
        }
        sweep();
    }))
}

/// The program has no more to do with it.
pub(super) fn let_go(socket: &Socket) {
    let streams = match socket.role() {
        Role::None => Vec::new(),
        Role::Listens(desk) => desk.close(),
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

/// Sends what was taken, says that no more comes, and closes.
fn close(stream: &Stream) {
    let mut state = stream.latest();
    stream.finish(&mut state);
    state.incoming.close();
    drop(state);
    stream.pair().disconnect();
}

/// Forgets connections that both ends have closed.
pub(super) fn sweep() {
    // Dropped after the lock is free.
    let gone: Vec<_> =
        lock(&CLOSING).extract_if(.., |stream| stream.pair().wait_closed(Duration::ZERO)).collect();
    drop(gone);
}

/// The process ends.
pub(crate) fn close_all(deadline: Instant) {
    if forked::is_child() {
        return; // they are the parent's
    }
    let mut closing = lock(&CLOSING).clone();
    for socket in all() {
        if let Role::Connects(stream) = socket.role() {
            close(&stream);
            closing.push(stream);
        }
    }
    for stream in closing {
        stream.pair().wait_closed(deadline.saturating_duration_since(Instant::now()));
    }
}
