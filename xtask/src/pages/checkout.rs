//! A checkout in a fresh system, with the Rust and the crates of this machine, so that nothing is downloaded.

use super::fresh::Fresh;
use super::place::ORDINARY;
use crate::shell::{Result, at, command, output, run};
use std::fs;
use std::path::Path;

/// Packages that a build needs: a C compiler.
pub(super) const PACKAGES: [&str; 2] = ["gcc", "libc6-dev"];
/// Where Rust is, as seen inside.
const RUST: &str = "/opt/rust";

/// Copies what git has of this checkout to the folder of a user. Returns the commands that a user who has installed
/// Rust and checked out the sources has run before.
pub(super) fn give(fresh: &Fresh, roots: &Path, home: &str) -> Result<String> {
    let rust = fresh.folder(RUST)?;
    let sysroot = output(&mut command("rustc", &["--print", "sysroot"]))?;
    for folder in ["bin", "lib"] {
        let from = Path::new(sysroot.trim()).join(folder);
        run(command("cp", &["-a", "--reflink=auto", "--"]).arg(from).arg(&rust))?;
    }
    let checkout = fresh.folder(&format!("{home}/ironwarp"))?;
    let files = output(&mut command("git", &["ls-files"]))?;
    run(command("cp", &["--parents", "--no-dereference", "--"]).args(files.lines()).arg(&checkout))?;
    let vendor = roots.join("vendor");
    output(command("cargo", &["vendor", "--locked", "--quiet"]).arg(&vendor))?;
    let crates = fresh.folder(&format!("{home}/crates"))?;
    run(command("cp", &["-a", "--reflink=auto", "--no-target-directory", "--"]).arg(&vendor).arg(&crates))?;
    let settings = fresh.folder(&format!("{home}/.cargo"))?.join("config.toml");
    let text = format!(
        "[source.crates-io]\nreplace-with = \"here\"\n\n[source.here]\ndirectory = \"{home}/crates\"\n\n[net]\noffline = true\n"
    );
    fs::write(&settings, text).map_err(at(&settings))?;
    let owner = format!("{ORDINARY}:{ORDINARY}");
    run(command("chown", &["--recursive", &owner, "--"]).arg(fresh.folder(home)?))?;
    Ok(format!("export PATH={RUST}/bin:$PATH\ncd ironwarp\n"))
}
