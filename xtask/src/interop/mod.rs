//! `interop`: tests Ironwarp on this host against Linux siw in a guest. First the project's own program
//! (crates/ironwarp/tests/siw), then the guest as a virtual machine at an I/O unit (crates/net/tests/lan), then
//! stock programs of Debian at both ends, against each variant of siw, in both directions.
//!
//! ```text
//!  catalogue.rs   which programs, with which arguments, and what they must print
//!  guest.rs       a running guest with a shell
//!  testbed.rs     runs one program, with one end in the guest
//!  relay.rs       a relay, for programs whose client connects too early
//!  cannot.rs      what siw cannot do
//!  many.rs        1,000 connections in each direction
//!  captures.rs    checks the recorded packets
//!  table.rs       the results, as a table and as JSON
//! ```

mod cannot;
mod captures;
mod catalogue;
mod guest;
mod many;
mod relay;
mod table;
mod testbed;

use crate::arguments::Arguments;
use crate::dropin;
use crate::inside::{Home, run_inside};
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use catalogue::{CI_VARIANTS, Direction, PROGRAMS, VARIANTS};
use guest::Guest;
use std::fs;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use table::Table;
use testbed::Testbed;

pub(crate) const USAGE: &str = "interop [--full | --variant NAME] [--only TEXT] [--jobs N] [--json FILE]";

/// The first port of the first variant, and the number of ports of each.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 1000;

struct Options {
    json: Option<String>,
    only: Option<String>,
    variant: Option<String>,
    /// Runs all variants, and many connections.
    full: bool,
    /// Number of variants that run at once, each in a guest of its own.
    jobs: usize,
    /// Set if the job runs in a network of its own.
    inside: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    if !options.inside {
        crate::guest::build(workspace, &options.variants().collect::<Vec<_>>())?;
        if options.only.is_none() {
            own_program(workspace, &options)?;
            if options.variants().any(|variant| variant == VARIANTS[0]) {
                io_unit(workspace)?;
            }
        }
        dropin::build(workspace, true)?;
        captures::build()?;
        return run_inside("interop", &["--net"], arguments);
    }
    run_command(&mut command("ip", &["link", "set", "lo", "up"]))?;
    let home = Home::new(workspace, "interop")?;
    let table = Table::default();
    let wanted: Vec<_> = options.variants().enumerate().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((index, variant)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let ports = FIRST_PORT + u16::try_from(*index).unwrap_or_default() * PORTS;
            let run = Run { variant, ports, workspace, home: &home, options: &options, table: &table };
            if let Err(why) = run.all() {
                table.note("the guest itself", (variant, "both", "both".into()), || Err(why));
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked"))
    })?;
    table.print();
    if let Some(file) = &options.json {
        table.write_json(file)?;
    }
    table.verdict()
}

/// Tests that boot a guest are ignored by default.
fn own_program(workspace: &Workspace, options: &Options) -> Result {
    let arguments =
        ["nextest", "run", "--locked", "--package", "ironwarp", "--test", "siw", "--run-ignored", "only"];
    let tests = options.variants().map(|variant| format!("test(={})", catalogue::own_test(variant)));
    let tests = tests.collect::<Vec<_>>().join(" + ");
    let mut nextest = command("cargo", &arguments);
    nextest.args(["--filterset", &tests]).env("IRONWARP_GUESTS", crate::guest::folder(workspace));
    run_command(&mut nextest)
}

/// Tests of the I/O unit that boot a guest, one after the other: each has the time limits of an idle machine.
fn io_unit(workspace: &Workspace) -> Result {
    let arguments = ["nextest", "run", "--locked", "--package", "ironwarp-net", "--test", "lan"];
    let mut nextest = command("cargo", &arguments);
    nextest.args(["--run-ignored", "only", "--test-threads", "1"]);
    run_command(nextest.env("IRONWARP_GUESTS", crate::guest::folder(workspace)))
}

impl Options {
    /// The requested variants, or those of CI.
    fn variants(&self) -> impl Iterator<Item = &'static str> {
        VARIANTS.into_iter().enumerate().filter_map(|(index, variant)| {
            let in_ci = index < CI_VARIANTS || self.full;
            self.variant.as_ref().map_or(in_ci, |wanted| wanted == variant).then_some(variant)
        })
    }
}

