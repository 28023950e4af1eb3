//! The errors of calls (`errno`), as calls of the verbs and of the connection manager return them here.

use super::{Explanation, whose, words};
use ironwarp::Culprit;
use std::io;

struct Row {
    number: i32,
    name: &'static str,
    what: &'static str,
    culprit: Culprit,
    causes: &'static [&'static str],
    look: &'static [&'static str],
}

pub(super) fn by_number(number: i32) -> Option<Explanation> {
    ROWS.iter().find(|row| row.number == number).map(explanation)
}

pub(super) fn by_name(name: &str) -> Option<Explanation> {
    let wanted = words(name);
    let row = ROWS.iter().find(|row| words(row.name) == wanted || words(&system_words(row.number)) == wanted);
    row.map(explanation)
}

fn explanation(row: &Row) -> Explanation {
    let Row { number, name, what, culprit, causes, look } = row;
    Explanation {
        title: format!("{name} ({number}), error of a call: {}", system_words(*number)),
        what: (*what).to_owned(),
        whose: whose(*culprit),
        causes,
        look,
    }
}

/// What the system calls it.
fn system_words(number: i32) -> String {
    let text = io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Names of errnos, and their numbers by the same names.
macro_rules! rows {
    ($($name:ident $culprit:ident: $what:literal, [$($cause:literal),* $(,)?], [$($look:literal),* $(,)?];)*) => {
        &[$(Row {
            number: libc::$name,
            name: stringify!($name),
            what: $what,
            culprit: Culprit::$culprit,
            causes: &[$($cause),*],
            look: &[$($look),*],
        }),*]
    };
}

const ROWS: &[Row] = rows! {
    EPERM Program: "the system forbids it to this process",
        ["a sandbox (seccomp, a container) without netlink, epoll or memfd", "a port below 1024 without the right to it"],
        ["`ironwarp devices`, in the same sandbox: it says what is missing"];
    ENOENT Program: "what was named is not there",
        ["a GID index or partition key (pkey) that is empty", "no completion or event is waiting"],
        ["`ironwarp devices`: which GIDs there are, and at which index"];
    EINTR Nobody: "a signal came while the call waited",
        ["a handler without SA_RESTART, a debugger, a timer"],
        ["the call: it can be made again"];
    EIO Program: "the adapter could not be used",
        ["the adapter has stopped: nobody took its asynchronous events", "a system call failed that should not"],
        ["the line that Ironwarp wrote to the standard error, at IRONWARP_LOG=debug"];
    EBADF Program: "the descriptor is closed, or is no descriptor",
        ["a completion or event channel that was destroyed, or whose descriptor was closed by hand"],
        ["the order in which the program destroys its objects"];
    EAGAIN Nobody: "there is nothing at the moment",
        ["a channel whose descriptor is set to O_NONBLOCK, and no event waits"],
        ["poll(2) on the descriptor before the call"];
    ENOMEM Program: "a queue has no room, or memory is short",
        [
            "more requests posted than the queue pair was created for (max_send_wr, max_recv_wr): completions have to be polled before there is room again",
            "only some requests are signaled: the others make room when the next signaled one is polled",
            "more objects than the adapter has (`max_qp`, `max_mr`, …), or `no-register` among the faults",
        ],
        ["the sizes given to ibv_create_qp, and how often the completion queue is polled"];
    EACCES Program: "the program may not do this",
        ["a port below 1024", "memory registered with a right that it does not have itself"],
        ["the access flags, or the port"];
    EFAULT Program: "an address is not mapped, or may not be written",
        [
            "memory registered for writing that is read-only (a constant, a file mapped for reading)",
            "a pointer that is wrong, or memory freed before",
        ],
        ["/proc/PID/maps at that address"];
    EBUSY Program: "something still uses the object",
        [
            "a protection domain with regions or queue pairs, a completion queue with queue pairs, a region with windows",
            "a queue pair that is connected already",
        ],
        ["the order of destruction: queue pairs, then completion queues and regions, then the domain, then the device"];
    ENODEV Program: "there is no such device, or none at all",
        [
            "the program was not started with `ironwarp run`, or cleaned its environment before",
            "no interface of this machine has an address",
            "an address that belongs to no interface (rdma_bind_addr, rdma_resolve_addr)",
        ],
        ["`ironwarp devices`: it says why when there is none"];
    EINVAL Program: "an argument, or a combination of them, is wrong",
        [
            "a queue pair moved to a state that it cannot reach from where it is, or without the attributes for it",
            "objects of different protection domains or devices together",
            "remote write or atomic rights without IBV_ACCESS_LOCAL_WRITE",
            "more scatter/gather elements or inline bytes than the queue pair was created for",
            "an object that was destroyed",
        ],
        ["the line that Ironwarp wrote to the standard error (IRONWARP_LOG=warn): it names the argument"];
    EMFILE Program: "the process has too many open files",
        ["each connection and channel is one descriptor or more"],
        ["`ulimit -n`; raise it with `ulimit -n 65536`"];
    ENFILE Program: "the system has too many open files",
        ["many processes with many connections"],
        ["/proc/sys/fs/file-nr"];
    ENOSPC Program: "there is no room left of something that is numbered",
        ["all ports of IRONWARP_PORTS are taken", "no number of a queue pair is free"],
        ["IRONWARP_PORTS, and who uses these ports: `ss -ltn`"];
    ENOSYS Program: "there is no such call here",
        ["a call for one maker's adapters, or for the kernel"],
        ["`ironwarp explain EOPNOTSUPP`"];
    EPROTO Peer: "the other end speaks another protocol",
        ["the port belongs to a program that is no RDMA program", "an RDMA adapter that speaks RoCE or InfiniBand: only iWARP is understood"],
        ["who listens there: `ss -ltnp` at the other end"];
    ENODATA Nobody: "there is nothing to return",
        ["an attribute or option that was never set"],
        ["the call before: what should have set it?"];
    EOVERFLOW Program: "a value does not fit",
        ["a completion queue that overflowed: more completions than it has room for"],
        ["the size given to ibv_create_cq: all requests that can be under way, of all its queue pairs"];
    EMSGSIZE Program: "the message is too long",
        ["a datagram of more than 4096 bytes, or than the MTU that the program was told"],
        ["the length; or a connected queue pair, which has no such limit"];
    EDESTADDRREQ Program: "the id has no destination yet",
        ["rdma_connect or rdma_resolve_route before rdma_resolve_addr was done"],
        ["the order of events: ADDR_RESOLVED, ROUTE_RESOLVED, then connect"];
    EAFNOSUPPORT Program: "this kind of address is not known here",
        ["an InfiniBand address (AF_IB), or IPv6 where the kernel has none"],
        ["the address family: AF_INET and AF_INET6 are served"];
    EOPNOTSUPP Program: "Ironwarp does not have this",
        ["raw packets, multicast, tag matching, flow steering, calls for one maker's adapters", "in the iWARP persona: UC, UD and XRC queue pairs of some programs"],
        ["ibv_query_device_ex: what is offered", "`ironwarp run --persona roce`, which offers all there is"];
    EADDRINUSE Program: "the port is taken",
        [
            "another program listens there. RDMA and TCP share one space of ports here: a server that listens on the same number for both needs two",
            "an earlier run still closes",
        ],
        ["`ss -ltnp`: who has the port"];
    EADDRNOTAVAIL Program: "the address is not one of this machine's",
        ["a wrong address to bind to", "the interface is down, or lost its address"],
        ["`ironwarp devices`: the addresses that there are"];
    ENETDOWN Network: "the network is down", ["the interface was taken down"], ["`ip link`: is it UP, and LOWER_UP?"];
    ENETUNREACH Network: "no route leads there",
        ["no default route, or none for this kind of address"],
        ["`ip route get ADDRESS`"];
    ECONNABORTED Network: "the connection was given up while it was being made",
        ["the peer went away before it was accepted"],
        ["what the program at the other end says"];
    ECONNRESET Network: "the other end, or something between, cut the connection",
        ["the program at the other end crashed or was killed", "`cut` among the faults", "a firewall that forgets connections"],
        ["what the program at the other end says"];
    ENOBUFS Program: "the kernel has no buffers", ["very many connections or datagrams at once"], ["`dmesg`, `ss -s`"];
    EISCONN Program: "it is connected already", ["rdma_connect twice on one id"], ["the order of calls"];
    ENOTCONN Program: "it is not connected",
        ["a request before the connection is made, or after it ended", "rdma_disconnect on an id that never connected"],
        ["whether the event ESTABLISHED came, and DISCONNECTED did not"];
    ESHUTDOWN Nobody: "this end has closed already", ["a call after rdma_disconnect"], ["the order of calls"];
    ETIMEDOUT Network: "the other end did not answer in time",
        [
            "nothing is at that address, or a firewall drops what is sent there",
            "the program at the other end is stopped, or does not take its connection requests",
        ],
        ["`ironwarp ping ADDRESS`, with `ironwarp ping --listen` at the other end", "IRONWARP_STARTUP, if the other end is slow"];
    ECONNREFUSED Peer: "nobody listens at that address and port, or the listener said no",
        [
            "the server is not started yet, or listens at another address or port",
            "the server called rdma_reject: its private data may say why",
            "the server runs on another RDMA adapter: RoCE and InfiniBand are other networks",
        ],
        ["`ss -ltn` at the other end: RDMA listeners are TCP listeners here"];
    EHOSTUNREACH Network: "the machine cannot be reached",
        ["it is down, or on another network", "a firewall refuses"],
        ["`ip route get ADDRESS`, `ping`"];
    EALREADY Nobody: "that is under way already", ["a call again before the first was done"], ["the event that tells of the first"];
    EINPROGRESS Nobody: "it has begun, and will be told by an event", ["an id that does not wait (it has an event channel)"], ["rdma_get_cm_event"];
    ECANCELED Nobody: "it was given up by this end", ["the object was destroyed while the call waited"], ["who destroyed it, in which thread"];
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_is_found_by_its_name_and_the_systems_words() {
        for row in ROWS {
            for name in [row.name.to_owned(), row.name.to_lowercase(), system_words(row.number)] {
                let title = by_name(&name).expect("it is there").title;
                assert!(title.starts_with(&format!("{} ({}), ", row.name, row.number)), "{name}: {title}");
            }
        }
    }

    #[test]
    fn no_errno_is_there_twice() {
        let numbers: std::collections::HashSet<_> = ROWS.iter().map(|row| row.number).collect();
        assert_eq!(numbers.len(), ROWS.len());
    }
}
