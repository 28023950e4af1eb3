//! All settings of the adapter, in one place: default, reason, and who would change it.
//!
//! The environment variables (`IRONWARP_` and the name in capitals) and the page `docs/settings.md` derive from this list.

mod dropin;
mod ports;
mod trust;

pub use dropin::{DeviceName, LogLevel, NoDeviceName, NoSuchWord, Persona, PortPolicy};
pub use ports::{NoPortRange, PortRange};
pub use trust::{ClusterKey, KeyTooShort, NoUsers, Users};

use crate::fault::FaultPlan;
use crate::steering::HashKey;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What the names of our environment variables begin with.
pub const PREFIX: &str = "IRONWARP_";

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
                        ConfigError::Value { name: name.to_owned(), value: shown(name, value), wanted }
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
    /// A key that both ends of a queue pair connected by GID and number must prove to know: at least 16 bytes, the same on all
    /// hosts. Without one, anybody who has the peer's address and knows both queue pair numbers is taken for the peer. Use
    /// `key_file` where other users can see the environment.
    key: ClusterKey = ClusterKey::default(),
    /// A file with that key, without the line break at its end. It must be a regular file that group and others cannot read.
    key_file: PathBuf = PathBuf::new(),
    /// Users of this host whose queue pairs may be connected by GID and number, and whose listeners at candidate ports are trusted,
    /// besides the process's own: numeric ids such as `1000,1001`, or `any`.
    users: Users = Users::default(),
    /// How many lanes there are at most. There are never more than processors that the process may use.
    lanes: usize = 4,
    /// The secret key, 80 hexadecimal digits, of the hash that steers new connections to lanes (requirement I7). If not set, every
    /// adapter makes one of its own: for tests that have to know the lane.
    steering_key: HashKey = HashKey::default(),
    /// A lane that uses so many percent of a processor gives a queue pair to one that uses less than half as much, if both are better
    /// off then (requirement I9). 0: queue pairs stay where they are, unless the program moves them.
    rebalance: u16 = 50,
    /// Faults to inject, such as `split=0.2,cut@0.001`: for programs that shall meet them in tests.
    faults: FaultPlan = FaultPlan::default(),
    /// What the faults' random choices follow from: the same seed, the same choices.
    seed: u64 = 0,
    /// Write all that connections and datagrams carry to this file, for Wireshark and other packet analysers: no rights are
    /// needed, and each FPDU is a packet. What is in the file stays: processes can share one. Not captured is a queue pair
    /// that is its own peer.
    pcap: PathBuf = PathBuf::new(),
    /// How long, in bytes, that file may get. Nothing more is written then.
    pcap_limit: u64 = 1 << 30,
    /// The name of the device that C programs see: the drop-in alone. For programs that look for a name such as `mlx5_0`; it stays
    /// an Ironwarp device, and takes no options of a vendor.
    name: DeviceName = DeviceName::default(),
    /// What C programs take the adapter for, `roce` or `iwarp`: the drop-in alone. On the wire it is the same. `iwarp` for
    /// programs that know iWARP and shall be tested with it.
    persona: Persona = Persona::Roce,
    /// Where port N of librdmacm is, which is not TCP's: the drop-in alone. `shared`: at TCP port N, or at a candidate derived from N if
    /// TCP port N is taken. `apart`: at a candidate, and TCP port N is neither bound nor dialled, for TCP servers that another process
    /// starts later; set it at both ends. `tcp`: at TCP port N only, as without this adapter's port space, and as `private` = `off` has it.
    /// The candidates are in docs/wire.md.
    port_space: PortPolicy = PortPolicy::Shared,
    /// How much is said on the standard error, `off`, `error`, `warn`, `info`, `debug` or `trace`: the drop-in alone. Rust
    /// programs bring a subscriber of `tracing`.
    log: LogLevel = LogLevel::Warn,
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
        let (config, mistakes) = Self::from_variables(std::env::vars_os());
        mistakes.into_iter().next().map_or(Ok(config), Err)
    }

    /// The same, for who cannot refuse to go on: what is wrong is left at its default, and told.
    ///
    /// ```
    /// # use ironwarp_rnic::config::Config;
    /// let (config, mistakes) = Config::from_env_leniently();
    /// mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
    /// # let _ = config;
    /// ```
    pub fn from_env_leniently() -> (Self, Vec<ConfigError>) {
        Self::from_variables(std::env::vars_os())
    }

    /// The variables of others need not be text, and ours may be wrong in any way.
    fn from_variables(variables: impl Iterator<Item = (OsString, OsString)>) -> (Self, Vec<ConfigError>) {
        let (mut config, mut mistakes) = (Self::default(), Vec::new());
        for (variable, value) in variables {
            let variable = variable.to_string_lossy();
            if let Some(name) = variable.strip_prefix(PREFIX) {
                mistakes.extend(config.set_os(&name.to_lowercase(), &value).err());
            }
        }
        (config, mistakes)
    }

    /// Where ports of the connection manager are. A port space of its own is private.
    pub fn port_policy(&self) -> PortPolicy {
        if self.private { self.port_space } else { PortPolicy::Tcp }
    }

    fn set_os(&mut self, name: &str, value: &OsStr) -> Result<(), ConfigError> {
        match value.to_str() {
            Some(value) => self.set(name, value),
            None if self.get(name).is_none() => Err(ConfigError::unknown(name)),
            None => {
                let (value, wanted) =
                    (shown(name, &value.to_string_lossy()), "text (UTF-8) is wanted".to_owned());
                Err(ConfigError::Value { name: name.to_owned(), value, wanted })
            }
        }
    }
}

