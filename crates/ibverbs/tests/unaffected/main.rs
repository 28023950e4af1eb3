//! Tests that the drop-in does not affect a program that uses no RDMA: its process is the same, and its start is not much
//! slower. `cargo xtask startup` measures all of `ironwarp run`.

#[path = "../common/mod.rs"]
mod common;

use common::{compile, libraries, scratch, with_dropin};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of starts with and without the drop-in, which alternate.
const RUNS: usize = 301;

/// Maximum ratio of the processor time of a start with the drop-in to that of one without. It is about 3 in debug builds,
/// most of it for the page faults of relocations.
const MAX_RATIO: f64 = 4.0;

/// Compiles the program, and returns its path.
fn compile_probe(test: &str) -> PathBuf {
    let path = scratch(test).join("probe");
    compile(&path, &["-O2", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/unaffected/probe.c")]);
    path
}

/// The command that starts the program, with the drop-in as `ironwarp run` sets it up, or without.
fn command_for(probe: &Path, dropin: bool) -> Command {
    let mut command = if dropin { with_dropin(probe) } else { Command::new(probe) };
    if !dropin {
        command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    }
    command.stdin(Stdio::null());
    command
}

#[test]
fn the_process_is_unchanged() {
    let probe = compile_probe("unaffected");
    let [without, with] = [false, true].map(|dropin| {
        let output = command_for(&probe, dropin).output().expect("runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    });
    assert!(without.contains("\ndescriptors ") && without.contains("\nThreads:\t1\n"), "{without}");
    assert_eq!(with, without);
}

/// Measured in processor time. It depends less on how busy the machine is than the wall-clock time, which is printed as well,
/// and the ratio depends on it even less: both kinds of starts take longer then.
#[test]
fn startup_is_as_fast() {
    let probe = compile_probe("unaffected-fast");
    let starts = probe.with_file_name("starts");
    compile(&starts, &["-O2", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/unaffected/starts.c")]);
    let (folder, runs) = (libraries(), RUNS.to_string());
    let file = folder.join("libibverbs.so.1");
    let output = Command::new(starts).arg(probe).arg(folder).arg(file).arg(runs).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let times: Vec<f64> = text.split_whitespace().map(|time| time.parse().expect("a number")).collect();
    let [wall, wall_with, cpu, cpu_with] = times[..] else { panic!("{text}") };
    println!("medians of {RUNS} starts, without and with the drop-in, in µs:");
    println!("time of day {wall} {wall_with}, processor time {cpu} {cpu_with}");
    assert!(cpu_with < cpu * MAX_RATIO, "{cpu_with} µs instead of {cpu}");
}

/// Returns the number of system calls of a command: one number for each program that its process executes.
fn system_calls(command: &mut Command) -> Vec<usize> {
    let file = scratch("unaffected-calls").join("calls");
    let mut traced = Command::new("strace");
    traced.arg("-o").arg(&file).arg(command.get_program()).args(command.get_args());
    traced.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    let output = traced.output().expect("strace is wanted here: run `cargo xtask setup`");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file).expect("a trace");
    let becomes = |line: &&str| line.starts_with("execve(") && line.ends_with("= 0");
    let mut calls = Vec::new();
    for line in text.lines() {
        if becomes(&line) {
            calls.push(0);
        }
        *calls.last_mut().expect("the first call starts the program") += 1;
    }
    calls
}

/// The startup time depends on the system calls. On Debian 12, the command makes 89, and the program 79 more than
/// alone. Half of these are the loader's search in directories for other processors, which later glibcs do not make.
#[test]
fn startup_makes_few_system_calls() {
    let probe = compile_probe("unaffected-few");
    let [alone] = system_calls(Command::new(&probe).arg("start"))[..] else { panic!("one process") };
    let mut under = Command::new(libraries().join("../../bin/ironwarp"));
    let [command, program] = system_calls(under.args(["run", "--"]).arg(&probe).arg("start"))[..] else {
        panic!("the command becomes the program")
    };
    println!("{alone} system calls alone; {command} of the command, then {program}");
    assert!(command <= 100, "{command} system calls of the command");
    assert!(program <= alone + 90, "{program} system calls of the program, {alone} alone");
}