/// One variant.
struct Run<'r> {
    variant: &'static str,
    /// The first of its ports.
    ports: u16,
    workspace: &'r Workspace,
    home: &'r Home,
    options: &'r Options,
    table: &'r Table,
}

impl Run<'_> {
    /// Runs everything against a variant, in one boot, and then checks its packets.
    fn all(&self) -> Result {
        let Self { variant, ports, workspace, home, table, .. } = *self;
        let folder = home.room(variant)?;
        let kept = workspace.target.join("interop");
        fs::create_dir_all(&kept).map_err(at(&kept))?;
        let capture = kept.join(format!("{variant}.pcap"));
        let start = Instant::now();
        let guest = crate::guest::folder(workspace).join(variant);
        let guest = Guest::boot(&guest, ports, &folder.join("console.log"), &capture)?;
        println!("  {variant:6} booted in {:.1} s", start.elapsed().as_secs_f64());
        let mut testbed = Testbed::new(home, guest, folder.clone());
        self.programs(&mut testbed);
        testbed.guest.power_off()?;
        let _ = fs::remove_dir_all(&folder);
        table.note("capture", (variant, "both", "both".into()), || {
            captures::check(workspace, &capture).map(|counted| println!("  {variant:6} {counted}"))
        });
        Ok(())
    }

    fn programs(&self, testbed: &mut Testbed) {
        let Self { variant, table, .. } = *self;
        let is_wanted = |name: &str| is_wanted(self.options.only.as_ref(), name);
        for program in PROGRAMS.iter().filter(|program| is_wanted(program.name)) {
            for persona in program.personas {
                for direction in [Direction::Out, Direction::In] {
                    let place = (variant, *persona, direction.to_string());
                    table.note(program.name, place, || testbed.run(program, persona, direction));
                }
            }
        }
        if variant == "v1" && is_wanted(cannot::NAME) {
            let place = (variant, "none", "siw to siw".into());
            table.note(cannot::NAME, place, || cannot::read_over_revision_1(testbed));
        }
        let asked = self.options.full || self.options.only.is_some();
        if variant == VARIANTS[0] && asked && is_wanted(many::NAME) {
            for direction in [Direction::Out, Direction::In] {
                let place = (variant, many::PERSONA, direction.to_string());
                table.note(many::NAME, place, || many::connections(testbed, direction));
            }
        }
    }
}

fn is_wanted(wanted: Option<&String>, text: &str) -> bool {
    wanted.is_none_or(|wanted| text.contains(wanted.as_str()))
}

fn parse(arguments: &[String]) -> Result<Options> {
    let jobs = thread::available_parallelism().map_or(1, NonZero::get);
    let mut options = Options { json: None, only: None, variant: None, full: false, jobs, inside: false };
    let mut arguments = Arguments::new(arguments, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--inside" => options.inside = true,
            "--full" => options.full = true,
            "--json" => options.json = Some(arguments.value()?.into()),
            "--only" => options.only = Some(arguments.value()?.into()),
            "--variant" => {
                let name = arguments.value()?;
                if !VARIANTS.contains(&name) {
                    return Err(format!("unknown variant `{name}`, expected one of {}", VARIANTS.join(", ")));
                }
                options.variant = Some(name.into());
            }
            "--jobs" => options.jobs = arguments.number()?,
            _ => return Err(arguments.unknown()),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::{is_wanted, parse};

    #[test]
    fn options_must_be_right() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--only rping --variant v1 --jobs 1 --json out.json")).unwrap();
        assert_eq!((options.only.as_deref(), options.variant.as_deref()), (Some("rping"), Some("v1")));
        assert_eq!((options.jobs, options.json.as_deref(), options.inside), (1, Some("out.json"), false));
        for wrong in ["--only", "--jobs many", "--variant v9", "rping"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ci_runs_some_variants_and_nightly_all() {
        let variants = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            parse(&words).unwrap().variants().collect::<Vec<_>>()
        };
        assert_eq!(variants(""), ["plain", "crc"]);
        assert_eq!(variants("--full"), ["plain", "crc", "p2p", "v1"]);
        assert_eq!(variants("--variant v1"), ["v1"]);
    }

    #[test]
    fn everything_is_wanted_unless_something_is_named() {
        assert!(is_wanted(None, "rping -S 64"));
        assert!(is_wanted(Some(&"rping".to_owned()), "rping -S 64"));
        assert!(!is_wanted(Some(&"ucmatose".to_owned()), "rping -S 64"));
    }
}
