//! Runs the program `ironwarp-pcap`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{golden, temporary};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ironwarp-pcap"))
}

fn run(arguments: &[&OsStr]) -> Output {
    program().args(arguments).output().unwrap()
}

fn text(arguments: &[&OsStr]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stderr, b"");
    String::from_utf8(output.stdout).unwrap()
}

fn error(arguments: &[&OsStr]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr).unwrap()
}

fn show(file: impl AsRef<OsStr>) -> String {
    text(&["show".as_ref(), file.as_ref()])
}

#[test]
fn show_prints_one_line_per_frame() {
    let shown = show(golden("siw-rping.pcap"));
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(
        lines[..6],
        [
            "   14    4.762462  10.9.0.2:49954 → 10.9.0.1:7174  MPA Request, revision 2, IRD 1, ORD 1, 0 bytes of private data",
            "   16    4.803274  10.9.0.2:49954 ← 10.9.0.1:7174  MPA Reply, revision 2, IRD 1, ORD 1, 0 bytes of private data",
            "   18    4.829157  10.9.0.2:49954 → 10.9.0.1:7174  Send, msn 1, offset 0, last, 16 bytes, no CRC",
            "   19    4.835822  10.9.0.2:49954 ← 10.9.0.1:7174  Read Request, msn 1, 64 bytes, source 0x56494a00+0x561bcd7b3d50, sink 0x4846da00+0x5599220edf30, no CRC",
            "   20    4.839639  10.9.0.2:49954 → 10.9.0.1:7174  Read Response, 0x4846da00+0x5599220edf30, last, 64 bytes, no CRC",
            "   21    4.847192  10.9.0.2:49954 ← 10.9.0.1:7174  Send, msn 1, offset 0, last, 16 bytes, no CRC",
        ]
    );
    assert_eq!(
        *lines.last().unwrap(),
        "29 frames on 2 connections: 2 MPA Request, 2 MPA Reply, 12 Send, 3 Read Request, 5 Read Response, \
         5 Write; no problems"
    );
    assert_eq!(lines.len(), 30);
}

