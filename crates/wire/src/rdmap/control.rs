//! Values of the RDMAP control byte, and the numbers of DDP queues.

/// The RV bits of the RDMAP control byte, which must be 1.
pub(super) const VERSION_MASK: u8 = 0xc0;
/// RDMAP version 1, in the RV bits.
pub(super) const VERSION: u8 = 0x40;
pub(super) const OPCODE_MASK: u8 = 0x0f;

/// The opcodes (RFC 5040 §4.1, RFC 7306 §4.1).
pub(super) mod opcode {
    pub(in crate::rdmap) const WRITE: u8 = 0x0;
    pub(in crate::rdmap) const READ_REQUEST: u8 = 0x1;
    pub(in crate::rdmap) const READ_RESPONSE: u8 = 0x2;
    pub(in crate::rdmap) const SEND: u8 = 0x3;
    pub(in crate::rdmap) const SEND_INVALIDATE: u8 = 0x4;
    pub(in crate::rdmap) const SEND_SOLICITED: u8 = 0x5;
    pub(in crate::rdmap) const SEND_SOLICITED_INVALIDATE: u8 = 0x6;
    pub(in crate::rdmap) const TERMINATE: u8 = 0x7;
    pub(in crate::rdmap) const IMMEDIATE: u8 = 0x8;
    pub(in crate::rdmap) const IMMEDIATE_SOLICITED: u8 = 0x9;
    pub(in crate::rdmap) const ATOMIC_REQUEST: u8 = 0xa;
    pub(in crate::rdmap) const ATOMIC_RESPONSE: u8 = 0xb;
    /// Reserved for experiments (RFC 6580), used for private messages. The queue and the bits below distinguish them.
    pub(in crate::rdmap) const PRIVATE: u8 = 0xf;
    /// With [`PRIVATE`] on queue 0: the ULP word is a tag to invalidate.
    pub(in crate::rdmap) const PRIVATE_INVALIDATE: u8 = 0x10;
    /// With [`PRIVATE`] on queue 0: solicited event.
    pub(in crate::rdmap) const PRIVATE_SOLICITED: u8 = 0x20;
    /// With [`PRIVATE`] on the queue of Read V2 Responses: a Read V2 Response.
    pub(in crate::rdmap) const PRIVATE_READ_RESPONSE: u8 = 0x10;
}

/// The DDP queues (RFC 5040 §3.1, RFC 7306 §10.2).
pub(super) mod queue {
    pub(in crate::rdmap) const SEND: u32 = 0;
    pub(in crate::rdmap) const READ_REQUEST: u32 = 1;
    pub(in crate::rdmap) const TERMINATE: u32 = 2;
    pub(in crate::rdmap) const ATOMIC_RESPONSE: u32 = 3;
    /// Private: a number far from those that IANA assigns, which are sequential.
    pub(in crate::rdmap) const READ_V2_RESPONSE: u32 = 0x8000_0001;
}
