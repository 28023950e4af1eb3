//! `ironwarp show`: shows the current state of the adapters on this machine, as reported by the programs that use them.

mod events;

use crate::say::{self, Failure};
use clap::Args;
use ironwarp_engine::status::{self, Adapter, Answer, Row, printable};
use std::collections::HashMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

const MORE: &str = "\
Shows programs that have connected or listen, if they are yours or you are root. They need not be started in any special way.
Rates are measured over a quarter of a second, or over the interval of --watch.

  busy, waits    share of time that the lane's thread ran, and that it was runnable but had no CPU
  steered here   entries of the indirection table that assign new connections to the lane
  served by      what moves the bytes: a lane, or the program because it polls
  function       a part of the adapter with quotas of its own; 3 of 8 means 3 in use and a quota of 8
  event queue    a queue of asynchronous events, or of a completion handler with its number and class, 2:1024 of
                 function 2; armed: its reader is waiting";

/// Show what running programs do with the adapter: lanes, event queues, completion queues and queue pairs
#[derive(Debug, Args)]
#[command(after_help = MORE)]
pub(crate) struct Arguments {
    /// Show only this process
    process: Option<i32>,
    /// Repeat every SECONDS [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<NonZero<u32>>,
    /// Show all queue pairs and completion queues, not only the busiest, or all events
    #[arg(long)]
    all: bool,
    /// Show the last events instead; of PROCESS also if it has crashed or was killed
    #[arg(long, conflicts_with = "watch")]
    events: bool,
}

/// Interval between the two samples from which rates are computed.
const INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of rows per table, unless all are shown.
const MAX_ROWS: usize = 16;
/// Maximum number of adapters to query at once. Each may take four seconds to answer, or never answer.
const MAX_CONCURRENT_QUERIES: usize = 64;
/// Maximum time of all queries. Only sockets of malicious users, which root queries as well, come close to it.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes of all answers.
const MAX_BYTES: usize = 64 << 20;

/// The state of all adapters at one time.
struct Snapshot {
    at: Instant,
    /// Each adapter with the name of its socket.
    adapters: Vec<(String, Adapter)>,
}

/// Runs the command. Returns false if there is nothing to show.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if arguments.events {
        return events::run(arguments.process, arguments.all);
    }
    let interval = arguments.watch.map_or(INTERVAL, |seconds| Duration::from_secs(seconds.get().into()));
    let mut before = Snapshot::new(arguments.process)?;
    let mut shown = false;
    while !before.adapters.is_empty() {
        thread::sleep(interval);
        let now = Snapshot::new(arguments.process)?;
        if arguments.watch.is_some() && io::stdout().is_terminal() {
            say::line("\x1b[H\x1b[2J")?;
        }
        for (name, adapter) in &now.adapters {
            let earlier = before.adapters.iter().find(|(known, _)| known == name);
            let earlier = earlier.map_or_else(HashMap::new, |(_, adapter)| rows_by_identity(adapter));
            let page = Page { now: adapter, earlier, time: now.at - before.at, all: arguments.all };
            say::line(page.text())?;
            shown = true;
        }
        if arguments.watch.is_none() && shown {
            return Ok(true);
        }
        before = now;
    }
    if !shown {
        say::error(&*Failure::from(nothing_to_show(arguments.process)));
    }
    Ok(shown)
}

/// Returns the message if there is nothing to show.
fn nothing_to_show(process: Option<i32>) -> String {
    match process {
        Some(process) => format!(
            "process {process} shows no adapter: it does not exist, belongs to another user, or has not connected yet; `ironwarp \
             show` lists all that do"
        ),
        None => "none of your running programs on this machine has connected or listens".to_owned(),
    }
}

