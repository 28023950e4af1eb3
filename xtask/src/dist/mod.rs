//! `dist`: builds everything that a release consists of, in target/dist.
//!
//! ```text
//!  release.rs   names, version and time of the release
//!  stage.rs     the files: command, drop-in, manual pages, completions, documentation and examples
//!  tarball.rs   ironwarp-VERSION-x86_64-linux.tar.gz, which runs where it is unpacked
//!  deb.rs       ironwarp_VERSION-1_amd64.deb
//!  image.rs     ironwarp-VERSION-amd64-linux-oci.tar, to copy the files from into other images
//!  sbom.rs      ironwarp-VERSION.cdx.json, the crates that are linked into the files
//!  lint.rs      checks by tools of Debian
//!  twice.rs     compares with a build elsewhere
//!               SHA256SUMS
//! ```
//!
//! The build is reproducible: the files contain no path of this machine, and no time but that of the last
//! commit.

mod deb;
mod image;
mod lint;
mod release;
mod sbom;
mod stage;
mod tarball;
mod twice;

pub(crate) use image::unpack as unpack_image;
pub(crate) use release::Release;

use crate::dropin;
use crate::shell::{Result, at, command, output};
use crate::workspace::Workspace;
use std::fs;

pub(crate) const USAGE: &str = "dist [--twice]";
/// What `nightly` runs: builds again elsewhere, and lets tools of Debian check the files.
pub(crate) const NIGHTLY: &[&str] = &["--twice"];

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    match options {
        [] => build(workspace).map(drop),
        [option] if option == NIGHTLY[0] => {
            twice::need_clean()?;
            let release = build(workspace)?;
            lint::check(workspace, &release)?;
            twice::compare(workspace, &release)
        }
        _ => Err(format!("usage: cargo xtask {USAGE}")),
    }
}

fn build(workspace: &Workspace) -> Result<Release> {
    dropin::build(workspace, true)?;
    let release = Release::new(workspace)?;
    release.remove_old()?;
    stage::stage(workspace, &release)?;
    tarball::pack(&release)?;
    deb::pack(&release)?;
    image::pack(&release)?;
    sbom::write(&release)?;
    tarball::try_out(&release)?;
    write_sums(&release)?;
    Ok(release)
}

/// Writes the file with the checksums of all others, for `sha256sum --check`.
fn write_sums(release: &Release) -> Result {
    let names = release.artefacts()?;
    let sums = output(command("sha256sum", &["--"]).args(&names).current_dir(&release.dist))?;
    let file = release.dist.join(release::SUMS);
    fs::write(&file, &sums).map_err(at(&file))?;
    for line in sums.lines() {
        let name = line.rsplit(' ').next().unwrap_or_default();
        let len = fs::metadata(release.dist.join(name)).map_err(at(&file))?.len();
        println!("{line}, {} KiB", len / 1024);
    }
    Ok(())
}
