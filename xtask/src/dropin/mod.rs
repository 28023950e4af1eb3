//! `dropin`: links the shared library that replaces libibverbs and librdmacm, and builds the command beside it.
//! `symbols`: compares the library with the originals. `releases`: checks what we know of Debian's releases.
//!
//! ```text
//! target/dropin/bin/ironwarp                    the command
//!               bin/ironwarp-net                the programs of the I/O unit
//!               lib/ironwarp/libibverbs.so.1    the file
//!                            libironwarp-watch.so   what `ironwarp run --check` also preloads
//!                            libibverbs.so, librdmacm.so.1, librdmacm.so    the same, by other names
//!                            tree             files that programs look for in /sys and /dev
//! ```
//!
//! rustc makes a static library, and the C compiler turns it into a shared one: rustc's own shared libraries
//! have no version nodes, without which `dlvsym` finds nothing and the loader prints warnings.

mod architecture;
mod pinned;
mod releases;
mod symbols;
mod tree;
mod unhide;

pub(crate) use architecture::Architecture;
pub(crate) use pinned::RELEASES;
pub(crate) use releases::{USAGE as RELEASES_USAGE, run as releases};
pub(crate) use symbols::{check_glibc, oldest_glibc};

use crate::shell::{Result, at, run as run_command};
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const USAGE: &str = "dropin [--release]";

const CRATE: &str = "crates/ibverbs";
const FILE: &str = "libibverbs.so.1";
/// The library that tells the checker when programs free memory.
const WATCH: &str = "libironwarp-watch.so";
const OTHER_NAMES: [&str; 3] = ["libibverbs.so", "librdmacm.so.1", "librdmacm.so"];
const COMMAND: &str = "ironwarp";
/// The programs, with their packages.
const PROGRAMS: [(&str, &str); 2] = [(COMMAND, "ironwarp-cli"), ("ironwarp-net", "ironwarp-net")];

/// The files that are built.
pub(crate) struct Dropin {
    pub(crate) file: PathBuf,
    pub(crate) command: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let release = match options {
        [] => false,
        [option] if option == "--release" => true,
        _ => return Err(format!("usage: cargo xtask {USAGE}")),
    };
    let Dropin { file, command } = build(workspace, release)?;
    println!("{}\n{}", file.display(), command.display());
    let bin = command.parent().unwrap_or(&command);
    eprintln!("to use them in this shell: export PATH={}:$PATH", bin.display());
    Ok(())
}

/// Checks that the drop-in exports every symbol of the original libraries with the same version, and nothing
/// else, and that the files run with an old glibc.
pub(crate) fn compare(workspace: &Workspace, _: &[String]) -> Result {
    let dropin = build(workspace, false)?;
    let originals = symbols::REAL.iter().map(|library| symbols::find(library)).collect::<Result<Vec<_>>>()?;
    check(&dropin, &originals)
}

/// Compares with the original libraries, and with those of all releases.
pub(crate) fn check(Dropin { file, command }: &Dropin, originals: &[PathBuf]) -> Result {
    symbols::compare(file, &Path::new(CRATE).join("compat.S"), originals)?;
    check_glibc(file)?;
    check_glibc(&file.with_file_name(WATCH))?;
    PROGRAMS.iter().try_for_each(|(name, _)| check_glibc(&command.with_file_name(name)))
}

/// Builds the files for this machine.
pub(crate) fn build(workspace: &Workspace, release: bool) -> Result<Dropin> {
    build_for(Architecture::HOST, workspace, release)
}

/// Builds the files in [`Architecture::dropin`].
pub(crate) fn build_for(architecture: Architecture, workspace: &Workspace, release: bool) -> Result<Dropin> {
    let dropin = architecture.dropin(workspace);
    if Workspace::is_built() {
        return Ok(Dropin {
            file: dropin.join("lib/ironwarp").join(FILE),
            command: dropin.join("bin").join(COMMAND),
        });
    }
    let builder = Builder::new(architecture, workspace, release)?;
    let objects = folder(dropin.join("objects"))?;

    // Without the rlib, which tests link: link-time optimisation would need other forms of all dependencies
    // than the command does, and they would be built twice.
    let archive: &[&str] =
        if release { &["rustc", "--lib", "--crate-type", "staticlib"] } else { &["build"] };
    builder.cargo(archive, "ironwarp-ibverbs", &[])?;
    let libraries = folder(dropin.join("lib/ironwarp"))?;
    let file = libraries.join(FILE);
    let glibc = builder.older_glibc(&objects.join("library.o"), &[])?;
    replace(&file, |new| builder.link(&glibc, new))?;
    for name in OTHER_NAMES {
        replace(&libraries.join(name), |new| symlink(FILE, new).map_err(at(new)))?;
    }
    replace(&libraries.join(WATCH), |new| builder.link_watch(&glibc, new))?;
    tree::lay_out(&Path::new(CRATE).join("tree.txt"), &libraries.join("tree"))?;

    let glibc = builder.older_glibc(&objects.join("executable.o"), &["-DEXECUTABLE"])?;
    let linked = std::iter::once(glibc.display().to_string()).chain(OLDER_LIBRARIES.map(str::to_owned));
    let linked: Vec<String> = linked.map(|argument| format!("-Clink-arg={argument}")).collect();
    let programs = folder(dropin.join("bin"))?;
    for (name, package) in PROGRAMS {
        builder.cargo(&["rustc", "--bin", name], package, &linked)?;
        let copy = |new: &Path| fs::copy(builder.built.join(name), new).map(drop).map_err(at(new));
        replace(&programs.join(name), copy)?;
    }
    Ok(Dropin { file, command: programs.join(COMMAND) })
}

