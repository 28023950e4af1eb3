//! The type of the setting `ports`: a range of TCP and UDP ports.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The lowest port of a range. Lower ports are reserved for the system, and queue pair numbers that would contain them
/// belong to queue pairs without a port.
const MIN_PORT: u16 = 1024;

/// The first and the last of the ports that the adapter may use. By default `None`: the kernel chooses ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRange(Option<(u16, u16)>);

/// An invalid range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a range of ports such as `20000-20999`, none below {MIN_PORT}, or nothing")]
pub struct InvalidPortRange;

impl PortRange {
    /// Creates a range from the first to the last port. Returns `None` if it is empty or starts below 1024.
    ///
    /// ```
    /// # use ironwarp_engine::config::PortRange;
    /// assert_eq!(PortRange::new(20_000, 20_999), "20000-20999".parse().ok());
    /// assert_eq!(PortRange::new(80, 90), None);
    /// ```
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (MIN_PORT <= first && first <= last).then_some(Self(Some((first, last))))
    }

    /// Returns the ports, or `None` if the kernel chooses.
    pub fn ports(self) -> Option<RangeInclusive<u16>> {
        self.0.map(|(first, last)| first..=last)
    }
}

impl FromStr for PortRange {
    type Err = InvalidPortRange;

    fn from_str(text: &str) -> Result<Self, InvalidPortRange> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().map_err(|_| InvalidPortRange);
        Self::new(port(first)?, port(last)?).ok_or(InvalidPortRange)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((first, last)) => write!(f, "{first}-{last}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_round_trip() {
        for (text, ports) in [("", None), ("20000-20999", Some(20000..=20999)), ("4791", Some(4791..=4791))] {
            assert_eq!(text.parse::<PortRange>().unwrap().ports(), ports, "{text}");
        }
        let range: PortRange = "1024-65535".parse().unwrap();
        assert_eq!(range.to_string().parse(), Ok(range));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in ["-", "1-2", "1023-2000", "3000-2000", "2000-70000", "a-b", "2000-"] {
            assert_eq!(text.parse::<PortRange>(), Err(InvalidPortRange), "{text}");
        }
    }
}
