//! [`Devices`], the setting that describes the logical devices of a process (requirement X3). `docs/devices.md` has the
//! models and examples.

use super::dropin::{DeviceName, InvalidDeviceName};
use super::duration;
use ironwarp_rnic::fault::{BadPlan, FaultPlan};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Maximum number of logical devices of a process.
pub const MAX_DEVICES: usize = 16;
/// Maximum number of ports of a logical device.
pub const MAX_PORTS: usize = 4;

/// The logical devices that a process sees. The default is one device with the addresses of all interfaces.
///
/// Written as groups separated by semicolons. A group is a model and options, separated by spaces:
///
/// | model | devices |
/// |---|---|
/// | `all` | one, with the addresses of all interfaces |
/// | `interfaces` | one for each interface that is up, without loopback |
/// | `8` | eight, each at an address of its own in 127.0.2.0/24 |
/// | `eth0+10.1.2.3` | one with a port for each interface or address |
///
/// ```
/// # use ironwarp_engine::config::Devices;
/// let devices: Devices = "8 rate=1g delay=20us numa=0,1".parse()?;
/// assert_eq!(devices.to_string(), "8 rate=1g delay=20us numa=0,1");
/// # Ok::<(), ironwarp_engine::config::InvalidDevices>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Devices(Vec<DeviceGroup>);

/// Logical devices that have a model and options in common.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceGroup {
    pub(crate) model: Model,
    pub(crate) options: DeviceOptions,
}

/// Which addresses the devices of a group have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// One device with the addresses of all interfaces.
    All,
    /// One device for each interface that is up, without loopback.
    Interfaces,
    /// This many devices, at addresses of loopback.
    Loopback(usize),
    /// One device with a port for each place.
    Places(Vec<Place>),
}

/// What the addresses of a port belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// An interface, by name.
    Interface(String),
    /// One address.
    Address(IpAddr),
}

/// The options of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceOptions {
    /// Name of the first device; the number at its end is incremented for the next. Defaults to the setting `name`.
    pub(crate) name: Option<DeviceName>,
    /// Number of ports of each device of [`Model::Loopback`]. Defaults to 1.
    pub(crate) ports: Option<usize>,
    /// Maximum rate of each direction of a device, in bits per second.
    pub(crate) rate: Option<Rate>,
    /// The speed that programs see, in bits per second. Defaults to 100 Gb/s.
    pub(crate) speed: Option<Rate>,
    /// Time by which everything that a device receives is delayed.
    pub(crate) delay: Option<Duration>,
    /// NUMA nodes: the first device has the first, and so on, from the beginning after the last. Defaults to -1, none.
    pub(crate) numa: Vec<u16>,
    /// Faults to inject. Defaults to the setting `faults`.
    pub(crate) faults: Option<FaultPlan>,
}

/// A rate in bits per second, above zero. Written with the suffix `k`, `m` or `g`, or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// An error in the description of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDevices {
    /// The model is unknown.
    #[error(
        "unknown model `{0}`: expected `all`, `interfaces`, a number of devices, or interfaces and addresses joined by `+`"
    )]
    Model(String),
    /// The option is unknown.
    #[error("unknown option `{0}`: expected one of name=, ports=, rate=, speed=, delay=, numa= and faults=")]
    Option(String),
    /// The value of an option is invalid.
    #[error("invalid value of `{0}`: {1}")]
    Value(String, String),
    /// There is no device.
    #[error("expected at least one device")]
    None,
    /// There are too many devices or ports.
    #[error("too many devices: at most {MAX_DEVICES}, with at most {MAX_PORTS} ports each")]
    TooMany,
}

impl Default for Devices {
    fn default() -> Self {
        Self(vec![DeviceGroup { model: Model::All, options: DeviceOptions::default() }])
    }
}

impl Devices {
    /// Returns the groups, in the order of the description. There is at least one.
    pub(crate) fn groups(&self) -> &[DeviceGroup] {
        &self.0
    }
}

impl Rate {
    /// Returns the rate in bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for Devices {
    type Err = InvalidDevices;

    fn from_str(text: &str) -> Result<Self, InvalidDevices> {
        let groups = text.split(';').map(DeviceGroup::parse).collect::<Result<Vec<_>, _>>()?;
        let count = |group: &DeviceGroup| match group.model {
            Model::Loopback(count) => count,
            _ => 1,
        };
        if groups.iter().map(count).sum::<usize>() > MAX_DEVICES {
            return Err(InvalidDevices::TooMany);
        }
        Ok(Self(groups))
    }
}

impl DeviceGroup {
    fn parse(text: &str) -> Result<Self, InvalidDevices> {
        let mut words = text.split_whitespace();
        let model = Model::parse(words.next().unwrap_or_default())?;
        let mut options = DeviceOptions::default();
        words.try_for_each(|word| options.set(word, &model))?;
        Ok(Self { model, options })
    }
}

impl Model {
    fn parse(text: &str) -> Result<Self, InvalidDevices> {
        let unknown = || InvalidDevices::Model(text.to_owned());
        match text {
            "all" => return Ok(Self::All),
            "interfaces" => return Ok(Self::Interfaces),
            _ => {}
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            return match text.parse() {
                Ok(count @ 1..=MAX_DEVICES) => Ok(Self::Loopback(count)),
                Ok(0) => Err(InvalidDevices::None),
                _ => Err(InvalidDevices::TooMany),
            };
        }
        let places: Vec<Place> =
            text.split('+').map(Place::parse).collect::<Option<_>>().ok_or_else(unknown)?;
        if places.len() > MAX_PORTS { Err(InvalidDevices::TooMany) } else { Ok(Self::Places(places)) }
    }
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Address(address));
        }
        // The kernel's rules for the names of interfaces.
        let valid = (1..libc::IFNAMSIZ).contains(&text.len()) && !text.contains(['/', ':', '=']);
        valid.then(|| Self::Interface(text.to_owned()))
    }
}

