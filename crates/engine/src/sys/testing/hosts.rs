//! Hosts of a test: network namespaces whose interfaces `eth0` are joined by a bridge in the namespace of the test, which is
//! a third host. Tests call `ironwarp_testkit::child::in_network` first.

use super::{new_network, thread_id};
use ironwarp_testkit::net::ip;
use ironwarp_testkit::wait::until;
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

/// The addresses of the test's own host.
pub(crate) const PEER: [&str; 2] = ["10.77.0.1", "fd77::1"];
/// Addresses that move between hosts: IPv4 and IPv6.
pub(crate) const MOVING: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// Length of the prefix of all addresses of an IP version.
const PREFIX: [u8; 2] = [24, 64];

/// A thread in a network namespace of its own, which ends with the value.
#[derive(Debug)]
pub(crate) struct Host {
    tasks: mpsc::Sender<Task>,
}

type Task = Box<dyn FnOnce() + Send>;

impl Host {
    /// Starts a host without interfaces.
    fn start() -> (Self, libc::pid_t) {
        let (tasks, queue) = mpsc::channel::<Task>();
        let (ready, started) = mpsc::channel();
        thread::spawn(move || {
            new_network();
            ready.send(thread_id()).unwrap();
            queue.into_iter().for_each(|task| task());
        });
        (Self { tasks }, started.recv().unwrap())
    }

    /// Runs a function in the namespace of the host. Sockets that it opens belong to the host, whoever uses them later.
    #[track_caller]
    pub(crate) fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(task).recv().expect("the task succeeds")
    }

    /// Begins to run a function like [`run`](Self::run), and returns where its result arrives.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (result, done) = mpsc::channel();
        self.tasks.send(Box::new(move || drop(result.send(task())))).unwrap();
        done
    }
}

/// Returns two hosts with addresses of their own, the first of which also has those that move.
pub(crate) fn two_hosts() -> [Host; 2] {
    ip("link set lo up");
    // With an address of its own: otherwise it has that of a port, and another one after a port has come or gone.
    ip("link add br0 address 02:00:00:00:00:01 type bridge");
    ip("link set br0 up");
    for (at, prefix) in PEER.into_iter().zip(PREFIX) {
        add(at, prefix, "br0");
    }
    let hosts = [1, 2].map(|number| {
        let (host, thread) = Host::start();
        ip(&format!("link add port{number} type veth peer name eth0 netns {thread}"));
        ip(&format!("link set port{number} master br0 up"));
        host.run(move || {
            ip("link set lo up");
            ip("link set eth0 up");
            add(&format!("10.77.0.1{number}"), PREFIX[0], "eth0");
            add(&format!("fd77::1{number}"), PREFIX[1], "eth0");
        });
        host
    });
    // The bridge notices some time later that a port has a carrier. Until then it drops frames.
    for number in [1, 2] {
        until(|| {
            let port =
                Command::new("ip").args(["-d", "link", "show", &format!("port{number}")]).output().unwrap();
            String::from_utf8_lossy(&port.stdout).contains("state forwarding")
        });
    }
    hosts[0].run(|| MOVING.into_iter().zip(PREFIX).for_each(|(at, prefix)| add(at, prefix, "eth0")));
    hosts
}

/// Adds an address, which need not be verified first.
pub(crate) fn add(at: &str, prefix: u8, interface: &str) {
    let no_detection = if at.contains(':') { " nodad" } else { "" };
    ip(&format!("addr add {at}/{prefix} dev {interface}{no_detection}"));
}

/// Returns the length of the prefix of an address.
pub(crate) fn prefix_of(ip: IpAddr) -> u8 {
    PREFIX[usize::from(ip.is_ipv6())]
}
