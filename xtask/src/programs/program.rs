//! A program of the catalogue, and how to run it.

use super::hosts::{End, Hosts, Mode, Trial, expect};
use crate::shell::Result;
use std::fs;

/// A program, or one way to run it.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// What the client must print, besides ending with success.
    pub(super) expect: &'static [&'static str],
    pub(super) personas: Personas,
    /// Also run between two hosts.
    pub(super) representative: bool,
    /// The server runs forever.
    pub(super) server_stays: bool,
    /// A fixed port, which nothing else uses in the network of the program.
    pub(super) port: Option<u16>,
}

/// The personas that the program supports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Personas {
    Both,
    /// The program refuses iWARP adapters, or its code for them does not work.
    RoceOnly,
}

/// How the program is started.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Alone(&'static [&'static str]),
    /// The client starts when the server listens on `{port}`.
    Pair {
        server: &'static [&'static str],
        client: &'static [&'static str],
    },
    Special(fn(&Trial) -> Result),
}

impl Program {
    pub(super) fn serves(&self, persona: &str) -> bool {
        persona == "roce" || self.personas == Personas::Both
    }

    pub(super) const fn new(name: &'static str, shape: Shape, expect: &'static [&'static str]) -> Self {
        Self {
            name,
            shape,
            expect,
            personas: Personas::Both,
            representative: false,
            server_stays: false,
            port: None,
        }
    }

    pub(super) const fn roce_only(self) -> Self {
        Self { personas: Personas::RoceOnly, ..self }
    }

    pub(super) const fn representative(self) -> Self {
        Self { representative: true, ..self }
    }

    pub(super) const fn server_stays(self) -> Self {
        Self { server_stays: true, ..self }
    }

    pub(super) const fn at(self, port: u16) -> Self {
        Self { port: Some(port), ..self }
    }

    /// Runs the program once, for the time that `run` says.
    pub(super) fn run(&self, hosts: &Hosts<'_>, persona: &str, mode: Mode, run: usize) -> Result {
        let trial = hosts.trial(persona, mode, self.port, run)?;
        let outcome = match self.shape {
            Shape::Alone(words) => self.alone(&trial, words),
            Shape::Pair { server, client } => self.pair(&trial, server, client),
            Shape::Special(run) => run(&trial),
        };
        if outcome.is_ok() {
            let _ = fs::remove_dir_all(&trial.folder);
        }
        outcome
    }

    fn alone(&self, trial: &Trial<'_>, words: &[&str]) -> Result {
        let mut process = trial.start(End::Server, words)?;
        let printed = process.finish()?;
        expect(&process, &printed, self.expect)
    }

    fn pair(&self, trial: &Trial<'_>, server: &[&str], client: &[&str]) -> Result {
        let mut server = trial.serve(server)?;
        let mut client = trial.start(End::Client, client)?;
        let printed = client.finish().map_err(|error| format!("{error}\n    {}", server.state()))?;
        expect(&client, &printed, self.expect)?;
        if self.server_stays {
            return Ok(());
        }
        server.finish().map(drop)
    }
}
