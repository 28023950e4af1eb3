//! Hosts of a test: network namespaces whose interfaces `eth0` are joined by a bridge in the namespace of the test, which is
//! a third host. Tests call `ironwarp_testkit::child::in_network` first.

use super::{new_network, thread_id};
use ironwarp_testkit::hosts::{self, joined_hosts};
use ironwarp_testkit::net::ip;
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;

/// The addresses of the test's own host: IPv4 and IPv6.
pub(crate) const PEER: [&str; 2] = [hosts::PEER, hosts::PEER_V6];
/// Addresses that move between hosts.
pub(crate) const MOVING: [&str; 2] = [hosts::MOVING, hosts::MOVING_V6];

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
    let start = || {
        let (host, thread) = Host::start();
        (host, thread.cast_unsigned())
    };
    joined_hosts(start, |host, arguments| {
        let arguments = arguments.to_owned();
        host.run(move || ip(&arguments));
    })
}

/// Adds an address, which need not be verified first.
pub(crate) fn add(at: &str, interface: &str) {
    ip(&hosts::add(at, interface));
}

/// Returns the length of the prefix of an address.
pub(crate) fn prefix_of(ip: IpAddr) -> u8 {
    hosts::prefix_of(ip.is_ipv6())
}
