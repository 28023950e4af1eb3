//! The settings of an adapter, and the types of their values.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ironwarp::prelude::*;
//!
//! let config = Config::from_env()?.lanes(1).faults("delay=50us..2ms@0.05".parse()?);
//! let adapter = Adapter::open(config)?;
//! # let _ = adapter;
//! # Ok(())
//! # }
//! ```

pub use ironwarp_engine::config::{
    Check, ClusterKey, Config, ConfigError, DeviceName, Devices, InvalidDeviceName, InvalidDevices,
    InvalidPortPlan, InvalidPortRange, InvalidUsers, KeyTooShort, LogLevel, Persona, PortPlan, PortPolicy,
    PortRange, Setting, Stability, UnknownKeyword, Users,
};
pub use ironwarp_rnic::adversary::{AdversarySeed, InvalidSeed};
pub use ironwarp_rnic::fault::{BadPlan, FaultPlan};
