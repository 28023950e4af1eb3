//! A process of ours that is killed in the middle of a transfer: this test program once more. Before this: `endings.rs`.

use crate::end::End;
use crate::shape::Shape;
use ironwarp::{Adapter, Completes, Config, WorkRequest};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// Tells the process that it is to write, and to whom.
const TO: &str = "IRONWARP_DOOMED";
const WRITING: &str = "the first Write is done";

/// Starts a process that writes to siw without end, and kills it once it has begun and `siw_is_ready`.
pub(crate) fn run_and_kill(to: SocketAddr, siw_is_ready: impl FnOnce()) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "doomed::writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(TO, to.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == WRITING), "it ended before its first Write was done");
    siw_is_ready();
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "a signal ended it");
}

/// Nothing by itself.
#[test]
#[ignore = "a process for another test"]
fn writes_until_it_is_killed() {
    let Ok(to) = std::env::var(TO) else { return };
    // Long Writes, and CRCs: see `operations::SHORT`.
    let adapter = Adapter::open(Config { crc: false, ..Config::default() }).unwrap();
    let shape = Shape { half: 1 << 20, ..Shape::default() };
    let mut end = End::new(&adapter, true, Completes::WhenSent, shape);
    end.connect(to.parse().unwrap()).unwrap();
    end.advert();
    for count in 0.. {
        let source = end.source.slice(0, shape.half).unwrap();
        end.posted(WorkRequest::write(1, &[source], end.to(0))).unwrap();
        if count == 0 {
            println!("{WRITING}");
        }
    }
}
