//! The socket over which a process passes its status, a text, to other processes of the host that request it (`ironwarp
//! show`).
//!
//! It is a Unix socket with a name in the abstract namespace, so that nothing is left in a file system. Each client
//! that connects receives the descriptor of a sealed memfd with the text. So the server never blocks, however long the
//! text is.
//!
//! A client can also ask the process to do something. The name of its own socket has the text: so the text is there when
//! the server accepts the connection, and the server never waits for a client.
//!
//! Any process can connect to an abstract socket, and any process can bind one. So both ends get the user of the other
//! from the kernel (SO_PEERCRED), and a client reads the text only from a file that cannot change or grow, and whose
//! size is bounded. The client does not trust the contents.

use super::fork::Fd;
use super::socket::peer_credentials;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with,
    bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Uid, geteuid};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum number of clients that wait to be accepted. A process that connects in a loop needs a while to fill a queue
/// of this length, so other clients get in, too.
const BACKLOG: i32 = 64;
/// Maximum number of clients accepted in one call of [`StatusSocket::answer`]: the whole backlog, and some that connect
/// meanwhile.
const MAX_ACCEPTED: usize = 96;
/// Maximum number of clients that share one text. It also bounds the number of descriptors in use at a time.
const BATCH: usize = 16;
/// How long a client waits for room in the backlog of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a client waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a text, in bytes.
const MAX_LEN: usize = 16 << 20;
/// The seals that the file with the text must have.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Prefix of the names of clients' sockets that have a command. The process and a number follow, then the command.
const COMMAND_PREFIX: &str = "ironwarp-ask/";

/// The listening socket of the process that has a status.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    fd: Fd,
}

/// The status of a process, which was not read yet.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The ID of the process that answered, as reported by the kernel.
    pub(crate) process: i32,
    /// The sealed file with the text.
    file: File,
    /// Length of the text in bytes.
    pub(crate) len: usize,
}

