//! Checks that Wireshark's dissectors read every FPDU, once each frame is in its own segment.

use ironwarp_pcap::resegment::resegment;
use ironwarp_pcap::{Capture, Kind};
use ironwarp_testkit::tshark::tshark;
use std::fs::File;
use std::path::Path;

/// Writes the capture to a file, one segment per frame. tshark must see every FPDU in it, and nothing malformed.
pub(crate) fn check(capture: &Capture, file: &Path) {
    resegment(capture, File::create(file).unwrap()).unwrap();
    let fpdus = capture.frames().filter(|(_, frame)| matches!(frame.kind, Kind::Fpdu { .. })).count();
    let fields = ["-T", "fields", "-e", "iwarp_rdma.opcode", "-e", "_ws.malformed"];
    let text = tshark(file, &fields);
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
