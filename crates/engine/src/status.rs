//! The status of an adapter, which other processes of this machine can request (`ironwarp show`).
//!
//! Each adapter whose lanes run listens at a Unix socket `ironwarp/PROCESS/NUMBER` in the abstract namespace, and a
//! lane answers. The answer is a text with one line for each object of the adapter: its kind, and fields `name=value`,
//! separated by tabs.
//!
//! The data path counts nothing for it: queues know their lengths, and the kernel knows what sockets transferred and
//! how long threads ran.
//!
//! The requesting process may be root, and the answer may come from a process of any user. So the length of an answer
//! is limited, and characters that control a terminal are replaced.

mod answer;
mod detach;

pub use answer::{Adapter, Answer, Row, printable};
pub use detach::{Detached, detach};

use crate::logical::{self, RdmaPort};
use crate::notify::handler::CompletionHandler;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::Member;
use crate::reactor::source::{EventSource, Rearm};
use crate::steering::Steering;
use crate::sys::socket::tcp_counters;
use crate::sys::status_socket::{self, StatusSocket};
use crate::sys::thread::Thread;
use crate::verbs::function::{self, Functions};
use ironwarp_rnic::event::{
    ASYNC_QUEUE, CHANNEL_QUEUE, Code, EventMap, EventQueueStats, Function, GLOBAL_QUEUE, HandlerId,
    QueueState, Route, Shape, Vector,
};
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::quota::Resource;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Prefix of the names of status sockets.
const NAME_PREFIX: &str = "ironwarp/";

/// How long the lane ignores the socket after it has answered requests. Bounds the time that a flood of requests takes.
const PAUSE: Duration = Duration::from_millis(10);

/// The result of [`set_port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortsSet {
    /// ID of the process.
    pub process: i32,
    /// Number of ports of the device that were named.
    pub ports: u64,
    /// Number of ports whose state changed.
    pub changed: u64,
}

/// Returns the names of the status sockets of all adapters on this machine, in the order of their process IDs.
pub fn adapters() -> io::Result<Vec<String>> {
    let sockets = fs::read_to_string("/proc/net/unix")?;
    // The eighth column is the name; abstract names begin with @. Connections have the name of their listener, hence
    // `dedup`.
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<_> = names.filter(|name| parse_name(name).is_some()).map(str::to_owned).collect();
    names.sort_by_key(|name| parse_name(name));
    names.dedup();
    Ok(names)
}

/// Returns the process ID and the adapter's number in the name of a status socket; `None` if it is not one.
fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (process, number) = name.strip_prefix(NAME_PREFIX)?.split_once('/')?;
    Some((process.parse().ok()?, number.parse().ok()?))
}

/// Requests the status of the adapter whose status socket has this name. Fails if `process` is given and the adapter
/// belongs to another process. Takes up to four seconds.
///
/// Fails, too, if the adapter belongs to another user, unless this process is root's, and if the answer is not a sealed
/// file or is longer than 16 MiB.
pub fn request(name: &str, process: Option<i32>) -> io::Result<Answer> {
    status_socket::request(name, process).map(Answer)
}

/// Takes ports of a logical device down, or up again, in the process of the adapter whose status socket has this name:
/// one port, or all of the device. It does not matter which adapter of the process that is. Takes up to four seconds.
///
/// Fails if the process has no such device or port, and if it belongs to another user, unless this process is root's.
pub fn set_port(name: &str, device: &str, port: Option<u8>, up: bool) -> io::Result<PortsSet> {
    let command = PortCommand { device: device.to_owned(), port, up };
    let answer = Answer(status_socket::ask(name, &command.to_string())?).read()?;
    match answer.rows.iter().find(|row| ["ports", "error"].contains(&row.kind())) {
        Some(row) if row.kind() == "ports" => {
            let (ports, changed) = (row.number("ports"), row.number("changed"));
            Ok(PortsSet { process: answer.process, ports, changed })
        }
        Some(row) => Err(io::Error::new(io::ErrorKind::NotFound, row.text("why"))),
        None => Err(io::Error::new(io::ErrorKind::Unsupported, "its release has no command for ports")),
    }
}

/// A command that takes ports down, or up: `port NAME[:PORT] down|up`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortCommand {
    device: String,
    /// The number of the port; `None` for all ports of the device.
    port: Option<u8>,
    up: bool,
}

