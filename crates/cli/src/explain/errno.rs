//! Explains errors of verbs and connection manager calls (`errno`).

use super::explanation::{Explanation, at_fault, normalise};
use ironwarp::queue::ErrorOrigin;
use std::io;

/// An errno.
struct Row {
    number: i32,
    name: &'static str,
    /// What happened.
    what: &'static str,
    /// Who caused it.
    origin: ErrorOrigin,
    /// Typical causes.
    causes: &'static [&'static str],
    /// Where to look next.
    look: &'static [&'static str],
}

/// Returns the explanation of the errno with this number.
pub(super) fn by_number(number: i32) -> Option<Explanation> {
    ROWS.iter().find(|row| row.number == number).map(explain_row)
}

/// Returns the explanation of the errno with this name, or with this text of the system.
pub(super) fn by_name(name: &str) -> Option<Explanation> {
    let normalised = normalise(name);
    let row = ROWS
        .iter()
        .find(|row| normalise(row.name) == normalised || normalise(&system_text(row.number)) == normalised);
    row.map(explain_row)
}

/// Returns the explanation of a row of the table.
fn explain_row(row: &Row) -> Explanation {
    let Row { number, name, what, origin, causes, look } = row;
    Explanation {
        title: format!("{name} ({number}), error of a call: {}", system_text(*number)),
        what: (*what).to_owned(),
        at_fault: at_fault(*origin),
        causes,
        look,
    }
}

