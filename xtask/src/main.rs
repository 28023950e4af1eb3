//! The repository's jobs: `cargo xtask JOB`.
//!
//! This file holds the table of jobs, picks the one asked for, and measures it. A new job is one more row.

mod api;
mod bench;
mod cabi_fuzz;
mod cargo;
mod cost;
mod dist;
mod dropin;
mod fuzz;
mod guest;
mod inside;
mod instructions;
mod interop;
mod memcheck;
mod no_std;
mod pages;
mod process;
mod programs;
mod rdma_core_tests;
mod roots;
mod sanitize;
mod setup;
mod shell;
mod siw_bench;
mod startup;
mod suite;
mod tidy;
mod workspace;

use crate::cost::{Cost, Meter};
use crate::shell::Result;
use crate::suite::{SUITES, Suite};
use crate::workspace::Workspace;
use std::env;
use std::process::ExitCode;

/// Which suites a job is part of. `nightly` runs all but `Neither`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Neither,
    Nightly,
    Ci,
    /// `check` and `ci`.
    Both,
}
use Part::{Both, Ci, Neither, Nightly};

struct Job {
    /// The name, then the options if it takes any.
    usage: &'static str,
    about: &'static str,
    part: Part,
    /// Commands it cannot do without: all are in the table of `setup`.
    needs: &'static [&'static str],
    run: fn(&Workspace, &[String]) -> Result,
    /// The options that make it run in its large form.
    nightly: &'static [&'static str],
}

/// The suites run their jobs in this order.
const JOBS: &[Job] = &[
    job("setup", "install the tools that the other jobs need", Neither, &[], setup::run),
    job("fmt", "check the formatting", Both, &[], cargo::fmt),
    job("tidy", "check the rules that no other tool checks", Both, &["git"], tidy::run),
    job("clippy", "lint everything, warnings denied", Both, &["g++"], cargo::clippy),
    job("doc", "build the documentation, warnings denied", Ci, &[], cargo::doc),
    job(api::USAGE, "compare the public API with its text file", Ci, &["git"], api::run),
    job("deny", "check licences, duplicates and sources of dependencies", Ci, &["cargo-deny"], cargo::deny),
    job("no-std", "prove that the wire crate needs no std", Ci, &[], no_std::run),
    job(
        dropin::USAGE,
        "link the drop-in for libibverbs and librdmacm",
        Both,
        &["cc", "readelf"],
        dropin::run,
    ),
    job(
        rdma_core_tests::USAGE,
        "run rdma-core's own tests on the drop-in",
        Ci,
        &["cc"],
        rdma_core_tests::run,
    )
    .nightly(&["--persona", "both"]),
    job("symbols", "compare its symbols with the real libraries'", Ci, &["cc", "readelf"], dropin::compare),
    job(
        dropin::RELEASES_USAGE,
        "compare symbols and headers with those of Debian's releases",
        Nightly,
        &["apt-get", "cc", "readelf", "sha256sum"],
        dropin::releases,
    ),
    job(cargo::TEST_USAGE, "run all tests and doctests", Both, &["cargo-nextest", "tshark"], cargo::test)
        .nightly(FULL),
    job("loom", "try every order of events of what threads share", Ci, &[], cargo::loom),
    job("events", "ten million events between threads", Nightly, &[], cargo::events),
    job(cargo::SIM_USAGE, "simulate 2,000 seeds, and 600 of events", Ci, &[], cargo::sim).nightly(FULL),
    job("dist", "pack the command and the drop-in into one file", Ci, &["cc", "git", "readelf"], dist::run),
    job(
        programs::USAGE,
        "run stock RDMA programs on the drop-in",
        Ci,
        &["unshare", "nsenter", "setpriv", "mpicc"],
        programs::run,
    )
    .nightly(&["--full", "--minutes", "60"]),
    job(
        pages::INSTALL_USAGE,
        "run README's first screen in a fresh Debian system",
        Ci,
        &["debootstrap", "unshare", "setpriv"],
        pages::install,
    )
    .nightly(pages::RELEASES),
    job(
        roots::USAGE,
        "run programs or rdma-core's tests in other releases of Debian",
        Nightly,
        &["debootstrap", "unshare", "setpriv", "cc"],
        roots::run,
    ),
    job(
        pages::USAGE,
        "run the commands of docs/programs",
        Nightly,
        &["debootstrap", "unshare", "setpriv"],
        pages::run,
    ),
    job(guest::USAGE, "build the siw guest that interop boots", Neither, GUEST, guest::run),
    job(interop::USAGE, "talk to Linux siw in a guest", Ci, INTEROP, interop::run).nightly(FULL),
    job(
        siw_bench::USAGE,
        "measure TCP, siw and Ironwarp in one guest",
        Neither,
        &["qemu-system-x86_64", "cc", "cpio", "ldd"],
        siw_bench::run,
    ),
    job(
        bench::USAGE,
        "measure Ironwarp beside bare TCP, UCX and libfabric",
        Neither,
        &["cc", "unshare", "nsenter"],
        bench::run,
    ),
    job(
        startup::USAGE,
        "measure how much longer programs take to start on the drop-in",
        Neither,
        &["cc", "readelf"],
        startup::run,
    ),
    job(
        "memcheck",
        "run programs on the drop-in under valgrind",
        Ci,
        &["valgrind", "cc", "strip"],
        memcheck::run,
    ),
    job(
        cabi_fuzz::USAGE,
        "race calls of the C interface, 30 s unless told otherwise",
        Ci,
        &["cc"],
        cabi_fuzz::run,
    )
    .nightly(cabi_fuzz::NIGHTLY),
    job(sanitize::USAGE, "run unit tests with AddressSanitizer", Nightly, &["cargo-nextest"], sanitize::run),
    job("instructions", "hold hot paths to their ceilings", Ci, &["valgrind"], instructions::run),
    job(fuzz::USAGE, "fuzz, 10 s a target unless told otherwise", Ci, &["g++"], fuzz::run)
        .nightly(&["--seconds", "900"]),
];

