//! [`Config`], the settings of an adapter. It is defined by three tables: the device's settings (in `ironwarp-rnic`),
//! the engine's and the drop-in's.
//!
//! The environment variables (`IRONWARP_` and the name in capitals) and the page `docs/settings.md` derive from these
//! tables.

pub(crate) mod devices;
mod dropin;
mod duration;
mod error;
mod key_file;
pub(crate) mod plan;
mod ports;
mod trust;
mod value;

pub use devices::{Devices, InvalidDevices, MAX_DEVICES, MAX_PORTS, Rate};
pub use dropin::{Check, DeviceName, InvalidDeviceName, LogLevel, Persona, PortPolicy, UnknownKeyword};
pub use error::ConfigError;
pub use key_file::read_private_file;
pub use plan::{InvalidPortPlan, PortPlan};
pub use ports::{InvalidPortRange, PortRange};
pub use trust::{ClusterKey, InvalidUsers, KeyTooShort, Users};

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device_settings;
use ironwarp_rnic::steering::HashKey;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use value::Value;

/// Prefix of the environment variables that change settings.
pub const PREFIX: &str = "IRONWARP_";

/// Number of unanswered keepalive probes after which the kernel gives up a peer.
pub(crate) const PROBES: u32 = 6;
/// Time between two keepalive probes.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// A setting, as listed by [`Config::SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The name: of the field of [`Config`], and in capitals after `IRONWARP_` of the environment variable.
    pub name: &'static str,
    /// What the setting does.
    pub description: &'static str,
    /// What later releases may change.
    pub stability: Stability,
}

/// What later releases may change about a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stability {
    /// The name, the values and their meaning stay until the next major release. The default may change in a minor
    /// release.
    Stable,
    /// Any release may change, rename or remove the setting.
    Experimental,
}

impl fmt::Display for Stability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "stable",
            Self::Experimental => "experimental",
        })
    }
}

/// Converts the label of a row to a [`Stability`].
macro_rules! stability {
    (stable) => {
        Stability::Stable
    };
    (experimental) => {
        Stability::Experimental
    };
}

/// Returns what the documentation of a setting with this label ends with.
macro_rules! note {
    (stable) => {
        ""
    };
    (experimental) => {
        "\n\nExperimental: any release may change, rename or remove this setting."
    };
}