/// A value as an error shows it: a key is not to be read in a log.
fn shown(name: &str, value: &str) -> String {
    if name == "key" { "(not shown)".to_owned() } else { value.to_owned() }
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

impl Value for PathBuf {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn to_text(&self) -> String {
        self.to_string_lossy().into_owned()
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
plain!(
    u16, u64, usize, FaultPlan, HashKey, PortRange, ClusterKey, Users, DeviceName, Persona, PortPolicy,
    LogLevel
);

fn in_words(error: &dyn fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
        Config::from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn told(mistakes: &[ConfigError]) -> Vec<String> {
        mistakes.iter().map(ToString::to_string).collect()
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
        assert_eq!(with(&variables), (expected, Vec::new()));
    }

    #[test]
    fn a_mistake_is_named_with_what_was_meant() {
        let (config, mistakes) =
            with(&[("IRONWARP_LANE", "2"), ("IRONWARP_CLOSE", "5"), ("IRONWARP_CRC", "off")]);
        assert_eq!(
            told(&mistakes),
            [
                "there is no setting `lane` (IRONWARP_LANE); the nearest is `lanes`",
                "`5` is not a value for the setting `close`: a time such as `5s` or `200ms` is wanted",
            ]
        );
        assert_eq!(config, Config { crc: false, ..Config::default() }, "what is right is heard");
    }

    /// A key shows nowhere, not even if it cannot be used.
    #[test]
    fn a_key_is_not_shown() {
        let (config, mistakes) = with(&[("IRONWARP_KEY", "correct horse battery staple")]);
        assert_eq!((config.key.bytes(), mistakes), (Some(&b"correct horse battery staple"[..]), vec![]));
        let shown = format!("{config:?} {:?}", config.get("key"));
        assert!(shown.contains("ClusterKey(..)") && !shown.contains("horse"), "{shown}");
        let (config, mistakes) = with(&[("IRONWARP_KEY", "too short")]);
        assert_eq!(config.key.bytes(), None);
        let [mistake] = &told(&mistakes)[..] else { panic!("{mistakes:?}") };
        assert!(mistake.contains("the key has 9 bytes") && !mistake.contains("too short"), "{mistake}");
    }

    #[test]
    fn users_are_numbers_or_all() {
        let users = |text: &str| text.parse::<Users>();
        assert_eq!(users("7, 8"), Ok(Users::Listed(vec![7, 8])));
        assert_eq!(users("7,nobody"), Err(NoUsers));
        assert_eq!((users("any").unwrap().accept(1, 2), users("").unwrap().accept(1, 2)), (true, false));
        assert!(users("7").unwrap().accept(1, 1) && users("7").unwrap().accept(1, 7));
        assert!(!users("7").unwrap().accept(1, 8));
    }

    /// Whoever starts a program may give it any bytes.
    #[test]
    fn variables_that_are_no_text() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
        let (config, mistakes) = Config::from_variables(
            [
                (bytes(b"HOME\xff"), bytes(b"\xff")),
                (bytes(b"IRONWARP_CRC"), bytes(b"o\xff")),
                (bytes(b"IRONWARP_LANES\xff"), bytes(b"1")),
            ]
            .into_iter(),
        );
        assert_eq!(config, Config::default());
        let [value, name] = &told(&mistakes)[..] else { panic!("{mistakes:?}") };
        assert_eq!(value, "`o\u{fffd}` is not a value for the setting `crc`: text (UTF-8) is wanted");
        assert!(name.ends_with("the nearest is `lanes`"), "{name}");
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
