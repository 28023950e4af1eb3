//! Runs tshark, to check captures with Wireshark's dissectors.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// A filter for packets that are malformed or have another error.
pub const ERRORS: &str = "_ws.malformed || _ws.expert.severity == error";

/// Runs tshark on a capture file with these arguments, and returns its output.
///
/// The dissector of RPC-over-RDMA is disabled: it claims short Sends by their first bytes, and then reports them as
/// malformed. Heuristics come before ports, because the kernel assigns clients some ports that are registered for other
/// protocols.
pub fn tshark(file: &Path, arguments: &[&str]) -> String {
    try_tshark(file, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// Like [`tshark`], for callers that handle errors.
pub fn try_tshark(file: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["--disable-protocol", "rpcordma"]);
    command.args(["-o", "tcp.try_heuristic_first:TRUE"]).args(arguments);
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("tshark is missing: run `cargo xtask setup`".into())
        }
        Err(error) => Err(format!("failed to start tshark: {error}")),
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("tshark {arguments:?} on {}: {errors}", file.display()))
        }
    }
}

/// Returns the number of messages with each RDMAP opcode in a capture file.
pub fn opcodes(file: &Path) -> BTreeMap<u8, usize> {
    let text = tshark(file, &["-T", "fields", "-e", "iwarp_rdma.opcode"]);
    let mut opcodes = BTreeMap::new();
    for opcode in text.split([',', '\n']).filter(|it| !it.is_empty()) {
        let opcode = u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap();
        *opcodes.entry(opcode).or_default() += 1;
    }
    opcodes
}
