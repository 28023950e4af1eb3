//! `pages`, `install-test` and `seeds`: run the commands in the documentation word for word.
//!
//! ```text
//!  document.rs   parses the commands of a page and their output
//!  ci.rs         parses the commands of the Dockerfiles and the job in docs/ci.md
//!  place.rs      runs them, and compares their output
//!  fresh.rs      fresh Debian systems
//!  checkout.rs   a checkout in one of them
//!  install.rs    the README's quick start, from a checkout, the package and the tarball
//!  seeds.rs      the commands of docs/seeds.md, which run in the checkout
//!  system.rs     Debian systems with what a page needs, made once and kept
//! ```

mod checkout;
mod ci;
mod document;
mod fresh;
mod install;
mod place;
mod seeds;
mod system;

pub(crate) use install::{NIGHTLY as INSTALL_NIGHTLY, USAGE as INSTALL_USAGE, run as install};
pub(crate) use seeds::run as seeds;

use crate::cargo::FULL;
use crate::roots::need_root;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use document::{release, steps};
use place::{Network, Place, User};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use system::System;

pub(crate) const USAGE: &str = "pages [--full | NAME…]";

/// The folder with a page for each family of programs.
const PROGRAMS: &str = "docs/programs";

/// Other pages whose commands need nothing that is not installed.
const OTHERS: [&str; 1] = ["docs/devices.md"];

/// The pages that run by default: they are short, and need nothing that is not installed.
const SHORT: [&str; 2] = ["devices", "multi-rail"];

/// A page with this text is not for unprivileged users.
const AS_ROOT: &str = "<!-- commands as root -->";

/// Runs the commands of the short pages, of all pages or of those named, on this system or on the one that they name, as an unprivileged user, with
/// the drop-in that was built last.
pub(crate) fn run(workspace: &Workspace, names: &[String]) -> Result {
    need_root("the commands get a network and a user of their own")?;
    let folder = env::temp_dir().join(format!("ironwarp-pages-{}", std::process::id()));
    let home = folder.join("ironwarp");
    fs::create_dir_all(&home).map_err(at(&home))?;
    let built = workspace.target.join("dropin");
    run_command(&mut command("cp", &["-a", &format!("{}/.", built.display()), &home.to_string_lossy()]))?;
    let ran = run_pages(workspace, &folder, &home, names);
    let _ = fs::remove_dir_all(&folder);
    ran
}

fn run_pages(workspace: &Workspace, folder: &Path, home: &Path, names: &[String]) -> Result {
    let roots = workspace.target.join("roots");
    let short = SHORT.map(str::to_owned);
    let names = match names {
        [] => &short[..],
        [full] if full == FULL => &[],
        names => names,
    };
    let mut unknown: Vec<&String> = names.iter().collect();
    let programs = fs::read_dir(PROGRAMS).map_err(at(Path::new(PROGRAMS)))?.flatten();
    let mut pages: Vec<PathBuf> = programs.map(|page| page.path()).collect();
    pages.sort();
    for path in OTHERS.into_iter().map(PathBuf::from).chain(pages) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        let steps = steps(&text);
        if steps.is_empty() || !(names.is_empty() || names.contains(&name)) {
            continue;
        }
        unknown.retain(|given| **given != name);
        let user = if text.contains(AS_ROOT) { User::Root } else { User::Ordinary };
        let title = path.display().to_string();
        if let Some(release) = release(&text) {
            System::with(&roots, release, &name, &text)?.run(home, user, &title, &steps)?;
        } else {
            let work = folder.join(&name);
            let folder = &*work.to_string_lossy();
            let path = search_path(home)?;
            if let Some(installed) = system::folder(&roots, &name, &text, &path)? {
                run_command(command("cp", &["-a", "--"]).arg(&installed).arg(&work))?;
            }
            Place { root: None, below: None, folder, user, network: Network::Own, path }
                .run(&title, &steps)?;
        }
        println!("{name}: {} blocks of commands", steps.len());
    }
    match unknown.first() {
        None => Ok(()),
        Some(name) => Err(format!("no page {name} with commands")),
    }
}

/// PATH with the drop-in's command first. rustc is found directly, not through rustup, which looks into a
/// home directory.
fn search_path(home: &Path) -> Result<String> {
    let rust = output(&mut command("rustc", &["--print", "sysroot"]))?;
    let path = env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{}/bin:{path}:/usr/sbin", home.join("bin").display(), rust.trim()))
}
