//! `ironwarp devices`: shows the adapter as programs see it under `ironwarp run`, and what prevents them from using it.

use crate::run;
use crate::say::{self, Failure};
use clap::Args;
use ironwarp_engine::Engine;
use ironwarp_engine::config::{Config, ConfigError, DeviceName, Persona};
use ironwarp_engine::gid::{GidEntry, GidTable};
use std::io;
use std::path::PathBuf;

const MORE: &str = "\
Each GID is an address of this machine. Programs select it by index (perftest: -x, ibv_rc_pingpong: -g).
Set IRONWARP_PERSONA or IRONWARP_NAME to see the adapter as with the options --persona and --name of `ironwarp run`.

The exit code is 1 if programs would not find a working device.";

/// Show the adapter as programs see it, or why it does not work
#[derive(Debug, Args)]
#[command(after_help = MORE)]
pub(crate) struct Arguments {}

/// The device that programs would find.
#[derive(Debug)]
struct Device {
    name: DeviceName,
    persona: Persona,
    /// Whether the port is active.
    active: bool,
    gids: Vec<GidEntry>,
}

/// Runs the command. Returns false if programs cannot use the adapter.
pub(crate) fn run(_: &Arguments) -> Result<bool, Failure> {
    let (config, mistakes) = Config::from_env_leniently();
    let (name, persona) = (config.name.clone(), config.persona);
    let mut problems = Vec::new();
    for mistake in mistakes {
        match mistake {
            ConfigError::Unknown { .. } => say::notice(format_args!("{mistake}; ignored")),
            wrong => problems.push(wrong.to_string()),
        }
    }
    problems.extend(run::find_library_error());
    // This command must not create a capture file.
    let config = config.pcap(PathBuf::new());
    problems.extend(Engine::new(config).err().map(|error| describe_start_error(&error)));
    match find_adapter(name, persona) {
        Ok(found) => {
            say::line(found.description())?;
            problems.extend(found.problem());
            if let Some(limit) = found.limitation() {
                say::notice(limit);
            }
        }
        Err(error) => problems.push(describe_netlink_error(&error)),
    }
    problems.iter().for_each(|problem| say::error(&*Failure::from(problem.as_str())));
    Ok(problems.is_empty())
}

/// Reads the addresses and the port state of this machine, as programs would see them.
fn find_adapter(name: DeviceName, persona: Persona) -> io::Result<Device> {
    let table = GidTable::of_process();
    Ok(Device { name, persona, gids: table.entries()?, active: table.port_is_active()? })
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
    /// Returns the output of the command: a line about the device, and a table of its GIDs.
    fn description(&self) -> String {
        let Self { name, persona, active, gids } = self;
        let kind = match persona {
            Persona::Roce => "a RoCE adapter",
            Persona::Iwarp => "an iWARP adapter",
        };
        let state = if *active { "active" } else { "down" };
        let mut text = format!(
            "{}: {kind} (persona {persona}), 1 port, {state}, {} GIDs",
            say::bold(name.as_str()),
            gids.len()
        );
        if !gids.is_empty() {
            text += "\n\n  index  interface         MTU  GID";
        }
        for GidEntry { index, gid, interface, mtu, .. } in gids {
            let address = gid.ip().map(|ip| ip.to_string()).filter(|ip| *ip != gid.to_string());
            let address = address.map_or_else(String::new, |ip| format!(" ({ip})"));
            text += &format!("\n  {index:>5}  {interface:<15} {mtu:>5}  {gid}{address}");
        }
        text
    }

    /// Returns why programs cannot use the device; `None` if they can.
    fn problem(&self) -> Option<String> {
        if self.gids.is_empty() {
            return Some(
                "no interface is up and has an address: for connections within this machine, run `ip link \
                 set lo up` as root"
                    .to_owned(),
            );
        }
        let first = self.gids.first().filter(|_| !self.active)?;
        Some(format!(
            "the port is down because {} is down, and programs wait for an active port: see `ip link show {}`",
            first.interface, first.interface
        ))
    }

    /// Returns a limitation of the device that does not prevent programs from using it.
    fn limitation(&self) -> Option<&'static str> {
        let loopback = |entry: &GidEntry| entry.gid.ip().is_some_and(|ip| ip.is_loopback());
        let only = !self.gids.is_empty() && self.gids.iter().all(loopback);
        only.then_some(
            "only loopback has an address: only programs on this machine can connect to each other (`ip address` lists \
             interfaces)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: usize, gid: &str, interface: &str, mtu: u32) -> GidEntry {
        GidEntry::new(index, gid.parse().expect("an address"), interface, 1, mtu)
    }

    fn found(active: bool, gids: Vec<GidEntry>) -> Device {
        Device { name: DeviceName::default(), persona: Persona::Roce, active, gids }
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
        assert_eq!((found.problem(), found.limitation()), (None, None));
    }

    #[test]
    fn problems_are_reported() {
        let none = found(false, Vec::new());
        assert_eq!(none.description(), "ironwarp0: a RoCE adapter (persona roce), 1 port, down, 0 GIDs");
        assert!(none.problem().expect("no address").contains("`ip link set lo up`"));
        let down = found(false, vec![entry(0, "10.1.2.3", "eth0", 1500)]);
        assert!(down.problem().expect("port down").contains("because eth0 is down"));
    }

    #[test]
    fn loopback_alone_is_a_limit() {
        let lo = found(true, vec![entry(0, "127.0.0.1", "lo", 65536), entry(1, "::1", "lo", 65536)]);
        assert_eq!(lo.problem(), None);
        assert!(lo.limitation().expect("a limit").starts_with("only loopback has an address"));
    }
}
