//! `ironwarp run`: programs in processes of their own, with a library that stands in for the drop-in. What cannot be served is
//! recognised beforehand: `refused.rs`.

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

/// The lines of `show` that begin with a word, without it.
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

/// What is set stays set, behind ours; what is not ours does not change.
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
    // Programs that it starts may start it: nothing is there twice.
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
    assert_eq!(output.status.signal(), Some(6), "aborts as it would alone");
}

/// What a process does with signals. How many are queued (SigQ) is a number of all processes of the user.
fn signals(text: &str) -> Vec<&str> {
    shown(text, "Sig").into_iter().filter(|line| !line.starts_with("Q:")).collect()
}

/// systemd ignores SIGPIPE for its services, and some programs block signals for what they start.
#[test]
fn signals_are_dealt_with_as_without_it() {
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
    assert_eq!(stderr(&output), "ironwarp: faults cut@0.25, seed 7: --seed 7 makes the same choices again\n");
    let output = run(&ironwarp, &["--faults", "cut@0.25"], &show).output().expect("runs");
    let text = stdout(&output);
    let [seed] = shown(&text, "variable IRONWARP_SEED=")[..] else { panic!("{text}") };
    assert!(stderr(&output).contains(&format!(", seed {seed}: ")), "{output:?}");
}

#[test]
fn a_capture_is_begun_anew_and_found_from_everywhere() {
    let place = Place::new("run-pcap");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let file = place.write("trace.pcap", "of another day");
    let output =
        run(&ironwarp, &["--pcap", "trace.pcap"], &show).current_dir(place.path("")).output().expect("runs");
    let text = stdout(&output);
    assert_eq!(shown(&text, "variable IRONWARP_PCAP="), [file.to_str().expect("text")]);
    assert_eq!(std::fs::read(&file).expect("a file"), b"");
    let output = run(&ironwarp, &["--pcap", "/no/such/place"], &show).output().expect("runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).starts_with("ironwarp: the capture cannot be written to /no/such/place: "));
}

/// A name that is no setting is told once, and does not stop anybody; a value that is none does.
#[test]
fn mistakes_in_the_environment() {
    let place = Place::new("run-mistakes");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let output = run(&ironwarp, &[], &show).env("IRONWARP_PERSONNA", "iwarp").output().expect("runs");
    let said = "ironwarp: there is no setting `personna` (IRONWARP_PERSONNA); the nearest is `persona`; it is ignored\n";
    assert_eq!(stderr(&output), said);
    assert!(output.status.success());
    assert_eq!(shown(&stdout(&output), "variable IRONWARP_"), [""; 0]);
    let output = run(&ironwarp, &[], &show).env("IRONWARP_PERSONA", "ib").output().expect("runs");
    let said = "ironwarp: `ib` is not a value for the setting `persona`: `roce` or `iwarp` is wanted\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(125), said.to_owned()));
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
fn a_library_that_is_not_there_or_cannot_be_named() {
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
            "ironwarp: libibverbs.so.1 of Ironwarp is in none of {}, ",
            looked.display()
        ))
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let ironwarp = place.install("a:b/bin", "a:b/lib/ironwarp");
    let output = run(&ironwarp, &[], &show).output().expect("runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("takes no directory with `:` in its name: move "), "{output:?}");
}
