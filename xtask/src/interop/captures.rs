//! Checks all packets from and to a guest, as recorded by QEMU.
//!
//! Wireshark's dissectors do not follow every segmentation of TCP. So a tool that reads every byte itself
//! first rewrites the capture, a frame to a packet, and then tshark reads that.

use crate::shell::{Result, command, output, run as run_command};
use crate::workspace::Workspace;
use ironwarp_testkit::tshark::{ERRORS, try_tshark as tshark};
use std::path::Path;
use std::process::Command;

/// Builds the tool as the tests have: it reads a capture of 70 MB in a second.
pub(super) fn build() -> Result {
    let arguments = ["build", "--locked", "--package", "ironwarp-pcap"];
    run_command(&mut command("cargo", &arguments))
}

/// Checks that every byte of every iWARP connection is part of a frame that both we and tshark understand,
/// and that tshark finds nothing malformed. Returns the number of frames and connections.
pub(super) fn check(workspace: &Workspace, capture: &Path) -> Result<String> {
    let tool = || Command::new(workspace.target.join("debug/ironwarp-pcap"));
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
    let resegmented = output(tool().arg("resegment").arg(capture).arg(&whole));
    if excused {
        println!("      siw sent a wrong CRC: {}", problems[0]);
    } else {
        resegmented?;
    }
    let seen = tshark(&whole, &["-Y", "iwarp_mpa", "-T", "fields", "-e", "frame.number"])?.lines().count();
    if seen != frames {
        return Err(format!("{}: tshark sees {seen} of {frames} frames", whole.display()));
    }
    let in_startups = errors(&whole, STARTUP)?;
    let reused = tshark(&whole, &["-Y", "tcp.analysis.reused_ports"])?.lines().count();
    let in_others = errors(&whole, &format!("!({STARTUP})"))?;
    if !in_others.is_empty() || in_startups.lines().count() > 2 * reused {
        let lines: Vec<_> = in_others.lines().chain(in_startups.lines()).take(6).collect();
        return Err(format!("{}: tshark reports:\n      {}", whole.display(), lines.join("\n      ")));
    }
    Ok(summary.split(';').next().unwrap_or_default().to_owned())
}

/// Whether siw sent a wrong CRC, and got the Terminate for it. This happens occasionally: see
/// docs/interop.md.
fn is_wrong_crc_of_siw(problem: &str) -> bool {
    let by_siw = problem.contains(&format!(" ← {SIW}:"))
        || problem.split_once(" → ").is_some_and(|(from, _)| from.contains(&format!(" {SIW}:")));
    by_siw
        && problem.contains("violation: CRC mismatch")
        && problem.contains("its Terminate is \"MPA: CRC mismatch")
}

/// The address of the guest in QEMU's network.
const SIW: &str = "10.0.2.15";

/// Matches Requests and Replies by their keys (RFC 5044 §7.1.1).
const STARTUP: &str = r#"tcp.payload[0:9] == "MPA ID Re""#;

/// Frames that match a filter and that tshark finds malformed or otherwise wrong.
///
/// If a pair of ports is reused, which happens after many connections, tshark takes the new Request and Reply
/// for FPDUs of the previous connection. Only then may it report these two.
fn errors(file: &Path, of: &str) -> Result<String> {
    tshark(file, &["-Y", &format!("({ERRORS}) && ({of})")])
}

/// The number of frames in the summary of `ironwarp-pcap show`.
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
                      computed 0xf44ded58, received 0x26307480; its Terminate is \"MPA: CRC mismatch (2/0/02)\"";
        assert!(is_wrong_crc_of_siw(of_siw));
        assert!(is_wrong_crc_of_siw(
            &of_siw.replace("10.0.2.2:46022 ← 10.0.2.15:7174", "10.0.2.15:46022 → 10.0.2.2:7174")
        ));
        assert!(!is_wrong_crc_of_siw(&of_siw.replace('←', "→")), "it is Ironwarp's");
        assert!(!is_wrong_crc_of_siw(&of_siw.replace("Terminate", "nothing")), "siw got no Terminate");
        assert!(!is_wrong_crc_of_siw(&of_siw.replace("violation: CRC mismatch", "a hole")));
    }

    #[test]
    fn the_summary_tells_how_many_frames_there_are() {
        assert_eq!(frames("27973 frames on 111 connections: 111 MPA Request; no problems"), Ok(27973));
        assert!(frames("0 frames on 0 connections; no problems").is_err());
        assert!(frames("").is_err());
    }
}
