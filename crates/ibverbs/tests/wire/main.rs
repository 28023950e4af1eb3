//! What unmodified programs put on the wire is standard iWARP: Wireshark's decoder reads the adapter's own captures of them, and
//! finds nothing malformed.
//!
//! A capture is cut anew first, each frame a TCP segment of its own, because that decoder loses its way where a segment ends
//! within the first bytes of an FPDU; and because two processes that write to one file have each packet there twice. What it
//! cannot know is left out of the verdict: the private messages of docs/wire.md, all of RDMAP's opcode F, which RFC 6580
//! leaves to experiments. The signals are none of these: they are empty Writes, which it reads.

#![expect(clippy::unwrap_used, reason = "a test may stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

use common::scratch;
use ironwarp_pcap::{Capture, recut};
use programs::{Ended, UCX, run_pair};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Opcode F.
const PRIVATE: u8 = 0xf;

/// So much is captured at most, so that a test takes no longer than it must.
const MOST: u64 = 16 << 20;

/// What tshark prints about a file. Its decoder of RPC-over-RDMA is off: by a guess at the first bytes, it takes short Sends for
/// its own and then finds them malformed.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["--disable-protocol", "rpcordma"]).args(arguments);
    let output = command.output().expect("tshark is missing: run `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn trace(test: &str) -> PathBuf {
    scratch(test).join("trace.pcap")
}

/// How many messages of each kind tshark sees.
fn opcodes(file: &Path) -> BTreeMap<u8, usize> {
    let text = tshark(file, &["-T", "fields", "-e", "iwarp_rdma.opcode"]);
    let mut opcodes = BTreeMap::new();
    for opcode in text.split([',', '\n']).filter(|it| !it.is_empty()) {
        let opcode = u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap();
        *opcodes.entry(opcode).or_default() += 1;
    }
    opcodes
}

/// Every frame of a capture is one that tshark reads, too, as what it is. Says how many of each kind there are.
fn check(test: &str, ended: &[&Ended]) -> BTreeMap<u8, usize> {
    for ended in ended {
        assert_eq!(ended.code, 0, "{}", ended.said);
    }
    let trace = trace(test);
    assert!(fs::metadata(&trace).unwrap().len() < MOST, "that is a lot");
    let capture = Capture::open(&trace).unwrap();
    assert!(!capture.cut_off && !capture.conversations.is_empty());
    let problems: Vec<_> = capture.conversations.iter().flat_map(|it| &it.problems).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let anew = trace.with_file_name("anew.pcap");
    recut::recut(&capture, File::create(&anew).unwrap()).unwrap();

    let mut names = BTreeMap::new();
    capture.frames().for_each(|(_, frame)| *names.entry(frame.name()).or_insert(0_usize) += 1);
    println!("{test}: {} connections: {names:?}", capture.conversations.len());
    let found = opcodes(&anew);
    let startups = tshark(&anew, &["-Y", "iwarp_mpa.req || iwarp_mpa.rep"]).lines().count();
    assert_eq!(found.values().sum::<usize>() + startups, capture.frames().count(), "tshark misses some");
    let bad = format!("(_ws.malformed || _ws.expert.severity == error) && !(iwarp_rdma.opcode == {PRIVATE})");
    assert_eq!(tshark(&anew, &["-Y", &bad]), "");
    let text = tshark(&anew, &["-T", "pdml", "-J", "iwarp_mpa"]);
    assert_eq!(text.matches("(Good CRC32)").count(), found.values().sum::<usize>(), "a CRC is wrong");
    fs::remove_dir_all(scratch(test)).unwrap();
    found
}

/// Read Requests and their answers: those of the RFC until the two ends know each other, private ones (Read V2) from then on.
fn reads(found: &BTreeMap<u8, usize>) -> usize {
    [1, 2, PRIVATE].iter().filter_map(|opcode| found.get(opcode)).sum()
}

#[test]
fn what_ib_write_bw_sends_is_iwarp() {
    let test = "wire-write";
    let trace = trace(test);
    let words = ["ib_write_bw", "-n", "100", "-F"];
    let (server, client) = run_pair(test, &["--pcap", trace.to_str().unwrap()], &[], &words);
    let found = check(test, &[&server, &client]);
    assert!(found[&0] >= 100, "Writes: {found:?}");
}

#[test]
fn what_rping_sends_is_iwarp() {
    let test = "wire-rping";
    let trace = trace(test);
    let words = ["rping", "-a", "127.0.0.1", "-C", "20", "-V", "-S", "4000"];
    let port = programs::free_port().to_string();
    let words = [&words[..], &["-p", &port]].concat();
    let mut server =
        programs::start(test, &["--pcap", trace.to_str().unwrap()], &[&words[..], &["-s"]].concat());
    server.wait_until_it_listens(port.parse().unwrap());
    let client = programs::run(test, &[], &[&words[..], &["-c"]].concat());
    let found = check(test, &[&server.finish(), &client]);
    assert!([0, 3].iter().all(|opcode| found[opcode] >= 20), "Writes and Sends: {found:?}");
    assert!(reads(&found) >= 2 * 20, "Reads and their answers: {found:?}");
}

/// The ranks write to the same file.
#[test]
fn what_an_mpi_program_sends_is_iwarp() {
    let test = "wire-mpi";
    let trace = trace(test);
    let ended = programs::mpirun(test, &["--pcap", trace.to_str().unwrap()], UCX, &programs::exchange(test));
    assert!(ended.said.contains("exchange: all bytes as sent"), "{}", ended.said);
    let found = check(test, &[&ended]);
    let sends = found.get(&3).unwrap_or(&0) + found.get(&5).unwrap_or(&0);
    assert!(sends > 10 && reads(&found) > 0, "Sends and Reads: {found:?}");
}
