//! A session with a target that lies when a test wants it to, and memory around the buffers that must not change.

use ironwarp::Adapter;
use ironwarp::memory::{Access, Buffer, MemoryRegion, Sge};
use ironwarp_iscsi::{Capacity, DigestPolicy, Error, Finished, Options, Request, Session};
use ironwarp_testkit::iscsi::{NAME, Script, Sending, Settings, Target};
use ironwarp_wire::iscsi::{Command, InitiatorPdu, TargetPdu};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long a test waits for what must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Length of the buffer of a command: two Data-In or R2Ts.
pub(crate) const LEN: usize = 16_384;
/// Maximum data of a Data-In, and of an R2T.
pub(crate) const PART: usize = LEN / 2;
/// Number of bytes before and after the buffer that are watched.
const GUARD: usize = 8192;

/// What a script does with a PDU, and what it knows.
pub(crate) type Lie = Box<dyn Fn(&mut Sending, &Control) + Send + Sync>;

/// What the target does at present.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Mode {
    /// It follows the protocol.
    Honest,
    /// It holds all Data-In.
    Hold,
    /// It asks the lie.
    Lie,
}

/// Controls the target, and records what it has received.
#[derive(Debug, Default)]
pub(crate) struct Control {
    mode: AtomicU8,
    /// The window that the target announces, instead of that of its settings.
    window: Mutex<Option<u32>>,
    log: Mutex<Vec<(InitiatorPdu, Vec<u8>)>>,
    changed: Condvar,
    /// Whether the target stops receiving.
    stopped: Mutex<bool>,
    resumed: Condvar,
}

impl Control {
    /// Makes the target stop after the next PDU that it receives, or go on.
    pub(crate) fn stop(&self, stopped: bool) {
        *self.stopped.lock().unwrap() = stopped;
        self.resumed.notify_all();
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Sets the window that the target announces from the next command on.
    pub(crate) fn set_window(&self, window: u32) {
        *self.window.lock().unwrap() = Some(window);
    }

    fn log(&self) -> MutexGuard<'_, Vec<(InitiatorPdu, Vec<u8>)>> {
        self.log.lock().unwrap()
    }

    /// Returns all PDUs that the target has received.
    pub(crate) fn received(&self) -> Vec<(InitiatorPdu, Vec<u8>)> {
        self.log().clone()
    }

    /// Returns all commands that the target has received.
    pub(crate) fn commands(&self) -> Vec<Command> {
        let command = |(pdu, _): &(InitiatorPdu, Vec<u8>)| match pdu {
            InitiatorPdu::Command(command) => Some(*command),
            _ => None,
        };
        self.log().iter().filter_map(command).collect()
    }

    /// Returns the last command that the target has received.
    pub(crate) fn last_command(&self) -> Command {
        self.commands().pop().expect("a command was received")
    }

    /// Waits until the target has received a PDU for which `is_it` returns true.
    pub(crate) fn wait_for(&self, is_it: impl Fn(&InitiatorPdu, &[u8]) -> bool) {
        let log = self.log();
        let is_missing =
            |log: &mut Vec<(InitiatorPdu, Vec<u8>)>| !log.iter().any(|(pdu, data)| is_it(pdu, data));
        let waited = self.changed.wait_timeout_while(log, TIMEOUT, is_missing).unwrap();
        assert!(!waited.1.timed_out(), "the PDU does not arrive");
    }
}

/// The script of the target.
struct Liar {
    control: Arc<Control>,
    lie: Lie,
}

impl Script for Liar {
    fn send(&self, sending: &mut Sending) {
        let mode = self.control.mode.load(Ordering::SeqCst);
        let is_data = matches!(sending.now[0].pdu, TargetPdu::DataIn(_));
        if mode == Mode::Hold as u8 && is_data {
            sending.hold();
        } else if mode == Mode::Lie as u8 {
            (self.lie)(sending, &self.control);
        }
    }

    fn window(&self) -> Option<u32> {
        *self.control.window.lock().unwrap()
    }

    fn received(&self, pdu: &InitiatorPdu, data: &[u8]) {
        self.control.log().push((*pdu, data.to_vec()));
        self.control.changed.notify_all();
        drop(
            self.control
                .resumed
                .wait_while(self.control.stopped.lock().unwrap(), |stopped| *stopped)
                .unwrap(),
        );
    }
}

/// A target, a session with it, and watched memory.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) session: Session,
    pub(crate) target: Target,
    pub(crate) control: Arc<Control>,
    pub(crate) capacity: Capacity,
    /// A buffer of [`LEN`] bytes between guards.
    pub(crate) memory: MemoryRegion,
    /// Memory of another command.
    pub(crate) other: MemoryRegion,
}

/// Returns the options of the session.
pub(crate) fn options(digests: bool) -> Options {
    let policy = if digests { DigestPolicy::Require } else { DigestPolicy::None };
    Options::new("iqn.2026-01.example.ironwarp:test", NAME)
        .header_digest(policy)
        .data_digest(policy)
        .max_recv_data_segment(PART as u32)
        .timeout(Duration::from_secs(5))
}

/// Returns settings in which the target asks for all data of a write.
pub(crate) fn settings() -> Settings {
    Settings {
        initial_r2t: true,
        immediate_data: false,
        max_burst: PART,
        first_burst: PART,
        ..Settings::default()
    }
}

