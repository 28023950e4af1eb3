//! `rdma-core-tests`: runs rdma-core's own test suite, in Python, on the drop-in. The results are in
//! docs/rdma-core-tests.md.
//!
//! Debian installs the tests as documentation. They are copied to a folder of their own and run there,
//! unmodified, as an unprivileged user, by `run.py`, which leaves out tests for devices of one vendor and
//! prints a line for each of the others. `cargo xtask root RELEASE rdma-core-tests` runs the tests of another
//! release.
//!
//! `skipped.txt` lists each test that may be skipped, with the reason. Skipping any other test is a failure.

use crate::arguments::Arguments;
use crate::dropin;
use crate::inside::{Home, is_root};
use crate::shell::{Result, at, command, output};
use crate::workspace::Workspace;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

pub(crate) const USAGE: &str =
    "rdma-core-tests [--persona roce|iwarp|both] [--device INDEX|default] [--only TEXT] [--runs N]";

const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's Python, which its pyverbs is built for.
const PYTHON: &str = "/usr/bin/python3";
/// Number of logical devices, if one of several is tested.
const DEVICES: usize = 8;
/// The device of several that is tested by default, besides the default device.
const ONE_OF_SEVERAL: usize = 3;
/// The first one is the default.
const PERSONAS: [&str; 2] = ["roce", "iwarp"];

/// Expected failures: an iWARP adapter reports an established connection where the test waits for a response.
const MUST_FAIL: &[(&str, &str)] =
    &[("iwarp", "test_rdmacm.CMTestCase.test_rdmacm_async_traffic_external_qp")];

/// Lines of `always` or `sometimes`, a test, and why it is skipped. Tests with `always` must be skipped in
/// every release that has them.
const SKIPPED: &str = include_str!("skipped.txt");

struct Options {
    personas: Vec<String>,
    /// The devices under test: `None` for the default device, else the index of one of several logical devices.
    devices: Vec<Option<usize>>,
    only: Option<String>,
    runs: usize,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Unexpected failures and skips.
    wrong: Vec<String>,
}

impl Counts {
    fn note(&mut self, persona: &str, what: &str, name: &str) {
        let listed = skipped(SKIPPED).find(|(_, test, _)| *test == name).map(|(when, _, _)| when);
        match (what, listed) {
            ("ok", None | Some("sometimes")) => self.passed += 1,
            ("ok", Some(_)) => {
                self.passed += 1;
                self.wrong.push(format!("{name} ({persona}) was not skipped: remove it from skipped.txt"));
            }
            ("skip", Some(_)) => self.skipped += 1,
            ("skip", None) => {
                self.skipped += 1;
                self.wrong.push(format!("{name} ({persona}) was skipped, but is not in skipped.txt"));
            }
            ("FAIL", _) => {
                self.failed += 1;
                if !MUST_FAIL.contains(&(persona, name)) {
                    self.wrong.push(format!("{name} ({persona}) failed"));
                }
            }
            _ => {}
        }
    }
}

/// The lines of `skipped.txt`: when, which test, why.
fn skipped(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (when, rest) = line.split_once(' ')?;
        let (test, why) = rest.trim_start().split_once(' ')?;
        Some((when, test, why.trim_start()))
    })
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    let library = dropin::build(workspace, false)?.file;
    let home = Home::new(workspace, "rdma-core-tests")?;
    let folder = home.room("suite")?;
    unpack(&folder)?;
    let library = home.file("lib/ironwarp").join(library.file_name().unwrap_or_default());
    let _pages = HugePages::reserve();
    let mut wrong = Vec::new();
    for (persona, device) in
        options.personas.iter().flat_map(|one| options.devices.iter().map(move |d| (one, *d)))
    {
        for _ in 0..options.runs {
            let device_name =
                device.map_or_else(|| "default".to_owned(), |index| format!("{index} of {DEVICES}"));
            println!("-- persona {persona}, device {device_name}");
            let counts = play(&home, &library, &folder, persona, device, options.only.as_deref())?;
            println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
            wrong.extend(counts.wrong);
        }
    }
    let _ = fs::remove_dir_all(&folder);
    if wrong.is_empty() { Ok(()) } else { Err(format!("unexpected results:\n{}", wrong.join("\n"))) }
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        personas: vec![PERSONAS[0].into()],
        devices: vec![None, Some(ONE_OF_SEVERAL)],
        only: None,
        runs: 1,
    };
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--persona" => {
                options.personas = match arguments.value()? {
                    "both" => PERSONAS.map(str::to_owned).to_vec(),
                    persona => vec![persona.into()],
                };
            }
            "--device" => {
                options.devices = match arguments.value()? {
                    "default" => vec![None],
                    index => match index.parse() {
                        Ok(index) if index < DEVICES => vec![Some(index)],
                        _ => return Err(format!("no device {index}: there are {DEVICES}, from 0")),
                    },
                };
            }
            "--only" => options.only = Some(arguments.value()?.into()),
            "--runs" => options.runs = arguments.number()?,
            _ => return Err(arguments.unknown()),
        }
    }
    Ok(options)
}