impl Display for PortCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        f.write_str(if self.up { " up" } else { " down" })
    }
}

impl PortCommand {
    /// Reads a command, which may be hostile. Returns `None` if it is not one.
    fn parse(text: &str) -> Option<Self> {
        let (named, state) = text.strip_prefix("port ")?.split_once(' ')?;
        let (device, port) = match named.split_once(':') {
            Some((device, port)) => (device, Some(port.parse().ok()?)),
            None => (named, None),
        };
        let up = match state {
            "up" => true,
            "down" => false,
            _ => return None,
        };
        Some(Self { device: device.to_owned(), port, up })
    }

    /// Executes the command for the devices of this name. Returns the number of ports that were named, and of those that
    /// changed.
    fn execute(&self) -> io::Result<(usize, usize)> {
        let devices = logical::all_named(&self.device);
        if devices.is_empty() {
            let why = format!("the process has no device `{}`", self.device);
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let (mut ports, mut changed) = (0, 0);
        for device in devices {
            let all = device.ports().iter().map(RdmaPort::number);
            let named: Vec<u8> = self.port.map_or_else(|| all.collect(), |port| vec![port]);
            for port in named {
                ports += 1;
                changed += usize::from(device.set_port(port, self.up)?);
            }
        }
        Ok((ports, changed))
    }
}

/// Executes a command of a client, and returns the answer.
fn execute(command: &str) -> String {
    let result = match PortCommand::parse(command) {
        Some(command) => command.execute(),
        None => Err(io::Error::other(format!("unknown command `{command}`"))),
    };
    let row = match result {
        Ok((ports, changed)) => Row::new("ports").with("ports", ports).with("changed", changed),
        Err(error) => Row::new("error").with("why", error),
    };
    format!("{row}\n")
}

/// Answers requests for the status of an adapter, on a lane.
#[derive(Debug)]
pub(crate) struct StatusServer {
    socket: StatusSocket,
    /// Weak, because the lanes that steering owns hold this server.
    steering: Weak<Steering>,
    functions: Arc<Functions>,
}

impl StatusServer {
    /// Creates a server with a socket of its own.
    pub(crate) fn new(steering: &Arc<Steering>, functions: &Arc<Functions>) -> io::Result<Self> {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = StatusSocket::new(&format!("{NAME_PREFIX}{}/{number}", std::process::id()))?;
        Ok(Self { socket, steering: Arc::downgrade(steering), functions: Arc::clone(functions) })
    }

    /// Returns the answer to a request; empty if the adapter is being closed.
    fn text(&self) -> String {
        let mut text = String::new();
        for row in self.steering.upgrade().map_or_else(Vec::new, |steering| self.rows(&steering)) {
            text += &format!("{row}\n");
        }
        text
    }

    /// Executes a command of a client, and returns the answer.
    fn execute(&self, command: &str) -> String {
        let steering = self.steering.upgrade();
        detach::execute(command, steering.as_deref()).unwrap_or_else(|| execute(command))
    }

