//! Settings that say whom queue pairs connected by GID and number trust: a key that both ends know, and users of this host.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A key that all hosts of a cluster know. Its value shows neither in `Debug` nor as text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterKey(Option<Arc<[u8]>>);

impl ClusterKey {
    /// The fewest bytes that a key may have: 128 bits.
    pub const MIN_LEN: usize = 16;

    /// A key of these bytes.
    ///
    /// ```
    /// # use ironwarp_rnic::config::{ClusterKey, Config};
    /// let key = ClusterKey::new(&[0x5a; 32])?;
    /// let config = Config { key, ..Config::default() };
    /// assert!(format!("{config:?}").contains("ClusterKey(..)"));
    /// # Ok::<(), ironwarp_rnic::config::KeyTooShort>(())
    /// ```
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooShort> {
        if bytes.len() < Self::MIN_LEN {
            return Err(KeyTooShort(bytes.len()));
        }
        Ok(Self(Some(bytes.into())))
    }

    /// The key, if there is one.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

/// A key that could be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key has {0} bytes: use at least 16 random ones, for example from `openssl rand -hex 32`")]
pub struct KeyTooShort(pub usize);

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

/// Users of this host, besides this process's own, whose queue pairs may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// None.
    #[default]
    Own,
    /// These, by their numeric ids.
    Listed(Vec<u32>),
    /// All.
    Any,
}

impl Users {
    /// Whether a process of user `own` accepts one of user `uid`.
    ///
    /// ```
    /// # use ironwarp_rnic::config::Users;
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

/// Not a list of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected numeric user ids such as `1000,1001`, or `any`")]
pub struct NoUsers;

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
    type Err = NoUsers;

    fn from_str(text: &str) -> Result<Self, NoUsers> {
        match text {
            "" => Ok(Self::Own),
            "any" => Ok(Self::Any),
            _ => {
                let listed = text.split(',').map(|uid| uid.trim().parse());
                listed.collect::<Result<_, _>>().map(Self::Listed).map_err(|_| NoUsers)
            }
        }
    }
}
