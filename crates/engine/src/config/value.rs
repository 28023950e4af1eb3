//! Conversion of settings from and to text.

use super::devices::Devices;
use super::dropin::{Check, DeviceName, LogLevel, Persona, PortPolicy};
use super::duration;
use super::plan::PortPlan;
use super::ports::PortRange;
use super::trust::{ClusterKey, Users};
use ironwarp_rnic::adversary::AdversarySeed;
use ironwarp_rnic::fault::FaultPlan;
use ironwarp_rnic::steering::HashKey;
use std::path::PathBuf;
use std::time::Duration;

/// The type of a setting.
pub(super) trait Value: Sized {
    /// Parses the text of a value. The error says what is expected, as in "expected `on` or `off`".
    fn from_text(text: &str) -> Result<Self, String>;

    /// Returns the value as text, in a form that `from_text` accepts.
    fn to_text(&self) -> String;
}

impl Value for bool {
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err("expected `on` or `off`".to_owned()),
        }
    }

    fn to_text(&self) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }
}

impl Value for Duration {
    fn from_text(text: &str) -> Result<Self, String> {
        duration::parse(text)
    }

    fn to_text(&self) -> String {
        duration::to_text(*self)
    }
}

impl Value for PathBuf {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn to_text(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

/// Implements [`Value`] for types with `FromStr` and `Display`.
macro_rules! impl_value_by_display {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error: <Self as std::str::FromStr>::Err| error.to_string())
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
impl_value_by_display!(
    u16,
    u64,
    usize,
    AdversarySeed,
    Devices,
    FaultPlan,
    HashKey,
    PortPlan,
    PortRange,
    ClusterKey,
    Users,
    DeviceName,
    Persona,
    PortPolicy,
    LogLevel,
    Check
);
