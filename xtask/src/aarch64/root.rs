//! Debian's loader, libraries and RDMA programs for arm64, unpacked but not installed: QEMU looks for files there
//! before it looks on this machine.

use crate::apt::Apt;
use crate::dropin::RELEASES;
use crate::roots::remove;
use crate::shell::{Result, at};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};

/// Packages to unpack, together with those that they depend on.
const PACKAGES: [&str; 3] = ["ibverbs-providers", "ibverbs-utils", "rdmacm-utils"];

/// Returns the folder, which is made once and kept.
pub(super) fn make(workspace: &Workspace) -> Result<PathBuf> {
    let roots = workspace.target.join("roots");
    let root = roots.join("arm64");
    if root.exists() {
        return Ok(root);
    }
    println!("unpacking Debian's packages for arm64 in {}", root.display());
    let partial = roots.join("arm64.partial");
    remove(&partial)?;
    let apt = Apt::new(roots.join("arm64.apt"), RELEASES[0], Some("arm64"))?;
    apt.unpack_with_dependencies(&PACKAGES, &partial)?;
    fs::rename(&partial, &root).map_err(at(&root))?;
    Ok(root)
}

/// The libraries that the drop-in replaces.
pub(super) fn originals(root: &Path) -> [PathBuf; 2] {
    ["libibverbs.so.1", "librdmacm.so.1"].map(|library| root.join("usr/lib/aarch64-linux-gnu").join(library))
}
