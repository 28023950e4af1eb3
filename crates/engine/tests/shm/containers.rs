//! Two containers: processes with their own network, process, IPC and mount namespaces, connected by a pair of virtual
//! interfaces. They share memory if they share a directory.

use super::common::{End, Host, SHARED, TCP, TIMEOUT, addr_text, dial, parse_addr};
use super::stream::{Messages, Place, Stream};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::net::ip;
use ironwarp_testkit::wait::until;
use ironwarp_wire::RemoteAddr;
use std::path::PathBuf;

const NEAR: &str = "10.96.0.1";
const FAR: &str = "10.96.0.2";
const PLACE: Place = Place { at: 0, slots: 8, max: 200_000 };
const NAMESPACES: [&str; 7] = ["unshare", "--net", "--ipc", "--uts", "--mount", "--pid", "--fork"];

fn end(directory: &str) -> End {
    let config = Config::default().shm(true).shm_dir(PathBuf::from(directory));
    Host::new(config, PLACE.len()).end(Completes::WhenAcknowledged)
}

/// Streams. `others` is the memory of the peer.
fn stream(end: &End, own: u64, exchange: impl FnOnce(&str) -> RemoteAddr) {
    let messages = |seed| Messages { seed, max: PLACE.max };
    let stream = Stream::new(end, PLACE, messages(own), messages(3 - own));
    let others = exchange(&format!("memory {}", addr_text(end.remote_addr(PLACE.constant()))));
    stream.reading(others).run(|sent| sent < 200).unwrap_or_else(|failed| panic!("{failed:?}"));
}

/// The container that listens.
fn far() {
    child::tell("ready");
    let directory = child::wait_for("directory ");
    ip(&format!("addr add {FAR}/24 dev iw1"));
    ip("link set iw1 up");
    let end = end(directory.trim());
    let listener = end.host.engine.listen(format!("{FAR}:0").parse().unwrap()).unwrap();
    child::tell(&format!("address {}", listener.local_addr().unwrap()));
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    incoming.accept(&end.pair, end.host.engine.terms(None, None), &[]).unwrap();
    end.pair.wait_connected(TIMEOUT).unwrap();
    stream(&end, 2, |line| {
        child::tell(line);
        parse_addr(&child::wait_for("memory "))
    });
    child::tell("streamed");
    child::wait_for("finish");
    child::tell(&format!("routes {:?}", end.routes()));
    child::wait_for_end();
}

/// The container that connects, and starts the other one.
fn near(test: &str, directory: &str, shares: bool) {
    let mut partner = Partner::start(child::in_front(&NAMESPACES, test, "far"));
    partner.wait_for("ready");
    ip("link add iw0 type veth peer name iw1");
    ip(&format!("link set iw1 netns {}", partner.id()));
    ip(&format!("addr add {NEAR}/24 dev iw0"));
    ip("link set iw0 up");
    partner.tell(&format!("directory {directory}"));
    let end = end(directory);
    dial(&end, partner.wait_for("address ").parse().unwrap());
    end.pair.wait_connected(TIMEOUT).unwrap();
    stream(&end, 1, |line| {
        partner.tell(line);
        parse_addr(&partner.wait_for("memory "))
    });
    partner.wait_for("streamed");
    if shares {
        until(|| end.routes() == SHARED);
    }
    partner.tell("finish");
    let routes = if shares { SHARED } else { TCP };
    assert_eq!(end.routes(), routes);
    assert_eq!(partner.wait_for("routes "), format!("{routes:?}"));
    partner.finish();
}

fn in_containers(test: &str, directory: &str, shares: bool) {
    match child::role().as_deref() {
        Some("far") => far(),
        Some(_) => near(test, directory, shares),
        None => assert!(!child::in_network(test)),
    }
}

#[test]
fn containers_with_a_shared_directory_share_memory() {
    let directory = std::env::temp_dir().join("ironwarp-shm-test");
    let created = child::role().is_none().then(|| {
        let directory = directory.with_extension(std::process::id().to_string());
        std::fs::create_dir(&directory).unwrap();
        directory
    });
    // The process that connects is a child of the one that created the directory.
    let directory = directory.with_extension(std::os::unix::process::parent_id().to_string());
    in_containers(
        "containers::containers_with_a_shared_directory_share_memory",
        directory.to_str().unwrap(),
        true,
    );
    if let Some(directory) = created {
        // The sockets in the directory are removed with their adapters.
        std::fs::remove_dir(directory).unwrap();
    }
}

#[test]
fn containers_without_a_shared_directory_use_tcp() {
    in_containers("containers::containers_without_a_shared_directory_use_tcp", "", false);
}
