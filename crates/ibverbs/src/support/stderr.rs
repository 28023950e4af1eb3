//! Writes the log of a C program: one line on standard error for each event of `tracing`.

use ironwarp_engine::config::LogLevel;
use std::fmt::{self, Write as _};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Installs the subscriber that writes events of `level` and more severe ones, for the rest of the process. Called
/// once, when the settings are read. Does nothing at level `off`, or if the process already has a subscriber.
pub(crate) fn install(level: LogLevel) {
    let level = match level {
        LogLevel::Off => return,
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    // Fails if the program, which may contain Rust code, has installed a subscriber of its own.
    let _ = tracing::subscriber::set_global_default(StderrSubscriber(level));
}

/// Writes each event of a level, or of a more severe one, as a line: `ironwarp: message (name value, …)`.
#[derive(Debug)]
struct StderrSubscriber(Level);

impl Subscriber for StderrSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // More severe levels are smaller.
        metadata.is_event() && *metadata.level() <= self.0 && metadata.target().starts_with("ironwarp")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        // Written by one call, so that lines of several processes do not mix.
        let text = format!("ironwarp: {message}{fields}\n");
        // Not by the standard library, which only names the descriptor here: a forked child may have inherited its lock
        // while another thread held it. Not by the C library: its write is a cancellation point.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(std::io::stderr(), text.as_bytes()));
    }

    // Spans are disabled by `enabled`, so the methods for spans are never called.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The parts of a line, collected from the fields of an event.
#[derive(Default)]
struct Line {
    message: String,
    /// The other fields, as `name value, name value`.
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.fields.is_empty() { "" } else { ", " };
                write!(self.fields, "{comma}{name} {value:?}")
            }
        };
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
}
