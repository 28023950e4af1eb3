//! The two pipes between the ends of a move: one to read messages from, one to write them to. All waits have deadlines.

use super::super::error::{Failure, Refusal};
use super::super::message::reason;
use super::super::wait::Wait;
use super::message::{Head, PREFIX};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use std::ops::Range;

/// Size of a read, in bytes.
const READ: usize = 64 << 10;

/// The two pipes.
#[derive(Debug)]
pub(super) struct Pipe {
    input: NonBlocking,
    output: NonBlocking,
    /// What was read, and is not a whole frame yet.
    buffer: Vec<u8>,
    /// Length of the frame at the beginning of `buffer` that was returned last.
    taken: usize,
}

/// A descriptor that does not block until this is dropped.
#[derive(Debug)]
struct NonBlocking {
    fd: OwnedFd,
    flags: OFlags,
}

impl NonBlocking {
    fn new(fd: OwnedFd) -> Result<Self, Failure> {
        let flags = fcntl_getfl(&fd).map_err(Failure::system("read the flags of a pipe"))?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(Failure::system("set the flags of a pipe"))?;
        Ok(Self { fd, flags })
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        // Descriptors of other processes may refer to the same pipe, such as that of a shell.
        let _ = fcntl_setfl(&self.fd, self.flags);
    }
}

impl Pipe {
    pub(super) fn new(input: OwnedFd, output: OwnedFd) -> Result<Self, Failure> {
        Ok(Self {
            input: NonBlocking::new(input)?,
            output: NonBlocking::new(output)?,
            buffer: Vec::new(),
            taken: 0,
        })
    }

    /// Writes a message. If this fails, the other end has not read the whole message, and never will. An end that has refused
    /// need not read any more, so this fails if that is why the pipe is full.
    pub(super) fn send(&mut self, head: &Head, payload: &[u8], wait: Wait) -> Result<(), Failure> {
        let frame = head.encode(payload);
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match write(&self.output.fd, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_room(wait)?,
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(Failure::Ended { awaited: wait.awaited() });
                }
                Err(error) => return Err(Failure::system("write to the other host")(error)),
            }
        }
        Ok(())
    }

    /// Waits until the pipe has room. Fails if the other end refuses, unless another message comes first.
    fn wait_for_room(&mut self, wait: Wait) -> Result<(), Failure> {
        let frame = self.next_frame()?;
        if let Some(frame) = &frame
            && let (Head::Refused, payload) = Head::decode(&self.buffer[frame.clone()])?
        {
            return Err(Failure::Refused(Refusal(reason(payload)?)));
        }
        let mut both =
            [PollFd::new(&self.output.fd, PollFlags::OUT), PollFd::new(&self.input.fd, PollFlags::IN)];
        let awaited = if frame.is_some() { &mut both[..1] } else { &mut both };
        match wait.poll(awaited)? {
            true if both[1].revents().is_empty() => Ok(()),
            true => self.read_more(wait),
            false => Err(wait.failed()),
        }
    }

    /// Waits for a message other than REFUSED.
    pub(super) fn receive(&mut self, wait: Wait) -> Result<(Head, &[u8]), Failure> {
        let frame = loop {
            match self.next_frame()? {
                Some(frame) => break frame,
                None => self.read_more(wait)?,
            }
        };
        self.taken = frame.end;
        let (head, payload) = Head::decode(&self.buffer[frame])?;
        match head {
            Head::Refused => Err(Failure::Refused(Refusal(reason(payload)?))),
            head => Ok((head, payload)),
        }
    }

    /// Returns where the next frame is in the buffer, if it has arrived as a whole. Drops the frame that was returned last.
    fn next_frame(&mut self) -> Result<Option<Range<usize>>, Failure> {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        let Some((prefix, _)) = self.buffer.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = Head::frame_len(*prefix)?;
        Ok((self.buffer.len() >= len).then_some(0..len))
    }

    fn read_more(&mut self, wait: Wait) -> Result<(), Failure> {
        let have = self.buffer.len();
        self.buffer.resize(have + READ, 0);
        let result = loop {
            match read(&self.input.fd, &mut self.buffer[have..]) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match wait.poll(&mut [PollFd::new(&self.input.fd, PollFlags::IN)]) {
                    Ok(true) => {}
                    Ok(false) => break Err(wait.failed()),
                    Err(failure) => break Err(failure),
                },
                Ok(0) | Err(Errno::CONNRESET) => break Err(Failure::Ended { awaited: wait.awaited() }),
                Err(error) => break Err(Failure::system("read from the other host")(error)),
                Ok(more) => break Ok(more),
            }
        };
        self.buffer.truncate(have + result.as_ref().map_or(0, |more| *more));
        result.map(drop)
    }

    /// Returns the reason that the other end gave before it closed the pipes, if that is how this end failed and there is one.
    pub(super) fn explain(&mut self, failure: Failure, wait: Wait) -> Failure {
        if !matches!(failure, Failure::Ended { .. }) {
            return failure;
        }
        loop {
            match self.receive(wait) {
                Ok(_) => {}
                Err(refused @ Failure::Refused(_)) => return refused,
                Err(_) => return failure,
            }
        }
    }
}
