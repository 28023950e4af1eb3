//! Starts the checker, and ends it.

use super::checker::{Checker, active, install};
use super::watch::{self, Callbacks};
use super::{exit, report};
use ironwarp_engine::config::{Check, Config};
use ironwarp_engine::sys::fork;
use std::sync::Once;

/// Starts the checker, if the settings say so. Called when the settings are read.
pub(crate) fn start(config: &Config) {
    extern "C" fn in_child() {
        if let Some(inherited) = active() {
            create(&inherited.config);
        }
    }
    static ONCE: Once = Once::new();
    if config.check == Check::Off {
        return;
    }
    ONCE.call_once(|| {
        if !create(config) {
            return;
        }
        exit::register(finish);
        fork::register_handlers(None, None, Some(in_child));
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
