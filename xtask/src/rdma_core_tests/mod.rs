//! `rdma-core-tests`: rdma-core's own test suite, in Python, on the drop-in. docs/rdma-core-tests.md says what came of it.
//!
//! Debian installs the tests as documentation. They are unpacked to `target/rdma-core-tests` and run there, unmodified, by
//! `run.py`, which leaves out those for devices of one vendor and prints a line for each of the others.

use crate::dropin;
use crate::shell::{Result, at, command, output};
use crate::workspace::Workspace;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(crate) const USAGE: &str = "rdma-core-tests [--persona roce|iwarp|both] [--only TEXT] [--runs N]";

const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's: its pyverbs is built for it.
const PYTHON: &str = "/usr/bin/python3";
const DEVICE: &str = "ironwarp0";
/// The first is the default.
const PERSONAS: [&str; 2] = ["roce", "iwarp"];

/// Failures that must be: an iWARP adapter reports an established connection where the test waits for a response.
const MUST_FAIL: &[(&str, &str)] =
    &[("iwarp", "test_rdmacm.CMTestCase.test_rdmacm_async_traffic_external_qp")];

struct Options {
    personas: Vec<String>,
    only: Option<String>,
    runs: usize,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// By name: failures that are none of the allowed ones.
    wrong: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    let library = dropin::build(workspace, false)?.file;
    let folder = unpack(&workspace.target.join("rdma-core-tests"))?;
    let _pages = HugePages::reserve();
    let mut wrong = Vec::new();
    for persona in &options.personas {
        for _ in 0..options.runs {
            println!("-- persona {persona}");
            let counts = play(&library, &folder, persona, options.only.as_deref())?;
            println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
            wrong.extend(counts.wrong);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("these failed: {}", wrong.join(", "))) }
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options { personas: vec![PERSONAS[0].into()], only: None, runs: 1 };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value: {USAGE}"));
        match word.as_str() {
            "--persona" => {
                let persona = value()?;
                options.personas = match persona.as_str() {
                    "both" => PERSONAS.map(str::to_owned).to_vec(),
                    _ => vec![persona],
                };
            }
            "--only" => options.only = Some(value()?),
            "--runs" => {
                let runs = value()?;
                options.runs = runs.parse().map_err(|_| format!("--runs {runs}: a number is wanted"))?;
            }
            other => return Err(format!("unknown option {other}: {USAGE}")),
        }
    }
    Ok(options)
}

/// The tests, as Debian has them, without the compression that it gives to long documents.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let installed = Path::new(INSTALLED);
    if !installed.is_dir() {
        return Err(format!("{INSTALLED} is missing: run `cargo xtask setup`"));
    }
    let tests = folder.join("tests");
    if tests.exists() {
        fs::remove_dir_all(&tests).map_err(at(&tests))?;
    }
    fs::create_dir_all(&tests).map_err(at(&tests))?;
    for entry in fs::read_dir(installed).map_err(at(installed))? {
        let from = entry.map_err(at(installed))?.path();
        let Some(name) = from.file_name().and_then(|name| name.to_str()) else { continue };
        let to = tests.join(name.trim_end_matches(".gz"));
        if name.ends_with(".gz") {
            let text = output(command("gzip", &["--decompress", "--stdout"]).arg(&from))?;
            fs::write(&to, text).map_err(at(&to))?;
        } else if name.ends_with(".py") {
            fs::copy(&from, &to).map_err(at(&from))?;
        }
    }
    let runner = folder.join("run.py");
    fs::write(&runner, include_str!("run.py")).map_err(at(&runner))?;
    Ok(folder.to_owned())
}

/// One run of all tests that `only` names. They must all come to an end.
fn play(library: &Path, folder: &Path, persona: &str, only: Option<&str>) -> Result<Counts> {
    let mut python = command(PYTHON, &[]);
    python.arg(folder.join("run.py")).arg(folder).args([DEVICE, "127.0.0.1"]).args(only);
    python.env("LD_PRELOAD", library).env("LD_LIBRARY_PATH", library.parent().unwrap_or(folder));
    python.env("IRONWARP_PERSONA", persona).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = python.stdout(Stdio::piped()).spawn().map_err(at(Path::new(PYTHON)))?;
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let (mut counts, mut chosen) = (Counts::default(), None);
    for line in lines {
        let line = line.map_err(at(folder))?;
        println!("{line}");
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("chosen"), Some(number)) => chosen = number.parse().ok(),
            (Some("ok"), _) => counts.passed += 1,
            (Some("skip"), _) => counts.skipped += 1,
            (Some("FAIL"), Some(name)) => {
                counts.failed += 1;
                if !MUST_FAIL.contains(&(persona, name)) {
                    counts.wrong.push(format!("{name} ({persona})"));
                }
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(at(Path::new(PYTHON)))?;
    let ended = counts.passed + counts.skipped + counts.failed;
    if !status.success() || chosen != Some(ended) {
        return Err(format!("{PYTHON} ended with {status} after {ended} tests, of {chosen:?}"));
    }
    Ok(counts)
}

/// Huge pages for the tests that need some, while this lives. An ordinary user cannot have them set up: these tests are then
/// skipped.
struct HugePages {
    before: Option<String>,
}

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";
    const ENOUGH: u32 = 16;

    fn reserve() -> Self {
        let before = fs::read_to_string(Self::FILE).ok();
        let few = before
            .as_ref()
            .and_then(|number| number.trim().parse().ok())
            .is_none_or(|n: u32| n < Self::ENOUGH);
        let changed = few && fs::write(Self::FILE, Self::ENOUGH.to_string()).is_ok();
        Self { before: before.filter(|_| changed) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = fs::write(Self::FILE, before)
        {
            eprintln!("{}: {error}", Self::FILE);
        }
    }
}
