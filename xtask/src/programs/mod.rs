//! `programs`: runs stock RDMA programs of Debian, unmodified, on the drop-in. Each runs as an unprivileged
//! user, moves data, and must succeed without retries. One per processor runs at a time, each on hosts of its
//! own.
//!
//! ```text
//!  catalogue.rs   which programs, with which arguments, and what they must print
//!  special.rs     programs that need more than a server and a client: MPI, fio, QEMU, iSER
//!  program.rs     how a program is run
//!  hosts.rs       where they run: one host, or two network namespaces joined by a veth pair
//!  table.rs       the results, as a table and as JSON
//! ```

mod catalogue;
mod hosts;
mod program;
mod qmp;
mod special;
mod table;

use crate::arguments::Arguments;
use crate::dropin;
use crate::inside::run_inside;
use crate::roots;
use crate::shell::{Result, at};
use crate::workspace::Workspace;
use catalogue::{ADVERSARY, CHECK, NOT_RUN, PROGRAMS};
use hosts::{Environment, Hosts, Mode};
use program::Program;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use table::{Row, Table};

pub(crate) const USAGE: &str = "programs [--full [--minutes N]] [--json FILE] [--persona roce|iwarp] [--only TEXT] [--runs N] [--jobs N] [--check | --adversary]";

/// Mistakes of the programs: docs/check.md lists them.
const KNOWN_FINDINGS: &str = "xtask/src/programs/known.supp";

/// A full run repeats programs that take less than this very often.
const QUICK: Duration = Duration::from_secs(1);
const OFTEN: usize = 1000;
const SOME: usize = 10;