impl DeviceOptions {
    /// Sets an option from its text, `name=value`.
    fn set(&mut self, word: &str, model: &Model) -> Result<(), InvalidDevices> {
        let (name, value) = word.split_once('=').ok_or_else(|| InvalidDevices::Option(word.to_owned()))?;
        let invalid = |why: String| InvalidDevices::Value(name.to_owned(), why);
        match name {
            "name" => {
                self.name =
                    Some(value.parse().map_err(|error: InvalidDeviceName| invalid(error.to_string()))?);
            }
            "ports" if !matches!(model, Model::Loopback(_)) => {
                let why = "it needs a number of devices, as in `2 ports=2`; for interfaces write `eth0+eth1`";
                return Err(invalid(why.to_owned()));
            }
            "ports" => match value.parse() {
                Ok(ports @ 1..=MAX_PORTS) => self.ports = Some(ports),
                _ => return Err(invalid(format!("expected a number from 1 to {MAX_PORTS}"))),
            },
            "rate" => self.rate = Some(value.parse().map_err(invalid)?),
            "speed" => self.speed = Some(value.parse().map_err(invalid)?),
            "delay" => self.delay = Some(duration::parse(value).map_err(invalid)?),
            "numa" => {
                let nodes = value.split(',').map(str::parse).collect::<Result<_, _>>();
                self.numa = nodes.map_err(|_| invalid("expected NUMA nodes such as `0,1`".to_owned()))?;
            }
            "faults" => {
                self.faults = Some(value.parse().map_err(|error: BadPlan| invalid(error.to_string()))?);
            }
            _ => return Err(InvalidDevices::Option(name.to_owned())),
        }
        Ok(())
    }
}

/// The suffixes of rates.
const UNITS: [(char, u64); 3] = [('g', 1_000_000_000), ('m', 1_000_000), ('k', 1_000)];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(*suffix)?, *unit)));
        let (digits, unit) = unit.unwrap_or((text, 1));
        let rate = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        let expected = || "expected bits per second such as `10g` or `500m`".to_owned();
        rate.filter(|rate| *rate > 0).map(Self).ok_or_else(expected)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)) {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, group) in self.0.iter().enumerate() {
            write!(f, "{}{}{}", if at == 0 { "" } else { "; " }, group.model, group.options)?;
        }
        Ok(())
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Interfaces => f.write_str("interfaces"),
            Self::Loopback(count) => write!(f, "{count}"),
            Self::Places(places) => {
                for (at, place) in places.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { "+" })?;
                    match place {
                        Place::Interface(name) => f.write_str(name)?,
                        Place::Address(address) => write!(f, "{address}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for DeviceOptions {
    /// Writes each option that is set, after a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn option<T: fmt::Display>(f: &mut fmt::Formatter<'_>, name: &str, value: Option<T>) -> fmt::Result {
            value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
        }
        option(f, "name", self.name.as_ref())?;
        option(f, "ports", self.ports)?;
        option(f, "rate", self.rate)?;
        option(f, "speed", self.speed)?;
        option(f, "delay", self.delay.map(duration::to_text))?;
        for (at, node) in self.numa.iter().enumerate() {
            write!(f, "{}{node}", if at == 0 { " numa=" } else { "," })?;
        }
        option(f, "faults", self.faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_and_written_alike() {
        for text in [
            "all",
            "interfaces speed=25g",
            "8",
            "2 name=mlx5_0 ports=2 rate=1g speed=400g delay=20us numa=0,1 faults=delay=1ms@0.5,cut@0.1",
            "eth0+10.1.2.3+fd00::2 rate=1500k",
            "1 rate=1g; 1 rate=2g; lo",
        ] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        assert_eq!(Devices::default().to_string(), "all");
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, says) in [
            ("", "unknown model ``"),
            ("0", "expected at least one device"),
            ("17", "too many devices: at most 16"),
            ("9; 8", "too many devices"),
            ("a+b+c+d+e", "at most 4 ports"),
            ("8 fast=1", "unknown option `fast`"),
            ("8 fast", "unknown option `fast`"),
            ("8 ports=5", "invalid value of `ports`: expected a number from 1 to 4"),
            ("eth0 ports=2", "it needs a number of devices, as in `2 ports=2`"),
            ("8 rate=0", "invalid value of `rate`: expected bits per second"),
            ("8 numa=a", "expected NUMA nodes such as `0,1`"),
            ("8 name=a:b", "invalid value of `name`: expected a name such as `mlx5_0`"),
            ("8 faults=x", "unknown fault `x`"),
        ] {
            let error = text.parse::<Devices>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn rates_have_decimal_suffixes() {
        for (text, bits, written) in
            [("10g", 10_000_000_000, "10g"), ("1500m", 1_500_000_000, "1500m"), ("999", 999, "999")]
        {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bits_per_second(), rate.to_string().as_str()), (bits, written));
        }
    }
}