    /// Returns a row for each object of the adapter.
    fn rows(&self, steering: &Steering) -> Vec<Row> {
        let device = steering.device();
        let config = steering.config();
        let logical = steering.logical();
        let adapter = Row::new("adapter").with("device", logical.name());
        let adapter = adapter.with("persona", config.persona).with("crc", config.crc);
        let usage = device.table().usage();
        let adapter = adapter.with("tags", usage.entries).with("max_tags", config.tags);
        let adapter = adapter.with("retired_indices", usage.retired).with("indices", usage.indices);
        let adapter = adapter.with("table_bytes", usage.bytes);
        let mut rows = vec![adapter.with("stopped", device.events().is_stopped())];
        rows.extend(logical.ports().iter().map(port_row));
        let (mut cqs, mut qps) = (BTreeMap::new(), BTreeMap::new());
        let table = steering.table();
        for (number, lane) in steering.all_lanes().enumerate() {
            let sets = lane.sets();
            let mut connections = 0;
            for set in &sets {
                cqs.extend(set.completion_queues().into_iter().map(|cq| (cq.id(), cq)));
                let served = if set.is_polled() { "program" } else { "lane" };
                for member in set.members() {
                    let Some(qp) = member.qp().cloned() else { continue };
                    connections += 1;
                    qps.insert(qp.id(), qp_row(&qp, member, number).with("served", served));
                }
            }
            let name = if steering.is_low_latency(lane) { "urgent".to_owned() } else { number.to_string() };
            let steered = table.entries().iter().filter(|entry| usize::from(**entry) == number).count();
            let row = lane_row(lane.handle()).with("name", name).with("connections", connections);
            rows.push(row.with("steered", steered).with("table", table.entries().len()));
        }
        rows.extend(route_rows(&device.routing().map()));
        let functions = self.functions.all();
        rows.extend(functions.iter().filter(|function| function.number() != 0).map(|it| function_row(it)));
        rows.extend(functions.iter().flat_map(|function| event_queue_rows(function)));
        rows.extend(cqs.values().map(|cq| cq_row(cq)));
        rows.extend(qps.into_values());
        rows
    }
}

impl AsFd for StatusServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl EventSource for StatusServer {
    /// Answers pending requests. A failure is logged, and does not end the server.
    fn on_readable(&self) -> io::Result<Rearm> {
        if let Err(error) = self.socket.answer(|| self.text(), |command| self.execute(command)) {
            // The process lacks descriptors or memory. The next request may succeed.
            tracing::debug!(%error, "failed to answer `ironwarp show`");
        }
        Ok(Rearm::After(PAUSE))
    }
}

/// The names of the fields for what a function uses. Its quotas have the prefix `max_`.
const RESOURCES: [(&str, Resource); 9] = [
    ("queue_pairs", Resource::QueuePairs),
    ("completion_queues", Resource::CompletionQueues),
    ("shared_receive_queues", Resource::SharedReceiveQueues),
    ("protection_domains", Resource::ProtectionDomains),
    ("tags", Resource::Tags),
    ("completion_handlers", Resource::CompletionHandlers),
    ("event_queues", Resource::EventQueues),
    ("registered_bytes", Resource::RegisteredBytes),
    ("parked_bytes", Resource::ParkedBytes),
];

/// Returns the row of a function (requirement X1): what it uses of each kind of resource, and its quotas.
fn function_row(function: &function::Function) -> Row {
    let device = function.device();
    let row = Row::new("function").with("number", function.number());
    let row = row.with("stopped", device.events().is_stopped());
    RESOURCES.into_iter().fold(row, |row, (name, resource)| {
        let row = row.with(name, device.used(resource));
        match device.account().quotas().get(resource) {
            u64::MAX => row,
            quota => row.with(&format!("max_{name}"), quota),
        }
    })
}

/// Returns the rows of the event queues of a function. Each function numbers its own, so `2:1024` is number 1024 of
/// function 2.
fn event_queue_rows(function: &function::Function) -> Vec<Row> {
    let device = function.device();
    let name = |number: u16| match function.number() {
        0 => number.to_string(),
        function => format!("{function}:{number}"),
    };
    let [global, asynchronous] = device.events().stats();
    let mut rows = vec![
        event_queue_row(&name(GLOBAL_QUEUE), global, "adapter, port"),
        event_queue_row(&name(ASYNC_QUEUE), asynchronous, "objects"),
    ];
    rows.extend(device.events().program_queues().iter().map(|queue| {
        let of = if queue.number() == CHANNEL_QUEUE { "connections" } else { "events of the map" };
        event_queue_row(&name(queue.number()), queue.stats(), of)
    }));
    rows.extend(device.handlers().iter().filter_map(|handler| {
        let number = handler.id().event_queue()?;
        let known = function.event_queues().handler(number);
        Some(handler_row(&name(number), handler.stats(), known.as_deref()))
    }));
    rows
}

/// Returns the row of a port: it is `down` if it was taken down, `inactive` if its interface is down, and `active`
/// otherwise.
fn port_row(port: &RdmaPort) -> Row {
    let state = match port.is_active() {
        _ if port.is_down() => "down",
        Ok(true) => "active",
        _ => "inactive",
    };
    let gids = port.gids().entries().unwrap_or_default();
    let address = gids.first().and_then(|entry| entry.gid.ip()).map_or_else(String::new, |ip| ip.to_string());
    Row::new("port").with("number", port.number()).with("state", state).with("address", address)
}

/// Returns the row of a lane.
fn lane_row(lane: &LaneHandle) -> Row {
    let processors = lane.thread().and_then(|thread| thread.processors().ok()).unwrap_or_default();
    let id = lane.thread().map_or(0, Thread::id);
    let ran = lane.thread().map_or(Duration::ZERO, Thread::processor_time);
    let row = Row::new("lane").with("thread", id).with("processors", format_ranges(&processors));
    row.with("ran_ns", ran.as_nanos()).with("waited_ns", run_queue_wait(id)).with("wakes", lane.wakes())
}

/// Returns how long a thread has waited for a processor, in nanoseconds as text; zero if the kernel does not tell.
fn run_queue_wait(thread: i32) -> String {
    // The fields are the time on a processor, the time waiting for one, and the number of time slices: proc(5).
    let schedstat = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    schedstat.split_whitespace().nth(1).unwrap_or("0").to_owned()
}

/// Returns the rows of the event map (requirement I8): one for each kind of event and each destination, with the lanes
/// whose events of that kind go there.
fn route_rows(map: &EventMap) -> Vec<Row> {
    let (shape, by_code) = match map.shape() {
        Shape::ByFunction => ("function", false),
        Shape::ByCode => ("code", true),
        Shape::ByQueue => ("queue", false),
    };
    // Kind of event, destination, and lanes.
    let mut rows: Vec<(String, Route, Vec<usize>)> = Vec::new();
    for code in Code::ALL {
        let events = if by_code { format!("{code:?}") } else { function_name(code).to_owned() };
        for lane in 0..map.lanes() {
            let route = map.route(code, lane);
            match rows.iter_mut().find(|(known, to, _)| known == &events && *to == route) {
                Some((_, _, lanes)) if lanes.contains(&lane) => {} // another code of the same function
                Some((_, _, lanes)) => lanes.push(lane),
                None => rows.push((events.clone(), route, vec![lane])),
            }
        }
    }
    let row = |(events, Route { queue, vector }, lanes): (_, _, Vec<usize>)| {
        let vector = match vector {
            Vector::Line => "line".to_owned(),
            Vector::Message(number) => number.to_string(),
        };
        let lanes = if lanes.len() == map.lanes() { "all".to_owned() } else { format_ranges(&lanes) };
        let row = Row::new("route").with("shape", shape).with("events", events).with("lanes", lanes);
        row.with("queue", queue).with("vector", vector)
    };
    rows.into_iter().map(row).collect()
}

/// Returns the name of a code's function, as `ironwarp show` prints it.
fn function_name(code: Code) -> &'static str {
    match code.function() {
        Function::Global => "adapter",
        Function::Management => "port",
        Function::Rdma => "objects",
        Function::Channel => "connections",
        Function::Completion => "completions",
    }
}

