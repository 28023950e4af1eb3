//! The header of the file: the process, and how its counter relates to the time.

use crate::clock;
use crate::ring::{NAME_LEN, RECORDS, RINGS};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// First bytes of every file.
const MAGIC: &[u8; 8] = b"ironevts";
const VERSION: u32 = 1;
/// Length of the fields.
const LEN: usize = 88;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The process ID.
    pub(crate) process: u32,
    /// When the process started, in the kernel's clock ticks since the machine started. Together with the process ID, it tells
    /// processes apart.
    pub(crate) started: u64,
    /// The inode of the PID namespace, in which the process ID is meaningful.
    pub(crate) namespace: u64,
    /// The counter and the time of one moment.
    pub(crate) ticks: u64,
    pub(crate) nanoseconds: u64,
    /// Identifies the start of the machine, since which the counter counts.
    pub(crate) boot: [u8; 16],
    /// The name of the program.
    pub(crate) program: [u8; NAME_LEN],
}

impl Header {
    /// Returns the header of this process.
    pub(crate) fn of_this_process() -> Self {
        let process = std::process::id();
        Self {
            process,
            started: start_of(process).unwrap_or_default(),
            namespace: namespace(),
            ticks: clock::ticks(),
            nanoseconds: clock::nanoseconds(),
            boot: boot(),
            program: name_in("/proc/self/comm"),
        }
    }

    /// Returns the bytes of the header.
    #[expect(clippy::cast_possible_truncation, reason = "both numbers are small constants")]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((RINGS as u32).to_le_bytes());
        bytes.extend((RECORDS as u32).to_le_bytes());
        bytes.extend(self.process.to_le_bytes());
        for number in [self.started, self.namespace, self.ticks, self.nanoseconds] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.boot);
        bytes.extend(self.program);
        bytes
    }

    /// Reads a header. Returns `None` if it is not one of this version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        let word = |at: usize| Some(u32::from_le_bytes(*bytes[at..].first_chunk()?));
        let number = |at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
        let is_ours = bytes.starts_with(MAGIC)
            && word(8)? == VERSION
            && word(12)? as usize == RINGS
            && word(16)? as usize == RECORDS;
        is_ours.then_some(Self {
            process: word(20)?,
            started: number(24)?,
            namespace: number(32)?,
            ticks: number(40)?,
            nanoseconds: number(48)?,
            boot: *bytes[56..].first_chunk()?,
            program: *bytes[72..].first_chunk()?,
        })
    }

    /// Returns whether the process still runs; `None` if that cannot be found out, because it has a PID namespace of its own.
    /// `user` owns the file. If that is not the caller, who reads it as root, the process must belong to the same user:
    /// otherwise the file may be forged.
    pub(crate) fn runs(&self, user: u32) -> Option<bool> {
        let is_trusted = user == rustix::process::geteuid().as_raw() || user_of(self.process) == Some(user);
        (self.namespace == namespace()).then(|| is_trusted && start_of(self.process) == Some(self.started))
    }
}

/// Returns the effective user of a process; `None` if it does not exist.
fn user_of(process: u32) -> Option<u32> {
    // The directory belongs to the user even if PR_SET_DUMPABLE is off, unlike the files in it.
    fs::metadata(format!("/proc/{process}")).ok().map(|metadata| metadata.uid())
}

/// Returns whether a process exists in this PID namespace, or may exist.
pub(crate) fn exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// Returns when a process started; `None` if it does not exist or is a zombie.
fn start_of(process: u32) -> Option<u64> {
    start_in(&fs::read(format!("/proc/{process}/stat")).ok()?)
}

/// Returns `starttime` of the bytes of a file described in proc_pid_stat(5); `None` if the process is a zombie.
fn start_in(stat: &[u8]) -> Option<u64> {
    // The name of the program may contain any bytes: the fields after it begin behind the last parenthesis.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<_> = str::from_utf8(&stat[name_end + 1..]).ok()?.split_whitespace().collect();
    // The fields are numbered from 1, and these begin with the third.
    let field = |number: usize| fields.get(number - 3).copied();
    let (state, threads, started) = (field(3)?, field(20)?, field(22)?);
    // If the main thread ends first, it is a zombie until the others have ended.
    let has_ended = state == "X" || state == "Z" && matches!(threads, "0" | "1");
    started.parse().ok().filter(|_| !has_ended)
}

/// Returns the inode of the PID namespace; zero if it is unknown.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Returns what identifies the start of this machine; zeros if it is unknown.
pub(crate) fn boot() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}

/// Returns the name in a file of /proc, without the line break.
pub(crate) fn name_in(path: &str) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    let text = fs::read(path).unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_bytes() {
        let header = Header::of_this_process();
        assert_eq!(Header::parse(&header.to_bytes()), Some(header.clone()));
        assert_eq!(header.to_bytes().len(), LEN);
        assert!(header.started > 0 && header.namespace > 0 && header.boot != [0; 16]);
        for at in [0, 8, 12, 16] {
            let mut wrong = header.to_bytes();
            wrong[at] ^= 1;
            assert_eq!(Header::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(Header::parse(&header.to_bytes()[1..]), None);
    }

    #[test]
    fn a_process_runs_until_it_ends() {
        let (ours, user) = (Header::of_this_process(), rustix::process::geteuid().as_raw());
        assert_eq!(ours.runs(user), Some(true));
        assert_eq!(ours.runs(user + 1), Some(false), "forged");
        // The same process ID, used again.
        assert_eq!(Header { started: ours.started + 1, ..ours.clone() }.runs(user), Some(false));
        assert_eq!(Header { process: u32::MAX, ..ours.clone() }.runs(user), Some(false));
        assert_eq!(Header { namespace: 1, ..ours }.runs(user), None);
    }

    #[test]
    fn a_process_runs_whatever_its_name_is() {
        use std::os::unix::process::CommandExt;
        let directory = std::env::temp_dir().join(format!("recorder-header-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let program = directory.join("cut after 15 b\u{e4}"); // in the middle of the last character
        std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
        let mut command = std::process::Command::new(program);
        let mut process = command.arg0("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(start_of(process.id()).is_some());
        process.stdin.take();
        process.wait().unwrap();
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_runs_until_its_last_thread_has_ended() {
        let started = |state, threads| {
            let stat =
                format!("7 () R) {state} 1 7 7 0 -1 4227084 93 0 0 0 0 0 0 0 20 0 {threads} 0 237434 0 0 1");
            start_in(stat.as_bytes())
        };
        assert_eq!([("S", 1), ("Z", 2)].map(|(state, threads)| started(state, threads)), [Some(237_434); 2]);
        assert_eq!([("Z", 1), ("X", 0)].map(|(state, threads)| started(state, threads)), [None; 2]);
        assert_eq!(start_in(b"7 (cat) S 1"), None);
    }
}
