//! The seed of the adversary, as a setting.

use std::fmt;
use std::str::FromStr;

/// The seed of the adversary, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdversarySeed(pub Option<u64>);

/// A text is not the seed of an adversary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 0 to {}, or `off`", u64::MAX)]
pub struct InvalidSeed;

impl FromStr for AdversarySeed {
    type Err = InvalidSeed;

    fn from_str(text: &str) -> Result<Self, InvalidSeed> {
        match text {
            "off" => Ok(Self(None)),
            number => number.parse().map(|seed| Self(Some(seed))).map_err(|_| InvalidSeed),
        }
    }
}

impl fmt::Display for AdversarySeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(seed) => seed.fmt(f),
        }
    }
}

impl From<u64> for AdversarySeed {
    fn from(seed: u64) -> Self {
        Self(Some(seed))
    }
}
