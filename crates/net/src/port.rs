//! Where frames come from and go to: a TAP device, or the stream of a virtual machine.

use crate::arrived::Arrived;
use crate::ring::Space;
use crate::stream::Stream;
use crate::tap::Tap;
use crate::wait::wait_for;
use ironwarp_io_unit::frame::ALL_OFFLOADS;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::BorrowedFd;

#[derive(Debug)]
pub(crate) enum Port {
    Tap(Tap),
    Stream(Stream),
}

impl Port {
    /// Enables all offloads that there are, and returns them.
    pub(crate) fn enable_offloads(&self) -> io::Result<u32> {
        match self {
            Self::Tap(tap) => tap.enable_offloads(),
            // A stream has none: super-packets are cut before they are written.
            Self::Stream(_) => Ok(ALL_OFFLOADS),
        }
    }

    /// Tells the kernel whether the link works.
    pub(crate) fn set_carrier(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Tap(tap) => tap.set_carrier(on),
            Self::Stream(_) => Ok(()),
        }
    }

    /// Waits until there may be a frame to read. Returns false if `stop` is readable.
    pub(crate) fn wait(&self, stop: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        match self {
            Self::Tap(tap) => wait_for(PollFd::new(tap, PollFlags::IN), stop),
            Self::Stream(stream) => stream.wait(stop),
        }
    }

    /// Reads a frame with its header. Returns `None` if there is none.
    pub(crate) fn read(&self, into: &Space) -> io::Result<Option<usize>> {
        match self {
            Self::Tap(tap) => tap.read(into),
            Self::Stream(stream) => stream.read(into),
        }
    }

    /// Writes a frame with its header. Returns whether it was taken.
    pub(crate) fn write(&self, frame: &Arrived) -> bool {
        match self {
            Self::Tap(tap) => tap.write(frame),
            Self::Stream(stream) => stream.write(frame),
        }
    }
}
