//! The tarball, which runs where it is unpacked.

use super::release::{Release, VERSION};
use crate::shell::{Result, command, output, run};

pub(super) fn pack(release: &Release) -> Result {
    let gzip = "--use-compress-program=gzip --no-name --best";
    release.tar(&[gzip], &release.dist, &[&Release::name()], &release.tarball())
}

/// Unpacks the tarball elsewhere: the command must run there, find the library, and run a program with it.
pub(super) fn try_out(release: &Release) -> Result {
    let place = release.room("unpacked")?;
    run(command("tar", &["--extract", "--file"]).arg(release.tarball()).arg("--directory").arg(&place))?;
    let programs = place.join(Release::name()).join("bin");
    for name in ["ironwarp", "ironwarp-net"] {
        let version = output(&mut command(&programs.join(name).to_string_lossy(), &["--version"]))?;
        if version.trim() != format!("{name} {VERSION}") {
            return Err(format!("unexpected version `{}` of {name}", version.trim()));
        }
    }
    let ironwarp = programs.join("ironwarp");
    let ironwarp = ironwarp.to_string_lossy();
    output(&mut command(&ironwarp, &["devices"]))?;
    let loaded = output(&mut command(&ironwarp, &["run", "--", "grep", "libibverbs", "/proc/self/maps"]))?;
    match loaded.lines().all(|line| line.contains("/unpacked/")) && !loaded.is_empty() {
        true => Ok(()),
        false => Err(format!("a program under it does not load the drop-in:\n{loaded}")),
    }
}