struct Options {
    full: bool,
    json: Option<String>,
    persona: Option<String>,
    only: Option<String>,
    runs: Option<usize>,
    /// Time limit of a full run. Rows then have as many runs as fit, but at least `SOME`.
    within: Option<Duration>,
    /// Number of programs that run at once, each on hosts of its own.
    jobs: usize,
    /// Whether programs are checked for mistakes.
    check: bool,
    /// Whether each run has an adversary, with the number of the run as its seed.
    adversary: bool,
    /// Set if the job can create network namespaces.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        dropin::build(workspace, true)?;
        return run_inside("programs", &["--mount"], arguments);
    }
    let rows = Rows::new(&options);
    let environment = Environment::new(workspace, run_options(&options)?)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs)
            .map(|number| {
                scope.spawn({
                    let (rows, environment) = (&rows, &environment);
                    move || rows.work(environment, number)
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;
    let table = rows.table()?;
    table.print();
    if let Some(file) = &options.json {
        table.write_json(file)?;
    }
    table.verdict()
}

/// Returns further options of `ironwarp run`.
fn run_options(options: &Options) -> Result<Vec<String>> {
    if options.adversary {
        return Ok(["--adversary", "{run}"].map(String::from).to_vec());
    }
    if !options.check {
        return Ok(Vec::new());
    }
    let known = std::path::absolute(KNOWN_FINDINGS).map_err(at(Path::new(KNOWN_FINDINGS)))?;
    Ok(vec!["--check".to_owned(), "--suppressions".to_owned(), known.to_string_lossy().into_owned()])
}

/// Runs the programs under `ironwarp run --check`, on one host and with one persona.
pub(crate) fn checked(workspace: &Workspace, _: &[String]) -> Result {
    run(workspace, &["--check", "--persona", "roce"].map(String::from))
}

/// Runs the programs with an adversary, on one host and with one persona, each with 100 seeds.
pub(crate) fn adverse(workspace: &Workspace, _: &[String]) -> Result {
    run(workspace, &["--adversary", "--persona", "roce", "--runs", "100"].map(String::from))
}

/// All programs run on one host; representative ones also between two, except with an adversary, whose choices do not
/// depend on the network.
fn modes(program: &Program, options: &Options) -> Vec<Mode> {
    let mut modes = vec![Mode::Local];
    if program.representative && !options.adversary {
        modes.extend([Mode::Veth4, Mode::Veth6]);
    }
    modes
}

/// Everything to run. Workers take runs from it.
struct Rows {
    tasks: Mutex<Vec<Task>>,
    began: Instant,
    within: Option<Duration>,
}

/// A row of the table that is not complete yet.
struct Task {
    program: &'static Program,
    row: Row,
    wanted: usize,
    /// The number of runs grows if one of them is quick.
    grows: bool,
    begun: usize,
    /// The total time of its runs.
    spent: Duration,
}

impl Rows {
    fn new(options: &Options) -> Self {
        // Matches names that contain the text, unless it is the whole name of one.
        let whole = |only: &str| PROGRAMS.iter().any(|program| program.name == only);
        let named = |program: &Program| match options.only.as_deref() {
            Some(only) if whole(only) => program.name == only,
            only => only.is_none_or(|only| program.name.contains(only)),
        };
        let release = roots::release();
        let left_out = |program: &Program| {
            let is_of = |case: &str| match case {
                ADVERSARY => options.adversary,
                CHECK => options.check,
                case => Some(case) == release.as_deref(),
            };
            let of_this = NOT_RUN.iter().filter(|(of, ..)| is_of(of));
            of_this.filter(|(_, names, _)| names.contains(&program.name)).map(|(_, _, why)| *why).next()
        };
        for program in PROGRAMS.iter().filter(|program| named(program)) {
            if let Some(why) = left_out(program) {
                println!("not run: {}: {why}", program.name);
            }
        }
        let named = |program: &Program| named(program) && left_out(program).is_none();
        let mut tasks = Vec::new();
        let personas = ["roce", "iwarp"].into_iter();
        for persona in personas.filter(|name| options.persona.as_ref().is_none_or(|wanted| wanted == name)) {
            for program in PROGRAMS.iter().filter(|program| program.serves(persona) && named(program)) {
                tasks.extend(modes(program, options).into_iter().map(|mode| Task {
                    program,
                    row: Row::new(program.name, persona, mode),
                    wanted: options.runs.unwrap_or(if options.full { SOME } else { 1 }),
                    grows: options.full && options.runs.is_none(),
                    begun: 0,
                    spent: Duration::ZERO,
                }));
            }
        }
        Self { tasks: Mutex::new(tasks), began: Instant::now(), within: options.within }
    }

    /// Returns what to run next. If the time is limited, all rows get the same share; otherwise they run one
    /// after another.
    fn next<'t>(&self, tasks: &'t mut [Task]) -> Option<(usize, &'t mut Task)> {
        let over = self.within.is_some_and(|within| self.began.elapsed() >= within);
        let limit = |task: &Task| if over { task.wanted.min(SOME) } else { task.wanted };
        let left = tasks.iter_mut().enumerate().filter(|(_, task)| task.begun < limit(task));
        match self.within {
            Some(_) => left.min_by_key(|(_, task)| task.spent),
            None => left.into_iter().next(),
        }
    }

    /// Runs programs on hosts of its own until all are done.
    fn work(&self, environment: &Environment, number: usize) -> Result {
        let hosts = Hosts::new(environment, number)?;
        loop {
            let (index, program, persona, mode, run) = {
                let mut tasks = self.tasks.lock().map_err(|error| error.to_string())?;
                let Some((index, task)) = self.next(&mut tasks) else { return Ok(()) };
                task.begun += 1;
                (index, task.program, task.row.persona, task.row.mode, task.begun)
            };
            let start = Instant::now();
            let outcome = program.run(&hosts, persona, mode, run);
            self.tasks.lock().map_err(|error| error.to_string())?[index].note(start.elapsed(), outcome);
        }
    }

    fn table(self) -> Result<Table> {
        let tasks = self.tasks.into_inner().map_err(|error| error.to_string())?;
        Ok(Table(tasks.into_iter().map(|task| task.row).collect()))
    }
}

impl Task {
    fn note(&mut self, took: Duration, outcome: Result) {
        if self.grows && took < QUICK {
            (self.wanted, self.grows) = (OFTEN, false);
        }
        self.spent += took;
        if let Err(error) = &outcome {
            // Do not wait for the table.
            println!("FAILED after {} runs: {}: {error}", self.row.runs, self.program.name);
        }
        self.row.note(took, outcome);
        if self.row.runs == self.wanted {
            println!("{}", self.row);
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options> {
    let jobs = thread::available_parallelism().map_or(1, NonZero::get);
    let mut options = Options {
        full: false,
        json: None,
        persona: None,
        only: None,
        runs: None,
        within: None,
        jobs,
        check: false,
        adversary: false,
        inside: false,
    };
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--full" => options.full = true,
            "--check" => options.check = true,
            "--adversary" => options.adversary = true,
            "--inside" => options.inside = true,
            "--json" => options.json = Some(arguments.value()?.into()),
            "--persona" => options.persona = Some(arguments.value()?.into()),
            "--only" => options.only = Some(arguments.value()?.into()),
            "--runs" => options.runs = Some(arguments.number()?),
            "--jobs" => options.jobs = arguments.number()?,
            "--minutes" => options.within = Some(Duration::from_secs(60 * arguments.number::<u64>()?)),
            _ => return Err(arguments.unknown()),
        }
    }
    Ok(options)
}
