//! Tests of the messages for mistakes of programs. A small C program makes each mistake, and docs/errors.md has the
//! expected output.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mistakes");
const PAGE: &str = include_str!("../../../../docs/errors.md");

/// The mistakes of `mistakes.c`, which are also headings of the page.
const MISTAKES: [&str; 10] = [
    "wrong rkey",
    "remote access out of range",
    "no remote write right",
    "receive too short",
    "peer gone",
    "connection refused",
    "wrong GID",
    "completion queue full",
    "memory of another protection domain",
    "memory deregistered while in use",
];
/// The heading of the page for `calls.c`.
const CALLS: &str = "calls that are refused";

fn compile(scratch: &Path, source: &str) -> PathBuf {
    let program = scratch.join(source.trim_end_matches(".c"));
    common::compile(&program, &[&format!("{SOURCES}/{source}"), "-libverbs", "-lrdmacm"]);
    program
}

/// Whether a line is one of the events that are logged with an error, which differ from run to run.
fn is_event(line: &str) -> bool {
    line.contains(" µs before: ")
}

/// Runs a program with the drop-in. Returns the lines of its output, then those that Ironwarp logs, without events.
fn run(program: &Path, arguments: &[&str]) -> Vec<String> {
    run_with_events(program, arguments).into_iter().filter(|line| !is_event(line)).collect()
}

/// Runs a program with the drop-in. Returns the lines of its output, then those that Ironwarp logs.
fn run_with_events(program: &Path, arguments: &[&str]) -> Vec<String> {
    let output = common::with_dropin(program).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (printed, logged) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {printed}{logged}");
    printed.lines().chain(logged.lines()).map(str::to_owned).collect()
}

/// Returns the lines of the first block under a heading of the page.
fn documented(heading: &str) -> Vec<String> {
    let (_, section) =
        PAGE.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let (_, block) = section.split_once("```text\n").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    block.lines().map(str::to_owned).collect()
}

/// Replaces the values in a line that differ between runs, which are addresses, tags and queue pair numbers, by `#`.
/// Keeps the value of a `vendor_err`.
fn mask_values(line: &str) -> String {
    let mut out = String::new();
    let mut vendor_err = false;
    for word in line.split_inclusive([' ', '+', ',', ')', ':']) {
        let end = word.len() - usize::from(word.ends_with([' ', '+', ',', ')', ':']));
        let (bare, separator) = word.split_at(end);
        let number = bare.starts_with("0x") && !vendor_err;
        let address = bare.parse::<std::net::Ipv4Addr>().is_ok();
        let after_address = out.ends_with("#:") && bare.parse::<u16>().is_ok();
        out += if number || address || after_address { "#" } else { bare };
        out += separator;
        vendor_err = bare == "vendor_err";
    }
    out
}

/// Checks that the lines are those of the page, in any order, because both ends of a connection report its end.
fn assert_documented(heading: &str, lines: &[String]) {
    let sorted = |lines: &[String]| {
        let mut lines: Vec<_> = lines.iter().map(|line| mask_values(line)).collect();
        lines.sort();
        lines.join("\n")
    };
    assert_eq!(sorted(lines), sorted(&documented(heading)), "{heading}: docs/errors.md is out of date");
}

#[test]
fn ten_typical_mistakes_are_explained_as_the_page_says() {
    let scratch = common::scratch("mistakes");
    let program = compile(&scratch, "mistakes.c");
    for mistake in MISTAKES {
        assert_documented(mistake, &run(&program, &[mistake]));
    }
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn the_events_before_an_error_are_logged() {
    let scratch = common::scratch("events");
    let lines = run_with_events(&compile(&scratch, "mistakes.c"), &["wrong rkey"]);
    let events: Vec<_> = lines.iter().filter(|line| is_event(line)).collect();
    assert!((2..=16).contains(&events.len()), "{lines:#?}"); // up to eight at each end
    assert!(events.iter().any(|line| line.contains("Terminate")), "{events:#?}");
    assert!(events.iter().any(|line| line.contains("posted")), "{events:#?}");
    // The line above them says so.
    assert!(!events.iter().any(|line| line.contains("its status")), "{events:#?}");
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn calls_that_are_refused_say_which_argument_is_wrong() {
    let scratch = common::scratch("calls");
    let lines = run(&compile(&scratch, "calls.c"), &[]);
    assert_documented(CALLS, &lines);
    std::fs::remove_dir_all(scratch).unwrap();
}

/// `ironwarp explain` describes each `vendor_err` like the logged line, except for values that the code does not
/// contain.
#[test]
fn the_numbers_of_the_page_are_explained_in_the_same_words() {
    let command = common::libraries().join("../../bin/ironwarp");
    let mut seen = BTreeSet::new();
    for line in MISTAKES.iter().flat_map(|mistake| documented(mistake)) {
        let Some((_, code)) = line.split_once("vendor_err 0x49") else { continue };
        let code = format!("0x49{}", &code[..6]);
        if line.starts_with("ironwarp: ") && seen.insert(code.clone()) {
            let output = Command::new(&command).args(["explain", &code]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{code}");
            let what =
                text.lines().find_map(|line| line.trim().strip_prefix("what happened")).unwrap().trim();
            let (beginning, _) = what.split_once(": ").unwrap_or((what, ""));
            // The line may have the number of the object.
            let words = line.split(' ').filter(|word| word.parse::<u32>().is_err());
            let plain = words.collect::<Vec<_>>().join(" ");
            let agrees = plain.contains(beginning.trim_start_matches("a "))
                || line.contains(what.split(", answered with").next().unwrap());
            assert!(agrees, "{code}: `{what}`, but the line is\n{line}");
        }
    }
    assert!(seen.len() >= 10, "{seen:?}");
}

/// A seccomp filter fails a system call with an errno, which alone does not tell what to allow.
#[test]
fn a_system_call_that_a_sandbox_denies_is_named() {
    let scratch = common::scratch("mistakes-denied");
    let program = compile(&scratch, "denied.c");
    let cases = [
        ("eventfd2", "ibv_create_cq"),
        ("socket", "ibv_create_qp"),
        ("socketpair", "ibv_open_device"),
        ("getrandom", "ibv_open_device"),
    ];
    for (call, function) in cases {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let lines = run(&program, &[call, &errno.to_string()]);
            assert_eq!(lines[0], format!("{function}: errno {errno}"), "{call}: {lines:?}");
            let named = format!("ironwarp: {function}: system call {call} denied");
            assert!(lines[1..].iter().any(|line| line.starts_with(&named)), "{call}: {lines:?}");
        }
    }
    // A denied call that the program can do without is logged as well.
    let lines = run(&program, &["epoll_create1", &libc::EPERM.to_string()]);
    assert_eq!(lines[0], "all is there");
    assert!(lines[1].contains("system call epoll_create1 denied"), "{lines:?}");
}
