//! RDMA ports alongside TCP ports of the same number: where listeners are, how clients find them, and which
//! other servers must not be mistaken for them.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::{Config, PortPolicy, Users};
use ironwarp_engine::sys::tcp::{BindOptions, Bound};
use ironwarp_engine::{
    ConnectError, ConnectOptions, Engine, Established, EventChannel, Incoming, Listening, MAX_BACKLOG,
    QueuePair,
};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::Status;
use ironwarp_testkit::child::{Partner, as_root};
use ironwarp_testkit::engine::{SEND, Side};
use ironwarp_wire::private::{CmHeader, CmKind, PortSpace, RdmaPort};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);
const REQUEST_DATA: &[u8] = b"what the client's program says";
const REPLY_DATA: &[u8] = b"what the server's program says";

fn engine(policy: PortPolicy) -> Arc<Engine> {
    Engine::new(Config::default().port_space(policy)).unwrap()
}

/// An engine without private extensions, which behaves like any other iWARP peer.
fn plain() -> Arc<Engine> {
    Engine::new(Config::default().private(false)).unwrap()
}

fn bind(engine: &Engine, at: SocketAddr) -> io::Result<Bound> {
    Bound::for_rdma(at, PortSpace::Stream, BindOptions::default(), engine.config().port_policy())
}

/// The listener of an RDMA port.
struct Server {
    side: Side,
    listening: Listening,
    incoming: Arc<EventChannel<Incoming>>,
}

impl Server {
    fn new(engine: &Arc<Engine>, at: SocketAddr) -> Self {
        Self::at(engine, bind(engine, at).unwrap())
    }

    fn at(engine: &Arc<Engine>, bound: Bound) -> Self {
        let incoming = EventChannel::new().unwrap();
        let program = Arc::<EventChannel<Incoming>>::clone(&incoming);
        let listening = engine.listen_bound(bound, program, MAX_BACKLOG).unwrap();
        Self { side: Side::new(engine, 16, 4096), listening, incoming }
    }

    fn port(&self) -> u16 {
        self.listening.local_addr().unwrap().port()
    }

    /// Accepts the next connection, which must be from the client.
    fn accept(&self, requested: SocketAddr) -> Arc<QueuePair> {
        let incoming = self.incoming.wait(TIMEOUT).unwrap();
        assert_eq!((incoming.private_data(), incoming.local()), (REQUEST_DATA, requested));
        let pair = self.side.pair(4, Completes::WhenAcknowledged);
        incoming.accept(&pair, self.side.engine.terms(None, None), REPLY_DATA).unwrap();
        pair
    }
}

struct Client {
    side: Side,
    pair: Arc<QueuePair>,
}

impl Client {
    /// Starts connecting to an RDMA port.
    fn dial(engine: &Arc<Engine>, to: SocketAddr) -> Self {
        Self::dial_with(engine, to, Some(PortSpace::Stream))
    }

    fn dial_with(engine: &Arc<Engine>, to: SocketAddr, port_space: Option<PortSpace>) -> Self {
        let mut side = Side::new(engine, 16, 4096);
        side.memory.iter_mut().zip((1..=251).cycle()).for_each(|(byte, value)| *byte = value);
        let pair = side.pair(4, Completes::WhenAcknowledged);
        let options =
            ConnectOptions { private_data: REQUEST_DATA.into(), port_space, ..ConnectOptions::default() };
        engine.connect(&pair, to, &options).unwrap();
        Self { side, pair }
    }

    fn outcome(&self) -> Result<Established, ConnectError> {
        self.pair.wait_connected(TIMEOUT)
    }
}

/// Connects a client to the server and sends a message.
fn talk(client: &Arc<Engine>, server: &Server, to: SocketAddr) -> (Client, Arc<QueuePair>) {
    let client = Client::dial(client, to);
    let far = server.accept(to);
    let established = client.outcome().unwrap();
    assert_eq!(&*established.private_data, REPLY_DATA);
    assert_eq!(established.peer.port(), server.port());
    far.wait_connected(TIMEOUT).unwrap();
    send(&client, (server, &far));
    (client, far)
}

