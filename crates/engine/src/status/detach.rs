//! The command by which another process has an adapter leave shared memory (`ironwarp detach`, requirement X2).

use super::answer::{Answer, Row};
use crate::steering::Steering;
use crate::sys::status_socket;
use std::io;

/// The command, as the name of a client's socket has it.
const COMMAND: &str = "detach";

/// The result of [`detach`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detached {
    /// ID of the process.
    pub process: i32,
    /// Number of connections that are leaving shared memory, but have not left yet.
    pub pending: u64,
    /// Why other connections cannot leave, one text for each.
    pub unable: Vec<String>,
    /// Whether memory is still shared with other processes.
    pub shares: bool,
}

impl Detached {
    /// Returns the result of a process all of whose connections can leave.
    pub fn new(process: i32, pending: u64, shares: bool) -> Self {
        Self { process, pending, unable: Vec::new(), shares }
    }
}

/// Has all connections of the adapter whose status socket has this name leave shared memory for good, and new ones stay with
/// TCP. Does not wait for them: call this again to learn whether they have. Takes up to four seconds.
///
/// Fails if the adapter belongs to another user, unless this process is root's.
pub fn detach(name: &str) -> io::Result<Detached> {
    let answer = Answer(status_socket::ask(name, COMMAND)?).read()?;
    let Some(row) = answer.rows.iter().find(|row| row.kind() == "detached") else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its release cannot leave shared memory: update it",
        ));
    };
    let unable = answer.rows.iter().filter(|row| row.kind() == "unable");
    Ok(Detached {
        process: answer.process,
        pending: row.number("pending"),
        unable: unable.map(|row| row.text("why").to_owned()).collect(),
        shares: row.text("shares") != "false",
    })
}

/// Executes the command of a client. Returns `None` if it is another one.
pub(super) fn execute(command: &str, steering: Option<&Steering>) -> Option<String> {
    if command != COMMAND {
        return None;
    }
    let Some(steering) = steering else {
        return Some(format!("{}\n", Row::new("detached").with("pending", 0).with("shares", false)));
    };
    let leaving = steering.begin_leaving();
    let shares = steering.shared_memory().is_some_and(|memory| !memory.is_unmapped());
    let row = Row::new("detached").with("pending", leaving.pending()).with("shares", shares);
    let unable = leaving.unable().into_iter().map(|error| Row::new("unable").with("why", error));
    Some(std::iter::once(row).chain(unable).map(|row| format!("{row}\n")).collect())
}
