//! The range of ports that a setting allows.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The lowest port: ports below belong to the system, and queue pair numbers made of them to queue pairs without a port.
const LOWEST: u16 = 1024;

/// Ports that may be taken. The default lets the kernel choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRange(Option<(u16, u16)>);

/// What is no range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a range of ports such as `20000-20999` is wanted, none of them below {LOWEST}, or nothing at all")]
pub struct NoPortRange;

impl PortRange {
    /// From the first to the last; `None` if that is no range, or begins below 1024.
    ///
    /// ```
    /// use ironwarp_rnic::config::PortRange;
    ///
    /// assert_eq!(PortRange::new(20_000, 20_999), "20000-20999".parse().ok());
    /// assert_eq!(PortRange::new(80, 90), None);
    /// ```
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (LOWEST <= first && first <= last).then_some(Self(Some((first, last))))
    }

    /// The ports; `None`: the kernel chooses.
    pub fn ports(self) -> Option<RangeInclusive<u16>> {
        self.0.map(|(first, last)| first..=last)
    }
}

impl FromStr for PortRange {
    type Err = NoPortRange;

    fn from_str(text: &str) -> Result<Self, NoPortRange> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().map_err(|_| NoPortRange);
        Self::new(port(first)?, port(last)?).ok_or(NoPortRange)
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
    fn a_range_of_ports_is_read_and_written() {
        for (text, ports) in [("", None), ("20000-20999", Some(20000..=20999)), ("4791", Some(4791..=4791))] {
            assert_eq!(text.parse::<PortRange>().unwrap().ports(), ports, "{text}");
        }
        let range: PortRange = "1024-65535".parse().unwrap();
        assert_eq!(range.to_string().parse(), Ok(range));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["-", "1-2", "1023-2000", "3000-2000", "2000-70000", "a-b", "2000-"] {
            assert_eq!(text.parse::<PortRange>(), Err(NoPortRange), "{text}");
        }
    }
}
