//! The settings of this process, and the kind of adapter (persona) that programs see. On the wire both
//! personas are standard iWARP.

use crate::abi::{
    IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_node_type, ibv_transport_type,
};
use crate::check;
use crate::support::stderr;
use ironwarp_engine::config::{Config, Persona};
use std::sync::OnceLock;

/// Returns the settings of this process. The first call reads them from the environment, and installs the log.
/// Invalid settings are logged, and keep their defaults.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let (config, mistakes) = Config::from_env_leniently();
        stderr::install(config.log);
        mistakes.iter().for_each(|error| tracing::warn!("{error}"));
        check::start(&config);
        config
    })
}

/// Installs the log, if this is the first call of the program. Called before the first message is logged, by functions
/// that need no settings.
pub(crate) fn install_log() {
    let _ = config();
}

/// Returns whether programs see an iWARP adapter. Otherwise they see a RoCE adapter.
pub(crate) fn is_iwarp() -> bool {
    config().persona == Persona::Iwarp
}

/// Returns the node type that programs see.
pub(crate) fn node_type() -> ibv_node_type {
    if is_iwarp() { IBV_NODE_RNIC } else { IBV_NODE_CA }
}

/// Returns the transport type that programs see.
pub(crate) fn transport() -> ibv_transport_type {
    if is_iwarp() { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB }
}
