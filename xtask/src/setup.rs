//! `setup`: installs the tools that the other jobs need, unless they are installed already.

use crate::shell::{Result, command, output, present};
use crate::workspace::Workspace;
use std::thread;

/// Commands, and the Debian packages that contain them.
const DEBIAN: &[(&str, &str)] = &[
    ("git", "git"),
    ("tshark", "tshark"),
    ("valgrind", "valgrind"),
    ("cc", "gcc"),
    ("readelf", "binutils"),
    ("strip", "binutils"),
    ("objdump", "binutils"),
    ("strace", "strace"),
    ("iperf3", "iperf3"),
    ("g++", "g++"), // libFuzzer is C++
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("unshare", "util-linux"),
    ("debootstrap", "debootstrap"),
];

/// Packages that `guest/build` makes the siw guest of. Most of them have no command to look for, so this asks
/// dpkg.
const GUEST: &[&str] = &[
    "busybox-static",
    "cpio",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "libibverbs-dev",
    "librdmacm-dev",
    "linux-headers-amd64",
    "make",
    "perftest",
    "rdmacm-utils",
    "xz-utils",
];

/// Further packages that `programs` and `rdma-core-tests` run or compile against.
const PROGRAMS: &[&str] = &[
    "fio",
    "hwloc-nox",
    "infiniband-diags",
    "libfabric-bin",
    "libiscsi-bin",
    "libopenmpi-dev",
    "libucx-dev",
    "openmpi-bin",
    "python3-pyverbs",
    "qemu-block-extra",
    "qemu-utils",
    "qperf",
    "rdma-core",
    "tgt",
    "ucx-utils",
];

/// Further packages that `examples` needs.
const EXAMPLES: &[&str] = &["ca-certificates", "curl", "pkg-config", "python3-pytest", "python3-yaml"];

/// Packages needed to run the programs in a minimal system.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    const BESIDES: [&str; 9] = [
        "gcc",
        "ibverbs-utils",
        "iproute2",
        "libc6-dev",
        "perftest",
        "procps",
        "python3",
        "qemu-system-x86",
        "rdmacm-utils",
    ];
    PROGRAMS.iter().copied().chain(BESIDES)
}

/// Commands, and the crates and versions to install, with options. Any version that is installed already is good
/// enough. mdBook is built without its web server, which the job `book` does not use.
const CARGO: &[(&str, &str)] = &[
    ("cargo-nextest", "cargo-nextest@0.9.143"),
    ("cargo-deny", "cargo-deny@0.20.2"),
    ("mdbook", "mdbook@0.5.4 --no-default-features --features search"),
];

pub(crate) fn run(_: &Workspace, _: &[String]) -> Result {
    // apt-get waits for the network and the disk, cargo for the processors.
    thread::scope(|scope| {
        let building = scope.spawn(|| missing(CARGO).into_iter().try_for_each(build));
        packages().and(building.join().map_err(|_| "a thread panicked")?)
    })
}

/// Installs the Debian packages. apt-get may remove a package from backports to install another, so this
/// tries twice.
fn packages() -> Result {
    let missing = || -> Vec<&str> {
        let others =
            GUEST.iter().chain(PROGRAMS).chain(EXAMPLES).copied().filter(|package| !installed(package));
        missing(DEBIAN).into_iter().chain(others).collect()
    };
    for _ in 0..2 {
        let packages = missing();
        if packages.is_empty() {
            return Ok(());
        }
        debian(&packages)?;
    }
    match missing()[..] {
        [] => Ok(()),
        ref left => Err(format!("apt-get did not install: {}", left.join(" "))),
    }
}

/// Installs what a single job needs: the packages of commands, and packages without a command, that are missing.
pub(crate) fn install(tools: &[(&str, &'static str)], libraries: &[&'static str]) -> Result {
    let libraries = libraries.iter().copied().filter(|package| !installed(package));
    let packages: Vec<&str> = missing(tools).into_iter().chain(libraries).collect();
    if packages.is_empty() { Ok(()) } else { debian(&packages) }
}

/// Builds without optimisation, because building these tools takes longer than running them.
pub(crate) fn build(package: &str) -> Result {
    println!("installing {package} with cargo");
    let mut cargo = command("cargo", &["install", "--locked", "--quiet", "--debug"]);
    output(cargo.args(package.split(' ')).env("CARGO_PROFILE_DEV_DEBUG", "0")).map(drop)
}

fn missing(tools: &[(&str, &'static str)]) -> Vec<&'static str> {
    tools.iter().filter(|(tool, _)| !present(tool)).map(|(_, package)| *package).collect()
}

fn installed(package: &str) -> bool {
    let status = output(&mut command("dpkg-query", &["--show", "--showformat=${db:Status-Status}", package]));
    status.is_ok_and(|status| status == "installed")
}

fn debian(packages: &[&str]) -> Result {
    let root = output(&mut command("id", &["-u"]))?.trim() == "0";
    let tools: &[&str] = if root { &["apt-get"] } else { &["apt-get", "sudo"] };
    if let Some(tool) = tools.iter().find(|tool| !present(tool)) {
        return Err(format!("{tool} is missing: install these packages manually: {}", packages.join(" ")));
    }
    apt_get(root, &["update", "-qq"])?;
    println!("installing with apt-get: {}", packages.join(" "));
    apt_get(root, &[&["install", "-qq", "--yes", "--no-install-recommends"], packages].concat())
}

/// Uses `env`, because sudo does not pass on the environment.
fn apt_get(root: bool, arguments: &[&str]) -> Result {
    let mut apt_get = if root { command("env", &[]) } else { command("sudo", &["env"]) };
    apt_get.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
    output(&mut apt_get).map(drop)
}
