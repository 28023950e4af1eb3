//! Runs one program, with one end in the guest and the other on this host.

use super::catalogue::{Direction, Path, Program};
use super::guest::{ADDRESS, Guest, HOST, PORT};
use super::relay::Relay;
use crate::inside::Home;
use crate::shell::Result;
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::{Exit, Process};
use std::path::PathBuf;
use std::process::Command;

/// A guest, and this host.
#[derive(Debug)]
pub(super) struct Testbed<'h> {
    home: &'h Home,
    pub(super) guest: Guest,
    folder: PathBuf,
    /// The last used port. Each server on the host has its own; nothing else is in this network.
    port: u16,
}

pub(super) const LOOPBACK: &str = "127.0.0.1";

/// The two ends of a program.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) server: Exit,
    pub(super) client: Exit,
}

impl<'h> Testbed<'h> {
    pub(super) fn new(home: &'h Home, guest: Guest, folder: PathBuf) -> Self {
        let port = guest.forwarded;
        Self { home, guest, folder, port }
    }

    /// Runs a program once. Both ends must succeed and print what is expected.
    pub(super) fn run(&mut self, program: &Program, persona: &str, direction: Direction) -> Result {
        let ends = match direction {
            Direction::Out => self.out(program, persona),
            Direction::In => self.into(program, persona),
        }?;
        ends.judge(program, direction).map_err(|why| {
            let Ends { server, client } = ends;
            format!("{why}\n    server {server}\n    client {client}")
        })
    }

    /// Runs the server in the guest.
    fn out(&mut self, program: &Program, persona: &str) -> Result<Ends> {
        self.guest.serve(&fill(program.server, ADDRESS, PORT))?;
        let connect = |testbed: &Self, port| {
            testbed.start(persona, &fill(program.client, LOOPBACK, port), "client.log")
        };
        let client = if program.path == Path::Direct {
            connect(self, self.guest.forwarded)?.exit()?
        } else {
            let relay = Relay::new(self.guest.forwarded)?;
            let mut client = connect(self, relay.port()?)?;
            let ready = || match program.path {
                Path::ListensTwice => self.guest.listens(),
                Path::Direct | Path::Crowd => Ok(()),
            };
            relay.during(ready, || client.exit())?
        };
        Ok(Ends { server: self.guest.served()?, client })
    }

    /// Runs the server on this host.
    fn into(&mut self, program: &Program, persona: &str) -> Result<Ends> {
        let port = self.next_port();
        let mut server = self.serve(persona, &fill(program.server, LOOPBACK, port), port)?;
        let client = if program.path == Path::ListensTwice {
            let relay = Relay::new(port)?;
            let words = fill(program.client, HOST, relay.port()?);
            let ready = || server.wait_until("it listens", |server| listens(server.id(), port));
            relay.during(ready, || self.guest.program(&words))?
        } else {
            self.guest.program(&fill(program.client, HOST, port))?
        };
        Ok(Ends { server: server.exit()?, client })
    }

    pub(super) fn next_port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }

    /// Starts a server and waits until it listens.
    pub(super) fn serve(&self, persona: &str, words: &[String], port: u16) -> Result<Process> {
        let mut server = self.start(persona, words, "server.log")?;
        server.wait_until("it listens", |server| listens(server.id(), port))?;
        Ok(server)
    }

    /// Starts a program on the drop-in, as an unprivileged user.
    pub(super) fn start(&self, persona: &str, words: &[String], log: &str) -> Result<Process> {
        let user = self.home.as_user();
        let mut command = Command::new(user[0]);
        command.args(&user[1..]).args(self.home.ironwarp(persona, words));
        command.current_dir(&self.folder).env("HOME", &self.folder);
        Process::start(command, &words[0], &self.folder.join(log))
    }
}

impl Ends {
    fn judge(&self, program: &Program, direction: Direction) -> Result {
        let Self { server, client } = self;
        let both = [("server", server, program.prints.server), ("client", client, program.prints.client)];
        for (name, ended, texts) in both {
            if let Some(text) = texts.iter().find(|text| !ended.output.contains(**text)) {
                return Err(format!("the {name} did not print {text:?}"));
            }
            let on_siw = name == if direction == Direction::In { "client" } else { "server" };
            let is_excused = on_siw && has_excuse(program, &ended.output);
            if ended.code != 0 && !is_excused {
                return Err(format!("the {name} failed"));
            }
        }
        Ok(())
    }
}

/// Whether a program failed because of its known race on siw.
fn has_excuse(program: &Program, output: &str) -> bool {
    !program.may_say.is_empty() && program.may_say.iter().all(|text| output.contains(text))
}

/// Fills in the server's address and port.
pub(super) fn fill(words: &[&str], address: &str, port: u16) -> Vec<String> {
    words.iter().map(|word| word.replace("{addr}", address).replace("{port}", &port.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::catalogue::PROGRAMS;

    fn program(name: &str) -> &'static Program {
        PROGRAMS.iter().find(|program| program.name == name).unwrap()
    }

    fn perftest() -> &'static Program {
        program("ib_write_bw -R")
    }

    fn ended(code: i32, more: &str) -> Exit {
        Exit { code, output: format!(" 4096       100              4.62\n{more}") }
    }

    #[test]
    fn both_ends_must_end_well_and_print_their_results() {
        let judge = |server: Exit, client: Exit| Ends { server, client }.judge(perftest(), Direction::Out);
        assert_eq!(judge(ended(0, ""), ended(0, "")), Ok(()));
        assert_eq!(judge(ended(1, ""), ended(0, "")), Err("the server failed".into()));
        assert_eq!(judge(ended(0, ""), ended(137, "")), Err("the client failed".into()));
        let silent = Exit { code: 0, output: String::new() };
        assert!(judge(ended(0, ""), silent).unwrap_err().contains("did not print"));
    }

    #[test]
    fn only_the_known_ending_of_siw_is_excused() {
        let known = "Bad wc status 2\nFailed to close connection between server and client";
        let judge =
            |server: Exit, client: Exit, direction| Ends { server, client }.judge(perftest(), direction);
        assert_eq!(judge(ended(0, ""), ended(1, known), Direction::In), Ok(()));
        assert_eq!(judge(ended(1, known), ended(0, ""), Direction::Out), Ok(()));
        assert!(judge(ended(0, ""), ended(1, known), Direction::Out).is_err());
        assert!(judge(ended(1, known), ended(0, ""), Direction::In).is_err());
        assert!(judge(ended(0, ""), ended(1, "Bad wc status 2"), Direction::In).is_err());
        let known = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\nrdma_get_cm_event: Bad file descriptor";
        let judge = |server: Exit, direction| {
            Ends { server, client: ended(0, "") }.judge(program("rping -S 64"), direction)
        };
        assert_eq!(judge(ended(255, known), Direction::Out), Ok(()));
        assert!(judge(ended(255, known), Direction::In).is_err(), "on Ironwarp");
        assert!(judge(ended(255, "rdma_get_cm_event: Bad file descriptor"), Direction::Out).is_err());
    }
}
