//! The checker itself, and whether it is on.

#![expect(unsafe_code, reason = "the checker is behind a pointer, which a forked child replaces")]

use super::finding::Finding;
use super::inside::Inside;
use super::objects::Objects;
use super::pairs::{Pair, ReceiveQueue};
use super::queues::Cq;
use super::regions::Regions;
use super::report::Report;
use super::request::Poisoned;
use ironwarp_engine::config::Config;
use ironwarp_engine::sys::memory::ProgramMemory;
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// The checker. NULL if it is off. A forked child gets another one, because threads of its parent may have held locks.
static CHECKER: AtomicPtr<Checker> = AtomicPtr::new(std::ptr::null_mut());

/// Everything that the checker knows about the program.
#[derive(Debug)]
pub(crate) struct Checker {
    pub(super) config: Config,
    /// Access to the memory of the program, which may unmap it at any time.
    pub(super) memory: ProgramMemory,
    pub(super) report: Mutex<Report>,
    pub(super) objects: Mutex<Objects>,
    pub(super) regions: Regions,
    pub(super) poisoned: Mutex<Poisoned>,
    /// By the address of the C structure.
    pub(super) cqs: RwLock<BTreeMap<usize, Arc<Cq>>>,
    /// By adapter and the address of the C structure.
    pub(super) shared_receives: RwLock<BTreeMap<(usize, usize), Arc<ReceiveQueue>>>,
    /// By adapter and number.
    pub(super) pairs: RwLock<BTreeMap<(usize, u32), Arc<Pair>>>,
    /// Since when a message waits for a receive, by the number of the queue pair.
    pub(super) waiting: Mutex<BTreeMap<u32, Instant>>,
    pub(super) exceeds_memlock: AtomicBool,
}

/// Returns the checker, or `None` if it is off.
#[inline]
pub(crate) fn active() -> Option<&'static Checker> {
    let checker = CHECKER.load(Ordering::Acquire);
    // SAFETY: NULL, or a checker of `start`, which is never freed.
    unsafe { checker.as_ref() }
}

/// Replaces the checker, which is never freed.
pub(super) fn install(checker: Checker) {
    CHECKER.store(Box::into_raw(Box::new(checker)), Ordering::Release);
}

impl Checker {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            config: config.clone(),
            memory: ProgramMemory::new()?,
            report: Mutex::new(Report::new(config)),
            objects: Mutex::default(),
            regions: Regions::default(),
            poisoned: Mutex::default(),
            cqs: RwLock::default(),
            shared_receives: RwLock::default(),
            pairs: RwLock::default(),
            waiting: Mutex::default(),
            exceeds_memlock: AtomicBool::new(false),
        })
    }

    /// Reports findings.
    pub(crate) fn report(&self, findings: impl IntoIterator<Item = Finding>) {
        let _inside = Inside::enter();
        let mut findings = findings.into_iter().peekable();
        if findings.peek().is_none() {
            return;
        }
        let mut report = lock(&self.report);
        findings.for_each(|finding| report.add(&finding));
    }

    /// Prints leaks and the summary, when the process exits. Returns whether there are findings.
    pub(crate) fn finish(&self) -> bool {
        let _inside = Inside::enter();
        let leaks = lock(&self.objects).leaks();
        let mut report = lock(&self.report);
        leaks.iter().for_each(|leak| report.add(leak));
        report.finish()
    }
}
