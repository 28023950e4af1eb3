//! The results: a line for each row at once, and a table, JSON and the verdict at the end.

use crate::shell::{Result, at};
use serde_json::json;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The result of one program with one persona, against one variant, in one direction.
#[derive(Debug)]
struct Row {
    program: &'static str,
    persona: &'static str,
    variant: &'static str,
    direction: String,
    took: Duration,
    outcome: Result,
}

/// All results.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Vec<Row>>);

impl Row {
    fn failed(&self) -> u32 {
        u32::from(self.outcome.is_err())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, persona, variant, direction, took, outcome } = self;
        write!(f, "  {variant:6} {program:26} {persona:6} {direction:9} {:6.2} s  ", took.as_secs_f64())?;
        match outcome {
            Ok(()) => f.write_str("ok"),
            Err(why) => write!(f, "FAILED\n    {why}"),
        }
    }
}

impl Table {
    /// Runs a test, and prints and keeps its result.
    pub(super) fn note(
        &self,
        program: &'static str,
        (variant, persona, direction): (&'static str, &'static str, String),
        run: impl FnOnce() -> Result,
    ) {
        let start = Instant::now();
        let outcome = run();
        let row = Row { program, persona, variant, direction, took: start.elapsed(), outcome };
        println!("{row}");
        self.rows().push(row);
    }

    /// Ignores poison: a thread that panicked left whole rows.
    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn print(&self) {
        println!("\n| program | persona | variant | direction | runs | failed |\n|---|---|---|---|---|---|");
        for row in self.rows().iter() {
            let Row { program, persona, variant, direction, .. } = row;
            println!("| {program} | {persona} | {variant} | {direction} | 1 | {} |", row.failed());
        }
    }

    pub(super) fn write_json(&self, file: &str) -> Result {
        let rows: Vec<_> = self
            .rows()
            .iter()
            .map(|row| {
                json!({
                    "program": row.program,
                    "persona": row.persona,
                    "variant": row.variant,
                    "direction": row.direction,
                    "runs": 1,
                    "failed": row.failed(),
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
        fs::write(file, text + "\n").map_err(at(Path::new(file)))
    }

    /// Fails if a row failed, or if there are none.
    pub(super) fn verdict(&self) -> Result {
        let rows = self.rows();
        let failed: u32 = rows.iter().map(Row::failed).sum();
        println!("{} rows, {failed} failed", rows.len());
        match (rows.is_empty(), failed) {
            (true, _) => Err("no test was run".into()),
            (false, 0) => Ok(()),
            _ => Err(format!("{failed} rows failed")),
        }
    }
}