impl Snapshot {
    /// Queries all adapters, or only those of one process.
    fn new(process: Option<i32>) -> Result<Self, Failure> {
        let names = status::adapters().map_err(|error| format!("failed to read /proc/net/unix: {error}"))?;
        let (began, mut bytes, mut silent, mut left) = (Instant::now(), 0, 0, names.len());
        let mut adapters = Vec::new();
        // Query the sockets that are named after the process first, and the others only if those are not its own: in
        // another PID namespace the process has another PID.
        let prefix = process.map(|process| format!("ironwarp/{process}/"));
        let is_of_process = |name: &String| prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix));
        let (of_process, others): (Vec<_>, Vec<_>) = names.into_iter().partition(is_of_process);
        for names in of_process.chunks(MAX_CONCURRENT_QUERIES).chain(others.chunks(MAX_CONCURRENT_QUERIES)) {
            if process.is_some() && !adapters.is_empty() && !is_of_process(&names[0]) {
                break;
            }
            if began.elapsed() > MAX_TIME || bytes > MAX_BYTES {
                say::notice(format_args!(
                    "{left} adapter(s) not queried because others took too long: name the process, as in `ironwarp show 4711`"
                ));
                break;
            }
            left -= names.len();
            for (name, answer) in query(names, process) {
                let read = answer.and_then(|answer| {
                    bytes += answer.size();
                    if bytes > MAX_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { answer.read() }
                });
                match read {
                    Ok(adapter) => adapters.push((name, adapter)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // The process of a socket that did not answer is known only by the name of the socket.
                        silent += usize::from(process.is_none() || is_of_process(&name));
                    }
                    // The socket belongs to another program, or was closed in the meantime.
                    Err(_) => {}
                }
            }
        }
        if silent > 0 {
            say::notice(format_args!("no answer from {silent} adapter(s): the programs may be stopped"));
        }
        Ok(Self { at: Instant::now(), adapters })
    }
}

/// Queries adapters concurrently, so that an adapter that does not answer does not delay the others. Returns their
/// answers.
fn query(names: &[String], process: Option<i32>) -> Vec<(String, io::Result<Answer>)> {
    thread::scope(|scope| {
        let queries = names.iter().map(|name| (name, scope.spawn(move || status::request(name, process))));
        let queries: Vec<_> = queries.collect();
        let answers = queries.into_iter().map(|(name, thread)| {
            (name.clone(), thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        });
        answers.collect()
    })
}

/// The output for one adapter.
struct Page<'p> {
    now: &'p Adapter,
    /// The rows of the previous snapshot, by identity.
    earlier: HashMap<(&'p str, &'p str), &'p Row>,
    /// Time between the two snapshots.
    time: Duration,
    /// Whether to show all rows.
    all: bool,
}

