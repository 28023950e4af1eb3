//! Encodes messages as FPDUs. The inverse of `dissect.rs`.

use ironwarp_wire::mpa::{FpduWriter, Framing, MAX_STARTUP, Startup};
use ironwarp_wire::{Header, Misuse};

/// Encodes the FPDUs of one direction.
#[derive(Clone, Debug)]
pub struct Encoder(FpduWriter);

impl Encoder {
    /// Creates an encoder for a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        Self(FpduWriter::new(framing))
    }

    /// Encodes the next FPDU.
    pub fn fpdu(&mut self, header: &Header, payload: &[u8]) -> Result<Vec<u8>, Misuse> {
        let mut bytes = Vec::new();
        self.0.write(header, payload, |piece| bytes.extend(piece))?;
        Ok(bytes)
    }

    /// Encodes a startup frame.
    pub fn startup(startup: &Startup<'_>) -> Result<Vec<u8>, Misuse> {
        let mut bytes = [0; MAX_STARTUP];
        let len = startup.emit(&mut bytes)?;
        Ok(bytes[..len].to_vec())
    }
}
