//! What programs do with the lifetime of objects.

use super::checker::Checker;
use super::finding::{Finding, Kind};
use super::inside::Inside;
use ironwarp_rnic::sync::lock;
use std::any::Any;
use std::sync::Weak;

/// Maximum number of objects that a finding names.
const MAX_NAMED: usize = 4;

impl Checker {
    /// An object was created.
    pub(crate) fn created(&self, name: &'static str, key: usize) {
        let _inside = Inside::enter();
        lock(&self.objects).add(name, key);
    }

    /// An object exists until the process exits: it is not a leak of the program.
    pub(crate) fn kept(&self, key: usize) {
        let _inside = Inside::enter();
        lock(&self.objects).keep(key);
    }

    /// An object was destroyed. `memory` keeps its memory.
    pub(crate) fn destroyed(&self, name: &'static str, key: usize, memory: Weak<dyn Any + Send + Sync>) {
        let _inside = Inside::enter();
        lock(&self.objects).remove(name, key, memory);
    }

    /// A call named an object that does not exist.
    pub(crate) fn not_found(&self, key: usize) {
        let _inside = Inside::enter();
        let finding = {
            let objects = lock(&self.objects);
            let Some(object) = objects.destroyed(key) else { return };
            let text = format!("the {} {key:#x} is used after it was destroyed", object.name);
            Finding::now(Kind::UseAfterDestroy, text).after("destroyed", &object.stack)
        };
        self.report([finding]);
    }

    /// A call was to destroy an object on which `users` others depend.
    pub(crate) fn destroyed_busy(&self, name: &'static str, key: usize, users: &[(&'static str, usize)]) {
        let _inside = Inside::enter();
        let mut finding = {
            let named = users.iter().take(MAX_NAMED).map(|(name, key)| format!("{name} {key:#x}"));
            let mut list = named.collect::<Vec<_>>().join(", ");
            if users.len() > MAX_NAMED {
                list += &format!(" and {} others", users.len() - MAX_NAMED);
            }
            let text = format!("the {name} {key:#x} cannot be destroyed: destroy {list} first");
            Finding::now(Kind::DestroyBusy, text)
        };
        let objects = lock(&self.objects);
        if let Some(object) = users.first().and_then(|(_, key)| objects.alive(*key)) {
            finding = finding.after("the object that depends on it was created", &object.stack);
        }
        drop(objects);
        self.report([finding]);
    }

    /// A forked child called with an object of its parent.
    pub(crate) fn inherited(&self, name: &str, key: usize) {
        let text =
            format!("the {name} {key:#x} belongs to the parent process: open the device again after fork");
        self.report([Finding::now(Kind::UseAfterFork, text)]);
    }

    /// A call waits until the program acknowledges events that it took.
    pub(crate) fn unacknowledged(&self, object: &str, events: u64) {
        let plural = if events == 1 { "" } else { "s" };
        let text = format!(
            "the {object} cannot be destroyed until the program has acknowledged {events} event{plural} that it took: this call waits"
        );
        self.report([Finding::now(Kind::UnacknowledgedEvents, text)]);
    }
}
