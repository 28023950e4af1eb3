//! The examples, run as processes that talk to each other, and the quick start page, which contains one of them.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::Adapter;
use ironwarp::connection::{ConnectError, ConnectOptions};
use ironwarp::memory::{Access, Buffer};
use ironwarp::queue::WorkRequest;
use ironwarp_testkit::child;
use ironwarp_testkit::hosts::{INTERFACE, MOVING, two_hosts};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// Returns a command that runs an example. Cargo builds the examples together with the tests, in a directory beside
/// them.
fn example(name: &str, arguments: &[&str]) -> Command {
    prepared(Command::new(path_of(name)), arguments)
}

fn path_of(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: build it with `cargo build --examples`", path.display());
    path
}

fn prepared(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).stdin(Stdio::null());
    // Do not inherit settings of the developer.
    let settings = std::env::vars().filter(|(name, _)| name.starts_with("IRONWARP_"));
    settings.for_each(|(name, _)| _ = command.env_remove(name));
    command
}

fn run(name: &str, arguments: &[&str]) -> Output {
    example(name, arguments).output().unwrap()
}

/// Returns the standard output of a process. Panics unless the process succeeded.
#[track_caller]
fn stdout_of_success(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the standard error of a process. Panics unless the process failed.
#[track_caller]
fn stderr_of_failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A listening process, killed when dropped.
struct Server {
    process: Child,
    out: BufReader<ChildStdout>,
    addr: String,
}

impl Server {
    fn start(name: &str, arguments: &[&str]) -> Self {
        Self::run(example(name, arguments))
    }

    fn run(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let addr =
            first.strip_prefix("listening at ").unwrap_or_else(|| panic!("{first:?}")).trim().to_owned();
        Self { process, out, addr }
    }

    /// Waits until the process exits. Returns its standard output, its standard error, and whether it succeeded.
    fn end(mut self) -> (String, String, bool) {
        let (mut out, mut error) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (out, error, self.process.wait().unwrap().success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A temporary directory, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ironwarp-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns pseudo-random bytes.
fn random_bytes(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[7]
    };
    (0..len).map(|_| next()).collect()
}

// --- Quick start ---

#[test]
fn the_quickstart_is_one_page_and_its_program_writes_to_remote_memory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/quickstart.md")).unwrap();
    let (_, block) = page.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert_eq!(block, fs::read_to_string(root.join("examples/quickstart.rs")).unwrap());
    assert!(block.lines().count() < 40, "{} lines of code", block.lines().count());
    assert!(page.lines().count() <= 80, "{} lines exceed a page", page.lines().count());

    let server = Server::start("quickstart", &[]);
    stdout_of_success(&run("quickstart", &[&server.addr]));
    assert_eq!(server.end(), ("my memory says: hello from afar\n".into(), String::new(), true));
}

// --- ping ---

#[test]
fn ping_prints_minimum_median_and_maximum() {
    let server = Server::start("ping", &["serve", "--once"]);
    let said = stdout_of_success(&run("ping", &["run", &server.addr, "-c", "50", "-s", "1000"]));
    let times = said.strip_prefix("50 round trips of 1000 bytes: ").unwrap().trim();
    let times: Vec<f64> = times
        .split(", ")
        .zip(["min ", "median ", "max "])
        .map(|(time, word)| time.strip_prefix(word).unwrap().strip_suffix(" µs").unwrap().parse().unwrap())
        .collect();
    assert!(times.len() == 3 && times[0] > 0.0 && times.is_sorted(), "{said}");
    let (out, error, content) = server.end();
    assert!(out.ends_with(": 50 messages\n") && error.is_empty() && content, "{out}{error}");
}

#[test]
fn examples_explain_themselves_and_their_failures() {
    for name in ["ping", "kv", "copy", "mechanisms"] {
        assert!(stdout_of_success(&run(name, &["--help"])).contains("Usage:"));
        assert_eq!(run(name, &["no such command"]).status.code(), Some(2));
    }
    // A port that was in use, and is free again.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = stderr_of_failure(&run("ping", &["run", &unused]));
    assert_eq!(
        refused,
        format!(
            "ping: failed to connect to {unused}: Connection refused (os error 111): no listener at that address\n"
        )
    );
    assert!(stderr_of_failure(&run("kv", &["get", &unused, "key"])).contains("Connection refused"));
    assert_eq!(
        stderr_of_failure(&run("copy", &["send", "no/such/file", &unused])),
        "copy: no/such/file: No such file or directory (os error 2)\n"
    );
}

// --- kv ---

#[test]
fn kv_gets_what_was_put() {
    let server = Server::start("kv", &["serve", "--slots", "4"]);
    let kv = |verb: &str, rest: &[&str]| run("kv", &[&[verb, &server.addr], rest].concat());
    assert_eq!(stderr_of_failure(&kv("get", &["colour"])), "kv: no value for `colour`\n");
    // As many keys as slots: some collide.
    for (key, value) in [("colour", "green"), ("size", ""), ("", "no name"), ("shape", "round")] {
        stdout_of_success(&kv("put", &[key, value]));
        assert_eq!(stdout_of_success(&kv("get", &[key])), format!("{value}\n"));
    }
    stdout_of_success(&kv("put", &["colour", "red"]));
    assert_eq!(stdout_of_success(&kv("get", &["colour"])), "red\n");
    assert_eq!(stdout_of_success(&kv("get", &["shape"])), "round\n");
    assert_eq!(stderr_of_failure(&kv("put", &["one more", "x"])), "kv: the table is full\n");
    assert!(stderr_of_failure(&kv("put", &["colour", &"x".repeat(500)])).contains("exceed 496 bytes"));
}

#[test]
fn kv_never_gets_a_torn_value() {
    // Long enough for several segments, so that concurrent Reads and Writes can be torn.
    let server = Server::start("kv", &["serve", "--slots", "1", "--slot", "100000"]);
    let values = [b'a', b'b', b'c'].map(|letter| String::from_utf8(vec![letter; 99_000]).unwrap());
    let [a, b, c] = values.each_ref().map(String::as_str);
    stdout_of_success(&run("kv", &["put", &server.addr, "key", a]));
    let put = |values: &[&str]| {
        let arguments = [&["put", "--repeat", "200", &server.addr, "key"], values].concat();
        example("kv", &arguments).spawn().unwrap()
    };
    // Two writers of the same slot.
    let mut writers = [put(&[a, b]), put(&[c])];
    let mut found = BTreeSet::new();
    loop {
        let got = stdout_of_success(&run("kv", &["get", &server.addr, "key", "--repeat", "100"]));
        found.extend(got.lines().map(str::to_owned));
        if writers.iter_mut().all(|writer| writer.try_wait().unwrap().is_some()) {
            break;
        }
    }
    assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()));
    // All values were seen, so Reads and Writes did overlap, and no torn value.
    assert_eq!(found, BTreeSet::from(values));
}

