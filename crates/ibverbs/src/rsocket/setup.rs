//! The calls that create and connect sockets: `rsocket`, `rbind`, `rlisten`, `raccept` and `rconnect`.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::adapter::engine;
use super::listen::Listener;
use super::socket::{Role, Socket};
use super::state::Phase;
use super::stream::Stream;
use super::table::find;
use super::wait::wait_until;
use super::waiters::Timeout;
use super::{address, close, forked};
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one, number_or_minus_one};
use ironwarp_engine::{ConnectOptions, MAX_BACKLOG};
use ironwarp_rnic::sync::lock;
use rustix::net::sockopt;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number_or_minus_one(create_socket(domain, kind, protocol))
}

/// Creates a stream socket for IPv4 or IPv6, and returns its descriptor.
fn create_socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
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
    engine()?; // fails now rather than in a later call
    close::close_at_exit();
    close::drop_closed();
    let (nonblocking, close_on_exec) = (kind & libc::SOCK_NONBLOCK != 0, kind & libc::SOCK_CLOEXEC != 0);
    Ok(close::add(Socket::new(domain, nonblocking, close_on_exec)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(
    socket: c_int,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> c_int {
    minus_one!(find(socket).and_then(|socket| {
        // SAFETY: NULL, or `addrlen` bytes by the caller's contract.
        let at = unsafe { address::read(addr, addrlen, socket.family())? };
        socket.change_role(|role| match role {
            Role::None => socket.with_descriptor(|fd| {
                // The adapter binds sockets of its own to the same port, while this one holds the port for the
                // program until `rclose`.
                sockopt::set_socket_reuseaddr(fd, true)?;
                Ok(rustix::net::bind(fd, &at)?)
            }),
            _ => Err(Errno::INVALID),
        })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    // As with listen(2), a negative number means a large one, and the minimum is one.
    let backlog = usize::try_from(backlog).unwrap_or(MAX_BACKLOG).clamp(1, MAX_BACKLOG);
    minus_one!(find(socket).and_then(|socket| listen(&socket, backlog)))
}

/// Starts to listen, or changes the backlog of a socket that listens already.
fn listen(socket: &Socket, backlog: usize) -> Result<(), Errno> {
    socket.change_role(|role| match role {
        Role::Listens(listener) => {
            listener.set_backlog(backlog);
            Ok(())
        }
        Role::Connects(_) => Err(Errno(libc::EISCONN)),
        Role::None => {
            let at = listening_addresses(socket)?;
            *role = Role::Listens(Listener::open(&at, backlog, socket.options(), socket.waiters())?);
            Ok(())
        }
    })
}

/// Returns the addresses that a socket is to listen on. Binds an unbound socket to any port first. A socket for all
/// IPv6 addresses also listens on all IPv4 addresses, unless the program has set IPV6_V6ONLY.
fn listening_addresses(socket: &Socket) -> Result<Vec<SocketAddr>, Errno> {
    let both_families = socket.with_descriptor(|fd| {
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
    let bound = socket.bound_address().ok_or(Errno::INVALID)?;
    let mut addresses = vec![bound];
    if both_families && bound.ip().is_unspecified() {
        addresses.push((Ipv4Addr::UNSPECIFIED, bound.port()).into());
    }
    Ok(addresses)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn raccept(
    socket: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    let timeout = match find(socket) {
        Ok(socket) => socket.timeout(0),
        Err(errno) => return number_or_minus_one(Err(errno)),
    };
    number_or_minus_one(wait_until(socket, timeout, |socket| {
        let Role::Listens(listener) = socket.role() else { return Err(Errno::INVALID) };
        let Some(stream) = listener.take() else { return Ok(None) };
        let peer = stream.progressed_state().established.as_ref().map(|established| established.peer);
        let accepted = Socket::for_accepted(socket.family(), Arc::clone(&stream), listener.options());
        let accepted = accepted.inspect_err(|_| listener.put_back(stream))?;
        if let Some(peer) = peer {
            // SAFETY: NULL, or as many bytes as `addrlen` says, by the caller's contract.
            unsafe { address::write(peer, socket.family(), addr, addrlen) };
        }
        Ok(Some(close::add(accepted)))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rconnect(
    socket: c_int,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> c_int {
    // SAFETY: NULL, or `addrlen` bytes by the caller's contract.
    let dial = |socket: Arc<Socket>| unsafe {
        let to = address::read(addr, addrlen, socket.family())?;
        Ok((start_connecting(&socket, to)?, socket.timeout(0)))
    };
    let dialled = without_cancellation(|| find(socket).and_then(dial));
    let connected = match dialled {
        // Even if the connection is established already: programs expect that poll reports it.
        Ok((Dialled::Now, Timeout::DontWait)) => Err(Errno(libc::EINPROGRESS)),
        Ok((_, timeout)) => wait_until(socket, timeout, check_connected),
        Err(errno) => Err(errno),
    };
    minus_one!(connected)
}

/// When the connection of a socket was started.
#[derive(Clone, Copy, Debug)]
enum Dialled {
    /// By this call.
    Now,
    /// By an earlier call on a nonblocking socket, which did not report success.
    Before,
}

/// Starts to connect a socket, unless an earlier call has done so and the connection is established.
fn start_connecting(socket: &Socket, to: SocketAddr) -> Result<Dialled, Errno> {
    let from = socket.bound_address();
    socket.change_role(|role| {
        match role {
            Role::Listens(_) => return Err(Errno(libc::EOPNOTSUPP)),
            Role::Connects(stream) => {
                let state = stream.progressed_state();
                match state.phase {
                    Phase::Connecting => return Err(Errno(libc::EALREADY)),
                    Phase::Over if state.failed => {} // the program may try again
                    _ if !state.reported_connected => return Ok(Dialled::Before),
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
        Ok(Dialled::Now)
    })
}

/// Returns whether the connection is established, `None` if the caller has to wait, or the error with which it
/// failed.
fn check_connected(socket: &Socket) -> Result<Option<()>, Errno> {
    let stream = socket.stream()?;
    let mut state = stream.progressed_state();
    match state.phase {
        Phase::Connecting => Ok(None),
        Phase::Over if state.failed => Err(state.error.take().unwrap_or(Errno(libc::ECONNABORTED))),
        // Or the peer has closed it already, after it has sent its data.
        Phase::Connected | Phase::Over => {
            state.reported_connected = true;
            Ok(Some(()))
        }
    }
}
