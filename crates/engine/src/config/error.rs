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
        /// What is valid.
        expected: String,
    },
}

impl ConfigError {
    pub(super) fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        let nearest = known.min_by_key(|known| edit_distance(known, name)).unwrap_or_default();
        Self::Unknown { name: name.to_owned(), nearest }
    }

    /// Keys are not included in the error: it may end up in a log.
    pub(super) fn invalid(name: &str, value: &str, expected: String) -> Self {
        let value = if name == "key" { "(not shown)" } else { value };
        Self::Value { name: name.to_owned(), value: value.to_owned(), expected }
    }
}

/// The Levenshtein distance: how many bytes have to be inserted, removed or replaced.
fn edit_distance(one: &str, other: &str) -> usize {
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
