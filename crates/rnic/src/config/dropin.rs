//! Settings of the drop-in for libibverbs and librdmacm: what programs take the adapter for, and how much it says.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The name under which C programs find the adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName(Cow<'static, str>);

/// The longest name that `struct ibv_device` has room for, in bytes (IBV_SYSFS_NAME_MAX, less the zero at its end).
const LONGEST_NAME: usize = 63;

impl DeviceName {
    /// The name as text.
    ///
    /// ```
    /// # use ironwarp_rnic::config::DeviceName;
    /// let name: DeviceName = "mlx5_0".parse()?;
    /// assert_eq!(name.as_str(), "mlx5_0");
    /// # Ok::<(), ironwarp_rnic::config::NoDeviceName>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
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
    type Err = NoDeviceName;

    /// The name is a folder's, and programs take it with a port or a GID behind it, as in `mlx5_0:1`.
    fn from_str(text: &str) -> Result<Self, NoDeviceName> {
        let fits = (1..=LONGEST_NAME).contains(&text.len());
        let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let begins = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
        let valid = fits && begins && text.bytes().all(of_a_name);
        valid.then(|| Self(text.to_owned().into())).ok_or(NoDeviceName)
    }
}

/// What cannot be the name of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoDeviceName;

impl std::error::Error for NoDeviceName {}

impl fmt::Display for NoDeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a name such as `mlx5_0` is wanted: 1 to {LONGEST_NAME} letters, digits, `_`, `-` and `.`, the first a letter, a digit or `_`"
        )
    }
}

/// Defines a setting that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$row])* $variant,)* }

        impl $name {
            /// All that there are.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word for it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = NoSuchWord;

            fn from_str(text: &str) -> Result<Self, NoSuchWord> {
                let known = Self::ALL.iter().find(|it| it.as_str().eq_ignore_ascii_case(text));
                known.copied().ok_or(NoSuchWord(&[$($word),*]))
            }
        }
    };
}

words! {
    /// What programs take the adapter for.
    Persona {
        /// A RoCE adapter: Ethernet, and addressed by GID. Nearly all programs know what to do with one.
        Roce = "roce",
        /// An iWARP adapter (an RNIC), which is what it is.
        Iwarp = "iwarp",
    }
}

words! {
    /// At which TCP ports the ports of the connection manager are.
    PortPolicy {
        /// An RDMA port is at the TCP port of its number, or at a candidate if that is taken.
        Shared = "shared",
        /// Always at a candidate: the TCP port of its number is for others.
        Apart = "apart",
        /// Always at the TCP port of its number, as iWARP has it.
        Tcp = "tcp",
    }
}

words! {
    /// How much is said on the standard error. Each includes those before it.
    LogLevel {
        /// Nothing.
        Off = "off",
        /// What the program cannot go on with.
        Error = "error",
        /// What went wrong: requests, connections, calls, settings.
        Warn = "warn",
        /// What began and ended: the adapter, its connections.
        Info = "info",
        /// What was decided on the way.
        Debug = "debug",
        /// All there is.
        Trace = "trace",
    }
}

/// What is none of the words of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchWord(&'static [&'static str]);

impl std::error::Error for NoSuchWord {}

impl fmt::Display for NoSuchWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((last, others)) = self.0.split_last() else { return Ok(()) };
        let others: Vec<String> = others.iter().map(|word| format!("`{word}`")).collect();
        write!(f, "{} or `{last}` is wanted", others.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_case_and_written() {
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
        assert!(LogLevel::ALL.is_sorted(), "a level includes those before it");
    }

    #[test]
    fn a_device_name_is_that_of_a_folder_and_fits() {
        for name in ["ironwarp0", "mlx5_0", "rxe-eth0.1", "_", &"x".repeat(63)] {
            assert_eq!(name.parse::<DeviceName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "-d", "a/b", "mlx5_0:1", "a b", "é", "a\0", "a\n", &"x".repeat(64)] {
            assert_eq!(name.parse::<DeviceName>(), Err(NoDeviceName), "{name:?}");
        }
    }

    #[test]
    fn others_are_refused_with_what_there_is() {
        assert_eq!("ib".parse::<Persona>().unwrap_err().to_string(), "`roce` or `iwarp` is wanted");
        let level = "all".parse::<LogLevel>().unwrap_err().to_string();
        assert_eq!(level, "`off`, `error`, `warn`, `info`, `debug` or `trace` is wanted");
    }
}