/// Formats numbers in ascending order as ranges, such as `0-3,6`.
fn format_ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns the row of an event queue. `of` says which events it receives.
fn event_queue_row(number: &str, stats: EventQueueStats, of: &str) -> Row {
    let state = match stats.state {
        QueueState::Undefined => "undefined",
        QueueState::Unarmed => "unarmed",
        QueueState::Armed => "armed",
    };
    let row = Row::new("event queue")
        .with("number", number)
        .with("of", of)
        .with("state", state)
        .with("size", stats.size);
    row.with("written", stats.written).with("unread", stats.unread).with("wakes", stats.wakes)
}

/// Returns the row of the event queue of a completion handler, with the processors on which its queue pairs are served
/// and the name of its consumer (requirement N5). `handler` is `None` if it is being dropped.
fn handler_row(number: &str, stats: EventQueueStats, handler: Option<&CompletionHandler>) -> Row {
    let mut of = "completions".to_owned();
    if let Some(handler) = handler {
        of += &format!(", {}", handler.class());
        let processors = handler.processors();
        if !processors.is_empty() {
            of += &format!(", processors {}", format_ranges(&processors));
        }
        if let Some(consumer) = handler.consumer() {
            of += &format!(", consumer {consumer}");
        }
    }
    event_queue_row(number, stats, &of)
}

/// Returns the row of a completion queue.
fn cq_row(cq: &Cq) -> Row {
    let handler = match cq.handler() {
        Some(id) if id.is_private() => "its own".to_owned(),
        Some(HandlerId(number)) => number.to_string(),
        None => "none".to_owned(),
    };
    let row = Row::new("cq").with("number", cq.id()).with("completions", cq.len());
    let row = row.with("capacity", cq.capacity()).with("armed", cq.is_armed()).with("handler", handler);
    row.with("overrun", cq.has_overrun())
}

