//! A job of `cargo xtask`: its name, what it needs, and how to run it.

use crate::cost::{Cost, Meter};
use crate::shell::{self, Result};
use crate::workspace::Workspace;

/// The suites that a job is part of. `nightly` runs all but `Neither`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Neither,
    Nightly,
    Ci,
    /// `check` and `ci`.
    Both,
}
pub(crate) struct Job {
    /// The name, followed by the options if there are any.
    pub(crate) usage: &'static str,
    pub(crate) about: &'static str,
    pub(crate) part: Part,
    /// Commands that the job needs. `setup` installs all of them.
    needs: &'static [&'static str],
    run: fn(&Workspace, &[String]) -> Result,
    /// The options for its long form.
    pub(crate) nightly: &'static [&'static str],
}

pub(crate) const fn job(
    usage: &'static str,
    about: &'static str,
    part: Part,
    needs: &'static [&'static str],
    run: fn(&Workspace, &[String]) -> Result,
) -> Job {
    Job { usage, about, part, needs, run, nightly: &[] }
}

impl Job {
    pub(crate) fn name(&self) -> &'static str {
        self.usage.split_once(' ').map_or(self.usage, |(name, _)| name)
    }

    pub(crate) fn takes_options(&self) -> bool {
        self.usage != self.name()
    }

    pub(crate) const fn nightly(self, options: &'static [&'static str]) -> Self {
        Self { nightly: options, ..self }
    }

    /// Prints a heading, runs the job, and prints its cost whether or not it passed.
    pub(crate) fn run(&self, workspace: &Workspace, options: &[String]) -> (Cost, Result) {
        let name = self.name();
        println!(
            "== {}",
            std::iter::once(name).chain(options.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
        );
        let meter = Meter::start();
        let result = self
            .needs
            .iter()
            .try_for_each(|tool| shell::need(tool))
            .and_then(|()| (self.run)(workspace, options))
            .map_err(|error| format!("{name} failed: {error}"));
        let cost = meter.read();
        // On standard error, because other tools read the last line of some jobs' output.
        eprintln!("== {name}:{cost}");
        (cost, result)
    }
}