/// How cargo builds, and where.
struct Builder {
    architecture: Architecture,
    /// The folder of the built files.
    built: PathBuf,
    /// The folder and flags of a release, which other builds do not share: the files contain no path of this
    /// machine.
    release: Option<(PathBuf, String)>,
}

impl Builder {
    fn new(architecture: Architecture, workspace: &Workspace, release: bool) -> Result<Self> {
        if !release {
            let built = architecture.in_target(&workspace.target).join("debug");
            return Ok(Self { architecture, built, release: None });
        }
        let home = env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
        let home = home.map_err(|_| "where is cargo's directory? Neither CARGO_HOME nor HOME is set")?;
        let given = env::var("RUSTFLAGS").unwrap_or_default();
        let remaps = [
            format!("--remap-path-prefix={home}=cargo"),
            format!("--remap-path-prefix={}=ironwarp", workspace.root.display()),
        ];
        // In this form, paths may contain spaces.
        let flags: Vec<&str> = given.split_whitespace().chain(remaps.iter().map(String::as_str)).collect();
        let target = workspace.target.join("dist");
        let built = architecture.in_target(&target).join("release");
        Ok(Self { architecture, built, release: Some((target, flags.join("\x1f"))) })
    }

    /// Builds or links a package. `rustc` are further arguments for rustc.
    fn cargo(&self, subcommand: &[&str], package: &str, rustc: &[String]) -> Result {
        let mut cargo = self.architecture.cargo(subcommand);
        cargo.args(["--package", package]);
        if let Some((target, flags)) = &self.release {
            cargo.arg("--release").env("CARGO_TARGET_DIR", target).env("CARGO_ENCODED_RUSTFLAGS", flags);
        }
        if !rustc.is_empty() {
            cargo.arg("--").args(rustc);
        }
        run_command(&mut cargo)
    }

    /// Objects and options that let a file run with a glibc older than ours.
    fn older_glibc(&self, object: &Path, options: &[&str]) -> Result<PathBuf> {
        let arguments =
            ["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c", "xtask/src/dropin/glibc.c", "-o"];
        run_command(self.architecture.compiler().args(arguments).arg(object).args(options))?;
        Ok(object.to_owned())
    }

    /// Compiles the library that watches memory.
    fn link_watch(&self, glibc: &Path, file: &Path) -> Result {
        let mut compiler = self.architecture.compiler();
        compiler
            .args(["-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-shared", "-o"])
            .arg(file);
        compiler.arg(Path::new(CRATE).join("watch.c")).arg(glibc).arg(format!("-Wl,-soname,{WATCH}"));
        compiler.args(["-Wl,--gc-sections", "-Wl,-z,defs,-z,relro,-z,now,-z,nodelete"]);
        run_command(compiler.args(OLDER_LIBRARIES))
    }

    /// Links the static library that cargo has built into a shared one.
    fn link(&self, glibc: &Path, file: &Path) -> Result {
        let source = Path::new(CRATE);
        let archive = self.built.join("libironwarp_ibverbs.a");
        let mut linker = self.architecture.compiler();
        linker.args(["-shared", "-o"]).arg(file).arg(source.join("compat.S")).arg(glibc);
        linker.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
        linker.arg(format!("-Wl,--version-script={}", source.join("versions.map").display()));
        linker.arg(format!("-Wl,-soname,{FILE}"));
        // Drop code that is neither exported nor used; bind calls between our functions to ours, even if others
        // define the same names; resolve all symbols at load time; and never unload the file, because its threads
        // run in it.
        linker.args(["-Wl,--gc-sections", "-Wl,-Bsymbolic", "-Wl,-z,defs,-z,relro,-z,now,-z,nodelete"]);
        linker.args(["-Wl,--as-needed", "-lgcc_s", "-lm", "-lc"]).args(OLDER_LIBRARIES);
        run_command(&mut linker)?;
        unhide::unhide(file)
    }
}

/// Libraries that contain the functions for threads and for loading before glibc 2.34. Later versions keep
/// them as empty libraries.
const OLDER_LIBRARIES: [&str; 3] = ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"];

fn folder(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).map_err(at(&path))?;
    Ok(path)
}

/// Writes a file under another name first, so that a program that uses the old one keeps it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> Result) -> Result {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&new)(error)),
        _ => make(&new)?,
    }
    fs::rename(&new, path).map_err(at(path))
}