/// Returns the row of a queue pair, whose socket is `member` of a poll set on this lane.
fn qp_row(qp: &Qp, member: Arc<dyn Member>, lane: usize) -> Row {
    let attributes = qp.attributes();
    let traffic = tcp_counters(member.as_fd().as_raw_fd());
    let (route, (sent, received)) = member.route();
    let addresses = member.movable().and_then(|connection| connection.addresses());
    let (peer, local) =
        addresses.map_or_else(Default::default, |(peer, local)| (peer.to_string(), local.to_string()));
    let row = Row::new("qp").with("number", qp.id()).with("state", qp.state()).with("lane", lane);
    let row = row.with("peer", peer).with("local", local);
    let row = row.with("sends", qp.queued_sends()).with("receives", qp.queued_receives());
    let row = row.with("send_cq", attributes.send_cq.id()).with("receive_cq", attributes.receive_cq.id());
    let row = row.with("received", traffic.received + received);
    let row = row.with("acknowledged", traffic.acknowledged + sent).with("route", route);
    let row = row.with("round_trip_us", traffic.round_trip.as_micros());
    let row = row.with("retransmissions", traffic.retransmissions);
    let row = row
        .with("blocked", qp.is_blocked())
        .with("message_awaiting_receive", qp.message_awaiting_receive().is_some());
    let row = row.with("shared_receives", qp.shared_receives());
    row.with("fault", qp.error().map_or_else(String::new, ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::answer::MAX_LINE_LEN;
    use super::*;

    #[test]
    fn a_row_survives_the_text() {
        let row = Row::new("qp").with("number", 7).with("fault", "the peer\tclosed\n").with("none", "");
        let read = Row::parse(&row.to_string());
        assert_eq!(read, row);
        assert_eq!((read.number("number"), read.text("fault")), (7, "the peer closed "));
        assert_eq!((read.number("fault"), read.text("unknown"), read.kind()), (0, "", "qp"));
    }

    #[test]
    fn commands_are_read_and_written_alike() {
        for text in ["port ironwarp0 down", "port mlx5_1:2 up"] {
            assert_eq!(PortCommand::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "port", "port a", "port a left", "port a:x up", "port a:1:2 up", "port a:300 up"] {
            assert_eq!(PortCommand::parse(text), None, "{text}");
        }
        assert_eq!(execute("port a down up"), "error\twhy=unknown command `port a down up`\n");
        assert_eq!(execute("port nosuch down"), "error\twhy=the process has no device `nosuch`\n");
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_read() {
        let read = Row::parse("qp\tnumber=\x1b[2J7\tpeer=\u{9b}1m\u{202e}x\x7f");
        assert_eq!(read.text("number"), "\u{fffd}[2J7");
        assert_eq!(read.text("peer"), "\u{fffd}1m\u{fffd}x\u{fffd}");
        assert_eq!(printable("a\tb\r\n"), "a\u{fffd}b\u{fffd}\u{fffd}");
        assert_eq!(Row::parse(&"x".repeat(1 << 20)).kind().len(), MAX_LINE_LEN);
    }

    #[test]
    fn a_map_is_told_by_events_and_lanes() {
        let shown = |shape| -> Vec<String> {
            let rows = route_rows(&EventMap::new(shape, 3, 3));
            let fields = ["events", "lanes", "queue", "vector"];
            rows.iter().map(|row| fields.map(|field| row.text(field)).join(" ")).collect()
        };
        let by_function = [
            "completions 0 2048 1",
            "completions 1 2049 2",
            "completions 2 2050 1",
            "objects all 1 0",
            "port all 0 0",
            "adapter all 0 0",
            "connections all 2 0",
        ];
        assert_eq!(shown(Shape::ByFunction), by_function);
        assert_eq!(shown(Shape::ByQueue), by_function);
        let by_code = shown(Shape::ByCode);
        assert_eq!(by_code.len(), Code::ALL.len() + 2);
        assert!(by_code.contains(&"QpFatal all 1 0".to_owned()), "{by_code:?}");
    }

    #[test]
    fn numbers_in_a_row_are_told_by_the_first_and_the_last() {
        assert_eq!(format_ranges(&[]), "");
        assert_eq!(format_ranges(&[3]), "3");
        assert_eq!(format_ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn names_are_of_a_process_and_a_number() {
        assert_eq!(parse_name("ironwarp/12/3"), Some((12, 3)));
        for other in ["ironwarp/12", "ironwarp/a/3", "other/12/3", "ironwarp/12/3/4"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
