//! The calls that make sockets and connect them.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::listen::Desk;
use super::socket::{Role, Socket};
use super::stream::{Phase, Stream};
use super::wait::{Patience, until};
use super::{add, address, close, engine, find, forked, lock};
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one};

use ironwarp_engine::{ConnectOptions, MAX_BACKLOG};
use rustix::net::sockopt;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A descriptor, or -1 and errno.
fn descriptor(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    descriptor(make(domain, kind, protocol))
}

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    if forked::is_child() {
        return Err(Errno::UNSUPPORTED);
    }
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
        (libc::SOCK_DGRAM, _) => {
            tracing::warn!("rsockets of type SOCK_DGRAM are not supported");
            return Err(Errno::UNSUPPORTED);
        }
        (libc::SOCK_STREAM, _) => return Err(Errno(libc::EPROTONOSUPPORT)),
        _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
    }
    engine()?;
    close::sweep();
    Ok(add(Socket::new(domain, kind & libc::SOCK_NONBLOCK != 0, kind & libc::SOCK_CLOEXEC != 0)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(
    socket: c_int,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> c_int {
    minus_one!(find(socket).and_then(|socket| {
        // SAFETY: the caller's.
        let at = unsafe { address::read(addr, addrlen, socket.family())? };
        socket.set_role(|role| match role {
            Role::None => socket.with_descriptor(|fd| {
                // The adapter's own sockets are bound beside this one, which holds the port until it is closed.
                sockopt::set_socket_reuseaddr(fd, true)?;
                Ok(rustix::net::bind(fd, &at)?)
            }),
            _ => Err(Errno::INVALID),
        })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    // As listen(2) has it: a negative number is a large one, and there is always room for one.
    let backlog = usize::try_from(backlog).unwrap_or(MAX_BACKLOG).clamp(1, MAX_BACKLOG);
    minus_one!(find(socket).and_then(|socket| listen(&socket, backlog)))
}

fn listen(socket: &Socket, backlog: usize) -> Result<(), Errno> {
    socket.set_role(|role| match role {
        Role::Listens(desk) => {
            desk.set_backlog(backlog);
            Ok(())
        }
        Role::Connects(_) => Err(Errno(libc::EISCONN)),
        Role::None => {
            let at = listening_addresses(socket)?;
            *role = Role::Listens(Desk::open(&at, backlog, socket.options(), socket.waiters())?);
            Ok(())
        }
    })
}

/// Where a socket listens: at its address, which it gets now if it was not bound. One that is for all addresses of IPv6 is for
/// those of IPv4, too, unless the program does not want that.
fn listening_addresses(socket: &Socket) -> Result<Vec<SocketAddr>, Errno> {
    let both = socket.with_descriptor(|fd| {
        if SocketAddr::try_from(rustix::net::getsockname(fd)?).is_ok_and(|name| name.port() == 0) {
            let any: SocketAddr = match socket.family() {
                libc::AF_INET6 => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
                _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
            };
            sockopt::set_socket_reuseaddr(fd, true)?;
            rustix::net::bind(fd, &any)?;
        }
        Ok(socket.family() == libc::AF_INET6 && !sockopt::ipv6_v6only(fd)?)
    })?;
    let at = socket.bound().ok_or(Errno::INVALID)?;
    let mut all = vec![at];
    if both && at.ip().is_unspecified() {
        all.push((Ipv4Addr::UNSPECIFIED, at.port()).into());
    }
    Ok(all)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn raccept(
    socket: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    let patience = match find(socket) {
        Ok(socket) => socket.patience(0),
        Err(errno) => return descriptor(Err(errno)),
    };
    descriptor(until(socket, patience, |socket| {
        let Role::Listens(desk) = socket.role() else { return Err(Errno::INVALID) };
        let Some(stream) = desk.take() else { return Ok(None) };
        let peer = stream.latest().established.as_ref().map(|established| established.peer);
        let accepted = Socket::accepted(socket.family(), Arc::clone(&stream), desk.options());
        let accepted = accepted.inspect_err(|_| desk.put_back(stream))?;
        if let Some(peer) = peer {
            // SAFETY: the caller's.
            unsafe { address::write(peer, socket.family(), addr, addrlen) };
        }
        Ok(Some(add(accepted)))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rconnect(
    socket: c_int,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's.
    let dial = |socket: Arc<Socket>| unsafe {
        let to = address::read(addr, addrlen, socket.family())?;
        Ok((begin(&socket, to)?, socket.patience(0)))
    };
    let begun = uncancelled(|| find(socket).and_then(dial));
    let connected = match begun {
        // However fast it is: programs expect to be told by poll.
        Ok((true, Patience::None)) => Err(Errno(libc::EINPROGRESS)),
        Ok((_, patience)) => until(socket, patience, connected),
        Err(errno) => Err(errno),
    };
    minus_one!(connected)
}

/// Dials, unless that was done before. Whether it was done now.
fn begin(socket: &Socket, to: SocketAddr) -> Result<bool, Errno> {
    let from = socket.bound();
    socket.set_role(|role| {
        match role {
            Role::Listens(_) => return Err(Errno(libc::EOPNOTSUPP)),
            Role::Connects(stream) => {
                let state = stream.latest();
                match state.phase {
                    Phase::Connecting => return Err(Errno(libc::EALREADY)),
                    Phase::Connected if !state.announced => return Ok(false),
                    Phase::Over if state.failed => {} // it may be tried again
                    _ => return Err(Errno(libc::EISCONN)),
                }
            }
            Role::None => {}
        }
        let options = *lock(socket.options());
        let stream = Stream::new(&options, socket.waiters(), None)?;
        let dial = ConnectOptions { from, private_data: stream.hello(), ..ConnectOptions::default() };
        engine()?.connect(stream.pair(), to, &dial).map_err(|error| Errno::from(&error))?;
        *role = Role::Connects(stream);
        Ok(true)
    })
}

fn connected(socket: &Socket) -> Result<Option<()>, Errno> {
    let stream = socket.stream()?;
    let mut state = stream.latest();
    match state.phase {
        Phase::Connecting => Ok(None),
        Phase::Connected => {
            state.announced = true;
            Ok(Some(()))
        }
        Phase::Over => Err(state.error.take().unwrap_or(Errno(libc::ECONNABORTED))),
    }
}
