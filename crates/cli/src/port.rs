//! `ironwarp port`: sets ports of a logical device down or up in running programs, to test how they handle it.

use crate::say::{self, Failure};
use clap::{Args, ValueEnum};
use ironwarp_engine::config::DeviceName;
use ironwarp_engine::status;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::str::FromStr;
use std::thread;

const MORE: &str = "\
Examples:
  ironwarp port ironwarp1 down   set all ports of ironwarp1 down
  ironwarp port ironwarp1:2 up   set port 2 of ironwarp1 up again

Reaches your programs that have connected, listen, or wait for events of the device. Programs that start later have the
port up.

The exit code is 1 if no running program has such a port.";

/// Set ports of a logical device down or up in running programs
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Name of the device, and number of its port [default: all ports]
    #[arg(value_name = "DEVICE[:PORT]")]
    target: Target,
    /// New state of the port
    state: State,
}

/// A device, or one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    device: String,
    /// Number of the port; `None` for all.
    port: Option<u8>,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    Down,
    Up,
}

/// Maximum number of adapters to ask at once. Each may take seconds to answer, or never answer.
const MAX_CONCURRENT: usize = 64;

/// Runs the command. Returns false if it changed no program.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let names = status::adapters().map_err(|error| format!("failed to read /proc/net/unix: {error}"))?;
    let outcome = Outcome::of(&names, arguments, set_port);
    outcome.lines(arguments).into_iter().try_for_each(say::line)?;
    if outcome.silent > 0 {
        say::notice(format_args!(
            "no answer from {} adapter(s): the programs may be stopped",
            outcome.silent
        ));
    }
    let problem = outcome.problem(arguments);
    problem.iter().for_each(|problem| say::error(&*Failure::from(problem.as_str())));
    Ok(problem.is_none())
}

/// Sets a port of a device, or all its ports, in the process whose status socket has this name. Returns the number of
/// ports that changed.
fn set_port(socket_name: &str, device: &str, port: Option<u8>, up: bool) -> io::Result<usize> {
    let set = status::set_port(socket_name, device, port, up)?;
    Ok(usize::try_from(set.changed).unwrap_or(usize::MAX))
}

/// The answers of all adapters.
#[derive(Debug, Default)]
struct Outcome {
    /// Number of ports that changed in each process that has the device, by process ID.
    changed: BTreeMap<u32, usize>,
    /// Why other processes do not have the port.
    missing: BTreeSet<String>,
    /// Other errors.
    errors: BTreeSet<String>,
    /// Number of adapters that did not answer.
    silent: usize,
}

impl Outcome {
    /// Asks the adapters with these status sockets.
    fn of(
        names: &[String],
        arguments: &Arguments,
        set: impl Fn(&str, &str, Option<u8>, bool) -> io::Result<usize> + Sync,
    ) -> Self {
        let Target { device, port } = &arguments.target;
        let (set, up) = (&set, arguments.state == State::Up);
        let mut outcome = Self::default();
        for names in names.chunks(MAX_CONCURRENT) {
            thread::scope(|scope| {
                let answers =
                    names.iter().map(|name| (name, scope.spawn(move || set(name, device, *port, up))));
                for (name, thread) in answers.collect::<Vec<_>>() {
                    let answer = thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                    outcome.add(name, answer);
                }
            });
        }
        outcome
    }

