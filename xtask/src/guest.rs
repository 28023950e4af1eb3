//! `guest`: builds the siw guest: Debian's kernel with its software iWARP, under QEMU.
//!
//! The scripts in `guest` do the work, and skip what is built already. Tests boot what they find in
//! `target/siw-guest`, with `guest/boot`.

use crate::shell::{Result, command, output, run as run_command};
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "guest [--self-test] [VARIANT...]";

const PLAIN: &str = "plain";

/// A script for `guest/boot`: siw against itself, with each program in each role once. A line of the server
/// says when to connect.
const SELF_TEST: &str = r#"
steps="connect advert write=65536@0 send=8 read=65536@0 send=8 receive=8 written=65536 receive=8"
session() {
  peer server 10.0.2.15 7174 $1 $steps disconnected | {
    while read -r line; do
      echo "server $line"
      if [ "$line" = "PEER ok listen" ]; then peer client 10.0.2.15 7174 $2 $steps disconnect & fi
    done
    wait
  }
}
session "" as-ironwarp
session as-ironwarp ""
"#;
/// Two sessions, with two ends each.
const SELF_TEST_PASSES: usize = 4;

#[derive(Debug, PartialEq)]
struct Options<'a> {
    self_test: bool,
    variants: Vec<&'a str>,
}

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let options = Options::parse(options)?;
    build(workspace, &options.variants)?;
    if options.self_test {
        let guests = folder(workspace);
        options.variants.iter().try_for_each(|variant| self_test(&guests, variant))?;
    }
    Ok(())
}

/// Builds variants of the guest, unless they are built already.
pub(crate) fn build(workspace: &Workspace, variants: &[&str]) -> Result {
    run_command(command("guest/build", &[]).arg(folder(workspace)).args(variants))
}

/// The folder of the built variants, each under its name.
pub(crate) fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("siw-guest")
}

impl<'a> Options<'a> {
    /// Does not check the names of variants: `guest/build` does.
    fn parse(arguments: &'a [String]) -> Result<Self> {
        let (options, mut variants): (Vec<&str>, Vec<&str>) =
            arguments.iter().map(String::as_str).partition(|argument| argument.starts_with('-'));
        if let Some(option) = options.iter().find(|&&option| option != "--self-test") {
            return Err(format!("`{option}` is not an option of this job; usage: cargo xtask {USAGE}"));
        }
        if variants.is_empty() {
            variants.push(PLAIN);
        }
        Ok(Self { self_test: !options.is_empty(), variants })
    }
}

fn self_test(guests: &Path, variant: &str) -> Result {
    let console = output(command("guest/boot", &[]).arg(guests.join(variant)).arg(SELF_TEST))?;
    let passes = console.lines().filter(|line| line.ends_with("PEER PASS")).count();
    if passes != SELF_TEST_PASSES {
        return Err(format!("{passes} of {SELF_TEST_PASSES} ends passed the self-test:\n{console}"));
    }
    println!("siw guest: {variant} passed the self-test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Options, PLAIN};

    fn parse(line: &str) -> Result<(bool, Vec<String>), String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Options { self_test, variants } = Options::parse(&arguments)?;
        Ok((self_test, variants.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn the_plain_guest_is_meant_unless_variants_are_named() {
        assert_eq!(parse(""), Ok((false, vec![PLAIN.to_owned()])));
        assert_eq!(parse("--self-test"), Ok((true, vec![PLAIN.to_owned()])));
        assert_eq!(parse("crc p2p-v1"), Ok((false, vec!["crc".to_owned(), "p2p-v1".to_owned()])));
    }

    #[test]
    fn options_must_be_right() {
        assert!(parse("--crc").unwrap_err().contains("--crc"));
    }
}
