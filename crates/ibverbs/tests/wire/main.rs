//! Tests that unmodified programs send standard iWARP: Wireshark's decoder reads the adapter's own captures of them,
//! and finds nothing malformed.
//!
//! A capture is first rewritten, with each frame in a TCP segment of its own, because the decoder fails if a segment
//! ends within the first bytes of an FPDU, and because two processes that write to one file record each packet twice.
//! The private messages of docs/wire.md are excluded, because the decoder does not know them. All have RDMAP opcode
//! F, which RFC 6580 reserves for experiments. Signals are not excluded: they are empty Writes, which the decoder
//! knows.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

use common::scratch;
use ironwarp_pcap::{Capture, resegment};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::net::{free_port, ip, listens};
use ironwarp_testkit::packets::Packets;
use ironwarp_testkit::process::Exit;
use ironwarp_testkit::tshark::{ERRORS, opcodes, tshark};
use programs::{UCX, run_pair};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

/// RDMAP opcode of the private messages.
const PRIVATE: u8 = 0xf;

/// Maximum size of a capture, to limit the time of a test.
const MAX_CAPTURE: u64 = 16 << 20;

/// Path of the capture of a test.
fn trace(test: &str) -> PathBuf {
    scratch(test).join("trace.pcap")
}

/// Checks that tshark reads every frame of a capture correctly. Returns the number of frames of each kind.
fn check(test: &str, ended: &[&Exit]) -> BTreeMap<u8, usize> {
    for ended in ended {
        assert_eq!(ended.code, 0, "{}", ended.output);
    }
    let trace = trace(test);
    assert!(fs::metadata(&trace).unwrap().len() < MAX_CAPTURE, "the capture is too long");
    let capture = Capture::open(&trace).unwrap();
    assert!(!capture.cut_off && !capture.conversations.is_empty());
    let problems: Vec<_> = capture.conversations.iter().flat_map(|it| &it.problems).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let resegmented = trace.with_file_name("resegmented.pcap");
    resegment::resegment(&capture, File::create(&resegmented).unwrap()).unwrap();

    let mut names = BTreeMap::new();
    capture.frames().for_each(|(_, frame)| *names.entry(frame.name()).or_insert(0_usize) += 1);
    println!("{test}: {} connections: {names:?}", capture.conversations.len());
    let found = opcodes(&resegmented);
    let startups = tshark(&resegmented, &["-Y", "iwarp_mpa.req || iwarp_mpa.rep"]).lines().count();
    assert_eq!(found.values().sum::<usize>() + startups, capture.frames().count(), "tshark misses some");
    let bad = format!("({ERRORS}) && !(iwarp_rdma.opcode == {PRIVATE})");
    assert_eq!(tshark(&resegmented, &["-Y", &bad]), "");
    let text = tshark(&resegmented, &["-T", "pdml", "-J", "iwarp_mpa"]);
    assert_eq!(text.matches("(Good CRC32)").count(), found.values().sum::<usize>(), "a CRC is wrong");
    fs::remove_dir_all(scratch(test)).unwrap();
    found
}

/// Number of Read Requests and Responses. Those of the RFC are used until each end knows that the other is Ironwarp,
/// then private ones (Read V2).
fn count_reads(found: &BTreeMap<u8, usize>) -> usize {
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
    let free = free_port();
    let port = free.to_string();
    let words = [&words[..], &["-p", &port]].concat();
    let mut server =
        programs::start(test, &["--pcap", trace.to_str().unwrap()], &[&words[..], &["-s"]].concat());
    server.wait_until("it listens", |server| listens(server.id(), free)).unwrap();
    let client = programs::run(test, &[], &[&words[..], &["-c"]].concat());
    let found = check(test, &[&server.exit().unwrap(), &client]);
    assert!([0, 3].iter().all(|opcode| found[opcode] >= 20), "Writes and Sends: {found:?}");
    assert!(count_reads(&found) >= 2 * 20, "Reads and their answers: {found:?}");
}

/// Both ranks write to the same capture.
#[test]
fn what_an_mpi_program_sends_is_iwarp() {
    let test = "wire-mpi";
    let trace = trace(test);
    let ended =
        programs::mpirun(test, &["--pcap", trace.to_str().unwrap()], UCX, &programs::compile_exchange(test));
    assert!(ended.output.contains("exchange: all bytes as sent"), "{}", ended.output);
    let found = check(test, &[&ended]);
    let sends = found.get(&3).unwrap_or(&0) + found.get(&5).unwrap_or(&0);
    assert!(sends > 10 && count_reads(&found) > 0, "Sends and Reads: {found:?}");
}

/// The traffic class of a program is on its packets (requirement M16): that of the connection manager, which ib_send_lat
/// sets at the client only, and that of an address vector, which it sets at both ends.
#[test]
fn packets_have_the_traffic_class_that_a_program_sets() {
    if !in_network("packets_have_the_traffic_class_that_a_program_sets") {
        return;
    }
    ip("link set lo up");
    let cases =
        [("wire-tos", ["-R", "--tos=184"], "0xb8", 20), ("wire-tclass", ["-x0", "--tclass=40"], "0x28", 40)];
    for (test, options, class, sends) in cases {
        let packets = Packets::record("lo", &trace(test));
        let words = [&["env", "IRONWARP_SHM=0", "ib_send_lat", "-n", "20", "-F"], &options[..]].concat();
        let (server, client) = run_pair(test, &[], &[], &words);
        for ended in [&server, &client] {
            assert_eq!(ended.code, 0, "{}", ended.output);
        }
        let filter = format!("iwarp_rdma.opcode == 3 && ip.dsfield == {class}");
        packets.fields(&filter, &["frame.number"], sends);
        fs::remove_dir_all(scratch(test)).unwrap();
    }
}