// --- Hand-over ---

#[test]
fn a_server_is_replaced_twice_and_its_clients_notice_nothing() {
    let out =
        stdout_of_success(&run("hand_over", &["--clients", "3", "--connections", "12", "--values", "25"]));
    let last: Vec<&str> = out.lines().rev().take(4).collect();
    assert_eq!(last[3], "900 values written, read and verified with 36 connections, no error", "{out}");
    let mut total = 0;
    for (version, line) in [3, 2, 1].into_iter().zip(last) {
        let count = line.strip_prefix(&format!("version {version} has answered ")).expect(line);
        let count: u32 = count.strip_suffix(" times").expect(line).parse().unwrap();
        assert!(count >= 300, "{out}");
        total += count;
    }
    assert_eq!(total, 900, "{out}");
    let processes: BTreeSet<&str> = out
        .split("is process ")
        .skip(1)
        .map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()])
        .collect();
    assert_eq!(processes.len(), 3, "each version is another process: {out}");
}

// --- move_host ---

#[test]
fn a_server_moves_to_another_host_while_a_client_counts() {
    if !child::in_network("a_server_moves_to_another_host_while_a_client_counts") {
        return;
    }
    let hosts = two_hosts();
    let keys = Scratch::new("keys");
    let key = keys.0.join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let path = path_of("move_host");
    let resume = format!("nsenter {} {} resume {INTERFACE}", hosts[1].namespace(), path.display());
    let address = format!("{MOVING}:0");
    let arguments = ["serve", &address, "--after", "300", "--command", &resume];
    let mut serve = prepared(hosts[0].command(text(&path)), &arguments);
    let server = Server::run({
        serve.env("IRONWARP_KEY_FILE", &key);
        serve
    });
    // The first connection is made before the move, the second after it.
    let counted = stdout_of_success(&run("move_host", &["count", &server.addr, "--messages", "1000"]));
    assert!(counted.starts_with("1000 sums verified, by 2 processes; the longest wait was "), "{counted}");
    let (out, error, success) = server.end();
    assert!(success && out.starts_with("moved after 300 messages, in "), "{out}{error}");
    assert!(error.is_empty() || error.starts_with("1000 messages, and the last client has left"), "{error}");
    assert!(hosts[1].has_address(MOVING) && !hosts[0].has_address(MOVING));
}

// --- copy ---

