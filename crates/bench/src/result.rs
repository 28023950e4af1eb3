//! The result of a benchmark.

use std::error::Error;

/// Errors are only printed, so their type does not matter.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;
