//! `instructions`: counts the instructions of hot paths under callgrind and compares them with their
//! ceilings.
//!
//! Time on a shared machine is noisy, but instructions are the same in every run of the same program. A crate
//! takes part with a `[[bench]]` named `instructions` that has `harness = false`. With `--list`, that program
//! prints lines `NAME CEILING`; with `NAME`, it runs that case 1000 times inside a function called
//! `measured_NAME`, marked `#[inline(never)]`. A case called `loop` does nothing: its count is subtracted
//! from the others. docs/specification/performance.md states each ceiling.

use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use serde_json::Value;
use std::fs;
use std::path::Path;

const BENCH: &str = "instructions";
const LOOP: &str = "loop";
const SPECIFICATION: &str = "docs/specification/performance.md";
/// How often a program runs a case. Counts are per run.
const REPEATS: u64 = 1000;

#[derive(Debug, PartialEq)]
struct Case {
    name: String,
    ceiling: u64,
}

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let path = workspace.root.join(SPECIFICATION);
    let specification = fs::read_to_string(&path).map_err(at(&path))?;
    let directory = workspace.target.join("instructions");
    fs::create_dir_all(&directory).map_err(at(&directory))?;

    let mut cases = 0;
    let mut wrong = Vec::new();
    println!("{:<32}{:>14}{:>10}", "case", "instructions", "ceiling");
    for member in &workspace.members {
        if !member.targets_of("bench").any(|target| target.name == BENCH) {
            continue;
        }
        let program = build(&member.name)?;
        let cases_of_it = list(&output(&mut command(&program, &["--list"]))?)?;
        let (empty, full): (Vec<_>, Vec<_>) = cases_of_it.into_iter().partition(|case| case.name == LOOP);
        let overhead = empty.first().map_or(Ok(0), |case| count(&program, &case.name, &directory))?;
        for case in full {
            let count = count(&program, &case.name, &directory)?.saturating_sub(overhead);
            println!("{:<32}{count:>14}{:>10}", case.name, case.ceiling);
            cases += 1;
            wrong.extend(case.judge(count));
            wrong.extend(case.look_up(&specification));
        }
    }
    if cases == 0 {
        wrong.push(format!("no crate has a bench named `{BENCH}` with a case: nothing was checked"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Builds the bench of a crate and returns the path of the program.
fn build(package: &str) -> Result<String> {
    let arguments = ["bench", "--no-run", "--quiet", "--locked", "--bench", BENCH, "--package", package];
    // Build once with readable errors, and then again, with nothing left to do, for the path.
    run_command(&mut command("cargo", &arguments))?;
    let messages = output(command("cargo", &arguments).arg("--message-format=json"))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|message| message["target"]["name"] == BENCH)
        .and_then(|message| message["executable"].as_str().map(str::to_owned))
        .ok_or_else(|| format!("cargo built no bench `{BENCH}` for {package}"))
}

fn list(text: &str) -> Result<Vec<Case>> {
    let case = |line: &str| {
        let (name, ceiling) = line.split_once(' ')?;
        Some(Case { name: name.to_owned(), ceiling: ceiling.trim().parse().ok()? })
    };
    let wrong = |line: &str| format!("invalid line `{line}` in the list of a bench, expected `NAME CEILING`");
    text.lines().map(|line| case(line).ok_or_else(|| wrong(line))).collect()
}

/// Returns the number of instructions of one run of a case.
fn count(program: &str, case: &str, directory: &Path) -> Result<u64> {
    let file = directory.join(format!("{case}.callgrind"));
    let mut valgrind = command("valgrind", &["--quiet", "--tool=callgrind", "--collect-atstart=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    // The exact name: if it also matched a closure of the function, counting would be switched off inside it.
    valgrind.arg(format!("--toggle-collect=*::measured_{case}"));
    run_command(valgrind.args([program, case]))?;
    let text = fs::read_to_string(&file).map_err(at(&file))?;
    total(&text).map(|total| total / REPEATS).ok_or_else(|| format!("{}: no totals", file.display()))
}

fn total(callgrind: &str) -> Option<u64> {
    callgrind.lines().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

impl Case {
    fn judge(&self, count: u64) -> Option<String> {
        let Self { name, ceiling } = self;
        if count == 0 {
            return Some(format!(
                "{name}: no instructions counted: did `measured_{name}` run, and is it inline(never)?"
            ));
        }
        (count > *ceiling).then(|| format!("{name}: {count} instructions, above the ceiling of {ceiling}"))
    }

    fn look_up(&self, specification: &str) -> Option<String> {
        let Self { name, ceiling } = self;
        let (quoted, number) = (format!("`{name}`"), ceiling.to_string());
        let has_number = |line: &str| line.split(|c: char| !c.is_ascii_digit()).any(|word| word == number);
        let stated = specification.lines().any(|line| line.contains(&quoted) && has_number(line));
        (!stated).then(|| format!("{SPECIFICATION} has no line with {quoted} and its ceiling, {ceiling}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        Case { name: "ddp_decode".into(), ceiling: 120 }
    }

    #[test]
    fn a_list_is_names_and_ceilings() {
        assert_eq!(list("ddp_decode 120\n").unwrap(), [case()]);
        assert!(list("ddp_decode\n").is_err());
        assert!(list("ddp_decode many\n").is_err());
    }

    #[test]
    fn the_total_is_read_from_what_callgrind_writes() {
        assert_eq!(total("events: Ir\nsummary: 7\n\nfn=(1) main\n3 7\n\ntotals: 8000\n"), Some(8000));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn a_count_above_the_ceiling_or_of_nothing_is_wrong() {
        assert_eq!(case().judge(120), None);
        assert!(case().judge(121).unwrap().contains("above the ceiling of 120"));
        assert!(case().judge(0).unwrap().contains("no instructions counted"));
    }

    #[test]
    fn the_specification_must_state_the_ceiling() {
        assert_eq!(case().look_up("| `ddp_decode` | one header | 120 |"), None);
        assert!(case().look_up("| `ddp_decode` | one header | 1200 |").is_some());
        assert!(case().look_up("| `ddp_decode_all` | one header | 120 |").is_some());
    }
}
