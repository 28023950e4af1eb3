//! Runs `ironwarp show` beside a program that pings another one, and beside sockets of another user that pretend to be
//! adapters.

mod common;

use common::Place;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A process whose first line has been read, killed on drop.
struct Running {
    process: Child,
    first: String,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut ironwarp(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("output").expect("a line");
        Self { process, first, lines }
    }

    fn number(&self) -> String {
        self.process.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ironwarp(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironwarp"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns a server, a client that pings it forever, and the address of the server.
fn pinging() -> (Running, Running, String) {
    let server = Running::start(&["ping", "--listen", "127.0.0.1:0"]);
    let address = server.first.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
    let address = address.expect("an address").to_owned();
    // It prints its first line once it is connected, shortly before its first pings.
    let client = Running::start(&["ping", &address, "-c", "0", "-i", "0", "-s", "1000"]);
    (server, client, address)
}

fn show(arguments: &[&str]) -> Output {
    ironwarp(&["show"]).args(arguments).output().expect("runs")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// Returns the cells of the first row of a table with the heads of their columns, which are at least two spaces apart.
fn row(page: &str, first_head: &str) -> Vec<(String, String)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().split("  ").filter(|cell| !cell.is_empty()).map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = page.lines().skip_while(|line| !line.trim_start().starts_with(first_head));
    let heads = cells(lines.next().unwrap_or_else(|| panic!("no table of {first_head} in\n{page}")));
    heads.into_iter().zip(cells(lines.next().expect("a row"))).collect()
}

fn cell(row: &[(String, String)], head: &str) -> String {
    row.iter()
        .find(|(known, _)| known == head)
        .map(|(_, cell)| cell.clone())
        .unwrap_or_else(|| panic!("{row:?}"))
}

#[test]
fn a_program_that_runs_is_shown_and_no_other() {
    let (server, client, address) = pinging();
    let shown = show(&[&client.number()]);
    assert!(shown.status.success(), "{shown:?}");
    let page = text(shown.stdout);
    assert!(
        page.starts_with(&format!(
            "ironwarp (process {}): device ironwarp0, persona roce, ",
            client.number()
        )),
        "{page}"
    );
    assert!(!page.contains(&format!("process {}", server.number())), "{page}");
    let lane = row(&page, "lane");
    assert!(cell(&lane, "busy").ends_with(" %"), "{page}");
    assert!(cell(&lane, "steered here").ends_with(" of 128"), "{page}");
    assert_eq!(cell(&row(&page, "events by function"), "go to event queue"), "2048", "{page}");
    assert_eq!(cell(&row(&page, "event queue"), "of"), "adapter, port");
    assert_eq!(cell(&row(&page, "CQ"), "handler"), "its own");
    let qp = row(&page, "QP");
    assert_eq!((cell(&qp, "state"), cell(&qp, "peer")), ("ready to send".to_owned(), address), "{page}");
    for rate in ["in", "out"] {
        let rate = cell(&qp, rate);
        assert!(rate.ends_with("B/s") && rate != "0 B/s", "no traffic: {page}");
    }
    let both = text(show(&[]).stdout);
    for process in [&server, &client] {
        assert!(both.contains(&format!("(process {})", process.number())), "{both}");
    }
}

#[test]
fn watching_goes_on_until_the_program_ends() {
    let (_server, client, _) = pinging();
    let number = client.number();
    let mut watch = Running::start(&["show", &number, "--watch"]);
    let heading = watch.first.clone();
    assert!(heading.contains(&format!("(process {number})")), "{heading}");
    assert!(watch.lines.by_ref().any(|line| line.expect("a line") == heading), "no second page");
    drop(client);
    watch.lines.by_ref().for_each(drop);
    assert!(watch.process.wait().expect("ends").success());
}

#[test]
fn a_process_without_an_adapter_is_reported() {
    let shown = show(&[&std::process::id().to_string()]);
    assert_eq!(shown.status.code(), Some(1));
    let expected = format!("ironwarp: process {} shows no adapter: it does not exist, ", std::process::id());
    let error = text(shown.stderr);
    assert!(error.starts_with(&expected), "{error}");
}

/// Starts a process, as another user if possible, whose socket pretends to be an adapter and answers in this way.
fn hostile(program: &Path, answer: &str) -> Running {
    Running::spawn(Command::new(program).arg(answer))
}

/// Runs `ironwarp show` for one process with a memory limit.
fn show_within_bounds(process: &Running) -> Output {
    let script =
        format!("ulimit -v 2500000; exec {} show {}", env!("CARGO_BIN_EXE_ironwarp"), process.number());
    Command::new("sh").args(["-c", &script]).output().expect("runs")
}

/// Answers that are not text, or have no end, are rejected.
#[test]
fn an_answer_that_is_not_a_sealed_file_of_bounded_size_is_refused() {
    let program = Place::new("show-refused").compile("hostile.c", "hostile", &[]);
    for answer in ["zero", "fifo", "unsealed", "huge"] {
        let process = hostile(&program, answer);
        let shown = show_within_bounds(&process);
        assert_eq!(shown.status.code(), Some(1), "{answer}: {shown:?}");
        assert_eq!(text(shown.stdout), "", "{answer}");
        let error = text(shown.stderr);
        assert!(
            error.starts_with(&format!("ironwarp: process {} shows no adapter", process.number())),
            "{error}"
        );
    }
}

/// The answer of a process and its name reach the terminal only as plain text.
#[test]
fn control_characters_do_not_reach_the_screen() {
    let program = Place::new("show-escapes").compile("hostile.c", "hostile", &[]);
    let shown = show_within_bounds(&hostile(&program, "escapes"));
    assert!(shown.status.success(), "{shown:?}");
    let page = text(shown.stdout);
    assert!(page.contains("OWNED") && page.contains("reversed") && page.contains("evil"), "{page:?}");
    let unsafe_ = |c: char| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
    assert!(!page.contains(unsafe_), "{page:?}");
}

/// Sockets that do not answer do not delay the others.
#[test]
fn silent_sockets_do_not_delay_the_others() {
    let program = Place::new("show-silent").compile("hostile.c", "hostile", &[]);
    let silent: Vec<Running> = (0..20).map(|_| hostile(&program, "silent")).collect();
    let (_server, client, _) = pinging();
    let began = std::time::Instant::now();
    let shown = show(&[]);
    let took = began.elapsed();
    let page = text(shown.stdout);
    assert!(page.contains(&format!("(process {})", client.number())), "{page}");
    // Two samples of up to four seconds each. Sequential queries would take at least 40 seconds.
    assert!(took.as_secs() < 20, "{took:?}");
    let notice = text(shown.stderr);
    assert!(notice.contains("no answer from "), "{notice}");
    drop(silent);
}

/// Another user who queries in a loop gets no answer, wakes the lane at most a hundred times per second, and does not
/// prevent others from being answered.
#[test]
fn queries_in_a_loop_by_another_user_cost_little() {
    let program = Place::new("show-hammer").compile("hostile.c", "hostile", &[]);
    let server = Running::start(&["ping", "--listen", "127.0.0.1:0"]);
    let _hammer = Running::spawn(Command::new(program).args(["hammer", &server.number()]));
    let shown = show(&[&server.number()]);
    assert!(shown.status.success(), "{shown:?}");
    let page = text(shown.stdout);
    let wakes: f64 = cell(&row(&page, "lane"), "wakes/s").parse().expect("a number");
    // One per query, one per timer, and some for the test's own queries.
    assert!(wakes < 300.0, "{page}");
}

/// A process that is out of descriptors cannot answer, but answers once it has some again.
#[test]
fn an_adapter_answers_again_once_it_has_descriptors() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let server = Running::start(&["ping", "--listen", "127.0.0.1:0"]);
    let process = Pid::from_child(&server.process);
    let limit = |limit| prlimit(Some(process), Resource::Nofile, limit).expect("a child process");
    let usual = getrlimit(Resource::Nofile);
    limit(Rlimit { current: Some(3), ..usual });
    let shown = show(&[&server.number()]);
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    assert!(text(shown.stderr).contains("no answer from 1 adapter"));
    limit(usual);
    let shown = show(&[&server.number()]);
    assert!(shown.status.success(), "{shown:?}");
}

/// Returns the output of `ironwarp show --events` for a process.
fn events(process: &str) -> String {
    let shown = show(&["--events", process, "--all"]);
    assert!(shown.status.success(), "{shown:?}");
    text(shown.stdout)
}

#[test]
fn events_before_a_kill_are_left_behind() {
    let (mut server, client, _) = pinging();
    let process = server.number();
    // Until both have exchanged messages.
    let running = loop {
        let page = events(&process);
        if page.matches("received a").count() > 10 {
            break page;
        }
    };
    assert!(running.starts_with(&format!("ironwarp (process {process}, running)")), "{running}");
    server.process.kill().expect("kills");
    server.process.wait().expect("ends");
    let left = events(&process);
    assert!(left.starts_with(&format!("ironwarp (process {process}, has died)")), "{left}");
    for expected in
        ["posted receive ", "posted ", "sent ", "received a", "state ready to send", "completed re"]
    {
        assert!(left.contains(expected), "no `{expected}` in\n{left}");
    }
    let times: Vec<_> = left.trim_end().lines().skip(1).map(|line| line.split_whitespace().next()).collect();
    assert!(
        times.iter().all(|time| time.is_some_and(|time| time.len() == "00:00:00.000000".len())),
        "{left}"
    );
    let named = text(show(&["--events"]).stderr);
    assert!(named.contains(&format!("{process} (ironwarp)")), "{named}");
    drop(client);
}

#[test]
fn a_program_that_exits_leaves_no_events() {
    let (server, client, address) = pinging();
    drop(client);
    let mut short = Running::start(&["ping", &address, "-c", "3", "-i", "0"]);
    let process = short.number();
    assert!(short.process.wait().expect("ends").success());
    drop(server);
    let shown = show(&["--events", &process]);
    assert!(!shown.status.success() && shown.stdout.is_empty(), "{shown:?}");
    assert!(text(shown.stderr).contains("has left no events"));
}

#[test]
fn a_process_without_the_setting_records_nothing() {
    let server =
        Running::spawn(ironwarp(&["ping", "--listen", "127.0.0.1:0"]).env("IRONWARP_RECORDER", "off"));
    let shown = show(&["--events", &server.number()]);
    assert!(!shown.status.success(), "{shown:?}");
}