    /// Adds the answer of an adapter. A process may have several, of the same devices or of others.
    fn add(&mut self, name: &str, answer: io::Result<usize>) {
        let process = name.split('/').nth(1).and_then(|process| process.parse().ok()).unwrap_or_default();
        match answer {
            Ok(changed) => *self.changed.entry(process).or_default() += changed,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => _ = self.missing.insert(status::printable(&error.to_string())),
                io::ErrorKind::WouldBlock => self.silent += 1,
                io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => {
                    self.errors
                        .insert(format!("process {process}: {}", status::printable(&error.to_string())));
                }
                // The process belongs to another user, or has ended in the meantime.
                _ => {}
            },
        }
    }

    /// Returns a line for each process that has the port.
    fn lines(&self, arguments: &Arguments) -> Vec<String> {
        let Arguments { target: Target { device, port }, state } = arguments;
        let state = state.name();
        let line = |(process, changed): (&u32, &usize)| match (port, changed) {
            (Some(port), 0) => format!("process {process}: {device} port {port} was already {state}"),
            (Some(port), _) => format!("process {process}: {device} port {port} is {state}"),
            (None, 0) => format!("process {process}: all ports of {device} were already {state}"),
            (None, 1) => format!("process {process}: 1 port of {device} is {state}"),
            (None, many) => format!("process {process}: {many} ports of {device} are {state}"),
        };
        self.changed.iter().map(line).collect()
    }

    /// Returns why no program has the port, or what failed; `None` if all went well.
    fn problem(&self, arguments: &Arguments) -> Option<String> {
        let list = |texts: &BTreeSet<String>| texts.iter().cloned().collect::<Vec<_>>().join("; ");
        if !self.errors.is_empty() {
            return Some(list(&self.errors));
        }
        if !self.changed.is_empty() {
            return None;
        }
        let device = &arguments.target.device;
        Some(match self.missing.is_empty() {
            true => "no running program of yours has connected or listens".to_owned(),
            false => {
                format!("no running program of yours has this port of {device}: {}", list(&self.missing))
            }
        })
    }
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, port) = match text.split_once(':') {
            Some((device, port)) => {
                let number = port.parse().ok().filter(|number| *number > 0);
                (
                    device,
                    Some(number.ok_or_else(|| format!("invalid port `{port}`: ports are numbered from 1"))?),
                )
            }
            None => (text, None),
        };
        let device = device.parse::<DeviceName>().map_err(|error| error.to_string())?;
        Ok(Self { device: device.as_str().to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(target: &str, state: State) -> Arguments {
        Arguments { target: target.parse().unwrap(), state }
    }

    /// The name of a status socket, and the answer of its adapter.
    type Answer<'a> = (&'a str, Result<usize, (io::ErrorKind, &'a str)>);

    /// Runs the command with these answers.
    fn outcome(arguments: &Arguments, answers: &[Answer<'_>]) -> Outcome {
        let names: Vec<_> = answers.iter().map(|(name, _)| (*name).to_owned()).collect();
        Outcome::of(&names, arguments, |name, device, port, up| {
            assert_eq!((device, port), (&*arguments.target.device, arguments.target.port));
            assert_eq!(up, arguments.state == State::Up);
            let (_, answer) = answers.iter().find(|(known, _)| *known == name).unwrap();
            answer.map_err(|(kind, text)| io::Error::new(kind, text))
        })
    }

    #[test]
    fn targets_are_devices_or_ports() {
        let target = |text: &str| text.parse::<Target>();
        assert_eq!(target("mlx5_0"), Ok(Target { device: "mlx5_0".to_owned(), port: None }));
        assert_eq!(target("mlx5_0:2"), Ok(Target { device: "mlx5_0".to_owned(), port: Some(2) }));
        for (text, says) in
            [("a:0", "invalid port `0`"), ("a:b", "invalid port `b`"), ("", "expected a name")]
        {
            let error = target(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn each_process_has_one_line() {
        let down = arguments("ironwarp1:1", State::Down);
        let answers = [("ironwarp/7/0", Ok(1)), ("ironwarp/7/1", Ok(0)), ("ironwarp/12/0", Ok(0))];
        let told = outcome(&down, &answers);
        let expected =
            ["process 7: ironwarp1 port 1 is down", "process 12: ironwarp1 port 1 was already down"];
        assert_eq!((told.lines(&down), told.problem(&down)), (expected.map(str::to_owned).to_vec(), None));
        let up = arguments("ironwarp1", State::Up);
        let told = outcome(&up, &[("ironwarp/7/0", Ok(2)), ("ironwarp/8/0", Ok(1)), ("ironwarp/9/0", Ok(0))]);
        assert_eq!(
            told.lines(&up),
            [
                "process 7: 2 ports of ironwarp1 are up",
                "process 8: 1 port of ironwarp1 is up",
                "process 9: all ports of ironwarp1 were already up"
            ]
        );
    }

    #[test]
    fn programs_of_others_are_ignored_and_missing_devices_are_listed() {
        use io::ErrorKind::{ConnectionReset, NotFound, PermissionDenied, WouldBlock};
        let down = arguments("ironwarp9", State::Down);
        let foreign = ("ironwarp/7/0", Err((PermissionDenied, "another user")));
        let told = outcome(&down, &[foreign, ("ironwarp/8/0", Err((ConnectionReset, "ended")))]);
        let problem = told.problem(&down).unwrap();
        assert_eq!(problem, "no running program of yours has connected or listens");
        let missing = Err((NotFound, "no device `ironwarp9`: the devices are ironwarp0, ironwarp1"));
        let told = outcome(&down, &[foreign, ("ironwarp/8/0", missing), ("ironwarp/8/1", missing)]);
        let problem = told.problem(&down).unwrap();
        let expected = "no running program of yours has this port of ironwarp9: no device `ironwarp9`: the devices are \
                        ironwarp0, ironwarp1";
        assert_eq!((problem.as_str(), told.lines(&down).len()), (expected, 0));
        let told = outcome(&down, &[("ironwarp/8/0", Err((WouldBlock, ""))), ("ironwarp/9/0", Ok(1))]);
        assert_eq!((told.silent, told.problem(&down)), (1, None));
    }
}