impl Page<'_> {
    /// Returns the heading and all tables.
    fn text(&self) -> String {
        let queues = [self.event_queues(), self.completion_queues(), self.queue_pairs()];
        let tables = [self.lanes(), self.routes(), self.functions()].into_iter().chain(queues);
        [vec![self.heading()], tables.flatten().collect()].concat().join("\n\n") + "\n"
    }

    /// Returns the rows of one kind.
    fn rows(&self, kind: &str) -> impl Iterator<Item = &Row> {
        self.now.rows.iter().filter(move |row| row.kind() == kind)
    }

    /// Returns a line about the process and its adapter.
    fn heading(&self) -> String {
        let process = self.now.process;
        let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let title = say::bold(format_args!("{} (process {process})", printable(program.trim_end())));
        let Some(adapter) = self.rows("adapter").next() else { return title };
        let stopped = if adapter.text("stopped") == "true" { ", STOPPED after an overflow" } else { "" };
        let retired = match adapter.number("retired_indices") {
            0 => String::new(),
            retired => format!(", {retired} of {} indices used up", adapter.text("indices")),
        };
        let down = self.rows("port").filter(|port| port.text("state") != "active");
        let down: Vec<String> =
            down.map(|port| format!(", port {} {}", port.text("number"), port.text("state"))).collect();
        format!(
            "{title}: device {}{}, persona {}, {} of {} tags in use ({} KiB{retired}){stopped}",
            adapter.text("device"),
            down.concat(),
            adapter.text("persona"),
            adapter.text("tags"),
            adapter.text("max_tags"),
            adapter.number("table_bytes") >> 10
        )
    }

    /// Returns the rate of a field per second, or `None` for a row that is new.
    fn rate(&self, row: &Row, field: &str) -> Option<f64> {
        let same = self.earlier.get(&identity(row))?;
        let increase = row.number(field).checked_sub(same.number(field))?;
        Some(increase as f64 / self.time.as_secs_f64())
    }

    /// Returns the table of lanes.
    fn lanes(&self) -> Option<String> {
        let (lanes, more) = self.take_first(self.rows("lane").collect());
        let rows = lanes.into_iter().map(|row| {
            let share = |field| format_percent(self.rate(row, field));
            let wakes = format_count(self.rate(row, "wakes"));
            let (busy, waits) = (share("ran_ns"), share("waited_ns"));
            let text = |field| row.text(field).to_owned();
            let steered = match row.number("steered") {
                0 => "-".to_owned(),
                entries => format!("{entries} of {}", row.text("table")),
            };
            [text("name"), busy, waits, wakes, text("connections"), steered, text("processors")]
        });
        let heads = ["lane", "busy", "waits", "wakes/s", "connections", "steered here", "processors"];
        format_table(heads, rows.collect(), more)
    }

    /// Returns the table of the event map.
    fn routes(&self) -> Option<String> {
        let (routes, more) = self.take_first(self.rows("route").collect());
        let by = format!("events by {}", routes.first()?.text("shape"));
        let rows = routes
            .into_iter()
            .map(|row| ["events", "lanes", "queue", "vector"].map(|field| row.text(field).to_owned()));
        format_table([&by, "of lanes", "go to event queue", "and wake vector"], rows.collect(), more)
    }

    /// Returns the table of functions: what each uses, and its quotas.
    fn functions(&self) -> Option<String> {
        let (functions, more) = self.take_first(self.rows("function").collect());
        let rows = functions.into_iter().map(|row| {
            let used = |field: &str| match row.text(&format!("max_{field}")) {
                "" => row.text(field).to_owned(),
                quota => format!("{} of {quota}", row.text(field)),
            };
            let stopped = if row.text("stopped") == "true" { "STOPPED" } else { "" };
            let (pairs, queues, tags) = (used("queue_pairs"), used("completion_queues"), used("tags"));
            let (registered, parked) = (used("registered_bytes"), used("parked_bytes"));
            [row.text("number").to_owned(), pairs, queues, tags, registered, parked, stopped.to_owned()]
        });
        let heads = ["function", "QPs", "CQs", "tags", "bytes registered", "bytes parked", ""];
        format_table(heads, rows.collect(), more)
    }

    /// Returns the table of event queues.
    fn event_queues(&self) -> Option<String> {
        let (queues, more) = self.take_first(self.rows("event queue").collect());
        let rows = queues.into_iter().map(|row| {
            let rate = |field| format_count(self.rate(row, field));
            let text = |field| row.text(field).to_owned();
            let (events, wakes) = (rate("written"), rate("wakes"));
            [text("number"), text("of"), text("state"), text("unread"), events, wakes, text("size")]
        });
        format_table(
            ["event queue", "of", "state", "unread", "events/s", "wakes/s", "ring"],
            rows.collect(),
            more,
        )
    }

    /// Returns the table of completion queues, the fullest first.
    fn completion_queues(&self) -> Option<String> {
        let mut queues: Vec<_> = self.rows("cq").collect();
        queues.sort_by_key(|row| std::cmp::Reverse(row.number("completions")));
        let (queues, more) = self.take_first(queues);
        let rows = queues.into_iter().map(|row| {
            let waiting = format!("{} of {}", row.text("completions"), row.text("capacity"));
            let overrun = if row.text("overrun") == "true" { "OVERRUN" } else { "" };
            let armed = if row.text("armed") == "true" { "yes" } else { "no" };
            let text = |field| row.text(field).to_owned();
            [text("number"), waiting, armed.to_owned(), text("handler"), overrun.to_owned()]
        });
        format_table(["CQ", "completions", "armed", "handler", ""], rows.collect(), more)
    }

    /// Returns the table of queue pairs, those with the most traffic first.
    fn queue_pairs(&self) -> Option<String> {
        let rate = |row: &Row, field| self.rate(row, field);
        let traffic = |row: &Row| {
            rate(row, "received").unwrap_or_default() + rate(row, "acknowledged").unwrap_or_default()
        };
        let mut pairs: Vec<_> = self.rows("qp").map(|row| (traffic(row), row)).collect();
        pairs.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let (pairs, more) = self.take_first(pairs.into_iter().map(|(_, row)| row).collect());
        let rows = pairs.into_iter().map(|row| {
            let text = |field| row.text(field).to_owned();
            let cqs = format!("{}/{}", row.text("send_cq"), row.text("receive_cq"));
            let posted = format!("{}/{}", row.text("sends"), row.text("receives"));
            let round_trip = format!("{} µs", row.text("round_trip_us"));
            let (coming, going) =
                (format_bytes(rate(row, "received")), format_bytes(rate(row, "acknowledged")));
            let line =
                [text("number"), text("state"), text("lane"), text("served"), text("peer"), text("route")];
            let rest = [cqs, posted, coming, going, round_trip, remarks(row)];
            let mut cells = line.into_iter().chain(rest);
            std::array::from_fn(|_| cells.next().unwrap_or_default())
        });
        let heads: [_; 12] = [
            "QP",
            "state",
            "lane",
            "served by",
            "peer",
            "route",
            "CQs",
            "sends/receives",
            "in",
            "out",
            "round trip",
            "",
        ];
        format_table(heads, rows.collect(), more)
    }

    /// Returns the rows to show, and the number of the remaining ones.
    fn take_first<'r>(&self, mut rows: Vec<&'r Row>) -> (Vec<&'r Row>, usize) {
        let shown = if self.all { rows.len() } else { rows.len().min(MAX_ROWS) };
        let more = rows.len() - shown;
        rows.truncate(shown);
        (rows, more)
    }
}

