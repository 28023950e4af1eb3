//! The guest: a child process that runs Linux with siw, and its console.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Maximum time between two lines of the guest. A step of a session has 60 s, and reports its own timeout.
const TIMEOUT: Duration = Duration::from_secs(100);
/// Number of last lines shown when a session fails.
const LAST: usize = 25;
/// The port at which a server in the guest listens.
pub(crate) const PORT: u16 = 7174;

/// A running guest, killed when dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    boot: Child,
    console: Receiver<String>,
    /// Console lines of the current session.
    said: Arc<Mutex<Vec<String>>>,
    /// What the program of the current session reported.
    seen: RefCell<Vec<String>>,
}

impl Guest {
    /// Boots a guest of this variant that runs these commands. Connections to `forwarded` lead to [`PORT`] in the
    /// guest. Its packets are recorded in the file `capture`.
    pub(crate) fn boot(variant: &str, commands: &str, forwarded: SocketAddr, capture: &Path) -> Self {
        let guests = std::env::var_os("IRONWARP_GUESTS").expect("IRONWARP_GUESTS: run `cargo xtask interop`");
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/boot");
        let mut boot = Command::new(boot)
            .arg(PathBuf::from(guests).join(variant))
            .arg(commands)
            .arg(format!("tcp:{forwarded}-:{PORT}"))
            .env("GUEST_PCAP", capture)
            .env("GUEST_SECONDS", "600")
            .stdout(Stdio::piped())
            .spawn()
            .expect("guest/boot starts");
        let (lines, console) = channel();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&said);
        let output = BufReader::new(boot.stdout.take().expect("it is piped"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line.clone());
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Self { boot, console, said, seen: RefCell::default() }
    }

    /// Starts a session, and discards earlier lines.
    pub(crate) fn begins(&self) {
        self.said.lock().unwrap().clear();
    }

    /// Waits for this line. Skips other lines, unless they report a failure.
    pub(crate) fn wait_for_line(&self, expected: &str) {
        while self.line(expected) != expected {}
    }

    /// Waits until the current session has ended with this exit code; returns what its program reported.
    pub(crate) fn wait_for_exit(&self, exit: u8) -> Vec<String> {
        let expected = format!("PEER ENDED {exit}");
        loop {
            let line = self.line(&expected);
            if line == expected {
                return self.seen.take();
            }
            assert!(
                !line.starts_with("PEER ENDED "),
                "waited for `{expected}`, but the guest printed `{line}`"
            );
        }
    }

    /// Returns the next line, which must not report a failure.
    fn line(&self, expected: &str) -> String {
        match self.console.recv_timeout(TIMEOUT) {
            Ok(line) => {
                assert!(!line.contains(" FAIL "), "waited for `{expected}`, but the guest printed `{line}`");
                self.seen.borrow_mut().extend(line.strip_prefix("PEER saw ").map(str::to_owned));
                line
            }
            Err(RecvTimeoutError::Timeout) => panic!("timed out waiting for `{expected}`"),
            Err(RecvTimeoutError::Disconnected) => panic!("the guest ended before it printed `{expected}`"),
        }
    }

    /// Waits until all commands have succeeded, and QEMU has written the recording.
    pub(crate) fn ends_well(mut self) {
        self.wait_for_line("GUEST EXIT 0");
        let status = self.boot.wait().expect("it is our child");
        assert!(status.success(), "guest/boot: {status}");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            let said = self.said.lock().unwrap();
            println!("the last that the guest said in this session:");
            said.iter().rev().take(LAST).rev().for_each(|line| println!("  {line}"));
        }
        if let Err(error) = self.boot.kill() {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "failed to kill guest/boot: {error}");
        }
        let _ = self.boot.wait();
    }
}

/// Returns an address at which QEMU can listen. QEMU needs the port number in advance, so it cannot be reserved; but
/// this process uses its own loopback address, where no other process takes the port meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let listener =
        TcpListener::bind((Ipv4Addr::new(127, a, b, c), 0)).expect("all of 127.0.0.0/8 is loopback");
    listener.local_addr().expect("it is bound")
}