#[test]
fn debugging_page_shows_what_is_printed() {
    let page = include_str!("../../../docs/debugging.md");
    let (_, block) = page.split_once("```text\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(page.contains("-p ironwarp-pcap -- show crates/pcap/tests/captures/siw-rping.pcap\n"));
    assert!(block.lines().count() > 3 && show(golden("siw-rping.pcap")).starts_with(block), "{block}");
}

#[test]
fn show_names_signals_hellos_crcs_and_rejections() {
    let sample = temporary("cli-sample.pcap");
    assert_eq!(text(&["sample".as_ref(), sample.as_ref()]), "");
    let shown = show(&sample);
    for expected in [
        "Signal, version 2, capabilities 0x007f, RNR timer 31, CRC ok",
        "Signal, 78187493530 messages acknowledged, no CRC",
        "48 bytes of private data: Hello, from 0xabcdef to 0x123456, RQ PSN 0x654321",
        "MPA Reply REJECTED, revision 2, IRD 16383, ORD 0, CRC, 14 bytes of private data",
        "[2001:db8::1]:40001 → [2001:db8::2]:7174  MPA Request",
        "Terminate, MPA: CRC mismatch (2/0/02), CRC ok",
    ] {
        assert!(shown.contains(expected), "missing: {expected}");
    }
}

#[test]
fn show_describes_problems() {
    let mut file = std::fs::read(golden("siw-gold-p2p-crc.pcap")).unwrap();
    // Corrupts the payload of the first Send, and with it the rest of that direction.
    let send = file.windows(5).position(|it| it == [0x24, 0x25, 0x26, 0x27, 0xac]).unwrap();
    file[send] ^= 1;
    let broken = temporary("cli-broken.pcap");
    std::fs::write(&broken, file).unwrap();
    let shown = show(&broken);
    let line = shown.lines().find(|line| line.contains("!!")).unwrap();
    assert_eq!(
        line.split_once("  !! ").unwrap().1,
        "at byte 61 of this direction: violation: CRC mismatch: computed 0x76839b14, received 0xabc631ac; \
         its Terminate is \"MPA: CRC mismatch (2/0/02)\""
    );
    assert!(shown.trim_end().ends_with("; 1 problem"), "{shown}");

    let copy = temporary("cli-broken-resegment.pcap");
    let message = error(&["resegment".as_ref(), broken.as_ref(), copy.as_ref()]);
    assert!(message.contains("cli-broken-resegment.pcap is incomplete: between 10.9.0.2:"), "{message}");
    assert!(message.contains("at byte 61 of this direction: violation: CRC mismatch"), "{message}");
}

#[test]
fn resegment_keeps_every_frame() {
    let copy = temporary("cli-resegment.pcap");
    for name in ["siw-gold.pcap", "siw-gold-p2p-crc.pcap", "siw-rping-v1.pcap"] {
        assert_eq!(text(&["resegment".as_ref(), golden(name).as_ref(), copy.as_ref()]), "");
        let frames = |shown: String| -> Vec<String> {
            // Without the number and time of the packet, which depend on the file, and without the summary.
            let (counts, frames) =
                shown.lines().collect::<Vec<_>>().split_last().map(|(a, b)| (*a, b.to_vec())).unwrap();
            frames.iter().map(|line| line[19..].to_owned()).chain([counts.to_owned()]).collect()
        };
        let (found, expected) = (frames(show(&copy)), frames(show(golden(name))));
        assert_eq!(found, expected, "{name}");
        assert!(found[0].starts_with("10.9.0.2:"), "{}", found[0]);
    }
}

#[test]
fn a_truncated_file_is_shown_up_to_its_end() {
    let file = std::fs::read(golden("siw-rping.pcap")).unwrap();
    let copy = temporary("cli-cut-off.pcap");
    std::fs::write(&copy, &file[..file.len() - 1]).unwrap();
    let (cut, whole) = (show(&copy), show(golden("siw-rping.pcap")));
    let (last, frames) = cut.lines().collect::<Vec<_>>().split_last().map(|(a, b)| (*a, b.to_vec())).unwrap();
    assert!(frames.len() > 20 && whole.starts_with(&frames.join("\n")));
    assert!(last.ends_with("; the file ends in the middle of a packet"), "{last}");
}

#[test]
fn errors_suggest_a_remedy() {
    assert_eq!(error(&[]), "ironwarp-pcap: missing command; see `ironwarp-pcap --help`\n");
    assert_eq!(
        error(&["dance".as_ref()]),
        "ironwarp-pcap: unknown command `dance`; see `ironwarp-pcap --help`\n"
    );
    assert_eq!(
        error(&["show".as_ref()]),
        "ironwarp-pcap: `show` takes 1 file, but 0 given; see `ironwarp-pcap --help`\n"
    );
    assert_eq!(
        error(&["resegment".as_ref(), "in.pcap".as_ref()]),
        "ironwarp-pcap: `resegment` takes 2 files, but 1 given; see `ironwarp-pcap --help`\n"
    );
    assert_eq!(
        error(&["show".as_ref(), "no/such/file.pcap".as_ref()]),
        "ironwarp-pcap: failed to read no/such/file.pcap: No such file or directory (os error 2)\n"
    );
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert_eq!(
        error(&["show".as_ref(), manifest.as_ref()]),
        format!("ironwarp-pcap: {manifest}: not a packet capture: neither a pcap nor a pcapng header\n")
    );
    let message = error(&["sample".as_ref(), "no/such/directory.pcap".as_ref()]);
    assert!(message.starts_with("ironwarp-pcap: failed to write no/such/directory.pcap: "), "{message}");
}

#[test]
fn help_lists_the_commands() {
    for word in ["--help", "-h", "help"] {
        let help = text(&[word.as_ref()]);
        for command in ["show FILE", "resegment IN OUT", "sample OUT"] {
            assert!(help.contains(&format!("ironwarp-pcap {command} ")), "{command}");
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let sample = temporary("cli-pipe.pcap");
    text(&["sample".as_ref(), sample.as_ref()]);
    let mut child =
        program().arg("show").arg(&sample).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The output exceeds the capacity of a pipe, so the program is sure to notice that it was closed.
    let mut first = String::new();
    BufReader::with_capacity(1, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("MPA Request"), "{first}");
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(errors, "");
    assert!(child.wait().unwrap().success());
}
