//! The settings of this process, and what they make the adapter show itself as. The wire is the same in both personas:
//! standard iWARP.

use crate::abi::{
    IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_node_type, ibv_transport_type,
};
use crate::report;
use ironwarp_rnic::config::{Config, Persona};
use std::sync::OnceLock;

/// The settings, as the environment has them at the first verbs call. What is wrong there is said, and left at its default.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let (config, mistakes) = Config::from_env_leniently();
        report::begin(config.log);
        mistakes.iter().for_each(report::mistake);
        config
    })
}

/// The name of the device. Programs take it with `-d`.
pub(crate) fn name() -> &'static str {
    config().name.as_str()
}

/// Whether programs take it for an iWARP adapter.
pub(crate) fn is_iwarp() -> bool {
    config().persona == Persona::Iwarp
}

pub(crate) fn node_type() -> ibv_node_type {
    if is_iwarp() { IBV_NODE_RNIC } else { IBV_NODE_CA }
}

pub(crate) fn transport() -> ibv_transport_type {
    if is_iwarp() { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB }
}
