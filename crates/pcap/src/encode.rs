//! Messages to whole FPDUs: the codec's writer, with the payload copied in between. The opposite of `dissect.rs`.

use ironwarp_wire::mpa::{FpduWriter, Framing, MAX_HEAD, MAX_STARTUP, MAX_TAIL, Startup};
use ironwarp_wire::{Header, Misuse};

/// Makes the FPDUs of one direction.
#[derive(Clone, Debug)]
pub struct Encoder(FpduWriter);

impl Encoder {
    /// For a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        Self(FpduWriter::new(framing))
    }

    /// The next FPDU.
    pub fn fpdu(&mut self, header: &Header, mut payload: &[u8]) -> Result<Vec<u8>, Misuse> {
        let (mut head, mut tail) = ([0; MAX_HEAD], [0; MAX_TAIL]);
        let len = self.0.open(header, payload.len(), &mut head)?;
        let mut bytes = head[..len].to_vec();
        while !payload.is_empty() {
            bytes.extend(self.0.marker().into_iter().flatten());
            let (run, rest) = payload.split_at(self.0.run());
            self.0.cover(run);
            bytes.extend(run);
            payload = rest;
        }
        let len = self.0.close(&mut tail)?;
        bytes.extend(&tail[..len]);
        Ok(bytes)
    }

    /// A startup frame.
    pub fn startup(startup: &Startup<'_>) -> Result<Vec<u8>, Misuse> {
        let mut bytes = [0; MAX_STARTUP];
        let len = startup.emit(&mut bytes)?;
        Ok(bytes[..len].to_vec())
    }
}
