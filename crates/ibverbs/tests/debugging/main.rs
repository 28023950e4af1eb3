//! The ten cases of docs/debugging.md: runs the command of each, and compares what it prints with the page.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/debugging.md");
const START: &str = "\n## Ten symptoms\n";
const CASES: usize = 10;

/// The programs of the page, with their sources in the folder of tests.
const PROGRAMS: [(&str, &str); 4] = [
    ("fails", "mistakes/mistakes.c"),
    ("mistakes", "check/mistakes.c"),
    ("relies", "adversary/relies.c"),
    ("dies", "debugging/dies.c"),
];

/// A case of the page.
struct Case {
    heading: &'static str,
    command: &'static str,
    printed: Vec<&'static str>,
}

/// Returns the cases of the page, in order.
fn cases() -> Vec<Case> {
    let (_, section) = PAGE.split_once(START).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let cases = section.split("\n### ").skip(1).map(|case| {
        let (heading, text) = case.split_once('\n').unwrap();
        let block = |start: &str| text.split_once(start).unwrap().1.split_once("\n```").unwrap().0;
        Case { heading, command: block("```sh\n"), printed: block("```text output\n").lines().collect() }
    });
    cases.collect()
}

/// Compiles the programs into a folder.
fn compile(folder: &Path) {
    for (name, source) in PROGRAMS {
        let source = format!("{}/tests/{source}", env!("CARGO_MANIFEST_DIR"));
        let libraries = common::libraries();
        let options = ["-g", "-O0", "-pthread", &source, "-L", libraries.to_str().unwrap()];
        common::compile(&folder.join(name), &[&options[..], &["-lrdmacm", "-libverbs"]].concat());
    }
}

/// Replaces each word with a digit by `#`: numbers, addresses, times and places differ between runs.
fn mask(line: &str) -> String {
    let words = line.split_whitespace();
    let masked = words.map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word });
    masked.collect::<Vec<_>>().join(" ")
}

/// Runs the command of a case, and checks that it prints the lines of the page in this order, and maybe others.
fn check(number: usize) {
    let case = &cases()[number - 1];
    let folder: PathBuf = common::scratch(&format!("debugging-{number}"));
    compile(&folder);
    let bin = common::libraries().join("../../bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell.args(["100", "sh", "-c", &format!("{{ {}\n}} 2>&1", case.command)]);
    // A runtime directory of its own: other tests leave recordings, too.
    shell.current_dir(&folder).env("PATH", path).env("XDG_RUNTIME_DIR", &folder);
    let output = shell.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut lines = printed.lines().map(mask);
    for expected in &case.printed {
        let wanted = mask(expected);
        let found = lines.any(|line| line == wanted);
        assert!(found, "{}: `{expected}` is missing, or not in this order:\n{printed}", case.heading);
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Defines a test for each case.
macro_rules! tests {
    ($($name:ident = $number:literal)*) => {
        $(
            #[test]
            fn $name() {
                check($number);
            }
        )*
    };
}

tests! {
    a_request_fails_with_a_status = 1
    the_peer_receives_other_data = 2
    received_data_is_wrong_now_and_then = 3
    completions_are_lost = 4
    memory_was_freed = 5
    a_destroy_call_never_returns = 6
    messages_take_long = 7
    it_fails_on_another_adapter = 8
    it_was_killed = 9
    it_fails_when_the_network_does = 10
}

#[test]
fn the_page_has_ten_cases() {
    assert_eq!(cases().len(), CASES);
    assert!(cases().iter().all(|case| !case.printed.is_empty()));
}