impl StatusSocket {
    /// Creates a listening socket with this abstract name. Fails if another socket has the name.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        // `Fd::open` calls the function while no thread can fork: forked children close the socket.
        let fd = Fd::open(|| socket(SocketFlags::NONBLOCK))?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, BACKLOG)?;
        Ok(Self { fd })
    }

    /// Sends the text to pending clients that run as the user of this process or as root, and closes the connections of
    /// others. A client that has a command gets the result of `execute` instead. Clients may still be pending afterwards:
    /// call this again after a pause, which bounds the cost of clients that connect in a loop.
    ///
    /// `text` is called after the clients that receive its result have been accepted. So the text is never older than
    /// the request.
    ///
    /// Errors are transient (lack of descriptors or memory); the caller should log them.
    pub(crate) fn answer(
        &self,
        text: impl Fn() -> String,
        execute: impl Fn(&str) -> String,
    ) -> io::Result<()> {
        for _ in 0..MAX_ACCEPTED / BATCH {
            // A whole batch may have been of other users, with more clients behind it.
            let mut file = None;
            for (client, command) in self.accept()? {
                let special = command.map(|command| create_sealed(&execute(&command))).transpose()?;
                let answer = match (&special, &file) {
                    (Some(special), _) => special,
                    (None, Some(file)) => file,
                    (None, None) => file.insert(create_sealed(&text())?),
                };
                // Fails if the client has closed its end, and does not need the text any more.
                let _ = send_file(&client, answer);
            }
        }
        Ok(())
    }

    /// Accepts up to [`BATCH`] pending clients, and returns those that may read the text, with their commands. Closes the
    /// others, so that the result may be empty although clients are still pending.
    fn accept(&self) -> io::Result<Vec<(OwnedFd, Option<String>)>> {
        let mut clients = Vec::new();
        for _ in 0..BATCH {
            match acceptfrom_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((client, name)) => {
                    let user = peer_credentials(&client);
                    if user.is_ok_and(|user| may_read(Uid::from_raw(user.uid), geteuid())) {
                        clients.push((client, name.and_then(parse_command)));
                    }
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Clients that were accepted are answered first. A lasting error is returned by the next call.
                Err(error) if error == Errno::AGAIN || !clients.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(clients)
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether `user` may read the status of a process of `owner`, and believes it.
fn may_read(user: Uid, owner: Uid) -> bool {
    user == owner || user.is_root()
}

/// Returns the command in the name of a client's socket; `None` if there is none.
fn parse_command(client: SocketAddrAny) -> Option<String> {
    let client = SocketAddrUnix::try_from(client).ok()?;
    let name = std::str::from_utf8(client.abstract_name()?).ok()?;
    let (_, rest) = name.strip_prefix(COMMAND_PREFIX)?.split_once('/')?;
    rest.split_once('/').map(|(_, command)| command.to_owned())
}

/// Asks the process of the socket with this name to execute a command, and returns its answer. Fails like [`request`], and
/// if the command is too long for the name of a socket.
pub(crate) fn ask(name: &str, command: &str) -> io::Result<Answer> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let client = socket(SocketFlags::empty())?;
    let own = format!("{COMMAND_PREFIX}{}/{number}/{command}", std::process::id());
    bind(&client, &SocketAddrUnix::new_abstract_name(own.as_bytes())?)?;
    receive_answer(client, name, None)
}

/// Requests the text of the socket with this name. Fails if `process` is given and the socket belongs to another
/// process, or if this user [may not read](may_read) the status of the socket's owner.
pub(crate) fn request(name: &str, process: Option<i32>) -> io::Result<Answer> {
    receive_answer(socket(SocketFlags::empty())?, name, process)
}

/// Connects to the socket with this name, and receives the answer.
fn receive_answer(client: OwnedFd, name: &str, process: Option<i32>) -> io::Result<Answer> {
    sockopt::set_socket_timeout(&client, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    sockopt::set_socket_timeout(&client, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    connect(&client, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let server = peer_credentials(&client)?;
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's");
    if !may_read(geteuid(), Uid::from_raw(server.uid)) {
        return Err(refused());
    }
    let server = server.pid;
    if process.is_some_and(|process| process != server) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is another process's"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&client, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    // A server that refuses this user closes the connection without a file.
    let file = files.next().ok_or_else(refused)?;
    let len = checked_len(&file)?;
    Ok(Answer { process: server, file: file.into(), len })
}

/// Returns the length of a file that a server has sent. Fails unless the file is a sealed memfd of at most [`MAX_LEN`]
/// bytes: reading from anything else might never end.
fn checked_len(file: &OwnedFd) -> io::Result<usize> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_sealed = is_file && fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
    let len = usize::try_from(stat.st_size).ok().filter(|&len| is_sealed && len <= MAX_LEN);
    let wrong = || format!("not a sealed file of at most {MAX_LEN} bytes");
    len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, wrong()))
}

impl Answer {
    /// Reads the text.
    pub(crate) fn text(mut self) -> io::Result<String> {
        let mut text = String::with_capacity(self.len);
        self.file.rewind()?;
        self.file.take(self.len as u64).read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Opens a Unix socket that keeps message boundaries.
fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// Creates a sealed file with the text. A text that is too long is cut off after the last line that fits into
/// [`MAX_LEN`] bytes.
fn create_sealed(text: &str) -> io::Result<File> {
    let bytes = text.as_bytes();
    let whole_lines = |start: &[u8]| start.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let len = bytes.get(..MAX_LEN).map_or(bytes.len(), whole_lines);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(c"ironwarp", flags)?);
    file.write_all(&bytes[..len])?;
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
    Ok(file)
}

/// Sends the descriptor of a file to a client, with one byte of data, which the kernel requires.
fn send_file(to: &OwnedFd, file: &File) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(to, &[IoSlice::new(&[0])], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    /// Sends `text` from a server to one client. Returns the process that the client believes to be the server, and the
    /// text it read.
    fn send_text(test: &str, text: &str) -> (i32, String) {
        let name = format!("ironwarp-test/{}/{test}", std::process::id());
        let server = StatusSocket::new(&name).unwrap();
        let client = std::thread::spawn(move || request(&name, None));
        poll(&mut [PollFd::new(&server, PollFlags::IN)], None).unwrap();
        server.answer(|| text.to_owned(), no_command).unwrap();
        let answer = client.join().unwrap().unwrap();
        (answer.process, answer.text().unwrap())
    }

    fn no_command(command: &str) -> String {
        panic!("the command `{command}`");
    }

    /// Commands are executed one by one, and a client without one gets the text.
    #[test]
    fn a_command_comes_with_the_connection() {
        let name = format!("ironwarp-test/{}/command", std::process::id());
        let server = StatusSocket::new(&name).unwrap();
        let mut clients = Vec::new();
        for command in [Some("port a:1 down"), None, Some("port b up")] {
            let name = name.clone();
            clients.push(std::thread::spawn(move || match command {
                Some(command) => ask(&name, command)?.text(),
                None => request(&name, None)?.text(),
            }));
        }
        while !clients.iter().all(std::thread::JoinHandle::is_finished) {
            server.answer(|| "status".to_owned(), |command| format!("did {command}")).unwrap();
        }
        let answers: Vec<String> =
            clients.into_iter().map(|client| client.join().unwrap().unwrap()).collect();
        assert_eq!(answers, ["did port a:1 down", "status", "did port b up"]);
        assert!(ask(&name, &"x".repeat(200)).is_err());
    }

    /// A text longer than any socket buffer arrives complete, although the client reads it only after the server has
    /// returned.
    #[test]
    fn a_long_text_is_handed_over_without_waiting() {
        let text = "all is well\n".repeat(1 << 20);
        let (process, answer) = send_text("long", &text);
        assert_eq!(process.cast_unsigned(), std::process::id());
        assert!(answer == text, "{} bytes", answer.len());
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_behind_a_line() {
        let text = "all is well\n".repeat(1 << 21);
        let (_, answer) = send_text("longer", &text);
        assert!(answer.len() <= MAX_LEN && answer.len() + 12 > MAX_LEN, "{} bytes", answer.len());
        assert!(text.starts_with(&answer) && answer.ends_with('\n'));
    }

    /// A client that connects while a text is being composed gets the next text, because the first may not show what
    /// happened before the client connected.
    #[test]
    fn a_text_is_never_older_than_the_question() {
        let name = format!("ironwarp-test/{}/fresh", std::process::id());
        let server = StatusSocket::new(&name).unwrap();
        let wait_for_client = || poll(&mut [PollFd::new(&server, PollFlags::IN)], None).unwrap();
        let start_client = || {
            let name = name.clone();
            std::thread::spawn(move || request(&name, None)?.text())
        };
        let first = start_client();
        let second = std::cell::OnceCell::new();
        wait_for_client();
        let compose = || {
            if second.get().is_none() {
                second.set(start_client()).unwrap();
                wait_for_client();
                return "before".to_owned();
            }
            "after".to_owned()
        };
        server.answer(compose, no_command).unwrap();
        let second = second.into_inner().unwrap();
        assert_eq!([first, second].map(|client| client.join().unwrap().unwrap()), ["before", "after"]);
    }

    #[test]
    fn another_user_is_told_nothing() {
        let [root, owner, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(may_read(owner, owner) && may_read(root, owner));
        assert!(!may_read(other, owner) && !may_read(owner, root));
    }

    #[test]
    fn nobody_answers_under_a_name_that_nobody_has() {
        let error = request("ironwarp-test/none", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn another_process_is_not_listened_to() {
        let name = format!("ironwarp-test/{}/other", std::process::id());
        let _server = StatusSocket::new(&name).unwrap();
        assert_eq!(request(&name, Some(1)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
