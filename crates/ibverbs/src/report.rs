//! What goes wrong, said in words on standard error: one line for each, as much as IRONWARP_LOG asks for. The words are those
//! of the adapter's own errors, which native programs see, too; here is added which object of the program it is about.

use ironwarp_engine::{BringUpError, Remote};
use ironwarp_rnic::config::{ConfigError, LogLevel};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::{Counts, FaultPlan};
use ironwarp_rnic::queue::{Completion, Status};
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// From now on what happens is said, unless the program listens itself.
pub(crate) fn begin(level: LogLevel) {
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
        let _ = tracing::subscriber::set_global_default(Teller(level));
    });
}

/// A request failed. Flushed ones follow from another, so they are said only to who wants to know more.
pub(crate) fn failed(completion: &Completion) {
    let Completion { wr_id, opcode, status, qp, .. } = completion;
    let cause = Cause(completion);
    let code = format_args!("{:#x}", vendor_err(completion));
    if *status == Status::Flushed {
        tracing::info!(qp = %Hex(*qp), "{opcode:?} request {wr_id:#x}: {status}{cause}");
    } else {
        tracing::warn!(qp = %Hex(*qp), vendor_err = %code, "{opcode:?} request {wr_id:#x} failed: {status}{cause}");
    }
}

/// The environment asks for what cannot be.
pub(crate) fn mistake(error: &ConfigError) {
    tracing::warn!("{error}");
}

/// A queue pair was told of a peer that it cannot have.
pub(crate) fn not_brought_up(qp: u32, remote: Remote, error: &BringUpError) {
    let Remote { gid, qpn } = remote;
    tracing::warn!(qp = %Hex(qp), "cannot be connected to queue pair {} at {gid}: {error}", Hex(qpn));
}

/// A queue pair cannot go from one state to another with these attributes.
pub(crate) fn wrong_step(qp: u32, (from, to): (u32, u32), mask: u32) {
    tracing::warn!(qp = %Hex(qp), "cannot go from state {from} to {to} with attributes {mask:#x}");
}

/// What the faults that were asked for did.
pub(crate) fn faults(plan: &FaultPlan, seed: u64, counts: &Counts) {
    tracing::warn!("faults {plan}, seed {seed}: {counts}");
}

/// A request could not be posted.
pub(crate) fn not_posted(qp: u32, error: &PostError) {
    tracing::warn!(qp = %Hex(qp), "a request was not taken: {error}");
}

/// The cause of a failure as a number, for programs that print it; `ironwarp explain` tells what it means.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    completion.cause.as_ref().map_or(0, |cause| cause.vendor_err())
}

/// Numbers of queue pairs as most programs print them.
struct Hex(u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

struct Cause<'c>(&'c Completion);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.cause.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

/// Writes each event as a line: `ironwarp: message (name value, …)`.
#[derive(Debug)]
struct Teller(Level);

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.0 && metadata.target().starts_with("ironwarp")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        // In one call, so that lines of several processes do not mix.
        let text = format!("ironwarp: {message}{fields}\n");
        // Without the standard library's lock, which a child could have inherited taken, and not by the C library's call, where
        // the program may cancel the thread.
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
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

/// A program accepts a peer whose queue pair it cannot know, because it is the id's.
pub(crate) fn only_managed(peer: SocketAddr) {
    tracing::error!(%peer, "the peer's queue pair is connected by its id (rdma_create_qp): accept it with one as well");
}
