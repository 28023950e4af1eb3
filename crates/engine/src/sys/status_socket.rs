//! A text for processes of this machine that ask for it: a socket in the abstract namespace, which passes each caller a
//! sealed memfd with the text. Nothing is left in a file system, and the end that answers never blocks, however long
//! the text is.
//!
//! Any process can connect to an abstract socket, and any process can bind one. So both ends ask the kernel who the
//! other is, and a text is read only from a file that cannot change or grow, and whose size is bounded. The reader does
//! not trust the contents.

use super::fork::Fd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Uid, geteuid};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Maximum number of callers that wait for an answer. A process that calls without end must need a while to fill the
/// queue, so that others get in.
const WAITING: i32 = 64;
/// Maximum number of callers answered at once. More than may wait, since others come meanwhile.
const BURST: usize = 96;
/// Maximum number of callers that share one text, and of descriptors they use at a time.
const BATCH: usize = 16;
/// How long a caller waits for its connection where many call, and for the answer.
const QUEUEING: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length of a text that is passed or read.
const LONGEST: usize = 16 << 20;
/// The seals that the file of a text must have.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// A socket that answers with a text.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    fd: Fd,
}

/// An answer that was not read yet.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The process that answered, according to the kernel.
    pub(crate) process: i32,
    file: File,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl StatusSocket {
    /// Creates a socket with this name.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let fd = Fd::open(|| socket(SocketFlags::NONBLOCK))?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, WAITING)?;
        Ok(Self { fd })
    }

    /// Answers pending callers that run as the owner of this process or as root, and ignores the others. Callers may be
    /// left waiting: call it again after a pause, which bounds what callers that never stop can cost.
    ///
    /// The text is composed after the callers it goes to have been accepted, so it is never older than the question.
    ///
    /// Errors are transient (descriptors, memory) and worth a line in the log.
    pub(crate) fn answer(&self, text: impl Fn() -> String) -> io::Result<()> {
        for _ in 0..BURST / BATCH {
            let callers = self.accept()?;
            if callers.is_empty() {
                continue; // the queue may still hold callers behind a batch of strangers
            }
            let file = sealed(&text())?;
            for caller in callers {
                // A caller that has gone away does not need it.
                let _ = hand_over(&caller, &file);
            }
        }
        Ok(())
    }

    /// Accepts up to [`BATCH`] pending callers that may be answered.
    fn accept(&self) -> io::Result<Vec<OwnedFd>> {
        let mut callers = Vec::new();
        for _ in 0..BATCH {
            match accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(caller) => {
                    let user = sockopt::socket_peercred(&caller);
                    if user.is_ok_and(|user| is_welcome(user.uid, geteuid())) {
                        callers.push(caller);
                    }
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Those that were accepted are answered; the error comes back if it lasts.
                Err(error) if error == Errno::AGAIN || !callers.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(callers)
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether this user may see the text of a process of the owner, and trusts it.
fn is_welcome(user: Uid, owner: Uid) -> bool {
    user == owner || user.is_root()
}

/// Asks the socket with this name; if `process` is given, only if it belongs to that process. Only root waits for
/// answers of other users.
pub(crate) fn request(name: &str, process: Option<i32>) -> io::Result<Answer> {
    let asking = socket(SocketFlags::empty())?;
    sockopt::set_socket_timeout(&asking, Timeout::Recv, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&asking, Timeout::Send, Some(QUEUEING))?;
    connect(&asking, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let peer = sockopt::socket_peercred(&asking)?;
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's");
    if !is_welcome(geteuid(), peer.uid) {
        return Err(refused());
    }
    let answerer = peer.pid.as_raw_nonzero().get();
    if process.is_some_and(|process| process != answerer) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is another process's"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&asking, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.next().ok_or_else(refused)?;
    let len = checked_len(&file)?;
    Ok(Answer { process: answerer, file: file.into(), len })
}

/// The size of a file that was passed, which must not change: reading anything else might never end.
fn checked_len(file: &OwnedFd) -> io::Result<usize> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_sealed = is_file && fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
    let len = usize::try_from(stat.st_size).ok().filter(|&len| is_sealed && len <= LONGEST);
    let wrong = || format!("not a sealed file of at most {LONGEST} bytes");
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

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// A file with as many whole lines of the text as may be read.
fn sealed(text: &str) -> io::Result<File> {
    let bytes = text.as_bytes();
    let cut = |longest: &[u8]| longest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let len = bytes.get(..LONGEST).map_or(bytes.len(), cut);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(c"ironwarp", flags)?);
    file.write_all(&bytes[..len])?;
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
    Ok(file)
}

fn hand_over(to: &OwnedFd, file: &File) -> io::Result<()> {
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

    /// Asks, and is answered once.
    fn answered(test: &str, text: &str) -> (i32, String) {
        let name = format!("ironwarp-test/{}/{test}", std::process::id());
        let bulletin = StatusSocket::new(&name).unwrap();
        let asking = std::thread::spawn(move || request(&name, None));
        poll(&mut [PollFd::new(&bulletin, PollFlags::IN)], None).unwrap();
        bulletin.answer(|| text.to_owned()).unwrap();
        let answer = asking.join().unwrap().unwrap();
        (answer.process, answer.text().unwrap())
    }

    /// A text longer than any socket buffer arrives whole, though nothing reads while it is passed.
    #[test]
    fn a_long_text_is_handed_over_without_waiting() {
        let text = "all is well\n".repeat(1 << 20);
        let (process, answer) = answered("long", &text);
        assert_eq!(process.cast_unsigned(), std::process::id());
        assert!(answer == text, "{} bytes", answer.len());
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_behind_a_line() {
        let text = "all is well\n".repeat(1 << 21);
        let (_, answer) = answered("longer", &text);
        assert!(answer.len() <= LONGEST && answer.len() + 12 > LONGEST, "{} bytes", answer.len());
        assert!(text.starts_with(&answer) && answer.ends_with('\n'));
    }

    /// A caller that asks while a text is being composed gets the next one: the first may not show what the caller did
    /// before it asked.
    #[test]
    fn a_text_is_never_older_than_the_question() {
        let name = format!("ironwarp-test/{}/fresh", std::process::id());
        let bulletin = StatusSocket::new(&name).unwrap();
        let pending = || poll(&mut [PollFd::new(&bulletin, PollFlags::IN)], None).unwrap();
        let asking = || {
            let name = name.clone();
            std::thread::spawn(move || request(&name, None)?.text())
        };
        let first = asking();
        let second = std::cell::OnceCell::new();
        pending();
        let compose = || {
            if second.get().is_none() {
                second.set(asking()).unwrap();
                pending();
                return "before".to_owned();
            }
            "after".to_owned()
        };
        bulletin.answer(compose).unwrap();
        let second = second.into_inner().unwrap();
        assert_eq!([first, second].map(|it| it.join().unwrap().unwrap()), ["before", "after"]);
    }

    #[test]
    fn another_user_is_told_nothing() {
        let [root, owner, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(is_welcome(owner, owner) && is_welcome(root, owner));
        assert!(!is_welcome(other, owner) && !is_welcome(owner, root));
    }

    #[test]
    fn nobody_answers_under_a_name_that_nobody_has() {
        let error = request("ironwarp-test/none", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn another_process_is_not_listened_to() {
        let name = format!("ironwarp-test/{}/other", std::process::id());
        let _bulletin = StatusSocket::new(&name).unwrap();
        assert_eq!(request(&name, Some(1)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
