//! All settings of the adapter, in one place: default, reason, and who would change it.
//!
//! The environment variables (`IRONWARP_` and the name in capitals) and the page `docs/settings.md` derive from this list.

mod ports;

pub use ports::{NoPortRange, PortRange};

use crate::fault::FaultPlan;
use std::fmt;
use std::time::Duration;

/// Defines [`Config`] and what is known of its settings.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr,)*) => {
        /// The settings of an adapter.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Config {
            /// The names of all settings, and what is to be known of each.
            pub const SETTINGS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+)),)*];

            /// A setting as text, in the form that [`set`](Self::set) takes.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.to_text()),)*
                    _ => None,
                }
            }

            /// Changes a setting.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
                match name {
                    $(stringify!($name) => self.$name = Value::from_text(value).map_err(|wanted| {
                        ConfigError::Value { name: name.to_owned(), value: value.to_owned(), wanted }
                    })?,)*
                    _ => return Err(ConfigError::unknown(name)),
                }
                Ok(())
            }
        }
    };
}

settings! {
    /// Recognise other Ironwarp ends by the signal, and use what only they understand. Turn it off to be nothing but the
    /// RFCs on the wire: for conformance tests, or for a middlebox that minds empty Writes.
    private: bool = true,
    /// A message for which no receive is posted ends the stream, as the RFC has it, instead of waiting for one. For
    /// programs that want their missing receives found.
    strict_receive: bool = false,
    /// Peers reach memory through windows only, never through regions (requirement M9).
    strict_windows: bool = false,
    /// Ask for CRCs. TCP's own checksum is weak, so this is the RFC's default; turn it off where the path checks better.
    crc: bool = true,
    /// Ask peers to put markers into what they send. This end finds its way without, so they only cost; turn it on to see
    /// how a peer or an analyser does with them.
    markers: bool = false,
    /// How many Reads of a peer a queue pair holds, unless its connection says otherwise (IRD).
    ird: u16 = 32,
    /// How many Reads a queue pair has outstanding, unless its connection says otherwise (ORD).
    ord: u16 = 32,
    /// How many bytes of messages wait for a receive before a stream stops reading. More for programs that post late.
    park: usize = 256 << 10,
    /// How many regions and windows there may be.
    tags: usize = 1 << 20,
    /// How long a startup frame may take, in either role. Hardware drivers wait up to 60 s; siw 5 and 10.
    startup: Duration = Duration::from_secs(10),
    /// How long the peer may take to close after this end did. Then the connection is cut.
    close: Duration = Duration::from_secs(5),
    /// Silence after which the kernel asks the peer for a sign of life. It asks for 30 s more before it gives up.
    keepalive: Duration = Duration::from_secs(30),
    /// The ports that queue pairs brought up by hand and datagrams may use, such as `20000-20999`: for a firewall. If not set,
    /// the kernel chooses. 240 such queue pairs share a port; a port is busy for a minute after its last connection.
    ports: PortRange = PortRange::default(),
    /// Listen for queue pairs brought up by hand on all addresses, and not only on that of their GID: for hosts that peers
    /// reach at an address which is not their own. Who may connect stays the same.
    listen_everywhere: bool = false,
    /// How many lanes there are at most. There are never more than processors that the process may use.
    lanes: usize = 4,
    /// Faults to inject, such as `split=0.2,cut@0.001`: for programs that shall meet them in tests.
    faults: FaultPlan = FaultPlan::default(),
    /// What the faults' random choices follow from: the same seed, the same choices.
    seed: u64 = 0,
}

impl Config {
    /// The default, changed by the variables `IRONWARP_…` of the environment.
    ///
    /// ```
    /// # use ironwarp_rnic::config::Config;
    /// let config = Config::from_env()?;
    /// println!("{} lanes at most", config.lanes);
    /// # Ok::<(), ironwarp_rnic::config::ConfigError>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(std::env::vars())
    }

    fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (variable, value) in variables {
            if let Some(name) = variable.strip_prefix("IRONWARP_") {
                config.set(&name.to_lowercase(), &value)?;
            }
        }
        Ok(config)
    }
}

