//! Runs `ironwarp ping`, with server and client in separate processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A server that is killed on drop.
struct Server {
    process: Child,
    out: BufReader<ChildStdout>,
    addr: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::run(ironwarp().arg("ping").args(arguments))
    }

    fn run(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut out = BufReader::new(process.stdout.take().expect("piped"));
        let mut first = String::new();
        out.read_line(&mut first).expect("prints where it listens");
        let addr = first.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let addr = addr.unwrap_or_else(|| panic!("no address in {first:?}")).to_owned();
        Self { process, out, addr }
    }

    /// Returns its output until it exits, and whether it succeeded.
    fn end(mut self) -> (String, bool) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        (rest, self.process.wait().expect("ends").success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ironwarp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironwarp"));
    command.stdin(Stdio::null());
    // Ignores settings of the developer.
    let settings = std::env::vars().filter(|(name, _)| name.starts_with("IRONWARP_"));
    settings.for_each(|(name, _)| _ = command.env_remove(name));
    command
}

fn ping(arguments: &[&str]) -> Output {
    ironwarp().arg("ping").args(arguments).output().expect("runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn every_operation_over_both_ip_versions() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let server = Server::start(&["--listen", at]);
        for op in ["send", "write", "read"] {
            for size in ["0", "1", "64", "300000"] {
                for acknowledged in [&[][..], &["--acknowledged"]] {
                    let arguments = [&server.addr, "-c", "3", "-i", "0", "-s", size, "--op", op];
                    let output = ping(&[&arguments[..], acknowledged].concat());
                    assert!(output.status.success(), "{arguments:?}: {output:?}");
                    let text = stdout(&output);
                    let replies: Vec<_> = text.lines().filter(|line| line.contains("time=")).collect();
                    assert_eq!(replies.len(), 3, "{text}");
                    for (seq, reply) in (1..).zip(replies) {
                        let begin = format!("{size} bytes from {}: seq={seq} time=", server.addr);
                        assert!(reply.starts_with(&begin) && reply.ends_with(" µs, verified"), "{reply}");
                    }
                    assert!(text.contains("\n3 sent, 3 received, every byte verified\n"), "{text}");
                }
            }
        }
    }
}

#[test]
fn the_first_line_describes_the_connection_and_the_last_the_round_trips() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let output = ping(&[&server.addr, "-c", "2", "-i", "0", "--quiet"]);
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with(&format!("PING {} from 127.0.0.1:", server.addr)), "{text}");
    let agreed = ": Send of 64 bytes, CRC, IRD 32, ORD 32, Ironwarp peer";
    assert!(lines[0].ends_with(agreed), "{text}");
    assert_eq!(lines[1], format!("--- {} ---", server.addr));
    assert_eq!(lines[2], "2 sent, 2 received, every byte verified");
    let times = lines[3].strip_prefix("round trip min/median/p99/max ").and_then(|it| it.strip_suffix(" µs"));
    let times: Vec<f64> = times.expect("times").split('/').map(|it| it.parse().expect("a number")).collect();
    assert!(times.len() == 4 && times.is_sorted() && times[0] > 0.0, "{times:?}");
    assert!(!text.contains('\x1b'), "no colour without a terminal");
}

/// `docs/settings.md`: settings come from the environment.
#[test]
fn settings_of_the_environment_are_used() {
    let run = |name, value| {
        let server = Server::run(ironwarp().args(["ping", "--listen", "127.0.0.1:0"]).env(name, value));
        ironwarp().args(["ping", &server.addr, "-c", "1"]).env(name, value).output().expect("runs")
    };
    let output = run("IRONWARP_CRC", "off");
    assert!(output.status.success() && stdout(&output).contains(", no CRC, "), "{output:?}");
    let output = run("IRONWARP_PRIVATE", "off");
    assert!(output.status.success() && !stdout(&output).contains("Ironwarp peer"), "{output:?}");
    let output = ironwarp().args(["ping", "127.0.0.1"]).env("IRONWARP_CRCS", "off").output().expect("runs");
    assert!(stderr(&output).contains("the closest is `crc`"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_server_with_once_exits_after_one_client() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--once"]);
    assert!(ping(&[&server.addr, "-c", "2", "-i", "0"]).status.success());
    let (said, content) = server.end();
    assert!(content, "{said}");
    assert!(said.contains(": Send of 64 bytes\n") && said.ends_with(": closed after 2 messages\n"), "{said}");
}

#[test]
fn clients_are_answered_at_the_same_time() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let arguments = ["ping", &server.addr, "-c", "200", "-i", "0", "--quiet"];
    let clients: Vec<_> =
        (0..4).map(|_| ironwarp().args(arguments).stdout(Stdio::piped()).spawn().expect("starts")).collect();
    for client in clients {
        let output = client.wait_with_output().expect("ends");
        assert!(stdout(&output).contains("200 sent, 200 received, every byte verified"), "{output:?}");
    }
}

/// A server that is killed between pings causes an error message and a summary, but no hang.
#[test]
fn a_killed_server_is_noticed() {
    for interval in ["0", "3600"] {
        let mut server = Server::start(&["--listen", "127.0.0.1:0"]);
        let mut client = ironwarp()
            .args(["ping", &server.addr, "-c", "0", "-i", interval])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut out = BufReader::new(client.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("seq=1 ") {
            line.clear();
            assert!(out.read_line(&mut line).expect("text") > 0, "the client exited too early");
        }
        server.process.kill().expect("kill -9");
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("text");
        let output = client.wait_with_output().expect("ends");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with("ironwarp: ") && said.contains("seq="), "{said}");
        assert!(said.contains("the connection was lost") || said.contains("the peer closed"), "{said}");
        assert!(rest.contains(" received, every byte verified\n"), "{rest}");
    }
}

#[test]
fn a_port_where_nobody_listens() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let output = ping(&[&closed.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "ironwarp: failed to connect to {closed}: Connection refused (os error 111): no listener at that address\n"
    );
    assert_eq!(stderr(&output), expected);
    assert_eq!(stdout(&output), "");
}

/// A server that answers, but does not use MPA.
#[test]
fn a_server_of_another_protocol() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound").to_string();
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("the client connects");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("it listens");
    });
    let output = ping(&[&addr]);
    other.join().expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).starts_with(&format!("ironwarp: failed to connect to {addr}: ")), "{output:?}");
}

/// The reader of the output may stop early.
#[test]
fn a_closed_output_is_not_an_error() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let mut client = ironwarp()
        .args(["ping", &server.addr, "-c", "0", "-i", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(client.stdout.take());
    let output = client.wait_with_output().expect("ends");
    assert_eq!(stderr(&output), "");
}

#[test]
fn help_and_version() {
    let version = ironwarp().arg("--version").output().expect("runs");
    assert_eq!(stdout(&version), format!("ironwarp {}\n", env!("CARGO_PKG_VERSION")));
    let help = ping(&["--help"]);
    assert!(
        help.status.success() && stdout(&help).contains("Examples:\n  ironwarp ping --listen"),
        "{help:?}"
    );
    for wrong in
        [&["--listen", "127.0.0.1:0", "10.0.0.1"][..], &["--once", "10.0.0.1"], &["-s", "99999999999", "x"]]
    {
        assert_eq!(ping(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
