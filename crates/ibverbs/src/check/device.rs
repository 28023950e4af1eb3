//! Requests beyond the limits of the device that the program is checked for.

use super::checker::Checker;
use super::finding::{Finding, Kind};
use super::inside::Inside;
use super::limits::{self, Limits};
use super::request::Posted;
use super::stack::Stack;
use crate::abi::*;

impl Checker {
    /// Reports what `find` finds in the limits of the device, if there is one.
    fn check_limits<F: IntoIterator<Item = String>>(&self, find: impl FnOnce(&Limits) -> F) {
        let Some(limits) = limits::of(self.config.check) else { return };
        let _inside = Inside::enter();
        self.report(find(limits).into_iter().map(|text| Finding::now(Kind::DeviceLimit, text)));
    }

    /// The program is about to create a queue pair.
    pub(crate) fn creating_pair(&self, init: &ibv_qp_init_attr) {
        self.check_limits(|limits| limits.queue_pair(init.qp_type, &init.cap, !init.srq.is_null()));
    }

    /// The program is about to create a completion queue.
    pub(crate) fn creating_cq(&self, entries: u32) {
        self.check_limits(|limits| limits.completion_queue(entries));
    }

    /// The program is about to create a shared receive queue.
    pub(crate) fn creating_srq(&self) {
        self.check_limits(Limits::shared_receive_queue);
    }

    /// The program is about to allocate a memory window.
    pub(crate) fn allocating_window(&self) {
        self.check_limits(Limits::memory_window);
    }

    /// The program is about to set the number of outstanding Reads.
    pub(crate) fn setting_reads(&self, max_rd_atomic: u32) {
        self.check_limits(|limits| limits.outstanding_reads(max_rd_atomic));
    }

    /// The program has registered memory.
    pub(super) fn check_region(&self, len: u64, access: u32) {
        self.check_limits(|limits| limits.region(len, access));
    }

    /// Returns findings for requests that the program is about to post.
    pub(super) fn find_exceeded(&self, requests: &[Posted], stack: &Stack) -> Vec<Finding> {
        let Some(limits) = limits::of(self.config.check) else { return Vec::new() };
        let texts = requests.iter().filter_map(|request| {
            let operation = request.operation?;
            Some(limits.request(operation, request.elements.len(), request.inline))
        });
        let finding = |text| Finding::posted(Kind::DeviceLimit, text, stack);
        texts.flatten().map(finding).collect()
    }
}