fn send(client: &Client, (server, far): (&Server, &Arc<QueuePair>)) {
    server.side.receive(far, 1, 64, 64);
    client.pair.qp().post_send([client.side.request(2, SEND, 64)]).unwrap();
    for cq in [&server.side.cq, &client.side.cq] {
        let mut completion = None;
        while completion.is_none() {
            assert!(cq.wait(Some(TIMEOUT)).unwrap(), "no completion");
            cq.poll(1, |found| completion = Some(found)).unwrap();
        }
        assert_eq!(completion.unwrap().status, Status::Success);
    }
    assert_eq!(server.side.memory[64..128], client.side.memory[..64]);
}

/// Returns a loopback address of this process. Tests that run at the same time have candidates in common: a port may be
/// in use, or a server may see the probes of another test.
fn own_loopback() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes(); // Linux: at most 22 bits
    Ipv4Addr::new(127, 64 | high, middle, low)
}

/// A TCP server, and the address of the RDMA port with the same number.
fn tcp_server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((own_loopback(), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// An address with an unused TCP port.
fn free() -> SocketAddr {
    tcp_server().1
}

fn candidates(at: SocketAddr) -> Vec<u16> {
    RdmaPort { space: PortSpace::Stream, number: at.port() }.candidates().collect()
}

// --- Where listeners are ---

#[test]
fn a_free_tcp_port_is_taken() {
    let (engine, at) = (engine(PortPolicy::Shared), free());
    let server = Server::new(&engine, at);
    assert_eq!(server.port(), at.port());
    talk(&engine, &server, at);
}

#[test]
fn an_ephemeral_port_is_free_in_both_port_spaces() {
    for policy in [PortPolicy::Shared, PortPolicy::Apart] {
        let engine = engine(policy);
        let bound = bind(&engine, SocketAddr::from((own_loopback(), 0))).unwrap();
        let at = bound.requested_addr().unwrap();
        assert_ne!(at.port(), 0);
        assert_eq!(bound.local_addr().unwrap() == at, policy == PortPolicy::Shared);
        talk(&engine, &Server::at(&engine, bound), at);
    }
}

/// The TCP server is there first and never sends anything: the client does not wait for it for long.
#[test]
fn a_client_finds_the_listener_beside_a_silent_tcp_server() {
    let (engine, (_silent, at)) = (engine(PortPolicy::Shared), tcp_server());
    let server = Server::new(&engine, at);
    assert!(candidates(at).contains(&server.port()));
    let begun = Instant::now();
    talk(&engine, &server, at);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// The RDMA listener is there first and moves away. Existing connections stay connected.
#[test]
fn a_listener_makes_room_for_a_tcp_server() {
    let (engine, at) = (engine(PortPolicy::Shared), free());
    let server = Server::new(&engine, at);
    let (before, far) = talk(&engine, &server, at);
    assert_eq!(TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert!(server.listening.move_aside().unwrap());
    let _tcp = TcpListener::bind(at).unwrap();
    assert!(candidates(at).contains(&server.port()));
    assert!(!server.listening.move_aside().unwrap(), "it has already moved");
    talk(&engine, &server, at);
    send(&before, (&server, &far));
}

/// A port that is bound but has no listener moves away. The TCP server need not set SO_REUSEADDR, since there
/// are no connections.
#[test]
fn a_bound_port_makes_room_for_a_tcp_server() {
    use rustix::net::{AddressFamily, SocketType};
    let (engine, at) = (engine(PortPolicy::Shared), free());
    let socket = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let mut bound = bind(&engine, at).unwrap();
    assert_eq!(rustix::net::bind(socket(), &at), Err(rustix::io::Errno::ADDRINUSE));
    assert!(bound.move_aside().unwrap());
    let tcp = socket();
    rustix::net::bind(&tcp, &at).unwrap();
    assert_eq!(bound.requested_addr().unwrap(), at);
    let server = Server::at(&engine, bound);
    talk(&engine, &server, at);
    // The same applies to a listener.
    let at = free();
    let server = Server::new(&engine, at);
    assert!(server.listening.move_aside().unwrap());
    rustix::net::bind(socket(), &at).unwrap();
}

/// With `apart`, TCP port N is neither bound nor dialled.
#[test]
fn apart_never_touches_the_tcp_port() {
    let engine = engine(PortPolicy::Apart);
    let (tcp, at) = tcp_server();
    tcp.set_nonblocking(true).unwrap();
    let server = Server::new(&engine, at);
    assert!(candidates(at).contains(&server.port()));
    talk(&engine, &server, at);
    assert_eq!(tcp.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let at = free();
    let _server = Server::new(&engine, at);
    TcpListener::bind(at).unwrap();
}

/// With `tcp`, and without private extensions, there is no separate port space.
#[test]
fn the_tcp_policy_has_no_separate_port_space() {
    for engine in [engine(PortPolicy::Tcp), plain()] {
        let (_tcp, at) = tcp_server();
        assert_eq!(bind(&engine, at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let at = free();
        let server = Server::new(&engine, at);
        assert!(!server.listening.move_aside().unwrap());
        talk(&engine, &server, at);
    }
}

/// An RDMA port has a single listener, whichever TCP port it uses.
#[test]
fn a_second_listener_of_an_rdma_port_is_refused() {
    let (engine, (_tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
    let errno = |at| bind(&engine, at).unwrap_err().raw_os_error();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], at.port()));
    let server = Server::new(&engine, at);
    assert_eq!((errno(at), errno(everywhere)), (Some(libc::EADDRINUSE), Some(libc::EADDRNOTAVAIL)));
    drop(server);
    let _server = Server::new(&engine, everywhere);
    assert_eq!((errno(at), errno(everywhere)), (Some(libc::EADDRNOTAVAIL), Some(libc::EADDRNOTAVAIL)));
    // The first listener uses the TCP port of the same number.
    let at = free();
    let _server = Server::new(&engine, at);
    assert_eq!(errno(at), Some(libc::EADDRINUSE));
}

#[test]
fn binding_fails_if_all_candidates_are_in_use() {
    let (engine, (_tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
    let others: Vec<_> = candidates(at).into_iter().map(|port| TcpListener::bind((at.ip(), port))).collect();
    assert_eq!(bind(&engine, at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(others);
    bind(&engine, at).unwrap();
}

#[test]
fn ipv6() {
    let engine = engine(PortPolicy::Shared);
    let tcp = TcpListener::bind("[::1]:0").unwrap();
    let at = tcp.local_addr().unwrap();
    let options = BindOptions { both_versions: true, ..BindOptions::default() };
    let everywhere = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, at.port()));
    let bound = Bound::for_rdma(everywhere, PortSpace::Stream, options, PortPolicy::Shared).unwrap();
    assert_ne!(bound.local_addr().unwrap().port(), at.port());
    let server = Server::at(&engine, bound);
    talk(&engine, &server, at);
    // The listener serves both address families. The client sees an IPv4 address, the server an IPv4-mapped
    // IPv6 address.
    let client = Client::dial(&engine, SocketAddr::from(([127, 0, 0, 1], at.port())));
    server.accept(format!("[::ffff:127.0.0.1]:{}", at.port()).parse().unwrap());
    client.outcome().unwrap();
}

// --- How clients find them ---

/// The server at TCP port N is not an RDMA listener, which its first answer shows.
#[test]
fn a_client_finds_the_listener_beside_a_tcp_server_that_answers() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"MPA ID Rep Frame\xff\xff\xff\xff",
    ] {
        let (engine, (tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
        let server = Server::new(&engine, at);
        // It is dialled again with revision 1, unless the listener is found first. It ends with the process.
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = tcp.accept() {
                let _ = stream.read(&mut [0; 1024]);
                if !answer.is_empty() && stream.write_all(answer).is_ok() {
                    open.push(stream); // it waits for more
                }
            }
        });
        let begun = Instant::now();
        talk(&engine, &server, at);
        assert!(begun.elapsed() < Duration::from_secs(5), "{answer:?}: {:?}", begun.elapsed());
    }
}

/// The TCP server that used the port has ended.
#[test]
fn a_client_finds_the_listener_after_the_tcp_server_has_ended() {
    let (engine, (tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
    let server = Server::new(&engine, at);
    drop(tcp);
    talk(&engine, &server, at);
}

#[test]
fn connecting_to_an_unused_port_is_refused() {
    let engine = engine(PortPolicy::Shared);
    let begun = Instant::now();
    let error = Client::dial(&engine, free()).outcome().unwrap_err();
    assert!(
        matches!(&error, ConnectError::System(error) if error.kind() == io::ErrorKind::ConnectionRefused),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// The program is slow to accept. Meanwhile the client probes the candidates, without success, which has no
/// effect.
#[test]
fn a_client_waits_for_a_slow_listener() {
    let (engine, at) = (engine(PortPolicy::Shared), free());
    let server = Server::new(&engine, at);
    let others = candidates(at).into_iter().map(|port| TcpListener::bind((at.ip(), port)).unwrap());
    let others: Vec<_> = others.collect();
    let client = Client::dial(&engine, at);
    let probes: Vec<_> = others.iter().map(|other| other.accept().unwrap()).collect();
    drop((probes, others));
    server.accept(at);
    client.outcome().unwrap();
}

/// After a rejection, no other candidate is tried.
#[test]
fn a_rejection_is_final() {
    for policy in [PortPolicy::Shared, PortPolicy::Apart] {
        let (engine, at) = (engine(policy), free());
        let server = Server::new(&engine, at);
        let client = Client::dial(&engine, at);
        server.incoming.wait(TIMEOUT).unwrap().reject(REPLY_DATA).unwrap();
        let error = client.outcome().unwrap_err();
        assert!(
            matches!(&error, ConnectError::Rejected { private_data, .. } if **private_data == *REPLY_DATA),
            "{error}"
        );
    }
}

// --- Other iWARP peers ---

/// Other iWARP peers do not know candidates, and are served at TCP port N.
#[test]
fn other_peers_as_clients() {
    let (engine, at) = (engine(PortPolicy::Shared), free());
    let server = Server::new(&engine, at);
    let client = Client::dial_with(&plain(), at, None);
    server.accept(at);
    assert_eq!(&*client.outcome().unwrap().private_data, REPLY_DATA);
    // At a candidate they are refused, because they can only mean the port itself.
    let (_tcp, at) = tcp_server();
    let server = Server::new(&engine, at);
    let there = SocketAddr::new(at.ip(), server.port());
    let error = Client::dial_with(&plain(), there, None).outcome().unwrap_err();
    let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error}") };
    assert_eq!(CmHeader::parse(private_data).unwrap().0.kind, CmKind::NotListening);
    assert!(server.incoming.try_next().is_none(), "the program saw the connection");
    // A candidate is not an RDMA port for Ironwarp clients, either.
    let error = Client::dial(&engine, there).outcome().unwrap_err();
    assert!(matches!(&error, ConnectError::Elsewhere), "{error}");
}

/// As servers, they see the program's private data and no private extensions.
#[test]
fn other_peers_as_servers() {
    let (plain, at) = (plain(), free());
    let server = Server::new(&plain, at);
    talk(&engine(PortPolicy::Shared), &server, at);
    assert!(server.incoming.try_next().is_none(), "a second Request arrived");
}

// --- Other servers at candidates ---

/// Another server listens at the first candidate and accepts every connection: it is not mistaken for the
/// listener, and does not see the program's private data.
#[test]
fn another_server_at_a_candidate_is_not_taken_for_the_listener() {
    let (engine, (_tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
    let plain = plain();
    let first = SocketAddr::new(at.ip(), candidates(at)[0]);
    let stranger = Server::at(&plain, Bound::new(first, BindOptions::default()).unwrap());
    let server = Server::new(&engine, at);
    assert_ne!(server.port(), first.port());
    let client = Client::dial(&engine, at);
    let incoming = stranger.incoming.wait(TIMEOUT).unwrap();
    assert!(
        !incoming.private_data().windows(REQUEST_DATA.len()).any(|part| part == REQUEST_DATA),
        "the other server saw the private data"
    );
    let pair = stranger.side.pair(4, Completes::WhenAcknowledged);
    // Fails if the probe has timed out, which may happen on a busy machine.
    let _ = incoming.accept(&pair, plain.terms(None, None), &[]);
    server.accept(at);
    assert_eq!(client.outcome().unwrap().peer.port(), server.port());
}

/// Listeners of other RDMA ports can have candidates in common with this one.
#[test]
fn a_listener_of_another_port_at_a_candidate() {
    let (engine, (_tcp, at)) = (engine(PortPolicy::Shared), tcp_server());
    let other = SocketAddr::new(at.ip(), candidates(at)[0]);
    let native = engine.listen(other).unwrap();
    let server = Server::new(&engine, at);
    talk(&engine, &server, at);
    assert!(native.incoming().try_next().is_none());
}

/// A process that confirms a probe, but accepts the next connection for another port. Prints the number of
/// bytes that it received for each.
const SQUATTER: &str = r#"
import socket, sys
address, port, candidate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((address, candidate)); s.listen(); print("ready", flush=True)
def next_request():
    c, _ = s.accept()
    try:
        got = c.recv(4096)
    except ConnectionResetError:
        got = b""
    print(len(got), flush=True)
    return c, got
c, got = next_request()
def reply(flags, depths, kind, port):
    return (b"MPA ID Rep Frame" + flags + b"\x02\x00\x28" + depths + b"IRWC\x02\x09\0\0\0\x01" + kind + b"\0" * 13
        + b"\x07\x07\0\0\x80\x04" + port.to_bytes(2, "big") + b"\x01\0\0\0")
c.send(reply(b"\x70", b"\0\0\0\0", b"\x06", port))
c.close()
c, got = next_request()
c.send(reply(b"\x50", b"\x80\x01\x80\x01", b"\x04", port + 1))
c.recv(1)
"#;

/// A client sends nothing to a candidate at which another user listens. If the client trusts that user, it sends a
/// probe and a Request, but does not accept a Reply for another RDMA port.
#[test]
fn a_squatter_of_another_user() {
    if !as_root("a_squatter_of_another_user") {
        return;
    }
    for (users, trusted) in [(Users::Own, false), (Users::Listed(vec![65534]), true)] {
        let (_tcp, at) = tcp_server();
        let engine = Engine::new(Config::default().users(users)).unwrap();
        let candidate = candidates(at)[0];
        let address = at.ip().to_string();
        let arguments = ["-c", SQUATTER, &address, &at.port().to_string(), &candidate.to_string()];
        let mut command = Command::new("python3");
        command.args(arguments).uid(65534).gid(65534).stderr(Stdio::null());
        let mut squatter = Partner::start(command);
        assert_eq!(squatter.line(), "ready");
        if trusted {
            let client = Client::dial(&engine, at);
            for message in ["the probe", "the Request"] {
                assert_ne!(squatter.line(), "0", "the squatter did not receive {message}");
            }
            let error = client.outcome().unwrap_err();
            assert!(matches!(&error, ConnectError::Elsewhere), "{error}");
        } else {
            talk(&engine, &Server::new(&engine, at), at);
            assert_eq!(squatter.line(), "0", "the squatter received data");
        }
    }
}
