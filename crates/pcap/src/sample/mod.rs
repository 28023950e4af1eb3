//! A capture that contains every message the codec can emit, in every framing and packing, to test other decoders.
//!
//! `script.rs` lists the conversations; `conversation.rs` divides them into TCP segments. The output is deterministic.

mod conversation;
mod script;

pub use conversation::{Packing, Sample, Turn};
pub use script::samples;

use crate::CaptureWriter;
use conversation::Clock;
use std::io::{self, Write};
use std::time::Duration;

/// Writes all samples as one capture.
pub fn write<W: Write>(out: W) -> io::Result<W> {
    let mut writer = CaptureWriter::new(out)?;
    let mut clock = Clock(Duration::from_secs(1_000_000_000));
    for sample in samples() {
        sample.write(&mut writer, &mut clock)?;
    }
    writer.flush()?;
    Ok(writer.into_inner())
}
