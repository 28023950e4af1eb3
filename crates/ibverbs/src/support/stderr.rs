//! The log of a C program: each event is a line on standard error.

use ironwarp_engine::config::LogLevel;
use std::fmt::{self, Write as _};
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Writes events of this level and more severe ones from now on, unless the program has installed a subscriber of its own.
pub(crate) fn install(level: LogLevel) {
    static ONCE: Once = Once::new();
    let level = match level {
        LogLevel::Off => return,
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    ONCE.call_once(|| {
        let _ = tracing::subscriber::set_global_default(StderrSubscriber(level));
    });
}

/// Writes each event as a line: `ironwarp: message (name value, …)`.
#[derive(Debug)]
struct StderrSubscriber(Level);

impl Subscriber for StderrSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.0 && metadata.target().starts_with("ironwarp")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        // One call, so that lines of several processes do not mix.
        let text = format!("ironwarp: {message}{fields}\n");
        // Not through the standard library, whose lock a child may have inherited taken, nor through the C library, where the
        // program may cancel the thread.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(std::io::stderr(), text.as_bytes()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
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
