//! CRIU and nft of a newer Debian release, unpacked but not installed. They run with the loader and the libraries of
//! that release.

use crate::apt::Apt;
use crate::roots::remove;
use crate::shell::{Result, at, command, output};
use crate::workspace::Workspace;
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The oldest release whose CRIU works on Linux 6.18: CRIU 4.1 and older ask sockets for options that newer kernels
/// refuse, and fail.
const RELEASE: &str = "forky";

const PACKAGES: [&str; 2] = ["criu", "nftables"];
const COMMANDS: [&str; 2] = ["criu", "nft"];

/// Returns the folder of the commands, which is made once and kept.
pub(super) fn make(workspace: &Workspace) -> Result<PathBuf> {
    let roots = workspace.target.join("roots");
    let root = roots.join(format!("criu-{RELEASE}"));
    let commands = root.join("commands");
    if root.exists() {
        return Ok(commands);
    }
    println!("unpacking CRIU of Debian {RELEASE} in {}", root.display());
    let partial = roots.join("criu.partial");
    remove(&partial)?;
    let apt = Apt::new(roots.join("criu.apt"), RELEASE, None)?;
    apt.unpack_with_dependencies(&PACKAGES, &partial)?;
    write_commands(&partial, &root)?;
    fs::rename(&partial, &root).map_err(at(&root))?;
    let version =
        output(command(&commands.join("criu").to_string_lossy(), &["--version"]).env("PATH", "/bin"))?;
    println!("CRIU: {}", version.lines().next().unwrap_or_default());
    Ok(commands)
}

/// Writes scripts that run the commands with the loader and the libraries of their release, once they are in `root`.
fn write_commands(partial: &Path, root: &Path) -> Result {
    let loader = match ARCH {
        "aarch64" => "usr/lib/ld-linux-aarch64.so.1",
        _ => "usr/lib64/ld-linux-x86-64.so.2",
    };
    let folder = partial.join("commands");
    fs::create_dir(&folder).map_err(at(&folder))?;
    for name in COMMANDS {
        let file = folder.join(name);
        let root = root.display();
        let script = format!(
            "#!/bin/sh\nexec '{root}/{loader}' --library-path '{root}/usr/lib/{ARCH}-linux-gnu' '{root}/usr/sbin/{name}' \"$@\"\n"
        );
        fs::write(&file, script).map_err(at(&file))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(at(&file))?;
    }
    Ok(())
}
