//! Sending and receiving data through the rings.

use super::buffer::IoSlices;
use super::state::{Phase, State};
use super::stream::Stream;
use super::wire::Message;
use crate::support::errno::Errno;
use ironwarp_rnic::queue::{Operation, WorkRequest};
use ironwarp_wire::Place;

impl Stream {
    /// Sends as much as there is room for. What was not sent, also because of an error, is left in `from`.
    pub(super) fn send(&self, from: &mut IoSlices<'_>) -> Result<(), Errno> {
        let mut state = self.current();
        let mut looked = false;
        loop {
            state.may_send()?;
            let len = state.out.room(from.len());
            if len > 0 {
                self.write(&mut state, len, from)?;
            } else if looked || from.len() == 0 {
                return Ok(());
            } else {
                self.refresh(&mut state);
                looked = true;
            }
        }
    }

    fn write(&self, state: &mut State, len: usize, from: &mut IoSlices<'_>) -> Result<(), Errno> {
        let request = state.out.write(len, from);
        self.post(state, request)?;
        state.out.wrote(len);
        Ok(())
    }

    /// Writes to mapped memory of the peer, as much as there is room for. Returns the number of bytes.
    pub(super) fn write_to(&self, place: Place, len: usize, from: &mut IoSlices<'_>) -> Result<usize, Errno> {
        let mut state = self.current();
        state.may_send()?;
        if !state.out.may_post() || state.out.local_room() == 0 {
            self.refresh(&mut state);
            state.may_send()?;
        }
        if !state.out.may_post() {
            return Ok(0);
        }
        let len = len.min(state.out.local_room());
        if len > 0 {
            let (data, used) = state.out.put(len, from);
            self.post(&mut state, WorkRequest::new(used, Operation::Write(place), data))?;
        }
        Ok(len)
    }

    /// Receives the data that is there. Returns `None` if there is neither data nor the end.
    pub(super) fn receive(&self, to: &mut IoSlices<'_>, peek: bool) -> Result<Option<usize>, Errno> {
        let mut state = self.current();
        if state.incoming.available() == 0 {
            self.refresh(&mut state);
        }
        let taken = state.incoming.take(to, peek);
        if taken > 0 {
            if !peek {
                self.give_credit(&mut state);
            }
            return Ok(Some(taken));
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

    /// Tells the peer that nothing more is sent.
    pub(super) fn finish(&self, state: &mut State) {
        if state.out.close() && state.phase == Phase::Connected {
            let _ = self.send_control(state, Message::End);
        }
    }
}
