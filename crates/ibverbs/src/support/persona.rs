//! The settings of this process, and the kind of adapter (persona) that programs see. On the wire both
//! personas are standard iWARP.

use crate::abi::{
    IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_node_type, ibv_transport_type,
};
use crate::support::stderr;
use ironwarp_engine::config::{Config, Persona};
use std::sync::OnceLock;

/// The settings from the environment, read by the first call. Invalid settings are logged and keep their
/// defaults.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let (config, mistakes) = Config::from_env_leniently();
        stderr::install(config.log);
        mistakes.iter().for_each(|error| tracing::warn!("{error}"));
        config
    })
}

/// Name of the device, which programs take with `-d`.
pub(crate) fn name() -> &'static str {
    config().name.as_str()
}

/// Whether programs see an iWARP adapter.
pub(crate) fn is_iwarp() -> bool {
    config().persona == Persona::Iwarp
}

pub(crate) fn node_type() -> ibv_node_type {
    if is_iwarp() { IBV_NODE_RNIC } else { IBV_NODE_CA }
}

pub(crate) fn transport() -> ibv_transport_type {
    if is_iwarp() { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB }
}
