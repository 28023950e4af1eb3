//! `ironwarp-pcap`: prints and resegments captures of iWARP, and writes one that contains every message.

use ironwarp_pcap::{Capture, resegment, sample, show};
use std::env::args_os;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Inspect packet captures (pcap or pcapng) of iWARP.

Usage:
  ironwarp-pcap show FILE           print a line for each MPA startup frame, FPDU and datagram
  ironwarp-pcap resegment IN OUT    write each frame in a TCP segment of its own, for Wireshark
  ironwarp-pcap sample OUT          write a capture that contains every message
  ironwarp-pcap --help              print this help
";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = args_os().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ironwarp-pcap: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command.
fn run(arguments: &[OsString]) -> Result<(), String> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let path = |index: usize| Path::new(&arguments[index]);
    match words[..] {
        ["-h" | "--help" | "help"] => print(|out| out.write_all(HELP.as_bytes())),
        ["show", _] => {
            let capture = open(path(1))?;
            print(|out| show::show(&capture, out))
        }
        ["resegment", _, _] => resegment_file(path(1), path(2)),
        ["sample", _] => write(path(1), |out| sample::write(out).map(drop)),
        [] => Err("missing command; see `ironwarp-pcap --help`".to_owned()),
        ["show" | "sample", ..] => Err(describe_wrong_count(words[0], "1 file", words.len() - 1)),
        ["resegment", ..] => Err(describe_wrong_count(words[0], "2 files", words.len() - 1)),
        [word, ..] => Err(format!("unknown command `{word}`; see `ironwarp-pcap --help`")),
    }
}

/// Returns the message for a wrong number of arguments.
fn describe_wrong_count(command: &str, takes: &str, given: usize) -> String {
    format!("`{command}` takes {takes}, but {given} given; see `ironwarp-pcap --help`")
}

/// Resegments a capture file. Fails after writing if the result is incomplete.
fn resegment_file(from: &Path, to: &Path) -> Result<(), String> {
    let capture = open(from)?;
    write(to, |out| resegment::resegment(&capture, out).map(drop))?;
    let mut lost =
        capture.conversations.iter().flat_map(|it| it.problems.iter().map(move |problem| (it, problem)));
    let Some((of, problem)) = lost.next() else { return Ok(()) };
    Err(format!(
        "{} is incomplete: between {} and {}, {problem}; {} more problems, see `ironwarp-pcap show`",
        to.display(),
        of.initiator,
        of.responder,
        lost.count()
    ))
}

/// Reads a capture file. The error names the file.
fn open(path: &Path) -> Result<Capture, String> {
    Capture::open(path).map_err(|error| match error {
        ironwarp_pcap::Error::File { .. } => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    })
}

/// Creates a file and writes `content` to it. The error names the file.
fn write(path: &Path, content: impl FnOnce(BufWriter<File>) -> io::Result<()>) -> Result<(), String> {
    let written = File::create(path).and_then(|file| content(BufWriter::new(file)));
    written.map_err(|error| format!("failed to write {}: {error}", path.display()))
}

/// Writes `content` to standard output. A reader that closes the pipe early, as `head` does, is not an error.
fn print(content: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>) -> Result<(), String> {
    let mut out = BufWriter::new(io::stdout().lock());
    match content(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("failed to write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}
