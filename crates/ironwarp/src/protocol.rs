//! What peers report to each other on the wire: the causes of Terminate messages and of protocol violations. Errors
//! contain these values, for programs that inspect errors instead of printing them.

pub use ironwarp_rnic::error::Protocol;
pub use ironwarp_rnic::link::Route;
pub use ironwarp_wire::ddp::{DdpHeader, DdpTagged, DdpUntagged};
pub use ironwarp_wire::{
    Cause, MpaFault, Offender, Operation, Protection, ReadRequest, TaggedBuffer, Terminate, UntaggedBuffer,
    Violation,
};
