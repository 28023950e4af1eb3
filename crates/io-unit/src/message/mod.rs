//! The messages of the protocol: encoding, and decoding of untrusted bytes (requirements P6 to P8).
//!
//! Decoding checks every length before it reads or allocates, never panics, and accepts only what encoding produces:
//! `encode(decode(bytes)) == bytes`.

mod buffer;
mod config;
mod header;
mod identity;
mod immediate;
mod reader;

pub use buffer::{Indication, PoolEntry, UpdateEntry, WINDOW};
pub use config::{Admitted, Attach, Join, Mode, Operation, Reply, Request, Statistics, Status};
pub use header::{Function, HEADER, VERSION};
pub use identity::{HostName, InvalidName, Mac, Nonce, Proof};
pub use immediate::Immediate;
pub use reader::Malformed;

use reader::Reader;

/// Maximum length of a message other than SendData, and so of the receive buffers of the control channel.
pub const MAX_MESSAGE: usize = 4096;
/// Length of a SendData message without its frame.
pub const SEND_DATA_HEADER: usize = HEADER + 4;
/// Longest frame that is sent inside a message in RDMA mode.
pub const MAX_INLINE_FRAME: usize = 256;

/// A message with its body. A frame stays in the bytes that it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// CfgUtilRequest, which the receiver always answers.
    Request(Request),
    /// CfgUtilReply. Its context is that of the request.
    Reply(Reply),
    /// BufferRecvPool: the sender of the message owns these pools.
    Pools(Vec<PoolEntry>),
    /// BufferRecvPoolGet: asks for another pool, and is not answered otherwise.
    PoolGet {
        /// Size of the elements, in bytes.
        element_size: u32,
        /// Number of elements.
        count: u32,
    },
    /// BufferRecvPoolUpdate: these elements are free again.
    Update(Vec<UpdateEntry>),
    /// BufferPoolFlushRequest: these pools are to be freed.
    FlushRequest(Vec<u32>),
    /// BufferPoolFlushReply to the request with the same context.
    FlushReply,
    /// SendData: a frame inside the message.
    SendData(&'a [u8]),
    /// BufferRDMAIndicate: the Write before it consumed this element.
    Indicate(Indication),
}

impl<'a> Message<'a> {
    /// Decodes a message and its transaction context.
    pub fn decode(bytes: &'a [u8]) -> Result<(u64, Self), Malformed> {
        let mut reader = Reader::new(bytes);
        let (function, context) = header::decode(&mut reader)?;
        if function == Function::SendData {
            let size = reader.u32("size of a frame")?;
            return Ok((context, Self::SendData(reader.exactly(size, "frame")?)));
        }
        if bytes.len() > MAX_MESSAGE {
            return Err(Malformed::TooLong { len: bytes.len(), max: MAX_MESSAGE });
        }
        let message = match function {
            Function::CfgUtilRequest => Self::Request(Request::decode(&mut reader)?),
            Function::CfgUtilReply => Self::Reply(Reply::decode(&mut reader)?),
            Function::BufferRecvPool => {
                Self::Pools(reader.list("pool", PoolEntry::LEN, PoolEntry::decode)?)
            }
            Function::BufferRecvPoolGet => Self::PoolGet {
                element_size: reader.u32("element size")?,
                count: reader.u32("element count")?,
            },
            Function::BufferRecvPoolUpdate => {
                Self::Update(reader.list("update", UpdateEntry::LEN, UpdateEntry::decode)?)
            }
            Function::BufferPoolFlushRequest => {
                Self::FlushRequest(reader.list("pool to flush", 4, |reader| reader.u32("pool"))?)
            }
            Function::BufferPoolFlushReply => Self::FlushReply,
            Function::BufferRdmaIndicate => Self::Indicate(Indication::decode(&mut reader)?),
            Function::SendData => unreachable!("decoded above"),
        };
        reader.end()?;
        Ok((context, message))
    }

    /// Encodes the message.
    ///
    /// # Panics
    /// If a frame is longer than 4 GiB.
    pub fn encode(&self, context: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        header::encode(self.function(), context, &mut out);
        match self {
            Self::Request(request) => request.encode(&mut out),
            Self::Reply(reply) => reply.encode(&mut out),
            Self::Pools(pools) => pools.iter().for_each(|pool| pool.encode(&mut out)),
            Self::PoolGet { element_size, count } => {
                out.extend(element_size.to_be_bytes());
                out.extend(count.to_be_bytes());
            }
            Self::Update(entries) => entries.iter().for_each(|entry| entry.encode(&mut out)),
            Self::FlushRequest(pools) => pools.iter().for_each(|pool| out.extend(pool.to_be_bytes())),
            Self::FlushReply => {}
            Self::SendData(frame) => {
                out.extend(u32::try_from(frame.len()).expect("a frame of at most 4 GiB").to_be_bytes());
                out.extend(*frame);
            }
            Self::Indicate(indication) => indication.encode(&mut out),
        }
        out
    }

    /// Returns the function in the header.
    pub fn function(&self) -> Function {
        match self {
            Self::Request(_) => Function::CfgUtilRequest,
            Self::Reply(_) => Function::CfgUtilReply,
            Self::Pools(_) => Function::BufferRecvPool,
            Self::PoolGet { .. } => Function::BufferRecvPoolGet,
            Self::Update(_) => Function::BufferRecvPoolUpdate,
            Self::FlushRequest(_) => Function::BufferPoolFlushRequest,
            Self::FlushReply => Function::BufferPoolFlushReply,
            Self::SendData(_) => Function::SendData,
            Self::Indicate(_) => Function::BufferRdmaIndicate,
        }
    }
}

/// Encodes a SendData message up to its frame, so that the frame can be sent from where it is.
pub fn send_data_header(len: u32) -> [u8; SEND_DATA_HEADER] {
    let mut out = Vec::with_capacity(SEND_DATA_HEADER);
    header::encode(Function::SendData, 0, &mut out);
    out.extend(len.to_be_bytes());
    std::array::from_fn(|index| out[index])
}
