//! The hello: private data with which a queue pair that was brought up by hand (a remote GID and queue pair number, no
//! connection manager) says which one it is and which one it is looking for.

use super::check_qpn;
use crate::Misuse;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a hello; all of the private data of its Request.
pub const HELLO_LEN: usize = size_of::<RawHello>();
const _: () = assert!(HELLO_LEN == 16);

const MAGIC: [u8; 4] = *b"IRWH";
const VERSION: u8 = 1;

/// "I am queue pair `source` and want to talk to your `destination`."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The queue pair that is looked for; 24 bits.
    pub destination: u32,
    /// The queue pair that is looking; 24 bits.
    pub source: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 4],
    version: u8,
    reserved: [u8; 3],
    destination: U32,
    source: U32,
}

impl Hello {
    /// Reads the private data of a Request; `None` if it is no hello of this version.
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let raw = RawHello::ref_from_bytes(private_data).ok()?;
        let (destination, source) = (raw.destination.get(), raw.source.get());
        let ours = raw.magic == MAGIC && raw.version == VERSION;
        (ours && check_qpn(destination).is_ok() && check_qpn(source).is_ok())
            .then_some(Self { destination, source })
    }

    /// The private data to send.
    pub fn emit(&self) -> Result<[u8; HELLO_LEN], Misuse> {
        let raw = RawHello {
            magic: MAGIC,
            version: VERSION,
            reserved: [0; 3],
            destination: check_qpn(self.destination)?.into(),
            source: check_qpn(self.source)?.into(),
        };
        Ok(zerocopy::transmute!(raw))
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hello, from {:#08x} to {:#08x}", self.source, self.destination)
    }
}
