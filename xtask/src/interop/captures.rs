//! What was on the wire: all packets from and to a guest, as QEMU recorded them. Before this: everything that was run against a
//! variant.
//!
//! TCP cuts where it likes, and Wireshark's decoder follows only some cuts. So the capture is cut anew, a frame to a packet, by
//! a tool that also reads every byte itself; then Wireshark has its say.

use crate::shell::{Result, command, output, run as run_command};
use crate::workspace::Workspace;
use std::path::Path;
use std::process::Command;

/// The tool. The captures are large: without optimisation it would take longer to read them than to build it.
pub(super) fn build() -> Result {
    let arguments = ["build", "--profile", "optimized", "--locked", "--package", "ironwarp-pcap"];
    run_command(&mut command("cargo", &arguments))
}

/// Every byte of every iWARP connection is part of a frame that both we and tshark understand, and tshark finds nothing
/// malformed. Returns how many frames there were, on how many connections.
pub(super) fn check(workspace: &Workspace, capture: &Path) -> Result<String> {
    let tool = || Command::new(workspace.target.join("optimized/ironwarp-pcap"));
    let shown = output(tool().arg("show").arg(capture))?;
    let summary = shown.lines().last().unwrap_or_default();
    let problems: Vec<_> = shown.lines().filter(|line| line.contains("!! ")).collect();
    let excused = matches!(problems[..], [one] if is_wrong_crc_of_siw(one));
    if !summary.contains("; no problems") && !excused {
        let some: Vec<_> = problems.into_iter().take(6).collect();
        return Err(format!("{}: {summary}\n      {}", capture.display(), some.join("\n      ")));
    }
    let frames = frames(summary)?;

    let whole = capture.with_extension("whole.pcap");
    let recut = output(tool().arg("recut").arg(capture).arg(&whole));
    if excused {
        println!("      siw sent a wrong CRC: {}", problems[0]);
    } else {
        recut?;
    }
    let seen = tshark(&whole, &["-Y", "iwarp_mpa", "-T", "fields", "-e", "frame.number"])?.lines().count();
    if seen != frames {
        return Err(format!("{}: of {frames} frames tshark sees {seen}", whole.display()));
    }
    let of_startups = complaints(&whole, STARTUP)?;
    let reused = tshark(&whole, &["-Y", "tcp.analysis.reused_ports"])?.lines().count();
    let of_others = complaints(&whole, &format!("!({STARTUP})"))?;
    if !of_others.is_empty() || of_startups.lines().count() > 2 * reused {
        let lines: Vec<_> = of_others.lines().chain(of_startups.lines()).take(6).collect();
        return Err(format!("{}: tshark complains:\n      {}", whole.display(), lines.join("\n      ")));
    }
    Ok(summary.split(';').next().unwrap_or_default().to_owned())
}

/// siw's, and answered with the Terminate that is due. It happens now and then: docs/interop.md.
fn is_wrong_crc_of_siw(problem: &str) -> bool {
    let by_siw = problem.contains(&format!(" ← {SIW}:"))
        || problem.split_once(" → ").is_some_and(|(from, _)| from.contains(&format!(" {SIW}:")));
    by_siw
        && problem.contains("violation: CRC mismatch")
        && problem.contains("Terminate for it says \"MPA: CRC mismatch")
}

/// The guest, as QEMU's network has it.
const SIW: &str = "10.0.2.15";

/// The Request and the Reply, by their keys (RFC 5044 §7.1.1).
const STARTUP: &str = r#"tcp.payload[0:9] == "MPA ID Re""#;

/// What tshark calls malformed, or otherwise wrong, of some frames.
///
/// Where a pair of ports is used again, as the kernel does after many connections, it takes the new Request and Reply for FPDUs
/// of the connection before: only there it may complain of these two.
fn complaints(file: &Path, of: &str) -> Result<String> {
    tshark(file, &["-Y", &format!("(_ws.malformed || _ws.expert.severity == error) && ({of})")])
}

/// Its decoder of RPC-over-RDMA is off: by a guess at the first bytes, it takes short Sends for its own and then finds them
/// malformed. And what is there counts, not the port: among those that the kernel gives to clients are some that are known for
/// other protocols (44818, EtherNet/IP).
fn tshark(file: &Path, arguments: &[&str]) -> Result<String> {
    let options = ["--disable-protocol", "rpcordma", "-o", "tcp.try_heuristic_first:TRUE", "-r"];
    output(command("tshark", &options).arg(file).args(arguments))
}

/// The number that `ironwarp-pcap show` counts in its last line.
fn frames(summary: &str) -> Result<usize> {
    let number = summary.split(' ').next().and_then(|word| word.parse().ok());
    match number {
        Some(number) if number > 0 => Ok(number),
        _ => Err(format!("no frames were recorded: {summary}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{frames, is_wrong_crc_of_siw};

    #[test]
    fn a_wrong_crc_is_excused_where_siw_sent_it_and_was_told() {
        let of_siw = "20538 21.7 10.0.2.2:46022 ← 10.0.2.15:7174  !! at byte 187332 of this direction: violation: CRC mismatch: \
                      computed 0xf44ded58, received 0x26307480; the Terminate for it says \"MPA: CRC mismatch (2/0/02)\"";
        assert!(is_wrong_crc_of_siw(of_siw));
        assert!(is_wrong_crc_of_siw(
            &of_siw.replace("10.0.2.2:46022 ← 10.0.2.15:7174", "10.0.2.15:46022 → 10.0.2.2:7174")
        ));
        assert!(!is_wrong_crc_of_siw(&of_siw.replace('←', "→")), "it is Ironwarp's");
        assert!(!is_wrong_crc_of_siw(&of_siw.replace("Terminate", "nothing")), "nobody told siw");
        assert!(!is_wrong_crc_of_siw(&of_siw.replace("violation: CRC mismatch", "a hole")));
    }

    #[test]
    fn the_summary_tells_how_many_frames_there_are() {
        assert_eq!(frames("27973 frames on 111 connections: 111 MPA Request; no problems"), Ok(27973));
        assert!(frames("0 frames on 0 connections; no problems").is_err());
        assert!(frames("").is_err());
    }
}
