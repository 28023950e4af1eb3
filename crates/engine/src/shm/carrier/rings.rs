//! A carrier, as its channels use it.

use super::Carrier;
use crate::reactor::carrier::Carrier as ReactorCarrier;
use crate::shm::channel::{Channel, Rings};
use crate::shm::record::{Control, Rest};
use crate::sys::segment::Fault;
use ironwarp_rnic::host::{Span, Unmapped};
use ironwarp_rnic::link::LinkError;
use ironwarp_shm::Reader;
use std::fmt;
use std::sync::{Arc, MutexGuard};

impl Rings for Carrier {
    #[inline]
    fn check_reader(&self) -> Result<(), LinkError> {
        Self::check_reader(self)
    }

    #[inline]
    fn send_record(&self, channel: &Channel, rest: &mut Rest<'_>, credit: usize) -> Result<usize, LinkError> {
        Self::send_record(self, channel, rest, credit)
    }

    fn await_room(&self, channel: &Channel) -> Result<bool, LinkError> {
        Self::await_room(self, channel)
    }

    fn send_control(&self, control: Control) {
        Self::send_control(self, control);
    }

    fn serve_controls(&self) {
        Self::serve_controls(self);
    }

    #[inline]
    fn try_read(&self) -> Result<Option<MutexGuard<'_, Reader>>, LinkError> {
        Self::try_read(self)
    }

    fn has_record(&self) -> bool {
        Self::has_record(self)
    }

    fn drain(&self) {
        Self::drain(self);
    }

    fn ring(&self) {
        self.bell.ring();
    }

    fn fail(&self, why: &dyn fmt::Display) -> LinkError {
        Self::fail(self, why)
    }

    fn count_received(&self, len: usize) {
        self.traffic.count_received(len);
    }

    fn scatter(&self, from: &[u8], to: Span) -> Result<(), Unmapped> {
        self.device.host().scatter(from, &[to])
    }

    fn copy_out(&self, from: *const u8, to: Span) -> Result<(), Fault> {
        self.segment.copy_out(from, to)
    }

    fn remove_channel(&self, channel: &Channel) -> bool {
        Self::remove_channel(self, channel)
    }

    fn close_if_idle(&self) {
        Self::close_if_idle(self);
    }

    fn as_carrier(self: Arc<Self>) -> Arc<dyn ReactorCarrier> {
        self
    }
}
