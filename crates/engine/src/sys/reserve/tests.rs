//! Reservations and the sockets that share their ports, on loopback.

use super::*;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

/// Listens as any program would: the standard library sets SO_REUSEADDR.
fn listen(at: &str, port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((at, port))
}

/// Opens a socket with SO_REUSEPORT, as the engine does, and binds it.
fn bind_with_reuseport(kind: SocketType, at: &str, port: u16) -> io::Result<OwnedFd> {
    let at = SocketAddr::new(at.parse().unwrap(), port);
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    rustix::net::bind(&fd, &at)?;
    Ok(fd)
}

#[test]
fn a_reserved_port_is_nobody_elses_on_any_address() {
    let reservation = Reservation::new(Kind::Stream, PortRange::default()).unwrap();
    let port = reservation.port();
    assert!(port >= 1024);
    for at in ["0.0.0.0", "127.0.0.1", "127.0.0.9", "::", "::1"] {
        assert_eq!(listen(at, port).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{at}");
    }
    assert!(Reservation::at(Kind::Stream, port).is_err());
    // Nothing listens at the port.
    assert_eq!(TcpStream::connect(("127.0.0.1", port)).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    drop(reservation);
    listen("127.0.0.1", port).unwrap();
}

#[test]
fn a_reserved_port_is_served_where_it_is_shared_and_nowhere_else() {
    let reservation = Reservation::new(Kind::Stream, PortRange::default()).unwrap();
    let port = reservation.port();
    let served: Vec<_> = ["127.0.0.2", "127.0.0.3", "::1"]
        .map(|at| {
            let listen = || {
                let fd = bind_with_reuseport(SocketType::STREAM, at, port)?;
                rustix::net::listen(&fd, 8)?;
                Ok(fd)
            };
            (at, TcpListener::from(reservation.share(listen).unwrap()))
        })
        .into();
    for (at, listener) in &served {
        let client = TcpStream::connect((*at, port)).unwrap();
        assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    }
    let refused = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(listen("127.0.0.1", port).is_err(), "not shared any more");
}

/// With SO_REUSEADDR a process of another user could share the port, if it tried at the moment in which a socket is
/// being bound.
#[test]
fn a_stranger_cannot_share_while_a_socket_of_ours_is_bound() {
    for (kind, of) in [(Kind::Stream, SocketType::STREAM), (Kind::Datagram, SocketType::DGRAM)] {
        let reservation = Reservation::new(kind, PortRange::default()).unwrap();
        let port = reservation.port();
        let stranger = |at: &str| {
            let fd = rustix::net::socket_with(AddressFamily::INET, of, SocketFlags::CLOEXEC, None).unwrap();
            sockopt::set_socket_reuseaddr(&fd, true).unwrap();
            rustix::net::bind(&fd, &SocketAddr::new(at.parse().unwrap(), port))
        };
        let _served = reservation.share(|| {
            for at in ["127.0.0.1", "127.0.0.9", "0.0.0.0"] {
                assert_eq!(stranger(at), Err(Errno::ADDRINUSE), "{of:?}: before it is bound, {at}");
            }
            let bound = bind_with_reuseport(of, "127.0.0.1", port);
            for at in ["127.0.0.1", "127.0.0.9", "0.0.0.0"] {
                assert_eq!(stranger(at), Err(Errno::ADDRINUSE), "{of:?}: once it is bound, {at}");
            }
            bound
        });
        assert_eq!(stranger("127.0.0.1"), Err(Errno::ADDRINUSE), "{of:?}: afterwards");
    }
}

#[test]
fn ports_for_datagrams_are_reserved_likewise() {
    let reservation = Reservation::new(Kind::Datagram, PortRange::default()).unwrap();
    let port = reservation.port();
    assert!(UdpSocket::bind(("127.0.0.1", port)).is_err());
    let bind = || bind_with_reuseport(SocketType::DGRAM, "127.0.0.1", port);
    assert!(bind().is_err());
    let served = UdpSocket::from(reservation.share(bind).unwrap());
    assert!(bind().is_err(), "shared once");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"hello", ("127.0.0.1", port)).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(served.recv(&mut buffer).unwrap(), 5);
}

#[test]
fn a_range_is_used_up_and_not_exceeded() {
    // Three consecutive ports that are free now. Another process may bind one of them meanwhile.
    let free = |first: u16| (first..first + 3).all(|port| Reservation::at(Kind::Stream, port).is_ok());
    let first = (20_000..30_000).step_by(3).find(|&first| free(first)).unwrap();
    let range = PortRange::new(first, first + 2).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match Reservation::new(Kind::Stream, range) {
            Ok(reservation) => held.push(reservation),
            Err(error) => break error,
        }
        assert!(held.len() <= 3);
    };
    assert!(held.iter().all(|one| (first..=first + 2).contains(&one.port())));
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("IRONWARP_PORTS"), "{error}");
}
