//! The header that all messages share: function, version and transaction context (requirement P6).

use super::reader::{Malformed, Reader};
use std::fmt;

/// Version of the protocol.
pub const VERSION: u16 = 1;
/// Length of the header.
pub const HEADER: usize = 12;

/// The function of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names of the protocol, which `Message` explains")]
pub enum Function {
    CfgUtilRequest = 1,
    CfgUtilReply = 2,
    BufferRecvPool = 3,
    BufferRecvPoolGet = 4,
    BufferRecvPoolUpdate = 5,
    BufferPoolFlushRequest = 6,
    BufferPoolFlushReply = 7,
    SendData = 8,
    BufferRdmaIndicate = 9,
}

impl Function {
    const ALL: [Self; 9] = [
        Self::CfgUtilRequest,
        Self::CfgUtilReply,
        Self::BufferRecvPool,
        Self::BufferRecvPoolGet,
        Self::BufferRecvPoolUpdate,
        Self::BufferPoolFlushRequest,
        Self::BufferPoolFlushReply,
        Self::SendData,
        Self::BufferRdmaIndicate,
    ];
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferRdmaIndicate => f.write_str("BufferRDMAIndicate"),
            other => write!(f, "{other:?}"),
        }
    }
}

pub(super) fn decode(reader: &mut Reader<'_>) -> Result<(Function, u64), Malformed> {
    let number = reader.u16("function")?;
    let version = reader.u16("version")?;
    let context = reader.u64("transaction context")?;
    if version != VERSION {
        return Err(Malformed::Version { found: version, expected: VERSION });
    }
    let function = Function::ALL.into_iter().find(|function| *function as u16 == number);
    Ok((function.ok_or(Malformed::Function { found: number })?, context))
}

pub(super) fn encode(function: Function, context: u64, out: &mut Vec<u8>) {
    out.extend((function as u16).to_be_bytes());
    out.extend(VERSION.to_be_bytes());
    out.extend(context.to_be_bytes());
}
