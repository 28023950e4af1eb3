//! Sends and receives the bytes of a handshake.

use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_wire::mpa::{FpduWriter, Framing, MAX_STARTUP};
use ironwarp_wire::{Cause, Header, Offender, Terminate};
use std::io;

/// Maximum number of bytes to read during a handshake: a startup frame, and the bytes of the stream that follow it.
/// Further bytes stay in the kernel.
pub(super) const ROOM: usize = MAX_STARTUP + 4096;
/// Maximum number of bytes to read before the Reply is sent. A peer must send nothing between its Request and the Reply
/// (RFC 5044 §7.1.2): one byte more than a startup frame is enough to detect a violation.
pub(super) const REQUEST_ROOM: usize = MAX_STARTUP + 1;

/// The buffers of a handshake.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// The startup frame to send.
    out: Vec<u8>,
    /// Number of bytes of `out` that were sent.
    sent: usize,
    /// Bytes that were received.
    pub(super) read: Vec<u8>,
}

impl Exchange {
    /// Creates an exchange that sends these bytes. Nothing was received yet.
    pub(super) fn to_send(bytes: &[u8]) -> Self {
        Self { out: bytes.to_vec(), sent: 0, read: Vec::new() }
    }

    /// Sends as much as the socket takes. Returns whether everything is sent.
    pub(super) fn send(&mut self, link: &TcpLink) -> Result<bool, ConnectError> {
        while self.sent < self.out.len() {
            match link.send(&[Piece::Own(&self.out[self.sent..])]) {
                Ok(n) => self.sent += n,
                Err(error) => return not_ready_or_error(error),
            }
        }
        Ok(true)
    }

    /// Reads once, until there are `room` bytes in all; if there are already, reads one byte more. Memory grows with
    /// the bytes that arrive. Returns whether something was read.
    pub(super) fn receive(&mut self, link: &TcpLink, room: usize) -> Result<bool, ConnectError> {
        let mut bytes = [0; ROOM];
        let max = room.saturating_sub(self.read.len()).clamp(1, ROOM);
        match link.recv(&[], &mut bytes[..max]) {
            Ok(n) => {
                self.read.extend_from_slice(&bytes[..n]);
                Ok(true)
            }
            Err(error) => not_ready_or_error(error),
        }
    }

    /// Sends a Terminate that tells the peer why there will be no stream, and closes; does nothing without a cause (RFC
    /// 6581 §8).
    pub(super) fn send_cause(&self, link: &TcpLink, cause: Option<(Cause, Framing)>) {
        let Some((cause, framing)) = cause else { return };
        let terminate = Terminate { cause, offender: Offender::default() };
        let mut bytes = Vec::new();
        let mut writer = FpduWriter::new(framing);
        let written = writer.write(&Header::Terminate(terminate), &[], |part| bytes.extend_from_slice(part));
        if written.is_ok() && link.send(&[Piece::Own(&bytes)]).is_ok() {
            link.finish();
        }
    }
}

/// Returns `Ok(false)` if the socket is not ready, and the error otherwise.
fn not_ready_or_error(error: LinkError) -> Result<bool, ConnectError> {
    match error {
        LinkError::WouldBlock => Ok(false),
        // `Unmapped` cannot occur: a handshake transfers no memory of the program.
        LinkError::Ended | LinkError::Unmapped => Err(ConnectError::Closed),
        LinkError::Lost(errno) => Err(io::Error::from_raw_os_error(errno).into()),
    }
}
