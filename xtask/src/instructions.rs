//! `instructions`: counts the instructions of hot paths under callgrind, and the locked ones among them, and compares
//! them with their ceilings.
//!
//! Time on a shared machine is noisy, but instructions are the same in almost every run of the same program. A few more
//! are counted if the machine is busy: if the program does not run for a millisecond, its lane serves the sockets, and
//! hands them back at the next poll. So a count above a ceiling is repeated, and the lowest one counts. A crate
//! takes part with a `[[bench]]` named `instructions` that has `harness = false`. With `--list`, that program
//! prints lines `NAME CEILING LOCKED`, where LOCKED is the ceiling of locked instructions; without it, there must be
//! none. With `NAME`, it runs that case 1000 times inside a function called `measured_NAME`, marked
//! `#[inline(never)]`. A case called `loop` does nothing: its count is subtracted from the others.
//! docs/specification/performance.md states each ceiling.

mod locked;

use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::{Member, Workspace};
use locked::Locked;
use serde_json::Value;
use std::fs;
use std::path::Path;

const BENCH: &str = "instructions";
const LOOP: &str = "loop";
const SPECIFICATION: &str = "docs/specification/performance.md";
/// How often a program runs a case. Counts are per run.
const REPEATS: u64 = 1000;
/// Maximum number of times a case is counted while its count is above the ceiling.
const ATTEMPTS: u32 = 3;

#[derive(Debug, PartialEq)]
struct Case {
    name: String,
    ceiling: Count,
}

