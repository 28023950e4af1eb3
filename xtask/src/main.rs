//! The jobs of this repository: `cargo xtask JOB`.
//!
//! This file holds the table of jobs, one row each, and runs the requested job.

mod aarch64;
mod api;
mod apt;
mod arguments;
mod bench;
mod bench_iscsi;
mod bench_net;
mod book;
mod cabi_fuzz;
mod cargo;
mod checkpoint;
mod cost;
mod dist;
mod dropin;
mod examples;
mod fuzz;
mod guest;
mod inside;
mod instructions;
mod interop;
mod job;
mod memcheck;
mod no_std;
mod package;
mod pages;
mod programs;
mod rdma_core_tests;
mod roots;
mod sanitize;
mod semver;
mod setup;
mod shell;
mod siw_bench;
mod startup;
mod suite;
mod tidy;
mod workspace;

use crate::job::Part::{Both, Ci, Neither, Nightly};
use crate::job::{Job, job};
use crate::shell::Result;
use crate::suite::{SUITES, Suite};
use crate::workspace::Workspace;
use std::env;
use std::process::ExitCode;

/// The suites run their jobs in this order.
const JOBS: &[Job] = &[
    job("setup", "install the tools that the other jobs need", Neither, &[], setup::run),
    job("fmt", "check the formatting", Both, &[], cargo::fmt),
    job("tidy", "check rules that no other tool checks", Both, &["git"], tidy::run),
    job("clippy", "lint everything, deny warnings", Both, &["g++"], cargo::clippy),
    job("doc", "build the documentation, deny warnings", Ci, &[], cargo::doc),
    job("book", "build the pages as a book with mdBook", Ci, &["git", "mdbook"], book::run),
    job(api::USAGE, "compare the public API with its snapshot", Ci, &["git"], api::run),
    job("deny", "check licences, duplicates and sources of dependencies", Ci, &["cargo-deny"], cargo::deny),
    job("no-std", "check that the wire crate builds without std", Ci, &[], no_std::run),
    job(package::USAGE, "check that the crates can be published", Ci, &["tar"], package::run).nightly(FULL),
    job("semver", "compare the public API with the last release", Nightly, &["git"], semver::run),
    job(
        dropin::USAGE,
        "build the command and the drop-in for libibverbs and librdmacm",
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
    job(
        "examples",
        "run the examples as their GitHub workflow does",
        Ci,
        &["cc", "curl", "git", "make", "pkg-config", "setpriv", "tar", "tshark"],
        examples::run,
    ),
    job(
        "symbols",
        "compare the symbols of the drop-in with rdma-core's",
        Ci,
        &["cc", "readelf"],
        dropin::compare,
    ),
    job(
        dropin::RELEASES_USAGE,
        "compare symbols and headers with Debian releases",
        Nightly,
        &["apt-get", "cc", "readelf", "sha256sum"],
        dropin::releases,
    ),
    job(
        cargo::TEST_USAGE,
        "run all tests and doctests",
        Both,
        &["cargo-nextest", "tgtd", "tshark"],
        cargo::test,
    )
    .nightly(FULL),
    job("loom", "model-check what threads share with loom", Ci, &[], cargo::loom),
    job("events", "pass ten million events between threads", Nightly, &[], cargo::events),
    job(
        cargo::SIM_USAGE,
        "simulate 2,000 seeds, 600 with events only, 1,000 with acknowledged datagrams and 1,000 of iSCSI",
        Ci,
        &[],
        cargo::sim,
    )
    .nightly(FULL),
    job("seeds", "run the commands of docs/seeds.md, one for each mechanism", Ci, &["timeout"], pages::seeds),
    job(
        dist::USAGE,
        "build the files of a release: tarball, package, image",
        Ci,
        &["cc", "dpkg-deb", "git", "readelf", "strip"],
        dist::run,
    )
    .nightly(dist::NIGHTLY),
    job(
        "checked-programs",
        "run stock RDMA programs under ironwarp run --check, which must find nothing that docs/check.md does not list",
        Nightly,
        &["unshare", "nsenter", "setpriv", "mpicc"],
        programs::checked,
    ),
    job(
        "adverse-programs",
        "run stock RDMA programs under ironwarp run --adversary, each with 100 seeds",
        Nightly,
        &["unshare", "nsenter", "setpriv", "mpicc"],
        programs::adverse,
    ),
    job(
        programs::USAGE,
        "run stock RDMA programs on the drop-in",
        Ci,
        &["unshare", "nsenter", "setpriv", "mpicc"],
        programs::run,
    )
    .nightly(&["--full", "--minutes", "60"]),
    job(
        checkpoint::USAGE,
        "move programs on the drop-in with CRIU",
        Ci,
        &["apt-get", "dpkg-deb", "unshare", "nsenter", "setsid"],
        checkpoint::run,
    )
    .nightly(&["--runs", "20"]),
    job(
        pages::INSTALL_USAGE,
        "install in fresh Debian systems as the README says",
        Ci,
        &["debootstrap", "unshare", "setpriv"],
        pages::install,
    )
    .nightly(pages::INSTALL_NIGHTLY),
    job(
        roots::USAGE,
        "run programs or rdma-core's tests in other Debian releases",
        Nightly,
        &["debootstrap", "unshare", "setpriv", "cc"],
        roots::run,
    ),
    job(
        pages::USAGE,
        "run the commands of pages of the documentation",
        Ci,
        &["unshare", "setpriv", "mpicc"],
        pages::run,
    )
    .nightly(FULL),
    job(guest::USAGE, "build the siw guest that interop boots", Neither, GUEST, guest::run),
    job(interop::USAGE, "test interoperability with Linux siw in a guest", Ci, INTEROP, interop::run)
        .nightly(FULL),
    job(
        siw_bench::USAGE,
        "compare TCP, siw and Ironwarp in one guest",
        Neither,
        &["qemu-system-x86_64", "cc", "cpio", "ldd"],
        siw_bench::run,
    ),
    job(
        bench::USAGE,
        "compare Ironwarp with bare TCP, UCX and libfabric",
        Neither,
        &["cc", "unshare", "nsenter"],
        bench::run,
    ),
    job(
        bench_net::USAGE,
        "compare the I/O unit with other tunnels between containers",
        Neither,
        &["cc", "unshare", "nsenter"],
        bench_net::run,
    ),
    job(
        bench_iscsi::USAGE,
        "compare the processor time of the iSCSI initiator with libiscsi's",
        Neither,
        &["tgtd"],
        bench_iscsi::run,
    ),
    job(
        startup::USAGE,
        "measure the start-up cost of the drop-in",
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
        "fuzz the C interface from several threads, for 30 s by default",
        Ci,
        &["cc"],
        cabi_fuzz::run,
    )
    .nightly(cabi_fuzz::NIGHTLY),
    job(
        aarch64::USAGE,
        "build for aarch64, and run it under QEMU",
        Nightly,
        &["apt-get", "cc", "dpkg-deb", "readelf"],
        aarch64::run,
    ),
    job(sanitize::USAGE, "run unit tests under AddressSanitizer", Nightly, &["cargo-nextest"], sanitize::run),
    job(
        "instructions",
        "check the instruction counts of hot paths",
        Ci,
        &["valgrind", "objdump"],
        instructions::run,
    ),
    job(fuzz::USAGE, "run each fuzz target, for 10 s by default", Ci, &["g++"], fuzz::run)
        .nightly(&["--seconds", "900"]),
];

const FULL: &[&str] = &[cargo::FULL];
/// Commands needed to boot a guest.
const GUEST: &[&str] = &["qemu-system-x86_64"];
/// Commands needed to test against a guest and to check the packets.
const INTEROP: &[&str] = &["qemu-system-x86_64", "cargo-nextest", "unshare", "setpriv", "tshark"];

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
        eprintln!("xtask: unknown job `{name}`, expected one of {}", names().join(", "));
        return ExitCode::from(2);
    }
    if !options.is_empty() && !job.is_some_and(Job::takes_options) {
        eprintln!("xtask: `{name}` takes no options, got: {}", options.join(" "));
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
    // Paths and commands of jobs are relative to the root, wherever xtask was started.
    env::set_current_dir(&workspace.root).map_err(shell::at(&workspace.root))?;
    match (job, suite(name)) {
        (Some(job), _) => job.run(&workspace, options).1,
        (None, Some(suite)) => suite.run(JOBS, &workspace),
        (None, None) => Err(format!("unknown job `{name}`")),
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
