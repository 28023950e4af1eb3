//! Runs programs with `ironwarp run` and a stub of the drop-in library. `refused.rs` tests programs that are rejected.

mod common;

use common::{Place, command, stderr, stdout};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// `ironwarp run OPTIONS -- PROGRAM`.
fn run(ironwarp: &Path, options: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = command(ironwarp);
    command.arg("run").args(options).arg("--").arg(program);
    command
}

/// Returns the lines of `show` that begin with a word, without the word.
fn shown<'a>(text: &'a str, what: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(what)).collect()
}

#[test]
fn a_program_finds_the_library_under_every_name() {
    let place = Place::new("run-finds");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let alone = stdout(&command(&show).output().expect("runs"));
    assert_eq!(shown(&alone, "library "), ["not here"], "{alone}");
    let output = run(&ironwarp, &[], &show).args(["one", "--two"]).output().expect("runs");
    let text = stdout(&output);
    assert_eq!(stderr(&output), "");
    assert_eq!(shown(&text, "library "), ["here"], "{text}");
    assert_eq!(shown(&text, "librdmacm "), ["here"], "{text}");
    assert_eq!(shown(&text, "argument "), [show.to_str().expect("text"), "one", "--two"]);
    let lib = place.path("lib/ironwarp");
    let variables = shown(&text, "variable LD_");
    let expected =
        [format!("PRELOAD={}/libibverbs.so.1", lib.display()), format!("LIBRARY_PATH={}", lib.display())];
    assert_eq!(variables, expected);
    assert_eq!(shown(&text, "variable IRONWARP_"), [""; 0]);
}

/// Variables that are set stay set, with ours first, and others do not change.
#[test]
fn the_environment_is_kept() {
    let place = Place::new("run-environment");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let set = [("LD_PRELOAD", "libm.so.6"), ("LD_LIBRARY_PATH", "/nowhere"), ("OTHER", "a=b")];
    let alone = stdout(&command(&show).envs(set).output().expect("runs"));
    let under = stdout(&run(&ironwarp, &[], &show).envs(set).output().expect("runs"));
    let lib = place.path("lib/ironwarp").display().to_string();
    let ours = |line: &str| {
        line.replace(&format!("PRELOAD={lib}/libibverbs.so.1:"), "PRELOAD=")
            .replace(&format!("PATH={lib}:"), "PATH=")
    };
    let under: Vec<_> = shown(&under, "variable ").into_iter().map(ours).collect();
    assert_eq!(under, shown(&alone, "variable "));
    // Programs that it starts may start it again: nothing is duplicated.
    let mut nested = command(&ironwarp);
    nested.args(["run", "--"]).arg(&ironwarp).args(["run", "--"]).arg(&show);
    let nested = stdout(&nested.output().expect("runs"));
    assert_eq!(shown(&nested, "variable LD_LIBRARY_PATH="), [&*lib]);
}

