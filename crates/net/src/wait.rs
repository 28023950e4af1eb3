//! Waiting for descriptors.

use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::BorrowedFd;

/// Waits for a descriptor. Returns false if `stop` is readable.
pub(crate) fn wait_for(descriptor: PollFd<'_>, stop: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let mut descriptors = vec![descriptor];
    descriptors.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
    match poll(&mut descriptors, None) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    if descriptors[0].revents().contains(PollFlags::ERR) {
        return Err(io::Error::other("it reports an error"));
    }
    Ok(descriptors.get(1).is_none_or(|stop| stop.revents().is_empty()))
}
