//! The suites `check`, `ci` and `nightly`: each runs some of the jobs and prints their cost.

use crate::cost::Cost;
use crate::job::Job;
use crate::job::Part::{self, Both, Ci, Nightly};
use crate::shell::Result;
use crate::workspace::Workspace;
use std::fmt;

#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    parts: &'static [Part],
    /// Runs the remaining jobs after a failure, so that one run shows everything that fails.
    keeps_going: bool,
    /// Runs each job in its long form.
    is_long: bool,
}

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "check",
        about: "fmt, tidy, clippy and test: run this before you push",
        parts: &[Both],
        keeps_going: false,
        is_long: false,
    },
    Suite {
        name: "ci",
        about: "what CI runs after setup",
        parts: &[Both, Ci],
        keeps_going: true,
        is_long: false,
    },
    Suite {
        name: "nightly",
        about: "all jobs, in their long form",
        parts: &[Both, Ci, Nightly],
        keeps_going: true,
        is_long: true,
    },
];

/// The outcome of one job.
struct Row {
    job: &'static str,
    cost: Cost,
    result: Result,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<17}{}", self.job, self.cost)?;
        // The rest of the error has been printed already.
        match &self.result {
            Ok(()) => Ok(()),
            Err(error) => write!(f, "  FAILED: {}", error.lines().next().unwrap_or_default()),
        }
    }
}

impl Suite {
    /// Runs the jobs in order. All must pass.
    pub(crate) fn run(&self, jobs: &[Job], workspace: &Workspace) -> Result {
        let jobs: Vec<&Job> = jobs.iter().filter(|job| self.parts.contains(&job.part)).collect();
        let mut rows = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let options: &[&str] = if self.is_long { job.nightly } else { &[] };
            let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
            println!("{} of {}", index + 1, jobs.len());
            let (cost, result) = job.run(workspace, &options);
            if let Err(error) = &result {
                eprintln!("xtask: {error}");
            }
            let stops = result.is_err() && !self.keeps_going;
            rows.push(Row { job: job.name(), cost, result });
            if stops {
                break;
            }
        }
        self.report(&rows, jobs.len())
    }

    fn report(&self, rows: &[Row], jobs: usize) -> Result {
        println!();
        rows.iter().for_each(|row| println!("{row}"));
        println!("{:<17}{}", "total", rows.iter().map(|row| row.cost).sum::<Cost>());
        let failed: Vec<&str> = rows.iter().filter(|row| row.result.is_err()).map(|row| row.job).collect();
        if !failed.is_empty() {
            return Err(format!(
                "{}: {} of {jobs} jobs failed: {}",
                self.name,
                failed.len(),
                failed.join(", ")
            ));
        }
        println!("{}: all {jobs} jobs passed", self.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JOBS;
    use crate::job::job;
    use crate::shell::{command, run};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn workspace() -> Workspace {
        Workspace { root: "/".into(), target: "/".into(), members: Vec::new() }
    }

    fn suite(name: &str) -> &'static Suite {
        SUITES.iter().find(|suite| suite.name == name).unwrap()
    }

    #[test]
    fn a_failing_job_fails_its_suite() {
        let pass = job("pass", "", Ci, &[], |_, _| Ok(()));
        let fail = job("fail", "", Ci, &[], |_, _| Err("broken\nin two lines".into()));
        let lacks = job("lacks", "", Ci, &["no-such-tool"], |_, _| Ok(()));
        assert_eq!(suite("ci").run(&[pass], &workspace()), Ok(()));
        let error = suite("ci").run(&[fail], &workspace()).unwrap_err();
        assert_eq!(error, "ci: 1 of 1 jobs failed: fail");
        assert!(suite("ci").run(&[lacks], &workspace()).is_err(), "a missing tool is a failure");
    }

    #[test]
    fn ci_and_nightly_run_the_remaining_jobs_after_a_failure() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let jobs = || {
            [
                job("fail", "", Both, &[], |_, _| Err("broken".into())),
                job("count", "", Both, &[], |_, options| {
                    RUNS.fetch_add(1 + options.len(), Ordering::Relaxed);
                    Ok(())
                })
                .nightly(&["--long"]),
            ]
        };
        assert!(suite("check").run(&jobs(), &workspace()).is_err());
        assert_eq!(RUNS.load(Ordering::Relaxed), 0);
        assert!(suite("ci").run(&jobs(), &workspace()).is_err());
        assert_eq!(RUNS.load(Ordering::Relaxed), 1);
        assert!(suite("nightly").run(&jobs(), &workspace()).is_err());
        assert_eq!(RUNS.load(Ordering::Relaxed), 3, "it ran again, with the options of its long form");
    }

    #[test]
    fn ci_includes_check_and_nightly_includes_ci() {
        let names = |name| -> Vec<&str> {
            let parts = suite(name).parts;
            JOBS.iter().filter(|job| parts.contains(&job.part)).map(Job::name).collect()
        };
        let (check, ci, nightly) = (names("check"), names("ci"), names("nightly"));
        assert!(check.len() < ci.len() && check.iter().all(|job| ci.contains(job)));
        assert!(ci.len() < nightly.len() && ci.iter().all(|job| nightly.contains(job)));
    }

    #[test]
    fn every_job_takes_the_options_of_its_long_form() {
        let wrong = JOBS.iter().filter(|job| !job.nightly.is_empty() && !job.takes_options());
        assert_eq!(wrong.map(Job::name).collect::<Vec<_>>(), [""; 0]);
    }

    /// Runs `.ci/run` with a `cargo` that fails for one of the two commands.
    #[test]
    fn a_failing_command_fails_the_script() {
        let folder = std::env::temp_dir().join(format!("ironwarp-ci-run-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let passes = |failing: &str| {
            let cargo = folder.join("cargo");
            let text = format!("#!/bin/sh\ntest \"$*\" != \"{failing}\"\n");
            std::fs::write(&cargo, text).unwrap();
            run(command("chmod", &["+x"]).arg(&cargo)).unwrap();
            let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/run");
            let status = Command::new(script).env("PATH", path).stdin(Stdio::null()).status().unwrap();
            status.success()
        };
        let outcome = (passes("nothing"), passes("xtask setup"), passes("xtask ci"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(outcome, (true, false, false));
    }
}