#[test]
fn it_becomes_the_program() {
    let place = Place::new("run-becomes");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let child =
        run(&ironwarp, &[], &show).env("SHOW_EXIT", "77").stdout(Stdio::piped()).spawn().expect("starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("ends");
    assert_eq!(shown(&stdout(&output), "pid "), [pid.to_string()]);
    assert_eq!(output.status.code(), Some(77));
    let output = run(&ironwarp, &[], &show).env("SHOW_KILL", "1").output().expect("runs");
    assert_eq!(output.status.signal(), Some(6), "aborts as without `ironwarp run`");
}

/// Returns the signal dispositions of a process, without the number of queued signals (SigQ), which counts all processes of the user.
fn signals(text: &str) -> Vec<&str> {
    shown(text, "Sig").into_iter().filter(|line| !line.starts_with("Q:")).collect()
}

/// systemd ignores SIGPIPE for its services, and some programs block signals in their children.
#[test]
fn signal_dispositions_are_preserved() {
    let place = Place::new("run-signals");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let start = place.compile("start.c", "start", &[]);
    let alone = stdout(&command(&show).output().expect("runs"));
    let under = stdout(&run(&ironwarp, &[], &show).output().expect("runs"));
    assert_eq!(signals(&under), signals(&alone));
    let alone = stdout(&command(&start).arg(&show).output().expect("runs"));
    let under = stdout(&command(&start).arg(&ironwarp).arg("run").arg(&show).output().expect("runs"));
    assert_eq!(signals(&under), signals(&alone));
    // 12 is SIGUSR2 and 13 SIGPIPE; the lowest bit is 1.
    assert!(shown(&under, "SigBlk:").concat().ends_with("800"), "{under}");
    assert!(shown(&under, "SigIgn:").concat().ends_with("1000"), "{under}");
}

#[test]
fn options_become_settings() {
    let place = Place::new("run-options");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let options = ["--persona", "iwarp", "--faults", "cut@0.25", "--seed", "7", "--log", "debug"];
    let output = run(&ironwarp, &options, &show).env("IRONWARP_LANES", "1").output().expect("runs");
    let text = stdout(&output);
    let mut settings = shown(&text, "variable IRONWARP_");
    settings.sort_unstable();
    assert_eq!(settings, ["FAULTS=cut@0.25", "LANES=1", "LOG=debug", "PERSONA=iwarp", "SEED=7"]);
    assert_eq!(stderr(&output), "ironwarp: injecting faults cut@0.25 with seed 7; reproduce with --seed 7\n");
    let output = run(&ironwarp, &["--faults", "cut@0.25"], &show).output().expect("runs");
    let text = stdout(&output);
    let [seed] = shown(&text, "variable IRONWARP_SEED=")[..] else { panic!("{text}") };
    assert!(stderr(&output).contains(&format!(" with seed {seed}; ")), "{output:?}");
}

#[test]
fn devices_become_a_setting_or_an_error() {
    let place = Place::new("run-devices");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let output = run(&ironwarp, &["--devices", "8  rate=1g"], &show).output().expect("runs");
    let text = stdout(&output);
    assert_eq!(shown(&text, "variable IRONWARP_"), ["DEVICES=8 rate=1g"], "{output:?}");
    let output = run(&ironwarp, &["--devices", "17"], &show).output().expect("runs");
    let said = stderr(&output);
    assert!(said.contains("too many devices: at most 16, with at most 4 ports each"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_capture_is_truncated_and_its_path_made_absolute() {
    let place = Place::new("run-pcap");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let file = place.write("trace.pcap", "from an earlier run");
    let output =
        run(&ironwarp, &["--pcap", "trace.pcap"], &show).current_dir(place.path("")).output().expect("runs");
    let text = stdout(&output);
    assert_eq!(shown(&text, "variable IRONWARP_PCAP="), [file.to_str().expect("text")]);
    assert_eq!(std::fs::read(&file).expect("a file"), b"");
    let output = run(&ironwarp, &["--pcap", "/no/such/place"], &show).output().expect("runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).starts_with("ironwarp: failed to create the capture /no/such/place: "));
}

/// An unknown setting is reported once and ignored; an invalid value is an error.
#[test]
fn invalid_settings_in_the_environment() {
    let place = Place::new("run-mistakes");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let output = run(&ironwarp, &[], &show).env("IRONWARP_PERSONNA", "iwarp").output().expect("runs");
    let said =
        "ironwarp: unknown setting `personna` (IRONWARP_PERSONNA), the closest is `persona`; ignored\n";
    assert_eq!(stderr(&output), said);
    assert!(output.status.success());
    assert_eq!(shown(&stdout(&output), "variable IRONWARP_"), [""; 0]);
    let output = run(&ironwarp, &[], &show).env("IRONWARP_PERSONA", "ib").output().expect("runs");
    let said = "ironwarp: invalid value `ib` for the setting `persona`: expected `roce` or `iwarp`\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(125), said.to_owned()));
}

/// Mistakes that only this host shows are found before the program starts, too.
#[test]
fn devices_and_plans_that_do_not_fit_this_host() {
    let place = Place::new("run-misfits");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    for (options, said) in [
        (["--port-plan", "ironwarp9 down@1s"], "no device `ironwarp9`: the devices are ironwarp0"),
        (
            ["--devices", "1; 1 name=ironwarp0"],
            "two devices have the name `ironwarp0`: set name= for one of them",
        ),
    ] {
        let output = run(&ironwarp, &options, &show).output().expect("runs");
        assert_eq!((output.status.code(), stderr(&output)), (Some(125), format!("ironwarp: {said}\n")));
    }
    let output = run(&ironwarp, &["--devices", "nosuchif0"], &show).output().expect("runs");
    let said =
        "ironwarp: device ironwarp0 has no address: `ironwarp devices --devices 'nosuchif0'` says why\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), said.to_owned()));
}

#[test]
fn the_library_is_found_near_the_executable() {
    let place = Place::new("run-places");
    let show = place.compile("show.c", "show", &["-ldl"]);
    for (bin, lib) in [
        ("a/bin", "a/lib/ironwarp"),
        ("b", "b"),
        ("c/target/debug", "c/target/dropin/lib/ironwarp"),
        ("d e/bin", "d e/lib/ironwarp"),
    ] {
        let ironwarp = place.install(bin, lib);
        let output = run(&ironwarp, &[], &show).output().expect("runs");
        let text = stdout(&output);
        assert_eq!(shown(&text, "library "), ["here"], "{bin}: {output:?}");
        assert_eq!(shown(&text, "librdmacm "), ["here"], "{bin}");
    }
    let link = place.path("elsewhere");
    std::os::unix::fs::symlink(place.path("a/bin/ironwarp"), &link).expect("a link");
    let output = run(&link, &[], &show).output().expect("runs");
    assert_eq!(shown(&stdout(&output), "library "), ["here"], "through a link: {output:?}");
}

#[test]
fn a_library_that_is_missing_or_in_an_unusable_directory() {
    let place = Place::new("run-no-library");
    let show = place.compile("show.c", "show", &["-ldl"]);
    let ironwarp = place.installed();
    std::fs::remove_file(place.path("lib/ironwarp/libibverbs.so.1")).expect("was there");
    let output = run(&ironwarp, &[], &show).output().expect("runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125));
    let looked = place.path("lib/ironwarp");
    assert!(
        said.starts_with(&format!(
            "ironwarp: libibverbs.so.1 of Ironwarp not found in {}, ",
            looked.display()
        ))
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let ironwarp = place.install("a:b/bin", "a:b/lib/ironwarp");
    let output = run(&ironwarp, &[], &show).output().expect("runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("does not support `:` in directory names: move "), "{output:?}");
}
