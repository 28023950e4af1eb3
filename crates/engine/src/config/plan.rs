//! [`PortPlan`], the setting that takes ports down and up at given times (requirement X3).

use super::dropin::{DeviceName, InvalidDeviceName};
use super::duration;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When ports of logical devices are taken down, and up again. Times count from the moment at which the process opens the
/// device first. The default is empty.
///
/// ```
/// # use ironwarp_engine::config::PortPlan;
/// let plan: PortPlan = "ironwarp1 down@2s up@5s; ironwarp2:2 down@500ms".parse()?;
/// assert_eq!(plan.to_string(), "ironwarp1 down@2s up@5s; ironwarp2:2 down@500ms");
/// # Ok::<(), ironwarp_engine::config::InvalidPortPlan>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortPlan(Vec<PlannedPort>);

/// The plan of a port, or of all ports of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedPort {
    pub(crate) device: DeviceName,
    /// The number of the port; `None` for all ports of the device.
    pub(crate) port: Option<u8>,
    /// In the order of their times.
    pub(crate) steps: Vec<PlanStep>,
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanStep {
    pub(crate) up: bool,
    pub(crate) at: Duration,
}

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPortPlan {
    /// A port is not named as `NAME` or `NAME:PORT`.
    #[error("invalid port `{0}`: expected a device, or a device and a port such as `ironwarp0:1`")]
    Port(String),
    /// A step is invalid.
    #[error("invalid step `{0}`: expected `down@` or `up@` and a duration, such as `down@2s` or `up@500ms`")]
    Step(String),
    /// A step is not later than the one before it.
    #[error("`{0}` is not later than the step before it: list the steps in order of time")]
    Order(String),
    /// A port has no steps.
    #[error("no steps for `{0}`: expected some, such as `{0} down@2s up@5s`")]
    NoSteps(String),
}

impl PortPlan {
    /// Returns the plans of the ports.
    pub(crate) fn ports(&self) -> &[PlannedPort] {
        &self.0
    }
}

impl FromStr for PortPlan {
    type Err = InvalidPortPlan;

    fn from_str(text: &str) -> Result<Self, InvalidPortPlan> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(';').map(PlannedPort::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl PlannedPort {
    fn parse(text: &str) -> Result<Self, InvalidPortPlan> {
        let mut words = text.split_whitespace();
        let named = words.next().unwrap_or_default();
        let invalid = || InvalidPortPlan::Port(named.to_owned());
        let (device, port) = match named.split_once(':') {
            Some((device, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (device, Some(port.ok_or_else(invalid)?))
            }
            None => (named, None),
        };
        let device = device.parse().map_err(|_: InvalidDeviceName| invalid())?;
        let mut steps: Vec<PlanStep> = Vec::new();
        for word in words {
            let step = PlanStep::parse(word).ok_or_else(|| InvalidPortPlan::Step(word.to_owned()))?;
            if steps.last().is_some_and(|last| last.at >= step.at) {
                return Err(InvalidPortPlan::Order(word.to_owned()));
            }
            steps.push(step);
        }
        if steps.is_empty() {
            return Err(InvalidPortPlan::NoSteps(named.to_owned()));
        }
        Ok(Self { device, port, steps })
    }
}

impl PlanStep {
    fn parse(text: &str) -> Option<Self> {
        let (state, at) = text.split_once('@')?;
        let up = match state {
            "up" => true,
            "down" => false,
            _ => return None,
        };
        Some(Self { up, at: duration::parse(at).ok()? })
    }
}

impl fmt::Display for PortPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, PlannedPort { device, port, steps }) in self.0.iter().enumerate() {
            write!(f, "{}{device}", if at == 0 { "" } else { "; " })?;
            port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
            for PlanStep { up, at } in steps {
                write!(f, " {}@{}", if *up { "up" } else { "down" }, duration::to_text(*at))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_written_alike() {
        for text in ["", "ironwarp0 down@1s", "mlx5_0:2 down@20ms up@1s down@1500ms; ironwarp1 down@0s"] {
            assert_eq!(text.parse::<PortPlan>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, says) in [
            ("ironwarp0", "no steps for `ironwarp0`: expected some"),
            ("ironwarp0 down", "invalid step `down`"),
            ("ironwarp0 left@1s", "invalid step `left@1s`"),
            ("ironwarp0 down@2", "invalid step `down@2`"),
            ("ironwarp0 down@2s up@1s", "`up@1s` is not later than the step before it"),
            ("ironwarp0:0 down@2s", "invalid port `ironwarp0:0`"),
            ("a/b down@2s", "invalid port `a/b`"),
            ("ironwarp0 down@2s;", "invalid port ``"),
        ] {
            let error = text.parse::<PortPlan>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
