//! `ironwarp run`: puts the adapter under an unmodified program. `program.rs` looks whether that can be, `library.rs` finds
//! what goes in front of its libraries, `versions.rs` looks whether that has what the program asks for, `settings.rs` makes
//! variables of the options, `exec.rs` becomes the program.

mod elf;
mod exec;
mod library;
mod program;
mod script;
mod settings;
mod versions;

pub(crate) use exec::ignore_sigpipe;

use crate::say::{self, Failure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ironwarp_rnic::config::{DeviceName, LogLevel, Persona};
use ironwarp_rnic::fault::FaultPlan;
use library::Library;
use program::{CANNOT_EXECUTE, Refusal};
use settings::Settings;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The exit code for what this command cannot do itself, as `env` and `timeout` have it.
const FAILED: u8 = 125;

const PRELOAD: &str = "LD_PRELOAD";
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

const USAGE: &str = "ironwarp run [OPTIONS] -- PROGRAM [ARGUMENTS]...";

const MORE: &str = "\
Examples:
  ironwarp run -- ibv_devinfo                             the adapter, as programs see it
  ironwarp run -- ib_write_bw -R 10.0.0.2                 any RDMA program, unchanged
  ironwarp run --faults cut@0.001 --seed 7 -- ./my-test   connections that break; a seed makes its choices again
  ironwarp run --pcap trace.pcap -- mpirun -n 2 ./app     what is on the wire, for Wireshark, without root

Faults: split=CHANCE, delay=TIME@CHANCE, stall=TIME@CHANCE, cut@CHANCE, no-receive@CHANCE, no-register@CHANCE, with commas
between them; CHANCE is for each call that moves bytes, TIME is as in 50us or 1ms..5ms.

Every setting is an environment variable, too, such as IRONWARP_CRC=off.

The exit code is the program's; 127 if it is not there, 126 if it cannot be run, 125 if this command failed.";

/// Run a program on the adapter: any that uses libibverbs or librdmacm, as it is
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true, override_usage = USAGE)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, num_args = 1.., trailing_var_arg = true)]
    program: Vec<OsString>,
}

impl Arguments {
    /// Without options.
    pub(crate) fn plain(program: Vec<OsString>) -> Self {
        Self { options: Options::default(), program }
    }
}

#[derive(Debug, Default, Args)]
struct Options {
    /// The name of the device that the program sees [default: ironwarp0]
    #[arg(long)]
    name: Option<DeviceName>,

    /// What the program takes the adapter for [default: roce]
    #[arg(long, value_parser = words(Persona::ALL, Persona::as_str))]
    persona: Option<Persona>,

    /// Faults to meet, such as `split=0.2,cut@0.001`
    #[arg(long, value_name = "SPEC")]
    faults: Option<FaultPlan>,

    /// What the faults' random choices follow from; another each time if not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Write the adapter's traffic to this file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// How much the adapter says [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = words(LogLevel::ALL, LogLevel::as_str))]
    log: Option<LogLevel>,
}

impl Options {
    /// Whether a setting is set by an option.
    fn sets(&self, setting: &str) -> bool {
        match setting {
            "name" => self.name.is_some(),
            "persona" => self.persona.is_some(),
            "faults" => self.faults.is_some(),
            "seed" => self.seed.is_some(),
            "pcap" => self.pcap.is_some(),
            "log" => self.log.is_some(),
            _ => false,
        }
    }
}

/// One of a few words.
fn words<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let find = move |text: String| all.iter().copied().find(|it| word(*it) == text);
    PossibleValuesParser::new(all.iter().map(|it| word(*it)))
        .try_map(move |text| find(text).ok_or("none of these"))
}

/// Why programs would not find the library.
pub(crate) fn library_is_missing() -> Option<String> {
    match std::env::current_exe() {
        Ok(executable) => Library::find(&executable).err(),
        Err(error) => Some(format!("nobody knows where this command is: {error}")),
    }
}

/// Becomes the program; returns if that cannot be.
pub(crate) fn run(arguments: &Arguments) -> i32 {
    let Err(error) = start(arguments);
    say::error(&*error);
    let code = error.downcast_ref::<Refusal>().map_or(FAILED, |refusal| refusal.code);
    code.into()
}

/// No value: if it goes well, this process is another.
enum Never {}

fn start(arguments: &Arguments) -> Result<Never, Failure> {
    let Arguments { options, program } = arguments;
    let found = program::find(&program[0], std::env::var_os("PATH").as_deref())?;
    let library = Library::find(&std::env::current_exe()?)?;
    versions::check(&found.loaded, &library.file(), std::env::var_os(SEARCH_PATH).as_deref())
        .map_err(|missing| Refusal { code: CANNOT_EXECUTE, text: missing.of(&program[0], &found.loaded) })?;
    let settings = Settings::new(options, std::env::vars_os())?;
    settings.said.iter().for_each(say::notice);
    let mut variables = Variables(std::env::vars_os().collect());
    variables.0.retain(|(name, _)| !settings.removed.contains(name));
    settings.set.into_iter().for_each(|(name, value)| variables.set(&name, value));
    variables.set(PRELOAD, library.preload(variables.get(PRELOAD)));
    variables.set(SEARCH_PATH, library.search_path(variables.get(SEARCH_PATH)));
    let error = exec::exec(&found.path, program, &variables.0);
    let text = format!("`{}` cannot be run: {error}", program[0].to_string_lossy());
    Err(Refusal { code: CANNOT_EXECUTE, text }.into())
}

/// The environment, in its order.
struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn set(&mut self, name: &str, value: OsString) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1 = value,
            None => self.0.push((name.into(), value)),
        }
    }
}
