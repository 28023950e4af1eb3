//! Checks of the files by tools that are too large to install for every run of CI: in a Debian system of their
//! own, which is kept.

use super::release::Release;
use crate::roots;
use crate::shell::{Result, at, command, run};
use crate::workspace::Workspace;
use std::fs;

const DEBIAN: &str = "trixie";
const PACKAGES: [&str; 5] = ["fish", "lintian", "man-db", "skopeo", "zsh"];

/// Runs in the system, in a folder with the files.
const SCRIPT: &str = r#"set -eu
cd /dist
echo "lintian: the package"
lintian --allow-root --fail-on error,warning,info --display-info *.deb
echo "skopeo: the image"
skopeo inspect --override-os linux "oci-archive:$(echo *-oci.tar)"
rm -rf /tmp/copied
skopeo --insecure-policy copy --quiet "oci-archive:$(echo *-oci.tar)" dir:/tmp/copied
dpkg-deb --extract *.deb package
cd package/usr/share
for page in man/man1/*; do
    LC_ALL=C.UTF-8 man --warnings --encoding=UTF-8 --local-file "$page" 2>warnings >/dev/null
    if [ -s warnings ]; then echo "$page:"; cat warnings; exit 1; fi
done
bash -n bash-completion/completions/ironwarp
zsh -n zsh/vendor-completions/_ironwarp
fish --no-execute fish/vendor_completions.d/ironwarp.fish"#;

pub(super) fn check(workspace: &Workspace, release: &Release) -> Result {
    roots::need_root("it enters a root directory with the tools that check the files")?;
    let root = roots::make(&workspace.target.join("roots"), DEBIAN, "lint", &PACKAGES)?;
    let folder = root.join("dist");
    roots::remove(&folder)?;
    fs::create_dir(&folder).map_err(at(&folder))?;
    for name in release.artefacts()? {
        fs::copy(release.dist.join(&name), folder.join(&name)).map_err(at(&folder))?;
    }
    let script =
        r#"mount -t proc proc "$ROOT/proc" && exec chroot "$ROOT" env -i "$PATHS" HOME=/root sh -c "$1""#;
    let mut inside = command("unshare", &["--mount", "--", "sh", "-c", script, "sh", SCRIPT]);
    inside.env("ROOT", &root).env("PATHS", "PATH=/usr/sbin:/usr/bin:/sbin:/bin");
    run(&mut inside)
}
