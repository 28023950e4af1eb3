//! The bytes of a handshake, in both directions.

use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_wire::mpa::{FpduWriter, Framing, MAX_STARTUP};
use ironwarp_wire::{Cause, Header, Offender, Terminate};
use std::io;

/// Maximum number of bytes kept of what comes behind a startup frame; the rest waits in the kernel.
pub(super) const ROOM: usize = MAX_STARTUP + 4096;
/// A peer that begins has to wait after its Request (RFC 5044 §7.1.2): one byte more is enough to know that it does not.
pub(super) const REQUEST_ROOM: usize = MAX_STARTUP + 1;

/// What is to be sent, and what was read.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    out: Vec<u8>,
    sent: usize,
    pub(super) read: Vec<u8>,
}

impl Exchange {
    pub(super) fn to_send(bytes: &[u8]) -> Self {
        Self { out: bytes.to_vec(), sent: 0, read: Vec::new() }
    }

    /// Returns whether everything is sent.
    pub(super) fn send(&mut self, link: &TcpLink) -> Result<bool, ConnectError> {
        while self.sent < self.out.len() {
            match link.send(&[Piece::Own(&self.out[self.sent..])]) {
                Ok(n) => self.sent += n,
                Err(error) => return would_block(error),
            }
        }
        Ok(true)
    }

    /// Reads until there are `room` bytes in all, or one more. What has not come needs no memory. Returns whether something came.
    pub(super) fn receive(&mut self, link: &TcpLink, room: usize) -> Result<bool, ConnectError> {
        let mut bytes = [0; ROOM];
        let most = room.saturating_sub(self.read.len()).clamp(1, ROOM);
        match link.recv(&[], &mut bytes[..most]) {
            Ok(n) => {
                self.read.extend_from_slice(&bytes[..n]);
                Ok(true)
            }
            Err(error) => would_block(error),
        }
    }

    /// Tells the peer why there will be no stream, if there is a cause to name (RFC 6581 §8).
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

/// `Ok(false)` if the socket is not ready.
fn would_block(error: LinkError) -> Result<bool, ConnectError> {
    match error {
        LinkError::WouldBlock => Ok(false),
        LinkError::Ended | LinkError::Unmapped => Err(ConnectError::Closed),
        LinkError::Lost(errno) => Err(io::Error::from_raw_os_error(errno).into()),
    }
}
