//! Starts the checker, and ends it.

use super::checker::{Checker, active, install};
use super::inside::Inside;
use super::watch::{self, Callbacks};
use super::{exit, report, stack};
use ironwarp_engine::config::{Check, Config};
use ironwarp_engine::sys::fork::{self, WhileForking};
use std::sync::{MutexGuard, Once};

/// Starts the checker, if the settings say so. Called when the settings are read.
pub(crate) fn start(config: &Config) {
    static ONCE: Once = Once::new();
    if config.check == Check::Off {
        return;
    }
    ONCE.call_once(|| {
        if !create(config) {
            return;
        }
        exit::register(finish);
        fork::register_handlers(Some(before_fork), Some(in_parent), Some(in_child));
        let callbacks = Callbacks {
            released: |released| {
                active().into_iter().for_each(|checker| checker.released(released));
            },
            allocated: |memory| {
                active().into_iter().for_each(|checker| checker.allocated(memory));
            },
        };
        if !watch::start(callbacks) {
            report::print("ironwarp: memory that is freed is not checked: start the program with `ironwarp run --check`\n");
        }
    });
}

/// What a thread that forks has during the fork. Its memory is not checked, because another thread may have locked the
/// checker of which the child has a copy.
struct Held {
    _inside: Inside,
    _names: MutexGuard<'static, ()>,
}

thread_local! {
    static HELD: WhileForking<Held> = const { WhileForking::new() };
}

extern "C" fn before_fork() {
    HELD.with(|held| held.set(Held { _inside: Inside::enter(), _names: stack::lock_names() }));
}

extern "C" fn in_parent() {
    drop(HELD.with(WhileForking::take));
}

extern "C" fn in_child() {
    if let Some(inherited) = active() {
        create(&inherited.config);
    }
    in_parent();
}

/// Creates the checker. Returns whether that succeeded.
fn create(config: &Config) -> bool {
    match Checker::new(config) {
        Ok(checker) => install(checker),
        Err(error) => {
            report::print(&format!("ironwarp: failed to start the checker: {error}\n"));
            return false;
        }
    }
    true
}

/// Ends the report. Returns whether there are findings.
fn finish() -> bool {
    active().is_some_and(Checker::finish)
}
