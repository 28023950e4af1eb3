//! The secret key of the steering hash, as a setting.

use std::fmt;
use std::str::FromStr;

/// Length of the key in bytes.
pub const KEY_LEN: usize = 40;

/// The setting for the key of the steering hash. If empty, every adapter generates its own key, so that no peer can
/// choose its port to overload a lane.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HashKey(Option<[u8; KEY_LEN]>);

/// An invalid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} hexadecimal digits, or nothing", 2 * KEY_LEN)]
pub struct NoHashKey;

impl HashKey {
    /// Creates a setting with this key, for tests that need a known one.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::HashKey;
    /// let key = HashKey::new([0x6d; 40]);
    /// assert_eq!(key.to_string().parse(), Ok(key));
    /// ```
    pub fn new(key: [u8; KEY_LEN]) -> Self {
        Self(Some(key))
    }

    /// Returns the key. `None` if the setting is empty.
    pub fn bytes(&self) -> Option<&[u8; KEY_LEN]> {
        self.0.as_ref()
    }
}

impl FromStr for HashKey {
    type Err = NoHashKey;

    fn from_str(text: &str) -> Result<Self, NoHashKey> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        if text.len() != 2 * KEY_LEN || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoHashKey);
        }
        let mut key = [0; KEY_LEN];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..][..2], 16).map_err(|_| NoHashKey)?;
        }
        Ok(Self::new(key))
    }
}

impl fmt::Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().flatten().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Omits the key, which is secret and must not appear in logs.
impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "HashKey(given)" } else { "HashKey(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_eighty_digits_or_none() {
        assert_eq!("".parse(), Ok(HashKey::default()));
        let key: HashKey = "6D5a".repeat(20).parse().unwrap();
        assert_eq!(key.bytes().map(|key| (key[0], key[39])), Some((0x6d, 0x5a)));
        for wrong in ["6d", &"6d".repeat(41), &"x0".repeat(40), &"é".repeat(40)] {
            assert_eq!(wrong.parse::<HashKey>(), Err(NoHashKey), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "HashKey(given)");
    }
}
