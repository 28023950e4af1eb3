//! The guest: a child process with Linux siw in it, and what it says on its console. After this: `session.rs` talks to it.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long the guest may take from one line to the next. A step of its session has 60 s, and says so when they are over.
const PATIENCE: Duration = Duration::from_secs(100);
/// The port at which a server in the guest listens.
pub(crate) const PORT: u16 = 7174;

/// A guest that runs. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Guest {
    boot: Child,
    console: Receiver<String>,
}

impl Guest {
    /// Boots a guest that runs these commands. Connections to `forwarded` lead to [`PORT`] in the guest. Its packets are
    /// recorded in the file `capture`.
    pub(crate) fn boot(commands: &str, forwarded: SocketAddr, capture: &Path) -> Self {
        let guest = std::env::var_os("IRONWARP_GUEST").expect("IRONWARP_GUEST: run `cargo xtask interop`");
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/boot");
        let mut boot = Command::new(boot)
            .arg(PathBuf::from(guest))
            .arg(commands)
            .arg(format!("tcp:{forwarded}-:{PORT}"))
            .env("GUEST_PCAP", capture)
            .env("GUEST_SECONDS", "240")
            .stdout(Stdio::piped())
            .spawn()
            .expect("guest/boot starts");
        let (lines, console) = channel();
        let output = BufReader::new(boot.stdout.take().expect("it is piped"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                println!("siw guest: {line}");
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Self { boot, console }
    }

    /// Waits until the console says this. What it says before is skipped, unless it tells of a failure.
    pub(crate) fn says(&self, wanted: &str) {
        loop {
            match self.console.recv_timeout(PATIENCE) {
                Ok(line) if line == wanted => return,
                Ok(line) => {
                    assert!(!line.contains(" FAIL "), "waited for `{wanted}`, and the guest says `{line}`");
                }
                Err(RecvTimeoutError::Timeout) => panic!("the guest does not say `{wanted}`"),
                Err(RecvTimeoutError::Disconnected) => panic!("the guest ended before it said `{wanted}`"),
            }
        }
    }

    /// Waits until its commands are done, and all that QEMU recorded is in the file. They must have gone well.
    pub(crate) fn ends_well(mut self) {
        self.says("GUEST EXIT 0");
        let status = self.boot.wait().expect("it is our child");
        assert!(status.success(), "guest/boot: {status}");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Err(error) = self.boot.kill() {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "guest/boot cannot be killed: {error}");
        }
        let _ = self.boot.wait();
    }
}

/// An address at which QEMU can listen. QEMU wants the number beforehand, so it cannot be reserved; but on an address that
/// is this process's alone, nobody else asks for a port meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let listener =
        TcpListener::bind((Ipv4Addr::new(127, a, b, c), 0)).expect("all of 127.0.0.0/8 is loopback");
    listener.local_addr().expect("it is bound")
}
