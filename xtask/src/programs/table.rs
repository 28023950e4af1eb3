//! The results: a table, JSON, and the first failures in full.

use super::hosts::Mode;
use crate::shell::{Result, write_json};
use serde_json::json;
use std::fmt;
use std::time::Duration;

/// The result of one program in one mode.
#[derive(Debug)]
pub(super) struct Row {
    program: &'static str,
    pub(super) persona: &'static str,
    pub(super) mode: Mode,
    pub(super) runs: usize,
    failures: Vec<String>,
    failed: usize,
    longest: Duration,
}

/// All results.
#[derive(Debug)]
pub(super) struct Table(pub(super) Vec<Row>);

/// Number of failures of a program that are kept in full.
const KEPT: usize = 3;

impl Row {
    pub(super) fn new(program: &'static str, persona: &'static str, mode: Mode) -> Self {
        let (failures, longest) = (Vec::new(), Duration::ZERO);
        Self { program, persona, mode, runs: 0, failures, failed: 0, longest }
    }

    pub(super) fn note(&mut self, took: Duration, outcome: Result) {
        self.runs += 1;
        self.longest = self.longest.max(took);
        if let Err(error) = outcome {
            self.failed += 1;
            if self.failures.len() < KEPT {
                self.failures.push(error);
            }
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, persona, mode, runs, failed, longest, .. } = self;
        let verdict = if *failed == 0 { "ok" } else { "FAILED" };
        write!(f, "  {program:32} {persona:6} {mode:6} {runs:5} runs {failed:4} failed  ")?;
        write!(f, "longest {:6.2} s  {verdict}", longest.as_secs_f64())?;
        for failure in &self.failures {
            write!(f, "\n    {failure}")?;
        }
        Ok(())
    }
}

impl Table {
    pub(super) fn print(&self) {
        println!("\n| program | persona | mode | runs | failed |\n|---|---|---|---|---|");
        for Row { program, persona, mode, runs, failed, .. } in &self.0 {
            println!("| {program} | {persona} | {mode} | {runs} | {failed} |");
        }
    }

    pub(super) fn write_json(&self, file: &str) -> Result {
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|row| {
                json!({
                    "program": row.program,
                    "persona": row.persona,
                    "mode": row.mode.to_string(),
                    "runs": row.runs,
                    "failed": row.failed,
                })
            })
            .collect();
        write_json(file, &rows)
    }

    pub(super) fn verdict(&self) -> Result {
        let runs: usize = self.0.iter().map(|row| row.runs).sum();
        let failed: usize = self.0.iter().map(|row| row.failed).sum();
        println!("{} programs, {runs} runs, {failed} failed", self.0.len());
        if runs == 0 {
            return Err("no program was run".into());
        }
        if failed == 0 { Ok(()) } else { Err(format!("{failed} of {runs} runs failed")) }
    }
}
