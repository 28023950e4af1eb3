//! The Debian package, made with dpkg-deb from the files of the release. It needs nothing of rdma-core and
//! replaces nothing: the drop-in is in a directory of its own, where only `ironwarp run` looks.

use super::release::{PROGRAMS, Release, VERSION, gzip};
use crate::dropin;
use crate::shell::{Result, at, command, output, run};
use std::fs;
use std::path::Path;

/// The project has no address for mail: problems are reported where the releases are.
const MAINTAINER: &str = "The Ironwarp developers <maintainers@ironwarp.invalid>";

/// Packages of Debian that contain the libraries that a program may need, with their versions.
const LIBRARIES: [(&str, &[&str]); 2] = [
    ("libc6", &["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"]),
    ("libgcc-s1", &["libgcc_s.so.1"]),
];

const DESCRIPTION: &str = "\
Description: RDMA adapter in software, inside the program that uses it
 Ironwarp runs, tests and debugs programs that use libibverbs or librdmacm
 without an RDMA card, a kernel module or root. \"ironwarp run --\" in front
 of a command is all that they need.
 .
 The adapter speaks iWARP over the TCP of the kernel, also with Linux siw. It
 injects faults by seed, captures packets, and says why a request failed.
";

/// Tags of lintian that this package has on purpose.
const OVERRIDES: &str = "\
# Function names are kept, for the analysis of crashes.
ironwarp: unstripped-binary-or-object *
# They are folders of /sys and /dev, which programs open and list.
ironwarp: package-contains-empty-directory *
# Releases are made by the project, not by Debian: no bug asked for a package.
ironwarp: initial-upload-closes-no-bugs *
# They are written in Rust, where the compiler checks what these functions would check.
ironwarp: hardening-no-fortify-functions *
# `ironwarp-net --help` and docs/io-unit.md describe it.
ironwarp: no-manual-page [usr/bin/ironwarp-net]
";

pub(super) fn pack(release: &Release) -> Result {
    let root = release.room("deb")?;
    lay_out(release, &root)?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control).map_err(at(&control))?;
    let sums = "find usr -type f -print0 | LC_ALL=C sort --zero-terminated | xargs --null md5sum";
    let sums = output(command("sh", &["-c", sums]).current_dir(&root))?;
    let file = control.join("md5sums");
    fs::write(&file, sums).map_err(at(&file))?;
    let file = control.join("control");
    fs::write(&file, control_file(&root)?).map_err(at(&file))?;
    run(command("chmod", &["--recursive", "go=rX,u=rwX", "--"]).arg(&root))?;
    // The output of xz depends on the number of threads.
    let options = ["--root-owner-group", "-Zxz", "--threads-max=1", "--build"];
    let mut dpkg = command("dpkg-deb", &options);
    output(dpkg.arg(&root).arg(release.deb()?).env("SOURCE_DATE_EPOCH", &release.time)).map(drop)
}

/// Puts the files where Debian wants them.
fn lay_out(release: &Release, root: &Path) -> Result {
    let tree = release.tree();
    let copy = |from: &str, to: &str| {
        let to = root.join("usr").join(to);
        let folder = to.parent().unwrap_or(root);
        fs::create_dir_all(folder).map_err(at(folder))?;
        run(command("cp", &["-a", "--no-target-directory", "--"]).arg(tree.join(from)).arg(&to))
    };
    copy("bin", "bin")?;
    copy("lib", "lib")?;
    copy("share", "share")?;
    let zsh = root.join("usr/share/zsh/site-functions");
    fs::rename(&zsh, zsh.with_file_name("vendor-completions")).map_err(at(&zsh))?;
    for page in fs::read_dir(root.join("usr/share/man/man1")).map_err(at(root))?.flatten() {
        gzip(&page.path())?;
    }
    let doc = "share/doc/ironwarp";
    for text in ["README.md", "docs", "examples"] {
        copy(text, &format!("{doc}/{text}"))?;
    }
    copy("CHANGELOG.md", &format!("{doc}/changelog"))?;
    let doc = root.join("usr").join(doc);
    let write = |file: &Path, text: String| fs::write(file, text).map_err(at(file));
    write(&doc.join("copyright"), copyright()?)?;
    let date = release.date("+%a, %d %b %Y %H:%M:%S +0000")?;
    let entry = format!("ironwarp ({VERSION}-1) unstable; urgency=medium");
    let change = format!("{entry}\n\n  * Release {VERSION}: see changelog.gz.\n\n -- {MAINTAINER}  {date}\n");
    write(&doc.join("changelog.Debian"), change)?;
    gzip(&doc.join("changelog"))?;
    gzip(&doc.join("changelog.Debian"))?;
    let overrides = root.join("usr/share/lintian/overrides");
    fs::create_dir_all(&overrides).map_err(at(&overrides))?;
    write(&overrides.join("ironwarp"), OVERRIDES.to_owned())
}

fn control_file(root: &Path) -> Result<String> {
    let kinds = output(command("find", &[]).arg(root.join("usr")).args(["-printf", "%y %s\n"]))?;
    let size = |line: &str| match line.strip_prefix("f ").and_then(|len| len.parse::<u64>().ok()) {
        Some(len) => len.div_ceil(1024),
        None => 1,
    };
    let size: u64 = kinds.lines().map(size).sum();
    let (architecture, depends) = (Release::architecture()?, dependencies(&root.join("usr"))?);
    Ok(format!(
        "Package: ironwarp\nVersion: {VERSION}-1\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {depends}\nSuggests: ibverbs-utils, perftest\nSection: net\n\
         Priority: optional\n{DESCRIPTION}"
    ))
}

/// The packages that the programs need. Of glibc, the oldest version that they run with is known better than
/// dpkg-shlibdeps can compute it from the glibc of this system.
fn dependencies(tree: &Path) -> Result<String> {
    for program in PROGRAMS {
        let file = tree.join(program);
        dropin::check_glibc(&file)?;
        let dynamic = output(command("readelf", &["--dynamic", "--wide"]).arg(&file))?;
        let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
        for library in needed.filter_map(|line| line.split_once('[')?.1.split_once(']')).map(|(name, _)| name)
        {
            if !LIBRARIES.iter().any(|(_, libraries)| libraries.contains(&library)) {
                return Err(format!(
                    "{program} needs {library}: add the package that contains it to LIBRARIES"
                ));
            }
        }
    }
    let [(libc, _), (gcc, _)] = LIBRARIES;
    Ok(format!("{libc} (>= {}), {gcc} (>= 3.0)", dropin::oldest_glibc()))
}

/// In the format that Debian's tools read.
fn copyright() -> Result<String> {
    let mit = fs::read_to_string("LICENSE-MIT").map_err(at(Path::new("LICENSE-MIT")))?;
    let text = |text: &str| {
        let line = |line: &str| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
        text.trim().lines().map(line).collect::<String>()
    };
    let holder = mit.lines().find_map(|line| line.strip_prefix("Copyright (c) "));
    let holder = holder.ok_or("LICENSE-MIT has no copyright line")?;
    let (_, terms) =
        mit.split_once("\n\n").and_then(|(_, rest)| rest.split_once("\n\n")).ok_or("no terms")?;
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: ironwarp\n\
         Comment: The programs contain crates of others, all under licences as permissive as these. The file\n \
         ironwarp-{VERSION}.cdx.json of the release lists them.\n\n\
         Files: *\nCopyright: {holder}\nLicense: Apache-2.0 or Expat\n\n\
         License: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n\nLicense: Expat\n{}",
        text(terms)
    ))
}