const FULL: &[&str] = &[cargo::FULL];
/// What it takes to boot a guest.
const GUEST: &[&str] = &["qemu-system-x86_64"];
/// What it takes to talk to it, and to look at what was said.
const INTEROP: &[&str] = &["qemu-system-x86_64", "cargo-nextest", "unshare", "setpriv", "tshark"];

const fn job(
    usage: &'static str,
    about: &'static str,
    part: Part,
    needs: &'static [&'static str],
    run: fn(&Workspace, &[String]) -> Result,
) -> Job {
    Job { usage, about, part, needs, run, nightly: &[] }
}

impl Job {
    fn name(&self) -> &'static str {
        self.usage.split_once(' ').map_or(self.usage, |(name, _)| name)
    }

    fn takes_options(&self) -> bool {
        self.usage != self.name()
    }

    const fn nightly(self, options: &'static [&'static str]) -> Self {
        Self { nightly: options, ..self }
    }

    /// Runs the job under a heading. Says what it cost, whether or not it passed.
    fn run(&self, workspace: &Workspace, options: &[String]) -> (Cost, Result) {
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
        // The last line of output is the job's own: some end with a result that others read.
        eprintln!("== {name}:{cost}");
        (cost, result)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((name, options)) = arguments.split_first() else {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    };
    if ["--help", "-h", "help"].contains(&name.as_str()) {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let job = JOBS.iter().find(|job| job.name() == name);
    if job.is_none() && suite(name).is_none() {
        eprintln!("xtask: there is no job `{name}`; the jobs are: {}", names().join(", "));
        return ExitCode::from(2);
    }
    if !options.is_empty() && !job.is_some_and(Job::takes_options) {
        eprintln!("xtask: `{name}` takes no options, but was given: {}", options.join(" "));
        return ExitCode::from(2);
    }
    match start(name, job, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(name: &str, job: Option<&Job>, options: &[String]) -> Result {
    let workspace = Workspace::load()?;
    // Jobs name files and run commands from the root, wherever in the tree they were called.
    env::set_current_dir(&workspace.root).map_err(shell::at(&workspace.root))?;
    match (job, suite(name)) {
        (Some(job), _) => job.run(&workspace, options).1,
        (None, Some(suite)) => suite.run(JOBS, &workspace),
        (None, None) => Err(format!("no such job: {name}")),
    }
}

fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

fn names() -> Vec<&'static str> {
    JOBS.iter().map(Job::name).chain(SUITES.iter().map(|suite| suite.name)).collect()
}

fn usage() -> String {
    let jobs = JOBS.iter().map(|job| (job.name(), job.about));
    let mut text = "usage: cargo xtask JOB\n\n".to_owned();
    for (name, about) in jobs.chain(SUITES.iter().map(|suite| (suite.name, suite.about))) {
        text += &format!("  {name:<17}{about}\n");
    }
    for job in JOBS.iter().filter(|job| job.takes_options()) {
        text += &format!("\n  cargo xtask {}\n", job.usage);
    }
    text
}
