//! `ironwarp run`: runs an unmodified program on the adapter. `program.rs` checks whether that is possible,
//! `library.rs` finds the drop-in library, `versions.rs` checks that it has the versions that the program requires,
//! `settings.rs` converts options to environment variables, and `exec.rs` executes the program.

mod elf;
mod exec;
mod library;
mod options;
mod program;
mod script;
mod settings;
mod versions;

pub(crate) use exec::ignore_sigpipe;

use crate::say::{self, Failure};
use clap::{Args, ValueHint};
use library::Library;
use options::Options;
use program::{CANNOT_EXECUTE, Refusal};
use settings::Settings;
use std::ffi::{OsStr, OsString};

/// Exit code if this command itself fails, the same as that of `env` and `timeout`.
const FAILED: u8 = 125;

const PRELOAD: &str = "LD_PRELOAD";
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

const USAGE: &str = "ironwarp run [OPTIONS] -- PROGRAM [ARGUMENTS]...";

const MORE: &str = "\
Examples:
  ironwarp run -- ibv_devinfo                             show the adapter as programs see it
  ironwarp run -- ib_write_bw -R 10.0.0.2                 run any RDMA program, unmodified
  ironwarp run --devices '8 numa=0,1' -- ./my-program     show eight devices, on two NUMA nodes in turn
  ironwarp run --faults cut@0.001 --seed 7 -- ./my-test   cut connections at random, reproducibly
  ironwarp run --check -- ./my-program                    report mistakes of the program, such as buffers reused too early
  ironwarp run --pcap trace.pcap -- mpirun -n 2 ./app     capture the traffic for Wireshark, without root

Devices: groups separated by semicolons. A group is `all`, `interfaces`, a number of devices, or the ports of one device
joined by `+` (eth0+eth1), followed by options: name=, ports=, rate=, speed=, delay=, numa= and faults=.

Faults: a comma-separated list of split=CHANCE, delay=TIME@CHANCE, stall=TIME@CHANCE, cut@CHANCE, no-receive@CHANCE and
no-register@CHANCE. TIME is a duration or a range: 50us, 1ms..5ms. CHANCE applies to each call that moves bytes on a
connection; for no-receive to each message that needs a receive, and for no-register to each registration.
The seed of --faults is random by default, and printed. That of IRONWARP_FAULTS, and of `Config` in Rust programs, is 0.

All settings can be set by environment variables, such as IRONWARP_CRC=off.

With --check, a program with findings that would exit with 0 exits with 99.
The exit code is that of the program, 127 if it was not found, 126 if it cannot be run, or 125 if this command failed.";

/// Run an unmodified program that uses libibverbs or librdmacm on the adapter
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true, override_usage = USAGE)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, num_args = 1.., trailing_var_arg = true,
        value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

impl Arguments {
    /// Creates arguments without options.
    pub(crate) fn plain(program: Vec<OsString>) -> Self {
        Self { options: Options::default(), program }
    }
}

/// Returns why the drop-in library cannot be used; `None` if it can.
pub(crate) fn find_library_error() -> Option<String> {
    match std::env::current_exe() {
        Ok(executable) => Library::find(&executable).err(),
        Err(error) => Some(format!("failed to find the path of this executable: {error}")),
    }
}

/// Runs the command: this process becomes the program. Returns only on failure, with the exit code.
pub(crate) fn run(arguments: &Arguments) -> i32 {
    let Err(error) = execute(arguments);
    say::error(&*error);
    let code = error.downcast_ref::<Refusal>().map_or(FAILED, |refusal| refusal.code);
    code.into()
}

/// The result of a successful execution. It has no value, because this process has become the program.
enum Never {}

/// Checks the program, sets the environment variables, and executes the program. Returns only on failure.
fn execute(arguments: &Arguments) -> Result<Never, Failure> {
    let Arguments { options, program } = arguments;
    let found = program::find(&program[0], std::env::var_os("PATH").as_deref())?;
    let library = Library::find(&std::env::current_exe()?)?;
    versions::check(&found.loaded, &library.file(), std::env::var_os(SEARCH_PATH).as_deref()).map_err(
        |missing| Refusal { code: CANNOT_EXECUTE, text: missing.describe(&program[0], &found.loaded) },
    )?;
    let settings = Settings::new(options, std::env::vars_os())?;
    settings.notices.iter().for_each(say::notice);
    let mut variables = Variables(std::env::vars_os().collect());
    variables.0.retain(|(name, _)| !settings.removed.contains(name));
    settings.set.into_iter().for_each(|(name, value)| variables.set(&name, value));
    variables.set(PRELOAD, library.preload(variables.get(PRELOAD), settings.checks));
    variables.set(SEARCH_PATH, library.search_path(variables.get(SEARCH_PATH)));
    let error = exec::exec(&found.path, program, &variables.0);
    let text = format!("failed to execute `{}`: {error}", program[0].to_string_lossy());
    Err(Refusal { code: CANNOT_EXECUTE, text }.into())
}

/// Environment variables, in the order in which the program receives them.
struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    /// Returns the value of a variable.
    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Sets a variable, in its place or at the end.
    fn set(&mut self, name: &str, value: OsString) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1 = value,
            None => self.0.push((name.into(), value)),
        }
    }
}
