//! Real TCP sockets, on loopback.

use super::super::socket::option;
use super::super::testing::{KEEPALIVE, loopback, pair, wait};
use super::*;
use ironwarp_rnic::link::{Link, Piece};
use rustix::event::PollFlags;

#[test]
fn options_are_set_at_both_ends() {
    let (client, server) = pair();
    for link in [&client, &server] {
        assert!(sockopt::tcp_nodelay(link).unwrap());
        assert!(sockopt::socket_keepalive(link).unwrap());
        assert_eq!(sockopt::tcp_keepidle(link).unwrap(), KEEPALIVE.idle);
        assert_eq!(sockopt::tcp_keepintvl(link).unwrap(), KEEPALIVE.interval);
        assert_eq!(sockopt::tcp_keepcnt(link).unwrap(), KEEPALIVE.probes);
        assert_eq!(sockopt::tcp_user_timeout(link).unwrap(), 25_500);
        assert_eq!(sockopt::tcp_congestion(link).unwrap(), "reno");
        let flags = rustix::fs::fcntl_getfl(link).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
        assert!(rustix::io::fcntl_getfd(link).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
    assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
}

#[test]
fn the_system_chooses_how_to_treat_other_hosts() {
    let fd = socket(loopback(), SocketType::STREAM).unwrap();
    let default = sockopt::tcp_congestion(&fd).unwrap();
    // An address for documentation, which no host has (RFC 5737).
    avoid_pacing_on_same_host(&fd, "192.0.2.1:1".parse().unwrap());
    assert_eq!(sockopt::tcp_congestion(&fd).unwrap(), default);
}

#[test]
fn addresses_of_this_host() {
    for own in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(is_same_host(own.parse().unwrap()).unwrap(), "{own}");
    }
    for other in ["192.0.2.1:1", "[2001:db8::1]:1", "[fe80::1%1]:1"] {
        assert!(!is_same_host(other.parse().unwrap()).unwrap(), "{other}");
    }
    // The address from which this host would send to other hosts, if it has a route. Connecting a UDP socket sends no
    // packet.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_ok() {
        assert!(is_same_host(probe.local_addr().unwrap()).unwrap());
    }
}

#[test]
fn the_local_address_may_be_chosen() {
    let listeners = [(); 2].map(|()| Listener::new(loopback(), &KEEPALIVE).unwrap());
    let [first, second] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let from: SocketAddr = "127.0.0.2:0".parse().unwrap();
    let link = connect(first, Some(from), 0, &KEEPALIVE).unwrap();
    wait(&link, PollFlags::OUT);
    let local = link.local_addr().unwrap();
    assert_eq!(local.ip(), from.ip());
    // The kernel chose the port when the socket connected, not when it was bound.
    assert_eq!(option(&link, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT).unwrap(), 1);

    // A given local port can have two connections to different remote addresses.
    let port = SocketAddr::new("127.0.0.3".parse().unwrap(), local.port());
    let links = [first, second].map(|to| connect(to, Some(port), 0, &KEEPALIVE).unwrap());
    for link in &links {
        wait(link, PollFlags::OUT);
        assert!(link.is_connected().unwrap());
        assert_eq!(link.local_addr().unwrap(), port);
    }
}