impl Lab {
    /// Starts a target with this lie, logs in, and fills the disk and the memory.
    pub(crate) fn start(
        settings: Settings,
        options: &Options,
        lie: impl Fn(&mut Sending, &Control) + Send + Sync + 'static,
    ) -> Self {
        let control = Arc::new(Control::default());
        let target = Target::start(settings, Liar { control: Arc::clone(&control), lie: Box::new(lie) });
        let size = target.disk().bytes().len();
        target.disk().bytes().copy_from_slice(&pattern(0xd15c, size));
        let mut session = Session::connect(&Adapter::new().unwrap(), target.addr(), options).unwrap();
        let capacity = session.capacity(0).unwrap();
        let register = |seed, len| {
            let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
            session.domain().register(Buffer::copy_of(&pattern(seed, len)).unwrap(), access).unwrap()
        };
        let (memory, other) = (register(1, GUARD + LEN + GUARD), register(2, LEN));
        Self { session, target, control, capacity, memory, other }
    }

    /// Returns the buffer.
    pub(crate) fn buffer(&self) -> Sge {
        self.memory.slice(GUARD..GUARD + LEN).unwrap()
    }

    /// Returns the bytes of the buffer.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.to_vec().unwrap()[GUARD..GUARD + LEN].to_vec()
    }

    /// Uses the buffer for something else.
    pub(crate) fn reuse(&self, bytes: &[u8]) {
        self.memory.write(GUARD, bytes).unwrap();
    }

    /// A read of the buffer.
    pub(crate) fn read(&self, lba: u64) -> Request {
        Request::read(0, &self.capacity, lba, &[self.buffer()]).unwrap()
    }

    /// A write of the buffer.
    pub(crate) fn write(&self, lba: u64) -> Request {
        Request::write(0, &self.capacity, lba, &[self.buffer()]).unwrap()
    }

    /// A read of the other memory.
    pub(crate) fn read_other(&self, lba: u64) -> Request {
        Request::read(0, &self.capacity, lba, &[self.other.slice(..).unwrap()]).unwrap()
    }

    /// Returns what the disk has at this block.
    pub(crate) fn disk(&self, lba: usize) -> Vec<u8> {
        self.target.disk().bytes()[lba * 512..lba * 512 + LEN].to_vec()
    }

    /// Returns the next command that ends.
    pub(crate) fn next(&mut self) -> Finished {
        self.session.next(TIMEOUT).unwrap().expect("a command ends in time")
    }

    /// Fails if a byte outside of the buffer has changed.
    pub(crate) fn check_outside(&self) {
        let (found, expected) = (self.memory.to_vec().unwrap(), pattern(1, GUARD + LEN + GUARD));
        assert!(found[..GUARD] == expected[..GUARD], "a byte before the buffer has changed");
        assert!(found[GUARD + LEN..] == expected[GUARD + LEN..], "a byte after the buffer has changed");
        assert!(self.other.to_vec().unwrap() == pattern(2, LEN), "a byte of other memory has changed");
    }

    /// Fails if the session does not work: reads and writes, and compares.
    pub(crate) fn check_works(&mut self) {
        self.control.set(Mode::Honest);
        let old = self.memory.to_vec().unwrap();
        let request = self.read(64);
        assert_eq!(self.session.execute(request, TIMEOUT).unwrap() as usize, LEN);
        assert!(self.bytes() == self.disk(64), "wrong bytes were read");
        self.reuse(&pattern(77, LEN));
        let request = self.write(128);
        assert_eq!(self.session.execute(request, TIMEOUT).unwrap() as usize, LEN);
        assert!(self.disk(128) == pattern(77, LEN), "wrong bytes were written");
        self.memory.write(0, &old).unwrap();
        assert_eq!(self.target.violations(), [""; 0]);
    }
}

/// Returns whether a command failed because of the end of its session.
pub(crate) fn is_end(result: &Result<u32, Error>) -> bool {
    matches!(result, Err(Error::Protocol(_) | Error::Lost(_)))
}

/// Which command the target lies about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// Starts a command that the target lies about while it holds the data of another one. The session must end, both commands
/// must fail, and memory must not change, except for the buffer of the read.
pub(crate) fn ends_the_session(
    kind: Kind,
    lie: impl Fn(&mut Sending, &Control) + Clone + Send + Sync + 'static,
) {
    for digests in [false, true] {
        ends_the_session_with(kind, digests, lie.clone());
    }
}

/// As [`ends_the_session`], with or without digests.
pub(crate) fn ends_the_session_with(
    kind: Kind,
    digests: bool,
    lie: impl Fn(&mut Sending, &Control) + Send + Sync + 'static,
) {
    let mut lab = Lab::start(settings(), &options(digests), lie);
    lab.check_works();
    let before = lab.bytes();
    lab.control.set(Mode::Hold);
    let request = lab.read_other(0);
    lab.session.start(request).unwrap();
    lab.target.wait_until_held(2);
    lab.control.set(Mode::Lie);
    let request = if kind == Kind::Read { lab.read(32) } else { lab.write(32) };
    lab.session.start(request).unwrap();
    for _ in 0..2 {
        let finished = lab.next();
        assert!(is_end(&finished.result), "{finished:?}");
    }
    assert_eq!(lab.session.outstanding(), 0);
    let request = lab.read(0);
    assert!(matches!(lab.session.start(request), Err(Error::Ended)), "the session has not ended");
    lab.check_outside();
    assert!(kind == Kind::Read || lab.bytes() == before, "the buffer of a write has changed");
}

/// Returns `len` bytes: adjacent ones differ, and so do those of different seeds.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = random(&mut word);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the next number of a sequence (xorshift).
pub(crate) fn random(word: &mut u64) -> u64 {
    *word ^= *word << 13;
    *word ^= *word >> 7;
    *word ^= *word << 17;
    *word
}
