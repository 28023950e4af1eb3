//! Records the packets of an interface with dumpcap, for tests of what the kernel sends. Needs a network namespace in
//! which the test is root (`child::in_network`).

use crate::tshark::try_tshark;
use crate::wait::until;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A recording in progress.
#[derive(Debug)]
pub struct Packets {
    dumpcap: Child,
    file: PathBuf,
}

impl Packets {
    /// Starts to record the packets of an interface to this file. Returns once packets are recorded.
    pub fn record(interface: &str, file: &Path) -> Self {
        let mut command = Command::new("dumpcap");
        command.args(["-q", "-P", "-i", interface, "-w"]).arg(file).stderr(Stdio::piped());
        let mut dumpcap = command.spawn().expect("dumpcap is installed: run `cargo xtask setup`");
        let stderr = BufReader::new(dumpcap.stderr.take().expect("it was requested"));
        // dumpcap names the file once it has opened the interface.
        let is_open = stderr.lines().map_while(Result::ok).any(|line| line.starts_with("File: "));
        assert!(is_open, "dumpcap recorded nothing");
        Self { dumpcap, file: file.into() }
    }

    /// Waits until the recording has at least `count` packets for this display filter of Wireshark, and returns the fields
    /// of each.
    pub fn fields(&self, filter: &str, fields: &[&str], count: usize) -> Vec<Vec<String>> {
        let mut arguments = vec!["-Y", filter, "-T", "fields"];
        arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
        let mut found = Vec::new();
        until(|| {
            // The last packet may be written just now.
            let text = try_tshark(&self.file, &arguments).unwrap_or_default();
            found = text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
            found.len() >= count
        });
        found
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        let _ = self.dumpcap.kill();
        let _ = self.dumpcap.wait();
    }
}
