//! A capture survives the program: traffic is in the file immediately.

mod common;

use common::{Place, command};
use ironwarp_pcap::Capture;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Kills the program while it sends.
#[test]
fn a_killed_program_leaves_a_file_that_can_be_read() {
    let place = Place::new("capture-killed");
    let file = place.path("trace.pcap");
    let ironwarp = || command(env!("CARGO_BIN_EXE_ironwarp"));
    let mut server =
        ironwarp().args(["ping", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.take().expect("piped")); // if closed, the server would exit
    said.read_line(&mut line).expect("text");
    let addr =
        line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next()).expect("an address");
    let mut client = ironwarp()
        .args(["ping", addr, "-c", "0", "-i", "0", "-s", "3000"])
        .env("IRONWARP_PCAP", &file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(client.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("seq=50 ")));
    client.kill().expect("kill -9");
    client.wait().expect("ends");
    server.kill().expect("kill -9");
    server.wait().expect("ends");

    let capture = Capture::open(&file).expect("a capture");
    assert!(!capture.cut_off);
    let [conversation] = &capture.conversations[..] else {
        panic!("{} connections", capture.conversations.len())
    };
    assert_eq!(conversation.responder.to_string(), addr);
    let sends = conversation.frames.iter().filter(|frame| frame.name() == "Send").count();
    assert!(sends >= 100, "expected 50 in each direction, found {sends} in the file");
}