#[test]
fn copy_transfers_every_byte_and_refuses_to_overwrite() {
    let (from, to) = (Scratch::new("from"), Scratch::new("to"));
    let (source, target) = (from.0.join("file"), to.0.join("file"));
    // Empty, less than a chunk, a chunk, more than the ring holds.
    for len in [0, 1, 256 << 10, 5_000_001] {
        let bytes = random_bytes(len);
        fs::write(&source, &bytes).unwrap();
        let receiver = Server::start("copy", &["receive", text(&to.0), "--overwrite"]);
        let sent = stdout_of_success(&run("copy", &["send", text(&source), &receiver.addr]));
        assert!(
            sent.starts_with(&format!("sent file: {len} bytes, ")) && sent.ends_with(" verified\n"),
            "{sent}"
        );
        let (received, error, content) = receiver.end();
        assert!(content && error.is_empty(), "{error}");
        assert!(received.starts_with(&format!("received {}: {len} bytes, ", target.display())), "{received}");
        assert_eq!(fs::read(&target).unwrap(), bytes);
        assert_eq!(to.names(), ["file"]);
    }

    let before = fs::read(&target).unwrap();
    fs::write(&source, b"another").unwrap();
    let receiver = Server::start("copy", &["receive", text(&to.0)]);
    let why = format!("{} exists: use --overwrite to replace it", target.display());
    assert!(stderr_of_failure(&run("copy", &["send", text(&source), &receiver.addr])).contains(&why));
    assert_eq!(receiver.end(), (String::new(), format!("copy: {why}\n"), false));
    assert_eq!(fs::read(&target).unwrap(), before);
}

/// Runs a sender that misbehaves: announces ten bytes, sends these messages, waits for the first reply, and
/// disconnects.
fn run_odd_sender(receiver: &Server, name: &str, messages: &[&[u8]]) -> Result<(), ConnectError> {
    let adapter = Adapter::new().unwrap();
    let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
    let region = domain.register(Buffer::new(256).unwrap(), Access::LOCAL_WRITE).unwrap();
    let qp = domain.queue_pair(&cq).create().unwrap();
    (0..8).for_each(|id| qp.post_receive(id, &[region.slice(..256).unwrap()]).unwrap());
    let hello = [&10_u64.to_be_bytes(), name.as_bytes()].concat();
    let to: SocketAddr = receiver.addr.parse().unwrap();
    qp.connect(to, &ConnectOptions::new().private_data(&hello))?;
    for message in messages {
        qp.post_send(WorkRequest::send_inline(0, message).unsignaled()).unwrap();
    }
    cq.wait(Duration::from_secs(10)).unwrap();
    Ok(())
}

#[test]
fn copy_removes_incomplete_files() {
    let to = Scratch::new("partial");
    let complains = |messages: &[&[u8]]| {
        let receiver = Server::start("copy", &["receive", text(&to.0)]);
        run_odd_sender(&receiver, "file", messages).unwrap();
        let (out, error, content) = receiver.end();
        assert!(!content && out.is_empty(), "{out}");
        assert_eq!(to.names(), Vec::<String>::new());
        error
    };
    let chunk = u32::to_be_bytes;
    let checksum = [0; 8];
    assert_eq!(complains(&[&chunk(5)]), "copy: the peer disconnected before the file was complete\n");
    assert_eq!(complains(&[&chunk(5), &checksum]), "copy: received 5 bytes, expected 10\n");
    let wrong = complains(&[&chunk(10), &checksum]);
    assert!(
        wrong.starts_with("copy: checksum mismatch: ") && wrong.ends_with(", expected 0000000000000000\n"),
        "{wrong}"
    );
    assert_eq!(
        complains(&[&chunk(u32::MAX)]),
        "copy: chunk of 4294967295 bytes exceeds the maximum of 262144\n"
    );
    assert_eq!(complains(&[b"?"]), "copy: invalid message\n");
}

#[test]
fn copy_writes_only_to_its_directory() {
    let to = Scratch::new("outside");
    for name in ["../file", "/file", "a/b", "..", ".", "", "a/"] {
        let receiver = Server::start("copy", &["receive", text(&to.0)]);
        let error = run_odd_sender(&receiver, name, &[]).unwrap_err();
        assert!(error.to_string().contains("invalid file name"), "{name}: {error}");
        assert!(!receiver.end().2);
    }
    assert_eq!(to.names(), Vec::<String>::new());
}

// --- Async echo ---

/// Two messages on each connection: enough for every chunk of the server to be used several times.
#[cfg(feature = "tokio")]
#[test]
fn async_echo_serves_a_thousand_connections() {
    let out = stdout_of_success(&run("async_echo", &["--connections", "1000", "--messages", "2"]));
    assert!(
        out.starts_with("1000 connections: 2000 messages of 1024 bytes echoed and verified in "),
        "{out:?}"
    );
}
