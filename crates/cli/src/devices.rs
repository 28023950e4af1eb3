//! `ironwarp devices`: shows the logical devices as programs see them under `ironwarp run`, and what prevents programs from
//! using them.

use crate::run;
use crate::say::{self, Failure};
use clap::Args;
use ironwarp_engine::Engine;
use ironwarp_engine::config::{Config, ConfigError, Devices, Persona};
use ironwarp_engine::gid::GidEntry;
use ironwarp_engine::logical::{self, LogicalDevice, RdmaPort};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

const MORE: &str = "\
Each GID is an address of this machine. Programs select it by index (perftest: -x, ibv_rc_pingpong: -g).
Set IRONWARP_PERSONA, IRONWARP_NAME or IRONWARP_DEVICES to see what a program with these settings sees.

The exit code is 1 if a device does not work.";

/// Show the adapter as programs see it, or why it does not work
#[derive(Debug, Args)]
#[command(after_help = MORE)]
pub(crate) struct Arguments {
    /// Logical devices to show, as in `ironwarp run --devices SPEC` [default: all]
    #[arg(long, value_name = "SPEC")]
    devices: Option<Devices>,
}

/// A device that programs would find.
#[derive(Debug)]
struct Device {
    name: String,
    persona: Persona,
    /// Whether the device has the addresses of all interfaces.
    has_all_addresses: bool,
    ports: Vec<Port>,
    /// What differs from the default, such as `rate 1 Gb/s`.
    properties: Vec<String>,
}

/// A port of a device.
#[derive(Debug)]
struct Port {
    number: u8,
    active: bool,
    /// Name of its interface, if it has only one.
    interface: Option<String>,
    gids: Vec<GidEntry>,
}

/// Runs the command. Returns false if programs cannot use a device.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let (mut config, mistakes) = Config::from_env_leniently();
    let mut problems = Vec::new();
    for mistake in mistakes {
        match mistake {
            ConfigError::Unknown { .. } => say::notice(format_args!("{mistake}; ignored")),
            ConfigError::Value { ref name, .. } if name == "devices" && arguments.devices.is_some() => {}
            wrong => problems.push(wrong.to_string()),
        }
    }
    if let Some(devices) = &arguments.devices {
        config = config.devices(devices.clone());
    }
    problems.extend(run::find_library_error());
    match logical::devices(&config) {
        Ok(devices) => problems.extend(show(&devices, config)?),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => problems.push(error.to_string()),
        Err(error) => problems.push(describe_netlink_error(&error)),
    }
    problems.iter().for_each(|problem| say::error(&*Failure::from(problem.as_str())));
    Ok(problems.is_empty())
}

/// Prints the devices. Returns what prevents programs from using them.
fn show(devices: &[Arc<LogicalDevice>], config: Config) -> Result<Vec<String>, Failure> {
    let mut problems = Vec::new();
    for (at, device) in devices.iter().enumerate() {
        match Device::new(device, config.persona) {
            Ok(found) => {
                say::line(format_args!("{}{}", if at == 0 { "" } else { "\n" }, found.description()))?;
                problems.extend(found.problems());
                if let Some(limit) = found.limitation() {
                    say::notice(limit);
                }
            }
            Err(error) => {
                problems.push(describe_netlink_error(&error));
                break; // the others fail for the same reason
            }
        }
    }
    // This command must not create a capture file.
    let started = Engine::open(config.pcap(PathBuf::new()), &devices[0]);
    problems.extend(started.err().map(|error| describe_start_error(&error)));
    Ok(problems)
}

/// Returns a message for a failure to read the addresses.
fn describe_netlink_error(error: &io::Error) -> String {
    format!(
        "failed to read the addresses of this machine over netlink: {error} (systemd: \
         RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK; seccomp: socket(AF_NETLINK))"
    )
}

/// Returns a message for a failure to create an adapter.
fn describe_start_error(error: &io::Error) -> String {
    format!(
        "failed to start the adapter: {error}; check whether a sandbox denies memfd_create, and the limits (`ulimit -a`)"
    )
}

