//! A text for whoever asks on this machine: a socket in the abstract namespace, whose every caller is handed a file with the text in
//! it. Nothing is left behind in a file system, and who answers never waits, however long the text is.

use super::fork::Fd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::Uid;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::time::Duration;

/// So many may wait to be answered.
const WAITING: i32 = 16;
/// So long a caller waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the text is asked for.
#[derive(Debug)]
pub(crate) struct Bulletin {
    fd: Fd,
}

impl Bulletin {
    /// Under this name.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let fd = Fd::open(|| socket(SocketFlags::NONBLOCK))?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, WAITING)?;
        Ok(Self { fd })
    }

    /// Answers all who have asked: the user whose process this is, and root. Others hear nothing.
    pub(crate) fn answer(&self, text: impl Fn() -> String) -> io::Result<()> {
        loop {
            let caller = match accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(caller) => caller,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let user = sockopt::socket_peercred(&caller)?.uid;
            if is_welcome(user, rustix::process::geteuid()) {
                // A caller that is gone already has no use for it.
                let _ = hand_over(&caller, &text());
            }
        }
    }
}

impl AsFd for Bulletin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_welcome(user: Uid, owner: Uid) -> bool {
    user == owner || user.is_root()
}

/// Asks under a name: who answers, as a process number of this end's, and the text.
pub(crate) fn ask(name: &str) -> io::Result<(i32, String)> {
    let asking = socket(SocketFlags::empty())?;
    sockopt::set_socket_timeout(&asking, Timeout::Recv, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&asking, Timeout::Send, Some(PATIENCE))?;
    connect(&asking, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let process = sockopt::socket_peercred(&asking)?.pid.as_raw_nonzero().get();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&asking, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's");
    let mut file = File::from(files.next().ok_or_else(refused)?);
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok((process, text))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

fn hand_over(to: &OwnedFd, text: &str) -> io::Result<()> {
    let mut file = File::from(rustix::fs::memfd_create(c"ironwarp", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
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

    /// What is longer than any socket's buffer arrives whole, though nobody reads while it is handed over.
    #[test]
    fn a_long_text_is_handed_over_without_waiting() {
        let name = format!("ironwarp-test/{}/bulletin", std::process::id());
        let bulletin = Bulletin::new(&name).unwrap();
        let text = "all is well\n".repeat(1 << 20);
        let asking = std::thread::spawn(move || ask(&name));
        rustix::event::poll(&mut [rustix::event::PollFd::new(&bulletin, rustix::event::PollFlags::IN)], None)
            .unwrap();
        bulletin.answer(|| text.clone()).unwrap();
        let (process, answer) = asking.join().unwrap().unwrap();
        assert_eq!(process.cast_unsigned(), std::process::id());
        assert!(answer == text, "{} bytes", answer.len());
    }

    #[test]
    fn another_user_is_told_nothing() {
        let [root, owner, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(is_welcome(owner, owner) && is_welcome(root, owner));
        assert!(!is_welcome(other, owner) && !is_welcome(owner, root));
    }

    #[test]
    fn nobody_answers_under_a_name_that_nobody_has() {
        let error = ask("ironwarp-test/none").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
