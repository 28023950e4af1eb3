//! Options of a connection and of its socket: reads them at the source, sets them at the destination.

use super::image::{Agreed, SocketOptions};
use super::info::Info;
use crate::sys::raw::{Structure, write_structure};
use crate::sys::socket::{option, set_option};
use crate::sys::traffic_class::set_traffic_class;
use rustix::fd::AsFd;
use rustix::net::sockopt;
use std::ffi::c_int;
use std::io;

/// Kinds of the option TCP_REPAIR_OPTIONS, which are those of TCP.
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;
/// Bits of `tcpi_options`.
const HAS_TIMESTAMPS: u8 = 1;
const HAS_SACK: u8 = 2;
const HAS_WINDOW_SCALE: u8 = 4;
/// Bits of the option SO_BUF_LOCK.
const SEND_BUFFER_LOCK: c_int = 1;
const RECEIVE_BUFFER_LOCK: c_int = 2;
/// The bits of a traffic class that belong to ECN, which a TCP socket does not let the program set.
const ECN: u8 = 3;

/// Reads what the two ends agreed on, from a socket in repair mode.
pub(super) fn read_agreed(socket: &impl AsFd, info: &Info) -> io::Result<Agreed> {
    let has = |bit: u8| info.options & bit != 0;
    let timestamp = option(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP)?.cast_unsigned();
    Ok(Agreed {
        mss: option(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?.cast_unsigned(),
        window_scale: has(HAS_WINDOW_SCALE).then_some((info.scales & 0xf, info.scales >> 4)),
        sack: has(HAS_SACK),
        timestamp: has(HAS_TIMESTAMPS).then_some(timestamp),
    })
}

/// Sets what the two ends agreed on, for a socket in repair mode that has sent nothing yet.
pub(super) fn set_agreed(socket: &impl AsFd, agreed: &Agreed) -> io::Result<()> {
    let mut options = vec![(MSS, agreed.mss)];
    if let Some((send, receive)) = agreed.window_scale {
        options.push((WINDOW_SCALE, u32::from(send) | u32::from(receive) << 16));
    }
    if agreed.sack {
        options.push((SACK_PERMITTED, 0));
    }
    if agreed.timestamp.is_some() {
        options.push((TIMESTAMPS, 0));
    }
    let bytes: Vec<u8> =
        options.iter().flat_map(|(kind, value)| [*kind, *value]).flat_map(u32::to_ne_bytes).collect();
    write_structure(socket, Structure::RepairOptions, &bytes)?;
    match agreed.timestamp {
        Some(clock) => set_option(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, clock.cast_signed()),
        None => Ok(()),
    }
}

/// Reads the options of a socket that is not in repair mode yet, which changes SO_REUSEADDR.
pub(super) fn read_socket_options(socket: &impl AsFd) -> io::Result<SocketOptions> {
    let tcp = |name: c_int| option(socket, libc::IPPROTO_TCP, name).map(c_int::cast_unsigned);
    let size = |name: c_int| option(socket, libc::SOL_SOCKET, name).map(c_int::cast_unsigned);
    let locks = option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK)?;
    // Sockets of IPv4 do not know the class of IPv6.
    let class = option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        .or_else(|_| option(socket, libc::IPPROTO_IP, libc::IP_TOS))?;
    Ok(SocketOptions {
        no_delay: sockopt::tcp_nodelay(socket)?,
        keepalive: sockopt::socket_keepalive(socket)?,
        reuse_addr: sockopt::socket_reuseaddr(socket)?,
        reuse_port: sockopt::socket_reuseport(socket)?,
        fixed_send_buffer: locks & SEND_BUFFER_LOCK != 0,
        fixed_receive_buffer: locks & RECEIVE_BUFFER_LOCK != 0,
        keepalive_idle: tcp(libc::TCP_KEEPIDLE)?,
        keepalive_interval: tcp(libc::TCP_KEEPINTVL)?,
        keepalive_probes: tcp(libc::TCP_KEEPCNT)?,
        user_timeout: tcp(libc::TCP_USER_TIMEOUT)?,
        traffic_class: u8::try_from(class).unwrap_or_default() & !ECN,
        send_buffer: size(libc::SO_SNDBUF)?,
        receive_buffer: size(libc::SO_RCVBUF)?,
    })
}

/// Sets the options of a connected socket, except for the addresses that may be reused. Its buffers have their sizes: the kernel
/// adapts those that the program had not fixed.
pub(super) fn set_socket_options(socket: &impl AsFd, options: &SocketOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, options.no_delay)?;
    let tcp = |name: c_int, value: u32| set_option(socket, libc::IPPROTO_TCP, name, value.cast_signed());
    tcp(libc::TCP_KEEPIDLE, options.keepalive_idle)?;
    tcp(libc::TCP_KEEPINTVL, options.keepalive_interval)?;
    tcp(libc::TCP_KEEPCNT, options.keepalive_probes)?;
    tcp(libc::TCP_USER_TIMEOUT, options.user_timeout)?;
    sockopt::set_socket_keepalive(socket, options.keepalive)?;
    set_traffic_class(socket, options.traffic_class)?;
    let lock = |fixed: bool, bit: c_int| if fixed { bit } else { 0 };
    let locks = lock(options.fixed_send_buffer, SEND_BUFFER_LOCK)
        | lock(options.fixed_receive_buffer, RECEIVE_BUFFER_LOCK);
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, locks)
}

/// Sets the size of the send buffer, or the largest size that the host allows: more than the limit needs CAP_NET_ADMIN in the
/// initial user namespace.
pub(super) fn set_send_buffer(socket: &impl AsFd, size: u32) -> io::Result<()> {
    let size = half(size);
    if sockopt::set_socket_send_buffer_size_force(socket, size).is_err() {
        sockopt::set_socket_send_buffer_size(socket, size)?;
    }
    Ok(())
}

/// Sets the size of the receive buffer, like [`set_send_buffer`].
pub(super) fn set_receive_buffer(socket: &impl AsFd, size: u32) -> io::Result<()> {
    let size = half(size);
    if sockopt::set_socket_recv_buffer_size_force(socket, size).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, size)?;
    }
    Ok(())
}

/// Returns the argument for which the kernel makes a buffer of this size: it doubles the argument.
fn half(size: u32) -> usize {
    usize::try_from(size.min(i32::MAX.cast_unsigned()) / 2).unwrap_or(usize::MAX)
}
