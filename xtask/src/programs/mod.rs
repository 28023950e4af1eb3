//! `programs`: stock RDMA programs of Debian, unmodified, on the drop-in. Each runs as an ordinary user, moves data, and must
//! end well; nothing is tried twice.
//!
//! ```text
//!  catalogue.rs   which programs, with which arguments, and what they must print
//!  special.rs     those that take more than a server and a client: MPI, fio, QEMU, iSER
//!  stage.rs       where they run: one host, or two network namespaces joined by a veth pair
//!  process.rs     one process: started, waited for, its output kept
//!  table.rs       what came of it, for people and as JSON
//! ```

mod catalogue;
mod process;
mod qmp;
mod special;
mod stage;
mod table;

use crate::dropin;
use crate::shell::Result;
use crate::workspace::Workspace;
use catalogue::{PROGRAMS, Program};
use stage::{Mode, Stage};
use std::time::{Duration, Instant};
use table::{Row, Table};

pub(crate) const USAGE: &str =
    "programs [--full] [--json FILE] [--persona roce|iwarp] [--only TEXT] [--runs N]";

/// A run that takes less than this is done very often in a full run.
const QUICK: Duration = Duration::from_secs(1);
const OFTEN: usize = 1000;
const SOME: usize = 10;

struct Options {
    full: bool,
    json: Option<String>,
    persona: Option<String>,
    only: Option<String>,
    runs: Option<usize>,
    /// Set once the job runs where it may make network namespaces.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        dropin::build(workspace, true)?;
        return stage::run_inside(arguments);
    }
    let stage = Stage::new(workspace)?;
    let mut table = Table::default();
    for persona in ["roce", "iwarp"] {
        if options.persona.as_ref().is_some_and(|wanted| wanted != persona) {
            continue;
        }
        for program in PROGRAMS.iter().filter(|program| program.serves(persona)) {
            if options.only.as_ref().is_some_and(|only| !program.name.contains(only.as_str())) {
                continue;
            }
            for mode in modes(program) {
                table.add(repeat(&stage, program, persona, mode, &options));
            }
        }
    }
    table.print();
    if let Some(file) = &options.json {
        table.write_json(file)?;
    }
    table.verdict()
}

/// Everything runs on one host; the representative ones between two as well.
fn modes(program: &Program) -> Vec<Mode> {
    let mut modes = vec![Mode::Local];
    if program.representative {
        modes.extend([Mode::Veth4, Mode::Veth6]);
    }
    modes
}

fn repeat(stage: &Stage, program: &Program, persona: &'static str, mode: Mode, options: &Options) -> Row {
    let mut row = Row::new(program.name, persona, mode);
    let mut runs = options.runs.unwrap_or(if options.full { SOME } else { 1 });
    let mut done = 0;
    while done < runs {
        let start = Instant::now();
        let outcome = stage.play(program, persona, mode);
        let took = start.elapsed();
        done += 1;
        if options.full && options.runs.is_none() && done == 1 && took < QUICK && outcome.is_ok() {
            runs = OFTEN;
        }
        row.note(took, outcome);
    }
    println!("{row}");
    row
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options =
        Options { full: false, json: None, persona: None, only: None, runs: None, inside: false };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value: {USAGE}"));
        match word.as_str() {
            "--full" => options.full = true,
            "--inside" => options.inside = true,
            "--json" => options.json = Some(value()?),
            "--persona" => options.persona = Some(value()?),
            "--only" => options.only = Some(value()?),
            "--runs" => {
                let runs = value()?;
                options.runs = Some(runs.parse().map_err(|_| format!("--runs {runs}: a number is wanted"))?);
            }
            other => return Err(format!("unknown option {other}: {USAGE}")),
        }
    }
    Ok(options)
}
