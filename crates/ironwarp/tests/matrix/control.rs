//! The other process, and the control protocol between the two: lines over a separate TCP connection.

use ironwarp_testkit::child;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::Duration;

/// Upper bound on the duration of every step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Lines of words.
#[derive(Debug)]
pub(crate) struct Lines {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Lines {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), writer: stream }
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Returns the words of the next line; none after the other end has closed.
    pub(crate) fn hear(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the words after the first, which must be this one.
    #[track_caller]
    pub(crate) fn expect(&mut self, word: &str) -> Vec<String> {
        let mut words = self.hear();
        assert!(!words.is_empty(), "the other process failed: see its output");
        assert_eq!(words.remove(0), word);
        words
    }
}

/// The process with the passive ends. Killed if the test fails.
#[derive(Debug)]
pub(crate) struct Other {
    process: Child,
    pub(crate) lines: Lines,
}

impl Other {
    /// Starts `test` of this program, with the address to connect to as its role.
    pub(crate) fn start(test: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let role = listener.local_addr().unwrap().to_string();
        let process = child::command(test, &role).args(["--ignored", "--quiet"]).spawn().unwrap();
        wait_readable(&listener);
        let (stream, _) = listener.accept().unwrap();
        Self { process, lines: Lines::new(stream) }
    }

    /// Waits until it exits successfully.
    pub(crate) fn end(mut self) {
        self.lines.say("end");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects to the process that started this one.
pub(crate) fn parent() -> Lines {
    let address = child::role().expect("started by the other tests");
    Lines::new(TcpStream::connect(address).unwrap())
}

fn wait_readable(listener: &TcpListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(TIMEOUT).expect("a short time");
    let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "the other process does not connect");
}
