//! Address handles of C programs.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::gids::gid_at;
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, publish};
use ironwarp_engine::gid::Gid;
use ironwarp_rnic::datagram::AddressHandle;
use std::sync::Arc;

/// An address handle: the source and destination GID of datagrams, and the fields of their GRH.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    c: CCell<ibv_ah>,
    address: AddressHandle,
    pd: Arc<Pd>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Ah {
    type C = ibv_ah;
}

impl Ah {
    /// Creates an address handle. Fails with EINVAL if the attributes have no GRH, name a port that the device does not have,
    /// or name no source or no destination.
    pub(crate) fn new(pd: Arc<Pd>, attr: &ibv_ah_attr) -> Result<Arc<Self>, Errno> {
        // Ethernet has no LIDs, so the destination must be a GID.
        if attr.is_global == 0 {
            return Err(
                Errno::INVALID.because("is_global must be 1: on Ethernet, peers are addressed by GID")
            );
        }
        let table = pd.context().port(attr.port_num)?.gids();
        let grh = &attr.grh;
        let source = gid_at(table, grh.sgid_index.into())?;
        // SAFETY: `ibv_gid` is a union of sixteen bytes and two integers, so all its bytes are initialised.
        let destination = Gid::from_bytes(unsafe { grh.dgid.raw });
        if source == Gid::ZERO || destination == Gid::ZERO {
            return Err(Errno::INVALID
                .because(format_args!("dgid is zero, or no GID at sgid_index {}", grh.sgid_index)));
        }
        let address = AddressHandle {
            service_level: attr.sl & 0xf, // 4 bits
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label & 0xf_ffff, // 20 bits
            hop_limit: grh.hop_limit,
            ..AddressHandle::new(source, destination)
        };
        let c = ibv_ah { context: pd.context().c(), pd: pd.c(), handle: 0 };
        let uses = Uses::of(&*pd)?;
        Ok(publish(Self { c: CCell::new(c), address, pd }, uses))
    }

    /// Returns the address handle of the adapter, for a queue pair of this context. EINVAL if the address handle belongs to
    /// another one.
    pub(crate) fn address(&self, context: &Context) -> Result<AddressHandle, Errno> {
        context.check_same_adapter(self.pd.context(), "address handle")?;
        Ok(self.address)
    }
}
