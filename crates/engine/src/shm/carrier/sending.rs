//! Sending in a carrier.

use super::{Carrier, Sending};
use crate::shm::channel::Channel;
use crate::shm::record::{Control, DATA, MAX_CONTROL, Rest};
use crate::sys::segment::Fault;
use ironwarp_rnic::link::LinkError;
use ironwarp_rnic::sync::lock;
use ironwarp_shm::Corrupt;
use std::sync::atomic::{Ordering, fence};

/// Maximum number of records other than data that wait for room. Far more than a peer that is stopped makes this end
/// send: an answer for each of its offers, and credit for the bytes that it has sent before.
const MAX_CONTROLS: usize = 64 << 10;

impl Carrier {
    /// Returns an error if the other end is gone: what is sent would not be read, and no credit would return. How the
    /// connection has ended is up to TCP, whose end comes soon (`end_channels`): a send waits for that.
    #[inline]
    pub(in crate::shm) fn check_reader(&self) -> Result<(), LinkError> {
        if self.closed.load(Ordering::Relaxed) {
            self.check()?;
            return Err(LinkError::WouldBlock);
        }
        Ok(())
    }

    /// Sends a record with up to `credit` of the bytes that are left, and publishes it: the reader copies it while the next
    /// one is written. Returns the number of bytes sent: zero if there is no room.
    pub(in crate::shm) fn send_record(
        &self,
        channel: &Channel,
        rest: &mut Rest<'_>,
        credit: usize,
    ) -> Result<usize, LinkError> {
        self.check()?;
        let mut sending = lock(&self.writer);
        if !sending.controls.is_empty() {
            self.flush_controls(&mut sending);
            if !sending.controls.is_empty() {
                return Ok(0);
            }
        }
        let wanted = rest.len().min(credit);
        let Some(mut record) = sending.writer.begin(wanted).map_err(|corrupt| self.fail(&corrupt))? else {
            return Ok(0);
        };
        let filled = rest.fill(&mut record, wanted, &self.segment);
        let len = record.len();
        if len > 0 {
            record.finish(channel.peer.load(Ordering::Acquire), DATA);
            self.traffic.count_sent(len);
            if sending.writer.publish() {
                self.bell.ring();
            }
        }
        match filled {
            Err(Fault) if len == 0 => Err(LinkError::Unmapped),
            Ok(()) | Err(Fault) => Ok(len),
        }
    }

    /// Has the owner of a channel called when there is room. Returns false if there is room now.
    pub(in crate::shm) fn await_room(&self, channel: &Channel) -> Result<bool, LinkError> {
        let mut sending = lock(&self.writer);
        sending.waiting.insert(channel.id);
        let is_room = self.request_room(&mut sending).map_err(|corrupt| self.fail(&corrupt))?;
        if is_room {
            sending.waiting.remove(&channel.id);
        }
        Ok(!is_room)
    }

    /// Has [`serve_room`](Self::serve_room) act when there is room. Returns true if there is room now.
    fn request_room(&self, sending: &mut Sending) -> Result<bool, Corrupt> {
        if sending.writer.await_room()? {
            return Ok(true);
        }
        self.awaits_room.store(true, Ordering::Relaxed);
        // The reader may have made room and rung before the flag was set: a thread that heard the bell then found no
        // sender that waits. Either this sees the room, or a thread that hears the bell sees the flag.
        fence(Ordering::SeqCst);
        Ok(self.watch.is_room_released())
    }

    /// Sends a record that is not data, now or when there is room.
    pub(in crate::shm) fn send_control(&self, control: Control) {
        if self.check().is_err() {
            return;
        }
        let mut sending = lock(&self.writer);
        sending.controls.push_back(control);
        self.flush_controls(&mut sending);
        if sending.controls.len() > MAX_CONTROLS {
            self.fail(&"requests without end, while the answers are not read");
        }
    }

    /// Sends the records that are not data. If there is no room for all of them, the rest is sent when there is.
    pub(super) fn flush_controls(&self, sending: &mut Sending) {
        let flushed = loop {
            match sending.flush_controls() {
                Ok(ring) if ring => self.bell.ring(),
                Ok(_) => {}
                Err(corrupt) => break Err(corrupt),
            }
            if sending.controls.is_empty() {
                break Ok(());
            }
            match self.request_room(sending) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(corrupt) => break Err(corrupt),
            }
        };
        if let Err(corrupt) = flushed {
            self.fail(&corrupt);
        }
    }
}

impl Sending {
    /// Sends the records that are not data, as far as there is room. Returns whether the bell must be rung.
    fn flush_controls(&mut self) -> Result<bool, Corrupt> {
        while let Some(control) = self.controls.front() {
            let Some(mut record) = self.writer.begin(MAX_CONTROL)? else { break };
            let (channel, kind) = control.write(&mut record);
            record.finish(channel, kind);
            self.controls.pop_front();
        }
        Ok(self.writer.publish())
    }
}
