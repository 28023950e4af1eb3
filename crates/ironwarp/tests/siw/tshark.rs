//! What Wireshark's decoder makes of the packets, once each frame is a segment of its own. Before this: `capture.rs`.

use ironwarp_pcap::recut::recut;
use ironwarp_pcap::{Capture, Kind};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Writes the capture anew to a file. tshark sees every FPDU in it, and nothing malformed.
pub(crate) fn check(capture: &Capture, file: &Path) {
    recut(capture, File::create(file).unwrap()).unwrap();
    let fpdus = capture.frames().filter(|(_, frame)| matches!(frame.kind, Kind::Fpdu { .. })).count();
    let text = tshark(file);
    let (mut seen, mut bad) = (0, Vec::new());
    for line in text.lines() {
        let (opcodes, error) = line.split_once('\t').unwrap();
        seen += opcodes.split(',').filter(|opcode| !opcode.is_empty()).count();
        if !error.is_empty() {
            bad.push(line);
        }
    }
    assert!(bad.is_empty(), "malformed in {}: {bad:?}", file.display());
    assert_eq!(seen, fpdus, "FPDUs that tshark sees in {}", file.display());
}

/// Its decoder of RPC-over-RDMA is off: by a guess at the first bytes, it takes short Sends for its own and then finds them
/// malformed. And what is there counts, not the port: among those that the kernel gives to clients are some that are known for
/// other protocols (44818, EtherNet/IP).
fn tshark(file: &Path) -> String {
    let fields = ["-T", "fields", "-e", "iwarp_rdma.opcode", "-e", "_ws.malformed"];
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-o", "tcp.try_heuristic_first:TRUE", "-r"])
        .arg(file)
        .args(fields)
        .output()
        .expect("tshark: run `cargo xtask setup`");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
