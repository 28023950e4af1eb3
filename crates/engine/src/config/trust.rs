//! Settings that control which peers manually connected queue pairs trust: a shared key, and users of this host.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A key shared by all hosts of a cluster, or none. Neither `Debug` nor `Display` shows its value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterKey(Option<Arc<[u8]>>);

impl ClusterKey {
    /// Minimum length of a key: 128 bits.
    pub const MIN_LEN: usize = 16;

    /// Creates a key from at least [`MIN_LEN`](Self::MIN_LEN) bytes.
    ///
    /// ```
    /// # use ironwarp_engine::config::{ClusterKey, Config};
    /// let key = ClusterKey::new(&[0x5a; 32])?;
    /// let config = Config::default().key(key);
    /// assert!(format!("{config:?}").contains("ClusterKey(..)"));
    /// # Ok::<(), ironwarp_engine::config::KeyTooShort>(())
    /// ```
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooShort> {
        if bytes.len() < Self::MIN_LEN {
            return Err(KeyTooShort(bytes.len()));
        }
        Ok(Self(Some(bytes.into())))
    }

    /// Returns the key, if one is set.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

/// The error for a key that is too short to be secure. It contains the number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key too short: {0} bytes, need at least 16 random bytes, for example from `openssl rand -hex 32`")]
pub struct KeyTooShort(pub usize);

// Not derived: omits the key, which is secret.
impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ClusterKey(..)" } else { "ClusterKey(none)" })
    }
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "(set, not shown)" } else { "" })
    }
}

impl FromStr for ClusterKey {
    type Err = KeyTooShort;

    fn from_str(text: &str) -> Result<Self, KeyTooShort> {
        if text.is_empty() { Ok(Self::default()) } else { Self::new(text.as_bytes()) }
    }
}

/// Users of this host whose queue pairs may connect, in addition to the process's own user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// No other users.
    #[default]
    Own,
    /// The users with these numeric ids.
    Listed(Vec<u32>),
    /// All users.
    Any,
}

impl Users {
    /// Returns whether a process of user `own` trusts a process of user `uid`.
    ///
    /// ```
    /// # use ironwarp_engine::config::Users;
    /// let users = Users::Listed(vec![1001]);
    /// assert!(users.accept(1000, 1000) && users.accept(1000, 1001) && !users.accept(1000, 1002));
    /// ```
    pub fn accept(&self, own: u32, uid: u32) -> bool {
        match self {
            Self::Own => own == uid,
            Self::Listed(listed) => own == uid || listed.contains(&uid),
            Self::Any => true,
        }
    }
}

/// An invalid list of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected numeric user ids such as `1000,1001`, or `any`")]
pub struct InvalidUsers;

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => Ok(()),
            Self::Listed(listed) => {
                f.write_str(&listed.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
            }
            Self::Any => f.write_str("any"),
        }
    }
}

impl FromStr for Users {
    type Err = InvalidUsers;

    fn from_str(text: &str) -> Result<Self, InvalidUsers> {
        match text {
            "" => Ok(Self::Own),
            "any" => Ok(Self::Any),
            _ => {
                let listed = text.split(',').map(|uid| uid.trim().parse());
                listed.collect::<Result<_, _>>().map(Self::Listed).map_err(|_| InvalidUsers)
            }
        }
    }
}
