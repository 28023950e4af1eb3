//! Types of settings that the drop-in for libibverbs and librdmacm uses.
//!
//! They are defined here and not in the drop-in, because the command `ironwarp` checks them, and does not link to the
//! drop-in.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The name of the adapter's device, as C programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName(Cow<'static, str>);

/// Maximum length of a name in `struct ibv_device`: IBV_SYSFS_NAME_MAX without the terminating zero.
const MAX_NAME_LEN: usize = 63;

impl DeviceName {
    /// Returns the name as text.
    ///
    /// ```
    /// # use ironwarp_engine::config::DeviceName;
    /// let name: DeviceName = "mlx5_0".parse()?;
    /// assert_eq!(name.as_str(), "mlx5_0");
    /// # Ok::<(), ironwarp_engine::config::InvalidDeviceName>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the device that comes `count` after this one: the number at the end of the name is
    /// incremented. A name without a number at its end counts as number 0.
    pub(crate) fn incremented(&self, count: usize) -> Self {
        if count == 0 {
            return self.clone();
        }
        let stem = self.0.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: usize = self.0[stem.len()..].parse().unwrap_or(0);
        Self(format!("{stem}{}", number.saturating_add(count)).into())
    }
}

impl Default for DeviceName {
    fn default() -> Self {
        Self("ironwarp0".into())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DeviceName {
    type Err = InvalidDeviceName;

    /// Checks a name. It must be valid as the name of a directory, and must not contain a colon, because programs
    /// append a port or a GID to it, as in `mlx5_0:1`.
    fn from_str(text: &str) -> Result<Self, InvalidDeviceName> {
        let fits = (1..=MAX_NAME_LEN).contains(&text.len());
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let starts_well = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
        let valid = fits && starts_well && text.bytes().all(allowed);
        valid.then(|| Self(text.to_owned().into())).ok_or(InvalidDeviceName)
    }
}

/// An invalid device name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDeviceName;

impl std::error::Error for InvalidDeviceName {}

impl fmt::Display for InvalidDeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected a name such as `mlx5_0`: 1 to {MAX_NAME_LEN} letters, digits, `_`, `-` and `.`, starting with a letter, a digit or `_`"
        )
    }
}

/// Defines an enum for a setting whose values are keywords, with conversions from and to text. Case does not matter.
macro_rules! keywords {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $variant:ident = $keyword:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$row])* $variant,)* }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the keyword.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $keyword,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownKeyword;

            fn from_str(text: &str) -> Result<Self, UnknownKeyword> {
                let known = Self::ALL.iter().find(|value| value.as_str().eq_ignore_ascii_case(text));
                known.copied().ok_or(UnknownKeyword(&[$($keyword),*]))
            }
        }
    };
}

keywords! {
    /// The kind of adapter that programs see.
    Persona {
        /// A RoCE adapter: Ethernet, addressed by GID. Nearly all programs support these.
        Roce = "roce",
        /// An iWARP adapter (RNIC), which the adapter really is.
        Iwarp = "iwarp",
    }
}

keywords! {
    /// How ports of the connection manager (RDMA ports) are mapped to TCP ports. docs/wire.md explains candidates.
    PortPolicy {
        /// An RDMA port is at the TCP port of the same number, or at a candidate port if that one is in use.
        Shared = "shared",
        /// An RDMA port is always at a candidate port: the TCP port of the same number is left to TCP servers.
        Apart = "apart",
        /// An RDMA port is always at the TCP port of the same number, as with other iWARP adapters.
        Tcp = "tcp",
    }
}

keywords! {
    /// Verbosity of messages on standard error. Each level includes those before it.
    LogLevel {
        /// No messages.
        Off = "off",
        /// Errors that the program cannot recover from.
        Error = "error",
        /// Failed requests, connections and calls, and invalid settings.
        Warn = "warn",
        /// Start and end of the adapter and its connections.
        Info = "info",
        /// Internal decisions, such as retries and rebalancing.
        Debug = "debug",
        /// All messages.
        Trace = "trace",
    }
}

keywords! {
    /// Whether the drop-in looks for mistakes of the program, and for which device's limits.
    Check {
        /// No checks.
        Off = "off",
        /// Mistakes that are mistakes on every adapter.
        On = "on",
        /// Also requests beyond the limits of adapters that the Linux driver mlx5 supports.
        Mlx5 = "mlx5",
        /// Also requests beyond the limits of adapters that the Linux driver irdma supports.
        Irdma = "irdma",
        /// Also requests beyond the limits of the Elastic Fabric Adapter.
        Efa = "efa",
    }
}

/// The error for a value that is none of the keywords of a setting. It contains the keywords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKeyword(&'static [&'static str]);

impl std::error::Error for UnknownKeyword {}

impl fmt::Display for UnknownKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((last, others)) = self.0.split_last() else { return Ok(()) };
        let others: Vec<String> = others.iter().map(|word| format!("`{word}`")).collect();
        write!(f, "expected {} or `{last}`", others.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_round_trip_in_any_case() {
        for persona in Persona::ALL {
            assert_eq!(persona.to_string().parse(), Ok(*persona));
            assert_eq!(persona.to_string().to_uppercase().parse(), Ok(*persona));
        }
        for policy in PortPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(*policy));
        }
        for level in LogLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        for check in Check::ALL {
            assert_eq!(check.to_string().parse(), Ok(*check));
        }
        assert!(LogLevel::ALL.is_sorted(), "a level includes those before it");
    }

    #[test]
    fn a_device_name_is_a_directory_name_and_fits() {
        for name in ["ironwarp0", "mlx5_0", "rxe-eth0.1", "_", &"x".repeat(63)] {
            assert_eq!(name.parse::<DeviceName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "-d", "a/b", "mlx5_0:1", "a b", "é", "a\0", "a\n", &"x".repeat(64)] {
            assert_eq!(name.parse::<DeviceName>(), Err(InvalidDeviceName), "{name:?}");
        }
    }

    #[test]
    fn unknown_keywords_are_rejected_with_the_known_ones() {
        assert_eq!("ib".parse::<Persona>().unwrap_err().to_string(), "expected `roce` or `iwarp`");
        let level = "all".parse::<LogLevel>().unwrap_err().to_string();
        assert_eq!(level, "expected `off`, `error`, `warn`, `info`, `debug` or `trace`");
    }
}