impl Device {
    /// Reads the addresses and the states of the ports, as programs would see them.
    fn new(device: &LogicalDevice, persona: Persona) -> io::Result<Self> {
        let speed = device.speed();
        // Without the option `speed`, the speed is the rate.
        let shown_speed = (speed != device.rate().unwrap_or(DEFAULT_SPEED)).then_some(speed);
        let delay = Some(device.delay()).filter(|delay| !delay.is_zero());
        let properties = [
            shown_speed.map(|speed| format!("speed {}", format_rate(speed))),
            device.rate().map(|rate| format!("rate {}", format_rate(rate))),
            delay.map(|delay| format!("delay {delay:?}")),
            device.numa_node().map(|node| format!("NUMA node {node}")),
        ];
        Ok(Self {
            name: device.name().to_owned(),
            persona,
            has_all_addresses: device.has_all_addresses(),
            ports: device.ports().iter().map(Port::new).collect::<io::Result<_>>()?,
            properties: properties.into_iter().flatten().collect(),
        })
    }

    /// Returns the output for the device: a line about it, and a table of its GIDs.
    fn description(&self) -> String {
        let gids = self.ports.iter().map(|port| port.gids.len()).sum();
        let mut heading = vec![
            format!("{}: {} (persona {})", say::bold(&self.name), self.kind(), self.persona),
            count(self.ports.len(), "port"),
            self.state(),
            count(gids, "GID"),
        ];
        heading.extend(self.properties.iter().cloned());
        let mut text = heading.join(", ");
        let several = self.ports.len() > 1;
        if gids > 0 {
            text += if several { "\n\n  port" } else { "\n\n" };
            text += "  index  interface         MTU  GID";
        }
        for port in &self.ports {
            for GidEntry { index, gid, interface, mtu, .. } in &port.gids {
                let address = gid.ip().map(|ip| ip.to_string()).filter(|ip| *ip != gid.to_string());
                let address = address.map_or_else(String::new, |ip| format!(" ({ip})"));
                let number = if several { format!("  {:>4}", port.number) } else { String::new() };
                text += &format!("\n{number}  {index:>5}  {interface:<15} {mtu:>5}  {gid}{address}");
            }
        }
        text
    }

    /// Returns what kind of adapter programs see.
    fn kind(&self) -> &'static str {
        match self.persona {
            Persona::Roce => "a RoCE adapter",
            Persona::Iwarp => "an iWARP adapter",
        }
    }

    /// Returns the state of the ports: one word, unless they differ.
    fn state(&self) -> String {
        let down: Vec<&Port> = self.ports.iter().filter(|port| !port.active).collect();
        match down.len() {
            0 => "active".to_owned(),
            all if all == self.ports.len() => "down".to_owned(),
            _ => down.iter().map(|port| format!("port {} down", port.number)).collect::<Vec<_>>().join(", "),
        }
    }

    /// Returns why programs cannot use ports of the device.
    fn problems(&self) -> Vec<String> {
        self.ports.iter().filter_map(|port| self.problem(port)).collect()
    }

    /// Returns why programs cannot use a port; `None` if they can.
    fn problem(&self, port: &Port) -> Option<String> {
        let name = match (self.has_all_addresses, self.ports.len()) {
            (true, _) => "the port".to_owned(),
            (false, 1) => format!("the port of {}", self.name),
            (false, _) => format!("port {} of {}", port.number, self.name),
        };
        let Some(first) = port.gids.first() else {
            return Some(match &port.interface {
                None if self.has_all_addresses => {
                    "no interface is up and has an address: for connections within this machine, run `ip link \
                     set lo up` as root"
                        .to_owned()
                }
                None => format!("{name} has no GID: its address is not one of this machine, see `ip address`"),
                Some(interface) => format!(
                    "{name} has no GID: {interface} does not exist, is down or has no address, see `ip address`"
                ),
            });
        };
        (!port.active).then(|| {
            format!(
                "{name} is down because {} is down, and programs wait for an active port: see `ip link show {}`",
                first.interface, first.interface
            )
        })
    }

    /// Returns a limitation of the device that does not prevent programs from using it.
    fn limitation(&self) -> Option<&'static str> {
        let loopback = |entry: &GidEntry| entry.gid.ip().is_some_and(|ip| ip.is_loopback());
        let mut gids = self.ports.iter().flat_map(|port| &port.gids).peekable();
        let only = self.has_all_addresses && gids.peek().is_some() && gids.all(loopback);
        only.then_some(
            "only loopback has an address: only programs on this machine can connect to each other (`ip address` lists \
             interfaces)",
        )
    }
}

impl Port {
    fn new(port: &RdmaPort) -> io::Result<Self> {
        Ok(Self {
            number: port.number(),
            active: port.is_active()?,
            interface: port.interface(),
            gids: port.gids().entries()?,
        })
    }
}

