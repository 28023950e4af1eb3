//! `seeds`: runs the commands of docs/seeds.md, one for each mechanism, and compares their output. The page must
//! also mention every requirement, and the tests that it names must exist.
//!
//! The commands need neither root nor a network: the programs talk to themselves over loopback.

use super::document::{Step, Terminal, difference, steps};
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/seeds.md";
const REQUIREMENTS: &str = "docs/specification/requirements.md";
/// Time limit of a command, in seconds. The simulator builds itself.
const SECONDS: &str = "300";

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let (page, requirements) = (read(PAGE)?, read(REQUIREMENTS)?);
    let missing = unmentioned(&page, &requirements);
    if !missing.is_empty() {
        return Err(format!("{PAGE} does not mention {}", missing.join(", ")));
    }
    for (test, file) in tests(&page) {
        if !read(file)?.contains(&format!("fn {test}(")) {
            return Err(format!("{PAGE}: no test `{test}` in {file}"));
        }
    }
    // Without a package, like `cargo run` in the page: otherwise dependencies would be built again with other features.
    let programs = ["--example", "mechanisms", "--bin", "ironwarp"];
    run_command(command("cargo", &["build", "--locked", "--quiet"]).args(programs))?;
    let steps = steps(&page);
    steps.iter().try_for_each(|step| run_step(step, &workspace.root))?;
    println!("{PAGE}: {} commands, each with the output that the page shows", steps.len());
    Ok(())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(at(Path::new(path)))
}

/// The requirements that the page leaves out.
fn unmentioned<'r>(page: &str, requirements: &'r str) -> Vec<&'r str> {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mentioned: Vec<&str> = page.split(|c| !is_word(c)).collect();
    let all = requirements.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    all.map(|(name, _)| name).filter(|name| !mentioned.contains(name)).collect()
}

/// The tests that the page links to, each with its file.
fn tests(page: &str) -> Vec<(&str, &str)> {
    let links = page.split("[`").filter_map(|link| link.split_once("`](../"));
    let named = links.filter_map(|(name, rest)| Some((name, rest.split_once(')')?.0)));
    named.filter(|(name, _)| name.contains('_') && !name.contains(['.', ' '])).collect()
}

fn run_step(step: &Step, root: &Path) -> Result {
    let Step { line, terminal, commands, output, .. } = step;
    let title = format!("{PAGE}:{line}");
    let (Terminal::Here, Some(shown)) = (terminal, output) else {
        return Err(format!("{title}: a command without output: add a `text output` block"));
    };
    // Both streams, in the order that a terminal shows them.
    let script = format!("exec 2>&1\nset -e\n{commands}");
    let ran = command("timeout", &["-s", "KILL", SECONDS, "sh", "-c", &script]).current_dir(root).output();
    let ran = ran.map_err(|error| format!("timeout: {error}"))?;
    let printed = String::from_utf8_lossy(&ran.stdout);
    let why = match difference(shown, &printed) {
        _ if !ran.status.success() => format!("the command ended with {}", ran.status),
        Some(why) => why,
        None => return Ok(()),
    };
    Err(format!("{title}: {}\n{why}\nfull output:\n{printed}", commands.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(commands: &str, output: Option<&str>) -> Step {
        let (commands, output) = (commands.to_owned(), output.map(str::to_owned));
        Step { line: 1, terminal: Terminal::Here, port: None, commands, output }
    }

    #[test]
    fn a_command_must_print_what_the_page_shows() {
        let run = |commands, output| run_step(&step(commands, output), Path::new("/"));
        assert_eq!(run("echo 7 messages; echo none lost >&2", Some("8 messages\nnone lost\n")), Ok(()));
        assert!(run("echo 7 messages", Some("7 events\n")).unwrap_err().contains("but the output is"));
        assert!(run("echo 7 messages; false", Some("7 messages\n")).unwrap_err().contains("ended with"));
        assert!(run("echo 7 messages", None).is_err());
    }

    #[test]
    fn every_requirement_is_mentioned() {
        let requirements = "# Requirements\n- **N1** One.\n  - Code: x\n- **N10** Ten.\n- **P2** Two.\n";
        assert_eq!(unmentioned("| N10, P2 |", requirements), ["N1"]);
        assert_eq!(unmentioned("N1 N10 P2", requirements), [""; 0]);
    }

    #[test]
    fn tests_are_named_after_functions() {
        let page = "| a | [`b.rs`](../c/b.rs) | [`it_works`](../c/t.rs) | [`run it`](#it) |\n[`more_words`](../d.rs)\n";
        assert_eq!(tests(page), [("it_works", "c/t.rs"), ("more_words", "d.rs")]);
    }
}