/// Defines [`Config`] from the tables of settings, the device's first.
macro_rules! define {
    (
        { $($(#[doc = $device_doc:literal])+ $device_label:ident $device:ident: $device_type:ty = $device_default:expr,)* }
        $({ $($(#[doc = $doc:literal])+ $label:ident $name:ident: $type:ty = $default:expr,)* })*
    ) => {
        /// The settings of an adapter.
        ///
        /// [`from_env`](Self::from_env) reads each of them from an environment variable: `IRONWARP_` and the name in
        /// capitals. In a program, each has a method of its own name that changes it:
        ///
        /// ```
        /// # use ironwarp_engine::config::Config;
        /// let config = Config::default().lanes(1).crc(false);
        /// assert_eq!((config.lanes, config.crc), (1, false));
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Config {
            $($(#[doc = $device_doc])+ #[doc = note!($device_label)] pub $device: $device_type,)*
            $($($(#[doc = $doc])+ #[doc = note!($label)] pub $name: $type,)*)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($device: $device_default,)* $($($name: $default,)*)* }
            }
        }

        impl Config {
            /// All settings, in the order of the tables.
            pub const SETTINGS: &[Setting] = &[
                $(Setting {
                    name: stringify!($device),
                    description: concat!($($device_doc),+),
                    stability: stability!($device_label),
                },)*
                $($(Setting {
                    name: stringify!($name),
                    description: concat!($($doc),+),
                    stability: stability!($label),
                },)*)*
            ];

            /// Returns a setting as text, in the form that [`set`](Self::set) accepts; `None` if no setting has this
            /// name.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($device) => Some(self.$device.to_text()),)*
                    $($(stringify!($name) => Some(self.$name.to_text()),)*)*
                    _ => None,
                }
            }

            /// Changes a setting, by its name and the text of its value.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
                let invalid = |expected| ConfigError::invalid(name, value, expected);
                match name {
                    $(stringify!($device) => self.$device = Value::from_text(value).map_err(invalid)?,)*
                    $($(stringify!($name) => self.$name = Value::from_text(value).map_err(invalid)?,)*)*
                    _ => return Err(Self::unknown(name)),
                }
                Ok(())
            }

            $(
                $(#[doc = $device_doc])+
                #[doc = note!($device_label)]
                #[must_use]
                pub fn $device(mut self, $device: $device_type) -> Self {
                    self.$device = $device;
                    self
                }
            )*
            $($(
                $(#[doc = $doc])+
                #[doc = note!($label)]
                #[must_use]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*)*

            /// Returns the settings that belong to the device.
            pub(crate) fn device_config(&self) -> DeviceConfig {
                let shared_memory = self.shm && self.private;
                DeviceConfig { $($device: self.$device.clone(),)* shared_memory, ..DeviceConfig::default() }
            }
        }
    };
}

device_settings! { define
    {
        /// Idle time after which the kernel sends TCP keepalive probes. It probes for 30 s before it resets the
        /// connection.
        stable keepalive: Duration = Duration::from_secs(30),
        /// Range of TCP and UDP ports for manually connected and datagram queue pairs, such as `20000-20999`, for use
        /// with a firewall. If unset, the kernel chooses. 240 manually connected queue pairs share a port; a port stays
        /// in use for a minute after its last connection.
        stable ports: PortRange = PortRange::default(),
        /// Listen for manually connected queue pairs on all addresses instead of only that of their GID, for hosts
        /// behind address translation. The peers that may connect stay the same.
        stable listen_everywhere: bool = false,
        /// A shared key that both ends of a manually connected queue pair must prove to know: at least 16 bytes, the
        /// same on all hosts. Without a key, any process that has the peer's address and knows both queue pair numbers
        /// is accepted. Use `key_file` where other users can read the environment.
        stable key: ClusterKey = ClusterKey::default(),
        /// A file that contains the shared key; a line break at its end is ignored. It must be a regular file that
        /// group and others cannot read.
        stable key_file: PathBuf = PathBuf::new(),
        /// Users of this host, besides the process's own, whose manually connected queue pairs are accepted and whose
        /// listeners on candidate ports are trusted: numeric ids such as `1000,1001`, or `any`.
        stable users: Users = Users::default(),
        /// Where port N of librdmacm's port space is, which is separate from TCP's. `shared`: at TCP port N, or at a
        /// candidate derived from N if TCP port N is in use. `apart`: at a candidate; TCP port N is neither bound nor
        /// dialled, which leaves it to a TCP server that another process starts later; set it at both ends. `tcp`: at
        /// TCP port N only, as with `private` off. Only the drop-in uses this port space. docs/wire.md lists the
        /// candidates.
        experimental port_space: PortPolicy = PortPolicy::Shared,
        /// Maximum number of lanes (the adapter's threads). There are never more than processors available to the
        /// process.
        stable lanes: usize = 4,
        /// Secret key, 80 hexadecimal digits, of the hash that assigns new connections to lanes (requirement I7). If
        /// unset, each adapter generates a random key. Set it in tests that must know the lane.
        experimental steering_key: HashKey = HashKey::default(),
        /// CPU utilization of a lane, in percent, above which it hands a queue pair to a lane that uses less than half
        /// as much, if both benefit (requirement I9). 0 disables rebalancing.
        experimental rebalance: u16 = 50,
        /// Carry connections between two processes of one host in shared memory instead of TCP. The TCP connection stays
        /// open, but tools such as tcpdump see no messages on it; `pcap` shows them.
        experimental shm: bool = true,
        /// A directory that this process shares with others in other containers, for connections between them in shared
        /// memory. Without it, both processes must be in the same network namespace.
        experimental shm_dir: PathBuf = PathBuf::new(),
        /// Write the traffic of all connections and datagrams to this file, for Wireshark and other packet analysers.
        /// This requires no privileges, and each FPDU becomes one packet. An existing file is appended to, and
        /// processes can share one. Traffic of a queue pair connected to itself is not captured.
        stable pcap: PathBuf = PathBuf::new(),
        /// Maximum size of the capture file, in bytes. Capturing stops there.
        stable pcap_limit: u64 = 1 << 30,
        /// Record the last events of each thread in a file of the user's runtime directory. A process that crashes leaves it
        /// behind, and `ironwarp show --events` prints it. It contains no data of the program.
        experimental recorder: bool = true,
        /// The logical devices of the process (requirement X3): `all` interfaces in one device, one for each of the
        /// `interfaces`, a number such as `8` of devices at addresses of loopback, or interfaces and addresses such as
        /// `eth0+eth1`, the ports of one device. docs/devices.md lists the options.
        experimental devices: Devices = Devices::default(),
        /// When ports of logical devices go down and come up again, such as `ironwarp1 down@2s up@5s; ironwarp2:2
        /// down@1s`, to test how a program reacts. Without a number, all ports of the device do. Times count from the
        /// moment at which a process first opens the device, in each process. docs/programs/multi-rail.md describes what
        /// programs see.
        experimental port_plan: PortPlan = PortPlan::default(),
    }
    {
        /// Name of the device that C programs see (drop-in only), for programs that look for a name such as `mlx5_0`.
        /// It does not enable vendor-specific features.
        stable name: DeviceName = DeviceName::default(),
        /// Transport that C programs see, `roce` or `iwarp` (drop-in only). The wire protocol is iWARP in both cases.
        /// Use `iwarp` to test programs that support iWARP.
        stable persona: Persona = Persona::Roce,
        /// Verbosity of messages on standard error: `off`, `error`, `warn`, `info`, `debug` or `trace` (drop-in only).
        /// Rust programs install a `tracing` subscriber instead.
        stable log: LogLevel = LogLevel::Warn,
        /// Report mistakes of the program on standard error (drop-in only), as `ironwarp run --check` does: `on`, or
        /// `mlx5`, `irdma` or `efa` for the limits of such an adapter as well. docs/check.md lists the checks.
        experimental check: Check = Check::Off,
        /// Fill the buffers of receives and Reads with poison until they complete (drop-in only, with `check`), to find
        /// programs that read them too early. Such programs may then fail.
        experimental check_poison: bool = false,
        /// Append each finding and remark of `check` to this file as a line of JSON (drop-in only).
        experimental check_json: PathBuf = PathBuf::new(),
        /// A file with findings of `check` that are not reported (drop-in only), in the format of valgrind.
        experimental check_suppressions: PathBuf = PathBuf::new(),
    }
}

impl Config {
    /// Returns the default settings, changed by the environment variables `IRONWARP_…`. Fails if one of these is
    /// invalid.
    ///
    /// ```
    /// # use ironwarp_engine::config::Config;
    /// let config = Config::from_env()?;
    /// println!("at most {} lanes", config.lanes);
    /// # Ok::<(), ironwarp_engine::config::ConfigError>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        let (config, errors) = Self::from_variables(std::env::vars_os());
        errors.into_iter().next().map_or(Ok(config), Err)
    }

    /// Returns the default settings, changed by the valid environment variables `IRONWARP_…`, and an error for each
    /// invalid one.
    ///
    /// ```
    /// # use ironwarp_engine::config::Config;
    /// let (config, errors) = Config::from_env_leniently();
    /// errors.iter().for_each(|error| eprintln!("{error}"));
    /// # let _ = config;
    /// ```
    pub fn from_env_leniently() -> (Self, Vec<ConfigError>) {
        Self::from_variables(std::env::vars_os())
    }

    /// Returns the default settings, changed by the valid ones of these variables, and an error for each invalid one.
    /// Variables without the prefix are ignored, and need not be valid UTF-8.
    fn from_variables(variables: impl Iterator<Item = (OsString, OsString)>) -> (Self, Vec<ConfigError>) {
        let (mut config, mut errors) = (Self::default(), Vec::new());
        for (variable, value) in variables {
            let variable = variable.to_string_lossy();
            if let Some(name) = variable.strip_prefix(PREFIX) {
                errors.extend(config.set_os(&name.to_lowercase(), &value).err());
            }
        }
        (config, errors)
    }

    /// Returns how long data may stay unacknowledged before TCP gives up a connection.
    pub(crate) fn user_timeout(&self) -> Duration {
        self.keepalive + PROBE_INTERVAL * PROBES
    }

    /// Returns how RDMA ports are mapped to TCP ports: as set, or always to the TCP port of the same number if the
    /// setting `private` is off, because every other mapping is a private extension.
    pub fn port_policy(&self) -> PortPolicy {
        if self.private { self.port_space } else { PortPolicy::Tcp }
    }

    /// Changes a setting to the value of an environment variable, which may not be valid UTF-8: then fails, because no
    /// setting takes such a value. An unknown name is reported first.
    fn set_os(&mut self, name: &str, value: &OsStr) -> Result<(), ConfigError> {
        match value.to_str() {
            Some(value) => self.set(name, value),
            None if self.get(name).is_none() => Err(Self::unknown(name)),
            None => {
                Err(ConfigError::invalid(name, &value.to_string_lossy(), "expected UTF-8 text".to_owned()))
            }
        }
    }

    /// Returns the error for a name that no setting has.
    fn unknown(name: &str) -> ConfigError {
        ConfigError::unknown(name, Self::SETTINGS.iter().map(|known| known.name))
    }
}

#[cfg(test)]
mod tests;
