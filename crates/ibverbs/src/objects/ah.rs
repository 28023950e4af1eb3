//! Address handles.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::gids::gid_at;
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, publish};
use ironwarp_engine::gid::Gid;
use ironwarp_rnic::datagram::AddressHandle;
use std::sync::Arc;

/// An address handle: the path of a datagram to another port.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    c: CCell<ibv_ah>,
    address: AddressHandle,
    /// Kept alive because the C structure points to it.
    _pd: Arc<Pd>,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Ah {
    type C = ibv_ah;
}

impl Ah {
    pub(crate) fn new(pd: Arc<Pd>, attr: &ibv_ah_attr) -> Result<Arc<Self>, Errno> {
        // Ethernet has no LIDs, so only a GID is an address.
        if attr.is_global == 0 || attr.port_num != 1 {
            return Err(Errno::INVALID
                .because("is_global and port_num must be 1: on Ethernet, peers are addressed by GID"));
        }
        let grh = &attr.grh;
        let source = gid_at(grh.sgid_index.into())?;
        // SAFETY: every member of the union is sixteen bytes.
        let destination = Gid::from_bytes(unsafe { grh.dgid.raw });
        if source == Gid::ZERO || destination == Gid::ZERO {
            return Err(Errno::INVALID
                .because(format_args!("dgid is zero, or no GID at sgid_index {}", grh.sgid_index)));
        }
        let address = AddressHandle {
            service_level: attr.sl & 0xf,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label & 0xf_ffff,
            hop_limit: grh.hop_limit,
            ..AddressHandle::new(source, destination)
        };
        let c = ibv_ah { context: pd.context().c(), pd: pd.c(), handle: 0 };
        let uses = Uses::of(&*pd)?;
        Ok(publish(Self { c: CCell::new(c), address, _pd: pd }, uses))
    }

    pub(crate) fn address(&self) -> AddressHandle {
        self.address
    }
}
