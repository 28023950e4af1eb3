//! Two adapters on logical devices of one process, and connections between them.

use ironwarp_engine::config::Config;
use ironwarp_engine::logical::{self, LogicalDevice};
use ironwarp_engine::{ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::Opcode;
use ironwarp_testkit::engine::{SEND, Side};
use ironwarp_testkit::wait::until;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any operation here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns settings with these devices. The names of the devices are those of the test, so that tests of one process
/// share no device.
pub(crate) fn config(test: &str, devices: &str, shm: bool) -> Config {
    let config = Config::default().devices(devices.parse().unwrap()).shm(shm);
    config.name(format!("{test}{}0", if shm { "s" } else { "t" }).parse().unwrap())
}

/// Returns the logical devices of these settings.
pub(crate) fn devices(config: &Config) -> Vec<Arc<LogicalDevice>> {
    logical::devices(config).unwrap()
}

/// Returns an address of a port of a device, without a TCP port.
pub(crate) fn address(device: &LogicalDevice, port: u8) -> SocketAddr {
    device.port(port).unwrap().gids().entries().unwrap()[0].socket_addr(0).unwrap()
}

/// An adapter with memory.
pub(crate) fn side(config: &Config, device: &Arc<LogicalDevice>, bytes: usize) -> Side {
    Side::new(&Engine::open(config.clone(), device).unwrap(), 1024, bytes)
}

/// Two connected queue pairs of two sides.
pub(crate) struct Connected {
    pub(crate) client: Arc<QueuePair>,
    pub(crate) server: Arc<QueuePair>,
}

/// Connects a queue pair of the client to one of the server at port 1 of its device. With shared memory, waits until both
/// ends use it.
pub(crate) fn connect(client: &Side, server: &Side) -> Connected {
    connect_with(client, &ConnectOptions::default(), server)
}

/// Like [`connect`], from an address of the client's device.
pub(crate) fn connect_from(client: &Side, from: SocketAddr, server: &Side) -> Connected {
    connect_with(client, &ConnectOptions { from: Some(from), ..ConnectOptions::default() }, server)
}

fn connect_with(client: &Side, options: &ConnectOptions, server: &Side) -> Connected {
    let listener = server.engine.listen(address(server.engine.logical(), 1)).unwrap();
    let pairs = [client, server].map(|side| side.pair(64, Completes::WhenAcknowledged));
    let [client_pair, server_pair] = &pairs;
    client.engine.connect(client_pair, listener.local_addr().unwrap(), options).unwrap();
    let incoming = listener.incoming().wait(TIMEOUT).unwrap();
    incoming.accept(server_pair, server.engine.terms(None, None), &[]).unwrap();
    pairs.iter().for_each(|pair| drop(pair.wait_connected(TIMEOUT).unwrap()));
    let [client_pair, server_pair] = pairs;
    let connected = Connected { client: client_pair, server: server_pair };
    if client.engine.config().shm {
        exchange(client, server, &connected);
        for pair in [&connected.client, &connected.server] {
            let qp = pair.qp();
            until(|| [qp.send_route(), qp.recv_route()] == [Route::SharedMemory; 2]);
        }
    }
    connected
}

/// Sends a short message in each direction.
pub(crate) fn exchange(client: &Side, server: &Side, pairs: &Connected) {
    for (from, to, sender, receiver) in
        [(client, server, &pairs.client, &pairs.server), (server, client, &pairs.server, &pairs.client)]
    {
        to.receive(receiver, 1, 0, 64);
        sender.post_send([from.request(2, SEND, 64)]).unwrap();
        to.succeeds(Opcode::Receive, 1);
        from.succeeds(Opcode::Send, 2);
    }
}