/// Instructions of one run of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    all: u64,
    locked: u64,
}

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let path = workspace.root.join(SPECIFICATION);
    let specification = fs::read_to_string(&path).map_err(at(&path))?;
    let directory = workspace.target.join("instructions");
    fs::create_dir_all(&directory).map_err(at(&directory))?;

    let mut cases = 0;
    let mut wrong = Vec::new();
    let mut locked = Locked::default();
    println!("{:<32}{:>14}{:>10}{:>10}{:>10}", "case", "instructions", "ceiling", "locked", "ceiling");
    for program in build(workspace)? {
        let cases_of_it = list(&output(&mut command(&program, &["--list"]))?)?;
        let (empty, full): (Vec<_>, Vec<_>) = cases_of_it.into_iter().partition(|case| case.name == LOOP);
        let overhead = match empty.first() {
            Some(case) => count(&program, &case.name, &directory, &mut locked)?,
            None => Count::default(),
        };
        for case in full {
            let Case { name, ceiling } = &case;
            let count = lowest(&case, || {
                let found = count(&program, name, &directory, &mut locked)?;
                Ok(Count { all: found.all.saturating_sub(overhead.all), ..found })
            })?;
            println!(
                "{name:<32}{:>14}{:>10}{:>10}{:>10}",
                count.all, ceiling.all, count.locked, ceiling.locked
            );
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

/// Builds the benches of all crates and returns the paths of the programs.
fn build(workspace: &Workspace) -> Result<Vec<String>> {
    let has_bench = |member: &&Member| member.targets_of("bench").any(|target| target.name == BENCH);
    let packages: Vec<&str> =
        workspace.members.iter().filter(has_bench).map(|member| member.name.as_str()).collect();
    if packages.is_empty() {
        return Ok(Vec::new()); // cargo would build those of all crates
    }
    // Together, so that they share one build of each dependency: built alone, each would enable other features.
    let cargo = || {
        let mut cargo = command("cargo", &["bench", "--no-run", "--quiet", "--locked", "--bench", BENCH]);
        cargo.args(packages.iter().map(|package| format!("--package={package}")));
        cargo
    };
    // Build once with readable errors, and then again, with nothing left to do, for the paths.
    run_command(&mut cargo())?;
    let messages = output(cargo().arg("--message-format=json"))?;
    let programs: Vec<String> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == BENCH)
        .filter_map(|message| message["executable"].as_str().map(str::to_owned))
        .collect();
    if programs.len() != packages.len() {
        return Err(format!("cargo built {} benches `{BENCH}` for {}", programs.len(), packages.join(", ")));
    }
    Ok(programs)
}

fn list(text: &str) -> Result<Vec<Case>> {
    let case = |line: &str| {
        let mut words = line.split(' ');
        let (name, all) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let locked = words.next().map_or(Some(0), |locked| locked.parse().ok())?;
        words.next().is_none().then_some(Case { name, ceiling: Count { all, locked } })
    };
    let wrong =
        |line: &str| format!("invalid line `{line}` in the list of a bench, expected `NAME CEILING LOCKED`");
    text.lines().map(|line| case(line).ok_or_else(|| wrong(line))).collect()
}

/// Counts until a count is not above the ceiling, at most [`ATTEMPTS`] times. Returns the lowest count.
fn lowest(case: &Case, mut count: impl FnMut() -> Result<Count>) -> Result<Count> {
    let mut lowest = count()?;
    for _ in 1..ATTEMPTS {
        let (all, ceiling) = (lowest.all, case.ceiling.all);
        if all <= ceiling {
            break;
        }
        println!("{}: {all} instructions, above the ceiling of {ceiling}: counting again", case.name);
        let next = count()?;
        if next.all < lowest.all {
            lowest = next;
        }
    }
    Ok(lowest)
}

/// Counts the instructions of one run of a case.
fn count(program: &str, case: &str, directory: &Path, locked: &mut Locked) -> Result<Count> {
    let file = directory.join(format!("{case}.callgrind"));
    let mut valgrind = command("valgrind", &["--quiet", "--tool=callgrind", "--collect-atstart=no"]);
    valgrind.args(["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"]); // as `Locked` needs them
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    // The exact name: if it also matched a closure of the function, counting would be switched off inside it.
    valgrind.arg(format!("--toggle-collect=*::measured_{case}"));
    run_command(valgrind.args([program, case]))?;
    let text = fs::read_to_string(&file).map_err(at(&file))?;
    let all = total(&text).ok_or_else(|| format!("{}: no totals", file.display()))?;
    Ok(Count { all: all / REPEATS, locked: locked.count(&text)? / REPEATS })
}

fn total(callgrind: &str) -> Option<u64> {
    callgrind.lines().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

impl Case {
    fn judge(&self, count: Count) -> Option<String> {
        let Self { name, ceiling } = self;
        if count.all == 0 {
            return Some(format!(
                "{name}: no instructions counted: did `measured_{name}` run, and is it inline(never)?"
            ));
        }
        if count.all > ceiling.all {
            return Some(format!("{name}: {} instructions, above the ceiling of {}", count.all, ceiling.all));
        }
        let Count { locked, .. } = count;
        let above =
            || format!("{name}: {locked} locked instructions, above the ceiling of {}", ceiling.locked);
        (locked > ceiling.locked).then(above)
    }

    /// Checks that the specification has a line with the name and the ceilings. The ceiling of locked instructions is
    /// stated unless it is zero.
    fn look_up(&self, specification: &str) -> Option<String> {
        let Self { name, ceiling: Count { all, locked } } = self;
        let quoted = format!("`{name}`");
        let has = |line: &str, number: u64| {
            line.split(|c: char| !c.is_ascii_digit()).any(|word| word.parse() == Ok(number))
        };
        let states =
            |line: &str| line.contains(&quoted) && has(line, *all) && (*locked == 0 || has(line, *locked));
        let missing = || {
            format!("{SPECIFICATION} has no line with {quoted} and its ceilings, {all} and {locked} locked")
        };
        (!specification.lines().any(states)).then(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        Case { name: "ddp_decode".into(), ceiling: Count { all: 120, locked: 4 } }
    }

    #[test]
    fn a_list_is_names_and_ceilings() {
        assert_eq!(list("ddp_decode 120 4\n").unwrap(), [case()]);
        assert_eq!(list("ddp_decode 120\n").unwrap()[0].ceiling, Count { all: 120, locked: 0 });
        for wrong in ["ddp_decode", "ddp_decode many", "ddp_decode 120 few", "ddp_decode 120 4 5"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_total_is_read_from_what_callgrind_writes() {
        assert_eq!(total("events: Ir\nsummary: 7\n\nfn=(1) main\n3 7\n\ntotals: 8000\n"), Some(8000));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn a_count_above_a_ceiling_or_of_nothing_is_wrong() {
        let judge = |all, locked| case().judge(Count { all, locked });
        assert_eq!(judge(120, 4), None);
        assert!(judge(121, 4).unwrap().contains("121 instructions, above the ceiling of 120"));
        assert!(judge(120, 5).unwrap().contains("5 locked instructions, above the ceiling of 4"));
        assert!(judge(0, 0).unwrap().contains("no instructions counted"));
    }

    #[test]
    fn a_count_above_the_ceiling_is_repeated_and_the_lowest_counts() {
        let lowest_of = |counts: &[u64]| {
            let mut left = counts.iter();
            let mut next = || Ok(Count { all: *left.next().unwrap(), locked: 4 });
            let lowest = lowest(&case(), &mut next).unwrap().all;
            (lowest, left.len())
        };
        assert_eq!(lowest_of(&[120, 100]), (120, 1));
        assert_eq!(lowest_of(&[130, 120, 100]), (120, 1));
        assert_eq!(lowest_of(&[130, 122, 125, 100]), (122, 1));
    }

    #[test]
    fn the_specification_must_state_the_ceilings() {
        assert_eq!(case().look_up("| `ddp_decode` | one header | 120 | 4 |"), None);
        assert!(case().look_up("| `ddp_decode` | one header | 1200 | 4 |").is_some());
        assert!(case().look_up("| `ddp_decode` | one header | 120 | 3 |").is_some());
        assert!(case().look_up("| `ddp_decode_all` | one header | 120 | 4 |").is_some());
    }
}
