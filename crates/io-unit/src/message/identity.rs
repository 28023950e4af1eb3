//! Names, addresses, nonces and proofs.

use std::fmt;

/// Longest name of a host.
const MAX_NAME: usize = 63;

/// A random number that is used for one connection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; 16]);

/// An HMAC-SHA256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(pub [u8; 32]);

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns whether a host can have this address: it is neither zero nor a group address.
    pub fn is_valid(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The name of a host: 1 to 63 letters, digits, `.`, `-` or `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// A name that a host cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid host name: expected 1 to 63 letters, digits, '.', '-' or '_'")]
pub struct InvalidName;

impl HostName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let valid = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed);
        if valid { Ok(Self(name.to_owned())) } else { Err(InvalidName) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
