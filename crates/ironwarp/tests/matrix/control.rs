//! The other process, and the words that the two exchange beside what is tested: lines over a TCP connection of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

/// Tells the other process where the first one waits for it.
const VARIABLE: &str = "IRONWARP_TEST_MATRIX";
/// Nothing here takes so long, unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Lines of words.
#[derive(Debug)]
pub(crate) struct Lines {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Lines {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), writer: stream }
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The words of the next line; none when the other end is gone.
    pub(crate) fn hear(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// The words behind the first one, which must be this.
    #[track_caller]
    pub(crate) fn expect(&mut self, word: &str) -> Vec<String> {
        let mut words = self.hear();
        assert!(!words.is_empty(), "the other process failed; it says why");
        assert_eq!(words.remove(0), word);
        words
    }
}

/// The process that has the passive ends. Killed when the test fails.
#[derive(Debug)]
pub(crate) struct Other {
    process: Child,
    pub(crate) lines: Lines,
}

impl Other {
    /// Starts this program once more, as `test`.
    pub(crate) fn start(test: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture", "--quiet"])
            .env(VARIABLE, listener.local_addr().unwrap().to_string())
            .spawn()
            .unwrap();
        wait_readable(&listener);
        let (stream, _) = listener.accept().unwrap();
        Self { process, lines: Lines::new(stream) }
    }

    /// It must end, and be content.
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

/// The way back to the process that started this one.
pub(crate) fn parent() -> Lines {
    let address = std::env::var(VARIABLE).expect("this is started by the other tests, not by a person");
    Lines::new(TcpStream::connect(address).unwrap())
}

fn wait_readable(listener: &TcpListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(PATIENCE).expect("a short time");
    let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "the other process does not come");
}
