//! What the adapter shows itself as. The wire is the same in both: standard iWARP.

use crate::abi::{
    IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_node_type, ibv_transport_type,
};
use std::sync::OnceLock;

/// A persona, chosen by IRONWARP_PERSONA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Persona {
    /// An InfiniBand-style adapter on Ethernet (RoCE v2). Most programs accept nothing else.
    #[default]
    Roce,
    /// An iWARP adapter.
    Iwarp,
}

impl Persona {
    /// That of this process.
    pub(crate) fn get() -> Self {
        static PERSONA: OnceLock<Persona> = OnceLock::new();
        *PERSONA.get_or_init(|| match std::env::var("IRONWARP_PERSONA").as_deref() {
            Ok("iwarp") => Self::Iwarp,
            _ => Self::Roce,
        })
    }

    pub(crate) fn node_type(self) -> ibv_node_type {
        match self {
            Self::Roce => IBV_NODE_CA,
            Self::Iwarp => IBV_NODE_RNIC,
        }
    }

    pub(crate) fn transport(self) -> ibv_transport_type {
        match self {
            Self::Roce => IBV_TRANSPORT_IB,
            Self::Iwarp => IBV_TRANSPORT_IWARP,
        }
    }
}
