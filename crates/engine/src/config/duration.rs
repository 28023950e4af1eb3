//! Durations as text.

use std::time::Duration;

/// Parses a whole number of `s`, `ms` or `us`. The error says what is expected.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as `5s` or `200ms`".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let (number, unit) = text.split_at(split);
    let number = number.parse().map_err(|_| expected())?;
    match unit {
        "s" => Ok(Duration::from_secs(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "us" => Ok(Duration::from_micros(number)),
        _ => Err(expected()),
    }
}

/// Returns the duration in the largest unit that [`parse`] accepts and that divides it.
pub(super) fn to_text(duration: Duration) -> String {
    match duration.subsec_micros() {
        0 => format!("{}s", duration.as_secs()),
        micros if micros % 1000 == 0 => format!("{}ms", duration.as_millis()),
        _ => format!("{}us", duration.as_micros()),
    }
}
