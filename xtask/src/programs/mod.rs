//! `programs`: stock RDMA programs of Debian, unmodified, on the drop-in. Each runs as an ordinary user, moves data, and must
//! end well; nothing is tried twice. As many run at once as there are processors, each on hosts of its own.
//!
//! ```text
//!  catalogue.rs   which programs, with which arguments, and what they must print
//!  special.rs     those that take more than a server and a client: MPI, fio, QEMU, iSER
//!  stage.rs       where they run: one host, or two network namespaces joined by a veth pair
//!  table.rs       what came of it, for people and as JSON
//! ```

mod catalogue;

mod qmp;
mod special;
mod stage;
mod table;

use crate::dropin;
use crate::inside::run_inside;
use crate::roots;
use crate::shell::Result;
use crate::workspace::Workspace;
use catalogue::{NOT_RUN, PROGRAMS, Program};
use stage::{Mode, Stage, Theatre};
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use table::{Row, Table};

pub(crate) const USAGE: &str = "programs [--full [--minutes N]] [--json FILE] [--persona roce|iwarp] [--only TEXT] [--runs N] [--jobs N]";

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
    /// What a full run may take. Then rows have as many runs as fit, but `SOME` at least.
    within: Option<Duration>,
    /// So many programs run at once, each on hosts of its own.
    jobs: usize,
    /// Set once the job runs where it may make network namespaces.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        dropin::build(workspace, true)?;
        return run_inside("programs", &["--mount"], arguments);
    }
    let rows = Rows::new(&options);
    let theatre = Theatre::new(workspace)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs)
            .map(|number| {
                scope.spawn({
                    let (rows, theatre) = (&rows, &theatre);
                    move || rows.work(theatre, number)
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

/// Everything runs on one host; the representative ones between two as well.
fn modes(program: &Program) -> Vec<Mode> {
    let mut modes = vec![Mode::Local];
    if program.representative {
        modes.extend([Mode::Veth4, Mode::Veth6]);
    }
    modes
}

/// All that is to be run. Workers take run after run from it.
struct Rows {
    tasks: Mutex<Vec<Task>>,
    began: Instant,
    within: Option<Duration>,
}

/// One row of the table, in the making.
struct Task {
    program: &'static Program,
    row: Row,
    wanted: usize,
    /// Will be more, if one of them does not take long.
    grows: bool,
    begun: usize,
    /// How long its runs took, one after another.
    spent: Duration,
}

impl Rows {
    fn new(options: &Options) -> Self {
        // All whose names have it in them, unless it is the whole name of one.
        let whole = |only: &str| PROGRAMS.iter().any(|program| program.name == only);
        let named = |program: &Program| match options.only.as_deref() {
            Some(only) if whole(only) => program.name == only,
            only => only.is_none_or(|only| program.name.contains(only)),
        };
        let release = roots::release();
        let left_out = |program: &Program| {
            let of_release = NOT_RUN.iter().filter(|(of, ..)| Some(*of) == release.as_deref());
            of_release.filter(|(_, names, _)| names.contains(&program.name)).map(|(_, _, why)| *why).next()
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
                tasks.extend(modes(program).into_iter().map(|mode| Task {
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

    /// What to run next. Where the time is limited, every row gets the same; else one comes after the other.
    fn next<'t>(&self, tasks: &'t mut [Task]) -> Option<(usize, &'t mut Task)> {
        let over = self.within.is_some_and(|within| self.began.elapsed() >= within);
        let limit = |task: &Task| if over { task.wanted.min(SOME) } else { task.wanted };
        let left = tasks.iter_mut().enumerate().filter(|(_, task)| task.begun < limit(task));
        match self.within {
            Some(_) => left.min_by_key(|(_, task)| task.spent),
            None => left.into_iter().next(),
        }
    }

    /// Runs one after another on a stage of its own, until all are done.
    fn work(&self, theatre: &Theatre, number: usize) -> Result {
        let stage = Stage::new(theatre, number)?;
        loop {
            let (index, program, persona, mode) = {
                let mut tasks = self.tasks.lock().map_err(|error| error.to_string())?;
                let Some((index, task)) = self.next(&mut tasks) else { return Ok(()) };
                task.begun += 1;
                (index, task.program, task.row.persona, task.row.mode)
            };
            let start = Instant::now();
            let outcome = stage.play(program, persona, mode);
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
            // Long before the table.
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
        inside: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value: {USAGE}"));
        let mut number = || {
            let text = value()?;
            text.parse().map_err(|_| format!("{word} {text}: a number is wanted"))
        };
        match word.as_str() {
            "--full" => options.full = true,
            "--inside" => options.inside = true,
            "--json" => options.json = Some(value()?),
            "--persona" => options.persona = Some(value()?),
            "--only" => options.only = Some(value()?),
            "--runs" => options.runs = Some(number()?),
            "--jobs" => options.jobs = number()?,
            "--minutes" => options.within = Some(Duration::from_secs(60 * number()? as u64)),
            other => return Err(format!("unknown option {other}: {USAGE}")),
        }
    }
    Ok(options)
}