/// Copies Debian's tests, and uncompresses those that Debian compressed as long documents.
fn unpack(folder: &Path) -> Result {
    let installed = Path::new(INSTALLED);
    if !installed.is_dir() {
        return Err(format!("{INSTALLED} is missing: run `cargo xtask setup`"));
    }
    let tests = folder.join("tests");
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
    fs::write(&runner, include_str!("run.py")).map_err(at(&runner))
}

/// Runs all selected tests once. All of them must end.
fn play(
    home: &Home,
    library: &Path,
    folder: &Path,
    persona: &str,
    device: Option<usize>,
    only: Option<&str>,
) -> Result<Counts> {
    let user = if is_root() { home.as_user() } else { vec!["env"] };
    let mut python = command(user[0], &user[1..]);
    python.arg(PYTHON).current_dir(folder).env("HOME", folder);
    if device.is_some() {
        python.env("IRONWARP_DEVICES", DEVICES.to_string());
    }
    let (device, address) = match device {
        // The address of the device with this index: docs/devices.md.
        Some(index) => (format!("ironwarp{index}"), format!("127.0.2.{}", index + 1)),
        None => ("ironwarp0".to_owned(), "127.0.0.1".to_owned()),
    };
    python.arg(folder.join("run.py")).arg(folder).args([device, address]).args(only);
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
            (Some(what), Some(name)) => counts.note(persona, what, name),
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

/// Reserves huge pages while it exists. Unprivileged users cannot reserve them; the tests that need them are
/// then skipped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_has_a_reason_and_no_test_is_there_twice() {
        let lines: Vec<_> = SKIPPED.lines().filter(|line| !line.starts_with('#')).collect();
        let parsed: Vec<_> = skipped(SKIPPED).collect();
        assert_eq!(parsed.len(), lines.len());
        assert!(
            parsed.iter().all(|(when, _, why)| ["always", "sometimes"].contains(when) && !why.is_empty())
        );
        let tests: std::collections::BTreeSet<_> = parsed.iter().map(|(_, test, _)| test).collect();
        assert_eq!(tests.len(), parsed.len());
    }

    #[test]
    fn a_skip_that_is_not_listed_is_wrong_and_so_is_one_that_ran() {
        let mut counts = Counts::default();
        counts.note("roce", "skip", "test_new.New.test_new");
        counts.note("roce", "ok", "test_new.New.test_other");
        counts.note("roce", "FAIL", "test_new.New.test_third");
        let (_, always, _) = skipped(SKIPPED).find(|line| line.0 == "always").unwrap_or_default();
        let (_, sometimes, _) = skipped(SKIPPED).find(|line| line.0 == "sometimes").unwrap_or_default();
        for what in ["skip", "ok"] {
            counts.note("roce", what, always);
            counts.note("roce", what, sometimes);
        }
        assert_eq!((counts.passed, counts.skipped, counts.failed), (3, 3, 1));
        let wrong: Vec<&str> = counts.wrong.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(wrong, ["test_new.New.test_new", "test_new.New.test_third", always]);
    }
}
