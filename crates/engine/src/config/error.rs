//! Errors of settings.

/// A setting that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this name.
    #[error("unknown setting `{name}` (IRONWARP_{}), the closest is `{nearest}`", .name.to_uppercase())]
    Unknown {
        /// The unknown name.
        name: String,
        /// The setting with the most similar name.
        nearest: &'static str,
    },
    /// The value is not valid for the setting.
    #[error("invalid value `{value}` for the setting `{name}`: {expected}")]
    Value {
        /// The setting.
        name: String,
        /// The invalid value.
        value: String,
        /// Which values are valid, as a text such as "expected `on` or `off`".
        expected: String,
    },
}

impl ConfigError {
    /// Creates the error for an unknown name, with the most similar of the known names.
    pub(super) fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        let nearest = known.min_by_key(|known| edit_distance(known, name)).unwrap_or_default();
        Self::Unknown { name: name.to_owned(), nearest }
    }

    /// Creates the error for an invalid value. The value of the setting `key` is left out, because the error may be
    /// logged.
    pub(super) fn invalid(name: &str, value: &str, expected: String) -> Self {
        let value = if name == "key" { "(not shown)" } else { value };
        Self::Value { name: name.to_owned(), value: value.to_owned(), expected }
    }
}

/// Returns the Levenshtein distance: how many bytes must be inserted, removed or replaced to make the texts equal.
fn edit_distance(one: &str, other: &str) -> usize {
    // One row of the usual table at a time: `row[j]` is the distance between a prefix of `one` and the first `j` bytes
    // of `other`.
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
