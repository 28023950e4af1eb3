//! `ironwarp detach`: has the connections of running programs leave shared memory, before a checkpoint for example.

use crate::say::{self, Failure};
use clap::Args;
use ironwarp_engine::status::{self, Detached};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

const MORE: &str = "\
Example:
  ironwarp detach 4711 && criu dump --tree 4711 ...   checkpoint a program that shares memory with others

The connections stay open and lose nothing. They use TCP from then on, and so do new ones.

The exit code is 1 if a process is not found, or still shares memory after the time.";

/// How often processes are asked whether they have left.
const INTERVAL: Duration = Duration::from_millis(20);

/// Have the connections of running programs leave shared memory
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// ID of a process
    #[arg(value_name = "PROCESS", required = true)]
    processes: Vec<u32>,
    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u32,
}

/// Runs the command. Returns false if a process still shares memory.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let names = status::adapters().map_err(|error| format!("failed to read /proc/net/unix: {error}"))?;
    let deadline = Instant::now() + Duration::from_secs(arguments.timeout.into());
    let mut all_left = true;
    for &process in &arguments.processes {
        let prefix = format!("ironwarp/{process}/");
        let of_process: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
        match leave(&of_process, deadline, status::detach) {
            Ok(()) => say::line(format_args!("process {process}: shares no memory with others"))?,
            Err(problem) => {
                say::error(&*Failure::from(format!("process {process}: {problem}")));
                all_left = false;
            }
        }
    }
    Ok(all_left)
}

/// Asks the adapters with these status sockets to leave shared memory, until all have or the time is over. Returns what is
/// wrong.
fn leave(
    names: &[impl AsRef<str>],
    deadline: Instant,
    detach: impl Fn(&str) -> io::Result<Detached>,
) -> Result<(), String> {
    if names.is_empty() {
        return Err("not found, or it has not connected and does not listen".to_owned());
    }
    loop {
        let mut pending = 0;
        let mut shares = false;
        for name in names {
            let detached = match detach(name.as_ref()) {
                Ok(detached) => detached,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err("no answer: the program may be stopped".to_owned());
                }
                // The adapter was closed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(status::printable(&error.to_string())),
            };
            if !detached.unable.is_empty() {
                let texts: Vec<_> = detached.unable.iter().map(|text| status::printable(text)).collect();
                return Err(texts.join("; "));
            }
            pending += detached.pending;
            shares |= detached.shares;
        }
        if pending == 0 && !shares {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(match pending {
                0 => {
                    "its connections have left shared memory, but the memory is not given back yet: try again"
                        .to_owned()
                }
                _ => format!(
                    "{pending} connections have not left shared memory in time: their peers may be stopped, or wait for \
                     receives to be posted"
                ),
            });
        }
        thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The number of connections that have not left, and whether memory is shared.
    type Answer = io::Result<(u64, bool)>;

    /// Asks one adapter, which gives these answers in turn.
    fn told(answers: &[Answer], within: Duration) -> Result<(), String> {
        let asked = Cell::new(0);
        leave(&["ironwarp/7/0"], Instant::now() + within, |name| {
            assert_eq!(name, "ironwarp/7/0");
            let answer = &answers[asked.replace(asked.get() + 1).min(answers.len() - 1)];
            match answer {
                Ok((pending, shares)) => Ok(Detached::new(7, *pending, *shares)),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            }
        })
    }

    #[test]
    fn a_process_is_asked_until_nothing_is_shared() {
        let long = Duration::from_secs(60);
        assert_eq!(told(&[Ok((3, true)), Ok((0, true)), Ok((0, false))], long), Ok(()));
        assert_eq!(told(&[Err(io::ErrorKind::ConnectionRefused.into())], long), Ok(()), "it was closed");
    }

    #[test]
    fn problems_are_told() {
        let cases: [(&[Answer], &str); 4] = [
            (&[Ok((3, true))], "3 connections have not left"),
            (&[Ok((0, true))], "not given back yet"),
            (&[Err(io::ErrorKind::WouldBlock.into())], "may be stopped"),
            (
                &[Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"))],
                "another user's",
            ),
        ];
        for (answers, says) in cases {
            let problem = told(answers, Duration::ZERO).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
        let none: [&str; 0] = [];
        let problem = leave(&none, Instant::now(), |_| unreachable!()).unwrap_err();
        assert!(problem.starts_with("not found"), "{problem}");
    }
}