/// Returns the system's text for an errno, as `strerror` does.
fn system_text(number: i32) -> String {
    let text = io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Builds the table. The name of each errno is also the name of its constant in `libc`.
macro_rules! rows {
    ($($name:ident $origin:ident: $what:literal, [$($cause:literal),* $(,)?], [$($look:literal),* $(,)?];)*) => {
        &[$(Row {
            number: libc::$name,
            name: stringify!($name),
            what: $what,
            origin: ErrorOrigin::$origin,
            causes: &[$($cause),*],
            look: &[$($look),*],
        }),*]
    };
}

const ROWS: &[Row] = rows! {
    EPERM Program: "the system denied the operation to this process",
        ["a sandbox (seccomp, a container) without netlink, epoll or memfd", "a port below 1024 without the required privilege"],
        ["`ironwarp devices` in the same sandbox: it reports what is missing"];
    ENOENT Program: "the named object does not exist",
        ["a GID index or partition key (pkey) that is empty", "no completion or event is available"],
        ["`ironwarp devices`: it lists GIDs by index"];
    EINTR Nobody: "a signal interrupted the call",
        ["a handler without SA_RESTART, a debugger, a timer"],
        ["the call: it can be repeated"];
    EIO Program: "the adapter is unusable",
        ["the adapter has stopped: the program did not take its asynchronous events", "a system call failed unexpectedly"],
        ["the line that Ironwarp wrote to standard error, with IRONWARP_LOG=debug"];
    EBADF Program: "the descriptor is closed or invalid",
        ["a completion or event channel that was destroyed, or whose descriptor was closed directly"],
        ["the order in which the program destroys its objects"];
    EAGAIN Nobody: "nothing is available at the moment",
        ["a channel with O_NONBLOCK, and no event is available"],
        ["poll(2) on the descriptor before the call"];
    ENOMEM Program: "a queue is full, or memory is exhausted",
        [
            "more outstanding requests than the queue pair has room for (max_send_wr, max_recv_wr): poll completions first",
            "unsignaled requests: their slots are freed when the next signaled one is polled",
            "more objects than the adapter supports (`max_qp`, `max_mr`, …), or the injected fault `no-register`",
        ],
        ["the sizes given to ibv_create_qp, and how often the completion queue is polled"];
    EACCES Program: "permission denied",
        ["a port below 1024", "memory registered with more rights than its mapping has"],
        ["the access flags, or the port"];
    EFAULT Program: "an address is not mapped or not writable",
        [
            "memory registered for writing that is read-only (a constant, a file mapped for reading)",
            "an invalid pointer, or memory that was freed",
        ],
        ["/proc/PID/maps at that address"];
    EBUSY Program: "the object is still in use",
        [
            "a protection domain with regions or queue pairs, a completion queue with queue pairs, a region with windows",
            "a queue pair that is already connected",
        ],
        ["the order of destruction: queue pairs, then completion queues and regions, then the domain, then the device"];
    ENODEV Program: "there is no such device, or no device at all",
        [
            "the program was not started with `ironwarp run`, or it cleared its environment",
            "no interface of this machine has an address",
            "an address that belongs to no interface (rdma_bind_addr, rdma_resolve_addr)",
        ],
        ["`ironwarp devices`: it reports why there is none"];
    EINVAL Program: "an argument, or a combination of arguments, is invalid",
        [
            "an illegal state transition of a queue pair, or one without the required attributes",
            "objects of different protection domains or devices used together",
            "remote write or atomic rights without IBV_ACCESS_LOCAL_WRITE",
            "more scatter/gather elements or inline bytes than the queue pair has room for",
            "an object that was destroyed",
        ],
        ["the line that Ironwarp wrote to standard error (IRONWARP_LOG=warn): it names the argument"];
    EMFILE Program: "the process has too many open files",
        ["each connection and channel uses at least one descriptor"],
        ["`ulimit -n`; raise it with `ulimit -n 65536`"];
    ENFILE Program: "the system has too many open files",
        ["many processes with many connections"],
        ["/proc/sys/fs/file-nr"];
    ENOSPC Program: "no free port or number is left",
        ["all ports of IRONWARP_PORTS are in use", "all queue pair numbers are in use"],
        ["IRONWARP_PORTS, and what uses these ports: `ss -ltnp`"];
    ENOSYS Program: "the call is not implemented",
        ["a vendor-specific or kernel-only call"],
        ["`ironwarp explain EOPNOTSUPP`"];
    EPROTO Peer: "the other end uses a different protocol",
        ["the port belongs to a program that does not use RDMA", "an adapter for RoCE or InfiniBand: only iWARP is supported"],
        ["the program that listens there: `ss -ltnp` at the other end"];
    ENODATA Nobody: "there is nothing to return",
        ["an attribute or option that was never set"],
        ["the earlier call that should have set it"];
    EOVERFLOW Program: "a value does not fit",
        ["a completion queue overflowed: more completions than it has room for"],
        ["the size given to ibv_create_cq: room for all outstanding requests of all its queue pairs"];
    EMSGSIZE Program: "the message is too long",
        ["a datagram of more than 4096 bytes, or more than the reported MTU"],
        ["the length, or use a connected queue pair, which has no such limit"];
    EDESTADDRREQ Program: "the id has no destination yet",
        ["rdma_connect or rdma_resolve_route before rdma_resolve_addr has completed"],
        ["the order of events: ADDR_RESOLVED, ROUTE_RESOLVED, then connect"];
    EAFNOSUPPORT Program: "the address family is not supported",
        ["an InfiniBand address (AF_IB), or IPv6 where the kernel has none"],
        ["the address family: AF_INET and AF_INET6 are supported"];
    EOPNOTSUPP Program: "Ironwarp does not support this",
        ["raw packets, multicast, tag matching, flow steering, vendor-specific calls", "in the iWARP persona: UC, UD and XRC queue pairs of some programs"],
        ["ibv_query_device_ex: the supported features", "`ironwarp run --persona roce`, which supports all features"];
    EADDRINUSE Program: "the port is in use",
        [
            "another RDMA program listens on the port",
            "an earlier run is still closing its connections",
        ],
        ["the program that uses the port: `ss -ltnp`"];
    EADDRNOTAVAIL Program: "the address does not belong to this machine",
        ["a wrong address to bind to", "the interface is down, or lost its address"],
        ["`ironwarp devices`: it lists the addresses"];
    ENETDOWN Network: "the network is down", ["the interface was taken down"], ["`ip link`: is it UP, and LOWER_UP?"];
    ENETUNREACH Network: "there is no route to the network",
        ["no default route, or none for this address family"],
        ["`ip route get ADDRESS`"];
    ECONNABORTED Network: "the connection was aborted while it was being established",
        ["the peer closed it before it was accepted"],
        ["the output of the program at the other end"];
    ECONNRESET Network: "the other end, or something on the path, reset the connection",
        ["the program at the other end crashed or was killed", "the injected fault `cut`", "a firewall that dropped its connection state"],
        ["the output of the program at the other end"];
    ENOBUFS Program: "the kernel is out of buffers", ["very many connections or datagrams at once"], ["`dmesg`, `ss -s`"];
    EISCONN Program: "it is already connected", ["rdma_connect was called twice on one id"], ["the order of calls"];
    ENOTCONN Program: "it is not connected",
        ["a request before the connection is established, or after it ended", "rdma_disconnect on an id that never connected"],
        ["events: ESTABLISHED must have arrived, and DISCONNECTED not"];
    ESHUTDOWN Nobody: "this end has already closed", ["a call after rdma_disconnect"], ["the order of calls"];
    ETIMEDOUT Network: "the other end did not answer in time",
        [
            "there is no host at that address, or a firewall drops packets",
            "the program at the other end is stopped, or does not accept connection requests",
        ],
        ["`ironwarp ping ADDRESS`, with `ironwarp ping --listen` at the other end", "IRONWARP_STARTUP, if the other end is slow"];
    ECONNREFUSED Peer: "nothing listens on that address and port, or the listener rejected the connection",
        [
            "the server has not started yet, or listens on another address or port",
            "the server called rdma_reject: its private data may have the reason",
            "the server uses another kind of RDMA adapter: RoCE and InfiniBand are different networks",
        ],
        ["`ss -ltn` at the other end: RDMA listeners are TCP listeners here"];
    EHOSTUNREACH Network: "the host is unreachable",
        ["it is down, or on another network", "a firewall refuses"],
        ["`ip route get ADDRESS`, `ping`"];
    EALREADY Nobody: "the operation is already in progress", ["a repeated call before the first one completed"], ["the event that completes the first call"];
    EINPROGRESS Nobody: "the operation has started, and an event will report its completion", ["an id with an event channel, whose calls do not block"], ["rdma_get_cm_event"];
    ECANCELED Nobody: "this end cancelled the operation", ["the object was destroyed while the call waited"], ["the thread that destroyed it"];
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_is_found_by_its_name_and_the_systems_words() {
        for row in ROWS {
            for name in [row.name.to_owned(), row.name.to_lowercase(), system_text(row.number)] {
                let title = by_name(&name).expect("known code").title;
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