/// The speed of a device without options, in bits per second.
const DEFAULT_SPEED: u64 = 100_000_000_000;

/// Formats a rate in bits per second, with a unit if it is a multiple.
fn format_rate(rate: u64) -> String {
    let units = [(1_000_000_000, "Gb/s"), (1_000_000, "Mb/s"), (1_000, "kb/s")];
    let unit = units.into_iter().find(|(unit, _)| rate.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "b/s"));
    format!("{} {name}", rate / unit)
}

/// Formats a number of things.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: usize, gid: &str, interface: &str, mtu: u32) -> GidEntry {
        GidEntry::new(index, gid.parse().expect("an address"), interface, 1, mtu)
    }

    fn port(number: u8, active: bool, gids: Vec<GidEntry>) -> Port {
        Port { number, active, interface: None, gids }
    }

    fn found(active: bool, gids: Vec<GidEntry>) -> Device {
        Device {
            name: "ironwarp0".to_owned(),
            persona: Persona::Roce,
            has_all_addresses: true,
            ports: vec![port(1, active, gids)],
            properties: Vec::new(),
        }
    }

    #[test]
    fn a_device_is_shown_with_its_gids() {
        let gids = vec![
            entry(0, "10.1.2.3", "eth0", 1500),
            entry(1, "fe80::1", "eth0", 1500),
            entry(3, "127.0.0.1", "lo", 65536),
        ];
        let found = found(true, gids);
        let expected = "\
ironwarp0: a RoCE adapter (persona roce), 1 port, active, 3 GIDs

  index  interface         MTU  GID
      0  eth0             1500  ::ffff:10.1.2.3 (10.1.2.3)
      1  eth0             1500  fe80::1
      3  lo              65536  ::ffff:127.0.0.1 (127.0.0.1)";
        assert_eq!(found.description(), expected);
        assert_eq!((found.problems(), found.limitation()), (Vec::new(), None));
    }

    #[test]
    fn problems_are_reported() {
        let none = found(false, Vec::new());
        assert_eq!(none.description(), "ironwarp0: a RoCE adapter (persona roce), 1 port, down, 0 GIDs");
        assert!(none.problems()[0].contains("`ip link set lo up`"));
        let down = found(false, vec![entry(0, "10.1.2.3", "eth0", 1500)]);
        assert!(down.problems()[0].contains("the port is down because eth0 is down"));
    }

    #[test]
    fn loopback_alone_is_a_limit() {
        let lo = found(true, vec![entry(0, "127.0.0.1", "lo", 65536), entry(1, "::1", "lo", 65536)]);
        assert!(lo.problems().is_empty());
        assert!(lo.limitation().expect("a limit").starts_with("only loopback has an address"));
    }

    #[test]
    fn ports_and_properties_of_a_logical_device_are_shown() {
        let ports = vec![
            port(1, true, vec![entry(0, "127.0.2.3", "lo", 65536)]),
            port(2, false, vec![entry(0, "10.1.2.3", "eth0", 1500)]),
            Port { interface: Some("eth1".to_owned()), ..port(3, false, Vec::new()) },
        ];
        let properties = vec!["speed 400 Gb/s".to_owned(), "NUMA node 1".to_owned()];
        let device = Device { ports, properties, has_all_addresses: false, ..found(true, Vec::new()) };
        let expected = "\
ironwarp0: a RoCE adapter (persona roce), 3 ports, port 2 down, port 3 down, 2 GIDs, speed 400 Gb/s, NUMA node 1

  port  index  interface         MTU  GID
     1      0  lo              65536  ::ffff:127.0.2.3 (127.0.2.3)
     2      0  eth0             1500  ::ffff:10.1.2.3 (10.1.2.3)";
        assert_eq!(device.description(), expected);
        let problems = device.problems();
        assert!(problems[0].starts_with("port 2 of ironwarp0 is down because eth0 is down"), "{problems:?}");
        assert!(
            problems[1].starts_with("port 3 of ironwarp0 has no GID: eth1 does not exist"),
            "{problems:?}"
        );
        assert_eq!((problems.len(), device.limitation()), (2, None));
    }

    #[test]
    fn rates_have_units() {
        let rates = [100_000_000_000, 1_500_000_000, 2_000, 999].map(format_rate);
        assert_eq!(rates, ["100 Gb/s", "1500 Mb/s", "2 kb/s", "999 b/s"]);
    }
}
