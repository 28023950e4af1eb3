//! Opens a TAP device in the network namespace of another process.
//!
//! A thread of a process with several threads cannot enter a user namespace (setns(2)). So this program starts itself
//! again as a short-lived child, which enters the namespaces, opens the device, and sends the descriptor back.

use crate::tap::Tap;
use ironwarp_io_unit::message::Mac;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Name of the subcommand that runs in the child.
pub(crate) const OPEN_TAP: &str = "open-tap";

/// Opens a TAP device in the network namespace of the process `pid`.
pub(crate) fn open(pid: u32, name: &str, mac: Mac, mtu: u32) -> io::Result<Tap> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(OPEN_TAP).args([&pid.to_string(), name, &mac.to_string(), &mtu.to_string()]);
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
    drop(command); // closes the other end of the socket here, so that the end of the child is noticed
    let received = receive(&ours);
    let status = child.wait()?;
    let tap = received?.filter(|_| status.success()).ok_or_else(|| {
        io::Error::other(format!("failed to open a TAP device in the namespace of process {pid}: {status}"))
    })?;
    Ok(Tap::from_fd(tap))
}

/// Opens a TAP device in the namespaces of a process, and sends its descriptor to the parent. Runs in the child, which has
/// one thread.
pub(crate) fn open_and_send(pid: u32, name: &str, mac: Mac, mtu: u32) -> io::Result<()> {
    let space = |process: &str, kind: &str| {
        let path = format!("/proc/{process}/ns/{kind}");
        File::open(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("failed to open {path}: {error}")))
    };
    let process = pid.to_string();
    let (user, net) = (space(&process, "user")?, space(&process, "net")?);
    let own = space("self", "user")?.metadata()?;
    let enter = |space: &File, kind, name| {
        move_into_link_name_space(space.as_fd(), Some(kind)).map_err(|error| {
            let why = format!("failed to enter the {name} namespace of process {pid}: {error}");
            io::Error::new(error.kind(), why)
        })
    };
    // Entering one's own user namespace is an error.
    let other = user.metadata()?;
    if (other.dev(), other.ino()) != (own.dev(), own.ino()) {
        enter(&user, LinkNameSpaceType::User, "user")?;
    }
    enter(&net, LinkNameSpaceType::Network, "network")?;
    let tap = Tap::open(name, Some(mac), mtu)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [tap.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(io::stdin(), &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptor, or `None` if the child has ended without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}
