//! Owners of real sockets, on loopback and between network namespaces.

use super::super::testing::{new_network, thread_id};
use super::*;
use ironwarp_testkit::child::{as_root, in_network};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;

/// Returns the two ends of a connection: the one that connected, and the one that accepted.
fn pair(at: &str, to: impl Fn(SocketAddr) -> SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let client = TcpStream::connect(to(listener.local_addr().unwrap())).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Returns the owner of the other end of a connection.
fn owner_of_peer(server: &TcpStream) -> io::Result<Option<u32>> {
    socket_owner(server.peer_addr().unwrap(), server.local_addr().unwrap())
}

/// Returns the user ID of this process.
fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_socket_of_this_user() {
    for at in ["127.0.0.1:0", "127.4.5.6:0", "[::1]:0"] {
        let (client, server) = pair(at, |to| to);
        assert_eq!(owner_of_peer(&server).unwrap(), Some(me()), "{at}");
        assert_eq!(owner_of_peer(&client).unwrap(), Some(me()), "{at}");
    }
}

#[test]
fn ipv4_in_ipv6_at_either_end() {
    let mapped = |to: SocketAddr| SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), to.port());
    let (_client, server) = pair("127.0.0.1:0", mapped);
    assert_eq!(owner_of_peer(&server).unwrap(), Some(me()));
    let plain = |to: SocketAddr| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port());
    let (_client, server) = pair("[::]:0", plain);
    assert!(server.peer_addr().unwrap().is_ipv6());
    assert_eq!(owner_of_peer(&server).unwrap(), Some(me()));
}

#[test]
fn a_socket_bound_to_the_loopback_interface_does_not_hide() {
    let (client, server) = pair("127.0.0.1:0", |to| to);
    super::super::testing::bind_to_loopback(&client);
    assert_eq!(owner_of_peer(&server).unwrap(), Some(me()));
}

/// The kernel reports a socket that its process has closed as owned by root. A stranger must not pass for root by
/// closing its socket.
#[test]
fn a_closed_socket_has_no_owner() {
    let (client, server) = pair("127.0.0.1:0", |to| to);
    drop(client);
    assert_eq!((&server).read(&mut [0]).unwrap(), 0);
    assert_eq!(owner_of_peer(&server).unwrap_err().kind(), io::ErrorKind::NotFound);
    let (local, peer) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
    server.shutdown(Shutdown::Write).unwrap(); // the other end is in TIME_WAIT now
    assert_eq!(socket_owner(local, peer).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// The kernel answers with the listening socket, which must not be taken for a connected one.
#[test]
fn a_socket_that_listens_is_not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let nobody = SocketAddr::new(at.ip(), 1);
    assert_eq!(socket_owner(at, nobody).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn an_address_of_another_host() {
    // Addresses for documentation (RFC 5737, RFC 3849).
    for (local, peer) in [("198.51.100.1:5", "198.51.100.2:6"), ("[2001:db8::1]:5", "[2001:db8::2]:6")] {
        assert_eq!(socket_owner(local.parse().unwrap(), peer.parse().unwrap()).unwrap(), None);
    }
}

#[test]
fn a_socket_of_another_user() {
    if !as_root("sys::sock_diag::tests::a_socket_of_another_user") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; read");
    let mut command = Command::new("bash");
    let mut other =
        command.args(["-c", &script]).uid(65534).gid(65534).stdin(Stdio::piped()).spawn().unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!(owner_of_peer(&server).unwrap(), Some(65534));
    drop(other.stdin.take());
    other.wait().unwrap();
}

/// Runs ip(8) with these arguments.
fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
}

#[test]
fn a_socket_in_another_namespace() {
    if !in_network("sys::sock_diag::tests::a_socket_in_another_namespace") {
        return;
    }
    let (send_thread, thread) = mpsc::channel();
    let (ready, wait_until_ready) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        new_network();
        let other = thread.recv().unwrap();
        ip("link add iw0 type veth peer name iw1");
        ip(&format!("link set iw1 netns {other}"));
        ip("addr add 198.51.100.1/24 dev iw0");
        ip("link set iw0 up");
        let listener = TcpListener::bind("198.51.100.1:0").unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(owner_of_peer(&server).unwrap(), None);
        drop(finish);
    });
    let client = std::thread::spawn(move || {
        new_network();
        send_thread.send(thread_id()).unwrap();
        let to = wait_until_ready.recv().unwrap();
        ip("addr add 198.51.100.2/24 dev iw1");
        ip("link set iw1 up");
        let client = TcpStream::connect(to).unwrap();
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert_eq!(socket_owner(local, peer).unwrap(), Some(me()), "its own network knows it");
        let _ = finished.recv();
    });
    server.join().unwrap();
    client.join().unwrap();
}

#[test]
fn nothing_that_the_kernel_could_say_is_fatal() {
    let (local, peer) = ("127.0.0.1:5".parse().unwrap(), "127.0.0.1:6".parse().unwrap());
    let (client, server) = pair("127.0.0.1:0", |to| to);
    let (from, to) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
    let mut answer = [0; BUFFER];
    let len = Netlink::for_sockets().unwrap().exchange(&request(from, to), &mut answer).unwrap();
    assert_eq!(parse(&answer[..len], from, to).unwrap(), Some(me()));
    assert_eq!(parse(&answer[..len], local, peer).unwrap(), None, "another socket");
    for cut in 0..HEADER + ANSWER {
        let _ = parse(&answer[..cut], from, to).unwrap_err();
    }
    for at in 0..len {
        for bit in 0..8 {
            answer[at] ^= 1 << bit;
            let _ = parse(&answer[..len], from, to);
            answer[at] ^= 1 << bit;
        }
    }
    drop(client);
}

#[test]
fn the_owner_of_a_socket_that_listens() {
    for (at, queried) in
        [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::]:0", "::1")]
    {
        let listener = TcpListener::bind(at).unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = || listener_owner(SocketAddr::new(queried.parse().unwrap(), port)).unwrap();
        assert_eq!(owner(), Some(me()), "{at}");
        drop(listener);
        assert_eq!(owner(), None, "{at}");
    }
    // The kernel also knows a connection that is not accepted yet, which is not a listening socket.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(listener_owner(client.peer_addr().unwrap()).unwrap(), Some(me()));
    assert_eq!(listener_owner(client.local_addr().unwrap()).unwrap(), None);
}
