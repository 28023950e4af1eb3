//! Details of errors and negotiated parameters, for programs that inspect them instead of printing them.

pub use ironwarp_engine::config::{
    InvalidDeviceName, InvalidPortRange, InvalidUsers, KeyTooShort, UnknownKeyword,
};
pub use ironwarp_rnic::connect::{InvalidArgument, Role, Rtr};
pub use ironwarp_rnic::fault::BadPlan;
pub use ironwarp_rnic::host::Span;
pub use ironwarp_rnic::memory::{Domain, EntryInfo, Kind, TranslationError};
pub use ironwarp_rnic::qp::AlreadyConnected;
pub use ironwarp_wire::ddp::{DdpHeader, DdpTagged, DdpUntagged};
pub use ironwarp_wire::mpa::{Framing, RtrSet};
pub use ironwarp_wire::private::{Reason, Unreadable};
pub use ironwarp_wire::{
    MpaFault, Offender, Operation, Protection, ReadRequest, TaggedBuffer, UntaggedBuffer, Violation,
};
