//! Sends and receives data through the rings of a connection.

use super::buffer::IoSlices;
use super::state::{Phase, State};
use super::stream::Stream;
use super::wire::Message;
use crate::support::errno::Errno;
use ironwarp_rnic::queue::{Operation, WorkRequest};
use ironwarp_wire::RemoteAddr;

impl Stream {
    /// Sends as much data as there is room for. Data that is not sent stays in `from`.
    pub(super) fn send(&self, from: &mut IoSlices<'_>) -> Result<(), Errno> {
        let mut state = self.polled_state();
        let mut made_progress = false;
        loop {
            state.check_may_send()?;
            let len = state.out.room(from.len());
            if len > 0 {
                self.send_message(&mut state, len, from)?;
            } else if made_progress || from.len() == 0 {
                return Ok(());
            } else {
                // Progress may bring credit. It costs system calls, so it is made once, and only if needed.
                self.make_progress(&mut state);
                made_progress = true;
            }
        }
    }

    /// Sends the next `len` bytes as one message, for which the rings must have room.
    fn send_message(&self, state: &mut State, len: usize, from: &mut IoSlices<'_>) -> Result<(), Errno> {
        let request = state.out.build_write(len, from);
        self.post(state, request)?;
        state.out.record_write(len);
        Ok(())
    }

    /// Writes at most `len` bytes to mapped memory of the peer, as much as there is room for. Returns the number of
    /// bytes.
    pub(super) fn write_to(
        &self,
        addr: RemoteAddr,
        len: usize,
        from: &mut IoSlices<'_>,
    ) -> Result<usize, Errno> {
        let mut state = self.polled_state();
        state.check_may_send()?;
        if !state.out.may_post() || state.out.local_room() == 0 {
            self.make_progress(&mut state);
            state.check_may_send()?;
        }
        if !state.out.may_post() {
            return Ok(0);
        }
        let len = len.min(state.out.local_room());
        if len > 0 {
            let (data, used) = state.out.take_data(len, from);
            self.post(&mut state, WorkRequest::new(used, Operation::Write(addr), data))?;
        }
        Ok(len)
    }

    /// Copies data that has arrived to the program, and returns the number of bytes. Returns zero at the end of the
    /// data or if `to` is empty, and `None` if the caller has to wait. With `peek`, the data stays in the ring.
    pub(super) fn receive(&self, to: &mut IoSlices<'_>, peek: bool) -> Result<Option<usize>, Errno> {
        let mut state = self.polled_state();
        if state.incoming.available() == 0 {
            self.make_progress(&mut state);
        }
        let len = state.incoming.read_into(to, peek);
        if len > 0 {
            if !peek {
                self.give_credit(&mut state);
            }
            return Ok(Some(len));
        }
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        match state.phase {
            Phase::Over if state.failed => Err(Errno(libc::ENOTCONN)),
            Phase::Over => Ok(Some(0)),
            Phase::Connected if to.len() == 0 || state.incoming.is_readable() => Ok(Some(0)),
            Phase::Connecting | Phase::Connected => Ok(None),
        }
    }

    /// Stops sending, and announces the end of the data to the peer. Does nothing if that happened before.
    pub(super) fn send_end(&self, state: &mut State) {
        if state.out.close() && state.phase == Phase::Connected {
            let _ = self.send_control(state, Message::End);
        }
    }
}
