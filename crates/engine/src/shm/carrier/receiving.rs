//! Receiving in a carrier: any thread serves it, but only one at a time reads the ring.

use super::{AskedBy, Carrier, REFUSED};
use crate::shm::channel::{Channel, Refusal};
use crate::shm::record::{Control, DATA, Token};
use ironwarp_rnic::link::LinkError;
use ironwarp_rnic::sync::lock;
use ironwarp_shm::{RING_LEN, Reader};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError, Weak};

impl Carrier {
    /// Locks the reader. Returns `None` if another thread has it.
    pub(in crate::shm) fn try_read(&self) -> Result<Option<MutexGuard<'_, Reader>>, LinkError> {
        self.check()?;
        match self.reader.try_lock() {
            Ok(reader) => Ok(Some(reader)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Returns whether a record is at the front of the ring, of any channel.
    pub(in crate::shm) fn has_record(&self) -> bool {
        self.check().is_ok() && self.watch.has_news()
    }

    /// Serves the record at the front. Returns false if there is none, or if another thread reads.
    pub(super) fn serve_front(&self) -> bool {
        let Ok(Some(mut reader)) = self.try_read() else { return false };
        let front = match reader.front() {
            Ok(Some(front)) => front,
            Ok(None) => return false,
            Err(corrupt) => {
                drop(reader);
                self.fail(&corrupt);
                return false;
            }
        };
        if front.kind != DATA {
            self.serve_control(reader);
            return true;
        }
        let Some(channel) = self.channel(front.channel) else {
            reader.skip(); // its connection is closed
            self.release(reader);
            return true;
        };
        drop(reader);
        let before = channel.arrived();
        let owner = channel.owner.upgrade();
        if owner.as_ref().is_some_and(|owner| owner.on_readable()) {
            self.bulk.store(true, Ordering::Relaxed);
        }
        // If it has received nothing, it cannot receive now, or another thread drives it.
        if channel.arrived() == before
            && let Ok(Some(mut reader)) = self.try_read()
        {
            if reader.front() == Ok(Some(front)) {
                channel.store(&mut reader);
            }
            self.release(reader);
            // That thread may have missed the bytes.
            let _ = owner.map(|owner| owner.on_readable());
        }
        true
    }

    /// Handles the records at the front that are not data, for a sender that waits for credit.
    pub(in crate::shm) fn serve_controls(&self) {
        // A record may have another connection send, which then waits for credit as well: only the first one serves.
        if self.serves_controls.swap(true, Ordering::Acquire) {
            return;
        }
        while let Ok(Some(mut reader)) = self.try_read()
            && reader.front().is_ok_and(|front| front.is_some_and(|front| front.kind != DATA))
        {
            self.serve_control(reader);
        }
        self.serves_controls.store(false, Ordering::Release);
    }

    /// Handles the record at the front, which is not data.
    fn serve_control(&self, mut reader: MutexGuard<'_, Reader>) {
        let control = Control::read(&mut reader);
        self.release(reader);
        match control {
            Some(control) => self.handle(control),
            None => drop(self.fail(&"undefined record")),
        }
    }

    /// Releases what was read, and the lock.
    fn release(&self, mut reader: MutexGuard<'_, Reader>) {
        let writer_waits = reader.release();
        drop(reader);
        if writer_waits {
            self.bell.ring();
        }
    }

    /// Handles a record that is not data.
    fn handle(&self, control: Control) {
        match control {
            Control::Attach { token, reply } => self.on_attach(&token, reply),
            Control::Accept { channel, reply } => {
                let Some(channel) = self.channel(channel) else { return };
                if channel.set_answer(reply)
                    && let Some(owner) = channel.owner.upgrade()
                {
                    owner.on_attached();
                }
            }
            Control::Refuse { channel } => {
                if let Some(channel) = self.channel(channel)
                    && channel.set_answer(REFUSED)
                    && let Some(owner) = channel.owner.upgrade()
                {
                    owner.on_refused(Refusal::NoOffer, "");
                }
            }
            Control::Credit { channel, granted } => {
                if let Some(channel) = self.channel(channel)
                    && channel.grant(granted)
                    && let Some(owner) = channel.owner.upgrade()
                {
                    owner.on_writable();
                }
            }
            Control::Close => self.close_if_unused(),
        }
    }

    /// Answers the request for a channel.
    fn on_attach(&self, token: &Token, reply: u32) {
        let owner = self.offers.upgrade().and_then(|offers| offers.take(token));
        let connection = owner.as_ref().and_then(Weak::upgrade);
        let accepted = connection.zip(owner).and_then(|(connection, owner)| {
            let channel = self.add_channel(&owner, AskedBy::OtherEnd)?;
            channel.peer.store(reply, Ordering::Release);
            if !connection.bind(&channel) {
                self.remove_channel(&channel);
                return None;
            }
            Some((connection, channel))
        });
        match accepted {
            Some((connection, channel)) => {
                self.send_control(Control::Accept { channel: reply, reply: channel.id });
                connection.on_attached();
            }
            None => self.send_control(Control::Refuse { channel: reply }),
        }
    }

    fn channel(&self, id: u32) -> Option<Arc<Channel>> {
        lock(&self.channels).get(id)
    }

    /// Serves all records that are in the ring now, so that no connection has to wait for those before its own. Called
    /// when TCP has ended, to find out whether anything is left for its connection.
    pub(in crate::shm) fn drain(&self) {
        // Each turn takes at least one byte. The bound is for peers that keep writing.
        for _ in 0..RING_LEN {
            if !self.has_record() {
                break;
            }
            if !self.serve_front() {
                self.wait_for_reader();
            }
        }
        // Another thread may have taken the last record, and not yet moved it to the inbox of its connection.
        self.wait_for_reader();
    }

    /// Waits until no other thread reads the ring. That one waits for nothing meanwhile.
    fn wait_for_reader(&self) {
        drop(lock(&self.reader));
    }

    /// Calls the owners of channels that wait for room, if there is room.
    pub(super) fn serve_room(&self) {
        if !self.awaits_room.load(Ordering::Relaxed) || self.check().is_err() || !self.watch.has_room_news() {
            return;
        }
        self.awaits_room.store(false, Ordering::Relaxed);
        let mut sending = lock(&self.writer);
        self.flush_controls(&mut sending);
        let waiting = std::mem::take(&mut sending.waiting);
        drop(sending);
        for channel in waiting {
            let owner = self.channel(channel).and_then(|channel| channel.owner.upgrade());
            owner.iter().for_each(|owner| owner.on_writable());
        }
    }

    /// Drives all connections after the end of the carrier, so that they notice. Those that use it end with this errno.
    pub(super) fn end_channels(&self, errno: i32) {
        let channels = lock(&self.channels).all();
        for channel in channels {
            let Some(owner) = channel.owner.upgrade() else { continue };
            if channel.peer.load(Ordering::Relaxed) == 0 {
                owner.on_refused(Refusal::PeerClosed, "");
            }
            owner.on_readable();
            owner.on_writable();
            owner.on_carrier_end(errno);
        }
    }
}
