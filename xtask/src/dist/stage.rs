//! The files of the release, as they will be unpacked.
//!
//! ```text
//!  bin/ironwarp                    the command
//!  bin/ironwarp-net                the programs of the I/O unit
//!  lib/ironwarp/…                  the drop-in, which the command finds from there
//!  share/…                         manual pages, and completions for shells
//!  README.md LICENSE-… docs/ …     to read, with the examples that they refer to
//! ```

use super::release::{PROGRAMS, Release};
use crate::shell::{Result, at, command, output, run};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::Path;

/// What git has of these.
const TEXTS: [&str; 6] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs", "examples"];

pub(super) fn stage(workspace: &Workspace, release: &Release) -> Result {
    let tree = release.room(&Release::name())?;
    let built = workspace.target.join("dropin");
    let copy = || command("cp", &["--recursive", "--no-dereference", "--preserve=mode"]);
    run(copy().arg(built.join("bin")).arg(built.join("lib")).arg(&tree))?;
    let texts = output(command("git", &["ls-files", "--"]).args(TEXTS))?;
    run(copy().arg("--parents").args(texts.lines()).arg(&tree))?;
    for program in PROGRAMS {
        // Keep function names, for the analysis of crashes.
        run(command("strip", &["--strip-debug"]).arg(tree.join(program)))?;
    }
    run(command("chmod", &["--", "0644"]).arg(tree.join(PROGRAMS[1])))?;
    write_pages(&tree)?;
    no_machine_paths(workspace, &tree)
}

/// Writes manual pages and completions. Their generators are in a debug build, which other jobs share.
fn write_pages(tree: &Path) -> Result {
    let share = tree.join("share");
    let cargo = ["run", "--quiet", "--locked", "--package", "ironwarp-cli", "--example", "pages", "--"];
    run(command("cargo", &cargo).arg(&share))?;
    let help = output(&mut command(&tree.join("bin/ironwarp").to_string_lossy(), &["--help"]))?;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.filter_map(|line| line.split_whitespace().next()).take_while(|name| *name != "help");
    let missing = |name: &&str| !share.join(format!("man/man1/ironwarp-{name}.1")).exists();
    match names.clone().find(missing) {
        None if names.count() > 0 => Ok(()),
        None => Err(format!("`ironwarp --help` lists no commands:\n{help}")),
        Some(name) => Err(format!("`ironwarp {name}` has no manual page")),
    }
}

/// Checks that no file contains a path of this machine, which would make the build irreproducible.
fn no_machine_paths(workspace: &Workspace, tree: &Path) -> Result {
    let mut places = vec![workspace.root.display().to_string(), workspace.target.display().to_string()];
    places.extend(env::var("HOME").ok().filter(|home| home.len() > 1).map(|home| format!("{home}/")));
    for program in PROGRAMS {
        let path = tree.join(program);
        let bytes = fs::read(&path).map_err(at(&path))?;
        let has = |place: &&String| bytes.windows(place.len()).any(|it| it == place.as_bytes());
        if let Some(place) = places.iter().find(has) {
            return Err(format!("{program} contains `{place}`, a path of this machine"));
        }
    }
    Ok(())
}