/// Returns what identifies a row within its adapter: its kind, and the thread of a lane or the number of any other
/// object.
fn identity(row: &Row) -> (&str, &str) {
    let kind = row.kind();
    (kind, row.text(if kind == "lane" { "thread" } else { "number" }))
}

/// Returns all rows of an adapter, by identity.
fn rows_by_identity(adapter: &Adapter) -> HashMap<(&str, &str), &Row> {
    adapter.rows.iter().map(|row| (identity(row), row)).collect()
}

/// Returns remarks about a queue pair that deserve attention.
fn remarks(row: &Row) -> String {
    let mut remarks = Vec::new();
    if row.text("message_awaiting_receive") == "true" {
        remarks.push("waiting for a receive".to_owned());
    }
    if row.text("blocked") == "true" {
        remarks.push("blocked by the peer".to_owned());
    }
    if row.number("shared_receives") > 0 {
        remarks.push(format!("{} shared receives", row.text("shared_receives")));
    }
    if row.number("retransmissions") > 0 {
        remarks.push(format!("{} retransmissions", row.text("retransmissions")));
    }
    remarks.extend(Some(row.text("fault").to_owned()).filter(|fault| !fault.is_empty()));
    remarks.join("; ")
}

/// Formats a table with words aligned left and numbers aligned right, and a last line if `more` rows are not shown.
/// Returns `None` without rows.
fn format_table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>, more: usize) -> Option<String> {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([heads[at].chars().count()]).max().unwrap_or_default()
    };
    let is_number = |cell: &String| cell.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    let right: [bool; N] = std::array::from_fn(|at| rows.iter().all(|row| is_number(&row[at])));
    let line = |cells: [&str; N]| {
        let cells = (0..N).map(|at| match right[at] {
            true => format!("{:>1$}", cells[at], width(at)),
            false => format!("{:<1$}", cells[at], width(at)),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    let mut lines = vec![line(heads)];
    lines.extend(rows.iter().map(|row| line(std::array::from_fn(|at| row[at].as_str()))));
    if more > 0 {
        lines.push(format!("  {more} more, shown with --all"));
    }
    (!rows.is_empty()).then(|| lines.join("\n"))
}

/// Formats a share of time, given in nanoseconds per second.
fn format_percent(nanoseconds_in_a_second: Option<f64>) -> String {
    nanoseconds_in_a_second.map_or_else(|| "-".to_owned(), |time| format!("{:.0} %", time / 1e7))
}

/// Formats a rate as a number per second.
fn format_count(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
}

/// Formats a rate in bytes per second, with a unit.
fn format_bytes(rate: Option<f64>) -> String {
    let Some(rate) = rate else { return "-".to_owned() };
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
    let unit = units.into_iter().find(|(size, _)| rate >= *size);
    unit.map_or_else(|| format!("{rate:.0} B/s"), |(size, name)| format!("{:.1} {name}", rate / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = vec![row(["7", "RTS", "12 kB/s"]), row(["1024", "Error", "-"])];
        let expected = "    QP  state       in\n     7  RTS    12 kB/s\n  1024  Error        -\n  3 more, shown with --all";
        assert_eq!(format_table(["QP", "state", "in"], rows, 3).expect("rows"), expected);
        assert_eq!(format_table(["QP"], Vec::new(), 0), None);
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(format_bytes(Some(999.0)), "999 B/s");
        assert_eq!(format_bytes(Some(1.25e9)), "1.2 GB/s");
        assert_eq!(
            (format_bytes(None), format_percent(Some(5e8)), format_count(Some(3.4))),
            ("-".into(), "50 %".into(), "3".into())
        );
    }
}