/// A setting that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such setting.
    #[error("there is no setting `{name}` (IRONWARP_{}); the nearest is `{nearest}`", .name.to_uppercase())]
    Unknown {
        /// What was asked for.
        name: String,
        /// The setting that looks most like it.
        nearest: &'static str,
    },
    /// The value does not fit.
    #[error("`{value}` is not a value for the setting `{name}`: {wanted}")]
    Value {
        /// The setting.
        name: String,
        /// What was given.
        value: String,
        /// What is wanted.
        wanted: String,
    },
}

impl ConfigError {
    fn unknown(name: &str) -> Self {
        let names = Config::SETTINGS.iter().map(|(known, _)| *known);
        let nearest = names.min_by_key(|known| distance(known, name)).unwrap_or_default();
        Self::Unknown { name: name.to_owned(), nearest }
    }
}

/// How many letters have to be put in, left out or changed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let cost = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// A kind of setting, and its form as text.
trait Value: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
    fn to_text(&self) -> String;
}

impl Value for bool {
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err("`on` or `off` is wanted".to_owned()),
        }
    }

    fn to_text(&self) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }
}

impl Value for Duration {
    fn from_text(text: &str) -> Result<Self, String> {
        let wanted = || "a time such as `5s` or `200ms` is wanted".to_owned();
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wanted)?;
        let (number, unit) = text.split_at(split);
        let number = number.parse().map_err(|_| wanted())?;
        match unit {
            "s" => Ok(Self::from_secs(number)),
            "ms" => Ok(Self::from_millis(number)),
            "us" => Ok(Self::from_micros(number)),
            _ => Err(wanted()),
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

/// Numbers, and whatever else reads and writes itself.
macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error| in_words(&error))
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
plain!(u16, u64, usize, FaultPlan, PortRange);

fn in_words(error: &dyn fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Config::from_variables(variables.iter().map(owned))
    }

    #[test]
    fn every_setting_survives_as_text() {
        let mut config = Config::default();
        for (name, about) in Config::SETTINGS {
            let text = config.get(name).expect("a setting that is listed can be read");
            config.set(name, &text).expect("its own form is understood");
            assert!(!about.trim().is_empty());
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn the_environment_changes_settings() {
        let variables =
            [("IRONWARP_CRC", "off"), ("IRONWARP_CLOSE", "250ms"), ("IRONWARP_IRD", "7"), ("HOME", "/")];
        let expected = Config { crc: false, close: Duration::from_millis(250), ird: 7, ..Config::default() };
        assert_eq!(with(&variables), Ok(expected));
    }

    #[test]
    fn a_mistake_is_named_with_what_was_meant() {
        let error = with(&[("IRONWARP_LANE", "2")]).unwrap_err().to_string();
        assert_eq!(error, "there is no setting `lane` (IRONWARP_LANE); the nearest is `lanes`");
        let error = with(&[("IRONWARP_CLOSE", "5")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "`5` is not a value for the setting `close`: a time such as `5s` or `200ms` is wanted"
        );
    }

    /// The page is made from the settings, so it cannot be wrong. Print it with `cargo test -p ironwarp-rnic settings_page`.
    #[test]
    fn settings_page_is_up_to_date() {
        let default = Config::default();
        let mut page =
            "# Settings\n\nEach is a field of `Config`, and an environment variable.\n\n".to_owned();
        page += "| variable | default | |\n|---|---|---|\n";
        for (name, about) in Config::SETTINGS {
            let value = default.get(name).unwrap_or_default();
            let value = if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
            page += &format!("| `IRONWARP_{}` | {value} | {} |\n", name.to_uppercase(), about.trim());
        }
        let found = include_str!("../../../docs/settings.md");
        assert!(found == page, "docs/settings.md should be:\n{page}");
    }
}
