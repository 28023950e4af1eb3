//! `ironwarp-pcap`: shows captures of iWARP, cuts them anew, and writes one that holds every message.

use ironwarp_pcap::{Capture, recut, sample, show};
use std::env::args_os;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Looks at packet captures (pcap or pcapng) of iWARP.

Usage:
  ironwarp-pcap show FILE       print a line for each MPA startup frame and FPDU
  ironwarp-pcap recut IN OUT    write the same frames, each in a TCP segment of its own, for Wireshark
  ironwarp-pcap sample OUT      write a capture that holds every message there is
  ironwarp-pcap --help          print this
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

fn run(arguments: &[OsString]) -> Result<(), String> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let path = |index: usize| Path::new(&arguments[index]);
    match words[..] {
        ["-h" | "--help" | "help"] => print(|out| out.write_all(HELP.as_bytes())),
        ["show", _] => {
            let capture = open(path(1))?;
            print(|out| show::show(&capture, out))
        }
        ["recut", _, _] => recut_file(path(1), path(2)),
        ["sample", _] => write(path(1), |out| sample::write(out).map(drop)),
        [] => Err("what shall it do? `ironwarp-pcap --help` lists it".to_owned()),
        ["show" | "sample", ..] => Err(wrong_count(words[0], "1 file", words.len() - 1)),
        ["recut", ..] => Err(wrong_count(words[0], "2 files", words.len() - 1)),
        [word, ..] => Err(format!("`{word}` is nothing that it does; `ironwarp-pcap --help` lists what is")),
    }
}

fn wrong_count(command: &str, takes: &str, given: usize) -> String {
    format!("`{command}` takes {takes}, not {given}; see `ironwarp-pcap --help`")
}

fn recut_file(from: &Path, to: &Path) -> Result<(), String> {
    let capture = open(from)?;
    write(to, |out| recut::recut(&capture, out).map(drop))?;
    let mut lost =
        capture.conversations.iter().flat_map(|it| it.problems.iter().map(move |problem| (it, problem)));
    let Some((of, problem)) = lost.next() else { return Ok(()) };
    Err(format!(
        "{} lacks what could not be read: between {} and {}, {problem}; `ironwarp-pcap show` tells of {} more problems",
        to.display(),
        of.initiator,
        of.responder,
        lost.count()
    ))
}

fn open(path: &Path) -> Result<Capture, String> {
    Capture::open(path).map_err(|error| match error {
        ironwarp_pcap::Error::File { .. } => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    })
}

fn write(path: &Path, content: impl FnOnce(BufWriter<File>) -> io::Result<()>) -> Result<(), String> {
    let written = File::create(path).and_then(|file| content(BufWriter::new(file)));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Writes to the standard output. Whoever reads it may stop early, as `head` does: that is no error.
fn print(content: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>) -> Result<(), String> {
    let mut out = BufWriter::new(io::stdout().lock());
    match content(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot print: {error}")),
        _ => Ok(()),
    }
}
