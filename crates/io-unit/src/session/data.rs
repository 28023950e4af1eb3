//! Frames that leave, and flow control (requirements P7 and P9).

use super::action::Action;
use super::channel::Channel;
use super::error::Blocked;
use super::state::{Phase, Session, Side, Stall};
use crate::message::{
    Immediate, Indication, MAX_INLINE_FRAME, Message, Mode, SEND_DATA_HEADER, send_data_header,
};
use crate::pool::Slot;

/// Number of elements to ask for when the peer has no room.
const POOL_GET_COUNT: u32 = 64;

impl Session {
    /// Sends a frame of `len` bytes, which the driver calls `frame`. An action says how, at once or never: nothing is
    /// queued here.
    pub fn send(&mut self, frame: u64, len: u32) -> Result<(), Blocked> {
        let max = self.max_frame().ok_or(Blocked::NotOpen)?;
        if !(1..=max).contains(&len) {
            self.counters.drops += 1;
            return Err(Blocked::Length { len, max });
        }
        if !self.fits(len) {
            // A slow host must not hold up the others of the unit; a host has nobody else to serve.
            self.counters.drops += u64::from(matches!(self.side, Side::Unit { .. }));
            self.stalled(len);
            return Err(Blocked::Full);
        }
        if self.is_inline(len) {
            self.send_frame(frame, len);
        } else {
            let slot = self.sender.take(len).ok_or(Blocked::Full)?;
            match self.mode {
                Mode::Send => self.send_frame(frame, len),
                Mode::Rdma => self.write(frame, len, slot),
            }
        }
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += u64::from(len);
        Ok(())
    }

    /// Returns whether the peer has room for a frame of up to `len` bytes: a host asks before it reads one. If not, counts a
    /// stall, and [`Action::Resume`] will follow.
    pub fn ready(&mut self, len: u32) -> bool {
        let Some(max) = self.max_frame() else { return false };
        let len = len.min(max);
        let fits = self.fits(len);
        if !fits {
            self.stalled(len);
        }
        fits
    }

    /// Returns the length of the longest frame that the peer takes, if frames can be sent.
    pub fn max_frame(&self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "256 bytes")]
        let inline = match self.mode {
            Mode::Rdma => MAX_INLINE_FRAME as u32,
            Mode::Send => 0,
        };
        let open = self.up && self.phase == Phase::Open;
        open.then(|| self.sender.max_frame().unwrap_or(0).max(inline))
    }

    /// The oldest request on a channel that has not completed has completed.
    pub fn completed(&mut self, channel: Channel) {
        match channel {
            Channel::Control => self.control = self.control.saturating_sub(1),
            Channel::Data => {
                if let Some(Some(pool)) = self.data.pop_front() {
                    self.sender.acknowledged(pool);
                }
            }
        }
        self.settle();
    }

    /// Tells the driver that the peer has room again.
    pub(super) fn resume(&mut self) {
        let Some(stalled) = self.stall.as_ref().map(|stall| stall.len) else { return };
        if self.max_frame().is_some_and(|max| self.fits(stalled.min(max))) {
            self.stall = None;
            self.act(Action::Resume);
        }
    }

    fn is_inline(&self, len: u32) -> bool {
        self.mode == Mode::Rdma && len as usize <= MAX_INLINE_FRAME
    }

    /// A Write and its indication are two requests.
    fn fits(&self, len: u32) -> bool {
        self.data.len() + 2 <= self.config.send_queue && (self.is_inline(len) || self.sender.has_room(len))
    }

    /// Counts the start of a stall, and asks once for another pool if a lack of elements is the reason.
    fn stalled(&mut self, len: u32) {
        if self.stall.is_none() {
            self.counters.stalls += 1;
        }
        let stall = self.stall.get_or_insert(Stall { len, asked: false });
        stall.len = stall.len.max(len);
        if stall.asked || self.is_inline(len) || self.sender.has_room(len) {
            return;
        }
        self.stall.iter_mut().for_each(|stall| stall.asked = true);
        #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
        let header = match self.mode {
            Mode::Rdma => 0,
            Mode::Send => SEND_DATA_HEADER as u32,
        };
        let get = Message::PoolGet { element_size: len + header, count: POOL_GET_COUNT };
        self.post(Channel::Control, 0, &get);
    }

    fn send_frame(&mut self, frame: u64, len: u32) {
        self.data.push_back(None);
        self.act(Action::SendFrame { frame, header: send_data_header(len) });
    }

    fn write(&mut self, frame: u64, len: u32, slot: Slot) {
        let Slot { pool, element, tag, offset } = slot;
        let indication = Indication { pool, element, len };
        let immediate = Immediate::new(indication);
        // A flush waits for the last of the requests: the pool must not disappear before its frame is indicated.
        self.data.push_back(immediate.is_some().then_some(pool));
        self.act(Action::Write { frame, tag, offset, immediate: immediate.map(|immediate| immediate.0) });
        if immediate.is_none() {
            // On the same channel: on the other one it could overtake the data (docs/io-unit.md, order rule 1).
            self.data.push_back(Some(pool));
            let message = Message::Indicate(indication).encode(0);
            self.act(Action::Post { channel: Channel::Data, message });
        }
    }
}
