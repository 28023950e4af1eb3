//! The help texts match docs/command.md.

mod common;

use common::{command, stderr, stdout};
use std::process::Output;

const PAGE: &str = include_str!("../../../docs/command.md");

fn ironwarp(arguments: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_ironwarp")).args(arguments).output().expect("runs")
}

/// Returns the block of text under a heading of the page.
fn on_the_page(name: &str) -> &'static str {
    let (_, section) = PAGE.split_once(&format!("\n## ironwarp {name}\n\n```text\n")).expect("a section");
    section.split_once("```\n").expect("its end").0
}

#[test]
fn the_page_shows_the_help_of_every_command() {
    let commands = ["run", "devices", "explain", "ping", "port", "detach", "show"];
    for name in commands {
        let help = ironwarp(&[name, "--help"]);
        assert!(help.status.success(), "{help:?}");
        assert_eq!(stdout(&help).trim_end(), on_the_page(name).trim_end(), "ironwarp {name} --help");
    }
    let all = stdout(&ironwarp(&["--help"]));
    let listed =
        all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, [&commands[..], &["help"]].concat());
}

/// The help lists all faults, as the error for an unknown one does.
#[test]
fn the_help_lists_all_faults() {
    let refusal = stderr(&ironwarp(&["run", "--faults", "sever@1", "--", "true"]));
    let forms = refusal.find("split=").map(|at| &refusal[at..]).expect("a list");
    for form in forms.split(", where").next().expect("the first part").split([',', ' ']) {
        if form.contains("CHANCE") {
            assert!(on_the_page("run").contains(form), "{form}");
        }
    }
}

#[test]
fn missing_arguments_print_the_usage() {
    for arguments in [&[][..], &["run"], &["explain"], &["ping"], &["port"], &["detach"]] {
        let output = ironwarp(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("Usage: ironwarp "), "{output:?}");
    }
}