#[test]
fn a_refused_connection_says_so_once() {
    // The port is bound, so that no other socket gets it, but nothing listens.
    let silent = socket(loopback(), SocketType::STREAM).unwrap();
    rustix::net::bind(&silent, &loopback()).unwrap();
    let to = SocketAddr::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
    // Over loopback the connection may be refused before `connect` returns.
    let refused = connect(to, None, 0, &KEEPALIVE).and_then(|link| {
        wait(&link, PollFlags::OUT);
        link.is_connected()
    });
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn not_connected_yet() {
    let link = TcpLink::new(socket(loopback(), SocketType::STREAM).unwrap());
    assert!(!link.is_connected().unwrap());
    assert!(link.peer_addr().is_err());
}

#[test]
fn nobody_waits() {
    let listener = Listener::new(loopback(), &KEEPALIVE).unwrap();
    assert!(listener.accept().unwrap().is_none());
    // A connection that the peer has reset meanwhile is still accepted. Receiving reports the reset.
    let client = connect(listener.local_addr().unwrap(), None, 0, &KEEPALIVE).unwrap();
    wait(&listener, PollFlags::IN);
    client.abort();
    let Accepted { link: server, .. } = listener.accept().unwrap().unwrap();
    assert!(server.recv(&[], &mut [0]).is_err());
    assert!(listener.accept().unwrap().is_none());
}

#[test]
fn version_6_stands_beside_version_4() {
    let listener =
        Listener::new("[::1]:0".parse().unwrap(), &KEEPALIVE).expect("IPv6 on the loopback interface");
    let link =
        connect(listener.local_addr().unwrap(), Some("[::1]:0".parse().unwrap()), 0, &KEEPALIVE).unwrap();
    wait(&listener, PollFlags::IN);
    let Accepted { link: server, peer, same_host } = listener.accept().unwrap().unwrap();
    assert!(same_host);
    assert_eq!(peer, link.local_addr().unwrap());
    assert_eq!(link.send(&[Piece::Own(b"six")]), Ok(3));
    wait(&server, PollFlags::IN);
    assert_eq!(server.recv(&[], &mut [0; 9]), Ok(3));

    // The same port can be bound at the wildcard addresses of both IP versions.
    let six = Listener::new("[::]:0".parse().unwrap(), &KEEPALIVE).unwrap();
    let port = six.local_addr().unwrap().port();
    Listener::new(SocketAddr::new("0.0.0.0".parse().unwrap(), port), &KEEPALIVE).unwrap();
}

#[test]
fn a_socket_connected_to_itself_hears_what_it_says() {
    for at in ["127.0.0.1:7", "127.0.0.2:0", "[::1]:0"] {
        let link = connect_to_itself(at.parse().unwrap(), &KEEPALIVE).unwrap();
        wait(&link, PollFlags::OUT);
        assert!(link.is_connected().unwrap());
        assert_eq!(link.peer_addr().unwrap(), link.local_addr().unwrap());
        assert_eq!(link.send(&[Piece::Own(b"hello")]), Ok(5));
        let mut heard = [0; 8];
        wait(&link, PollFlags::IN);
        assert_eq!(link.recv(&[], &mut heard), Ok(5));
        assert_eq!(&heard[..5], b"hello");
        link.finish();
        wait(&link, PollFlags::IN);
        assert_eq!(link.recv(&[], &mut heard), Err(ironwarp_rnic::link::LinkError::Ended));
    }
    let nowhere = connect_to_itself("203.0.113.9:0".parse().unwrap(), &KEEPALIVE).unwrap_err();
    assert_eq!(nowhere.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn silence_is_allowed_for_longer_and_never_for_less() {
    let (client, _server) = pair();
    let before = sockopt::tcp_user_timeout(&client).unwrap();
    client.raise_user_timeout(Duration::from_secs(1));
    assert_eq!(sockopt::tcp_user_timeout(&client).unwrap(), before);
    client.raise_user_timeout(Duration::from_secs(100));
    assert_eq!(sockopt::tcp_user_timeout(&client).unwrap(), 100_000);
    client.raise_user_timeout(Duration::MAX);
    assert_eq!(sockopt::tcp_user_timeout(&client).unwrap(), i32::MAX.cast_unsigned());
}

#[test]
fn an_address_is_anothers_as_soon_as_nobody_listens_there() {
    let first = Listener::new(loopback(), &KEEPALIVE).unwrap();
    let at = first.local_addr().unwrap();
    let options = BindOptions::default();
    assert_eq!(Bound::new(at, options).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    first.stop();
    let second = Bound::new(at, options).unwrap().listen(&KEEPALIVE).unwrap();
    assert_eq!(second.local_addr().unwrap(), at);
    std::net::TcpStream::connect(at).unwrap();
    drop(first);
    std::net::TcpStream::connect(at).unwrap();
}

#[test]
fn an_address_that_is_taken_is_nobody_elses_even_if_nobody_listens() {
    let options = BindOptions::default();
    let first = Bound::new(loopback(), options).unwrap();
    let at = first.local_addr().unwrap();
    assert_eq!(Bound::new(at, options).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(first);
    Bound::new(at, options).unwrap();
}

#[test]
fn connections_that_are_long_closed_are_in_nobodys_way() {
    let options = BindOptions::default();
    let listener = Bound::new(loopback(), options).unwrap().listen(&KEEPALIVE).unwrap();
    let at = listener.local_addr().unwrap();
    let mut peer = std::net::TcpStream::connect(at).unwrap();
    let Accepted { link, same_host, .. } = loop {
        if let Some(accepted) = listener.accept().unwrap() {
            break accepted;
        }
    };
    configure_accepted(&link, same_host);
    // This end closes first, so the kernel keeps the connection in TIME_WAIT for a minute.
    drop((link, listener));
    assert_eq!(io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
    drop(peer);
    Bound::new(at, options).unwrap().listen(&KEEPALIVE).unwrap();
}
