//! Conversion of settings from and to text.

use super::dropin::{DeviceName, LogLevel, Persona, PortPolicy};
use super::ports::PortRange;
use super::trust::{ClusterKey, Users};
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
        let expected = || "expected a duration such as `5s` or `200ms`".to_owned();
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
        let (number, unit) = text.split_at(split);
        let number = number.parse().map_err(|_| expected())?;
        match unit {
            "s" => Ok(Self::from_secs(number)),
            "ms" => Ok(Self::from_millis(number)),
            "us" => Ok(Self::from_micros(number)),
            _ => Err(expected()),
        }
    }

    fn to_text(&self) -> String {
        match self.subsec_micros() {
            0 => format!("{}s", self.as_secs()),
            micros if micros % 1000 == 0 => format!("{}ms", self.as_millis()),
            _ => format!("{}us", self.as_micros()),
        }
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
    u16, u64, usize, FaultPlan, HashKey, PortRange, ClusterKey, Users, DeviceName, Persona, PortPolicy,
    LogLevel
);
