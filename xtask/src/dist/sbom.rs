//! The list of crates that are linked into the commands and the drop-in, in CycloneDX's JSON. It is derived from
//! `cargo tree`, which resolves features as the build does; tools that read `cargo metadata` also list what
//! only tests and build scripts use.

use super::release::{Release, VERSION};
use crate::shell::{Result, at, command, output};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const LOCK: &str = "Cargo.lock";

pub(super) fn write(release: &Release) -> Result {
    let mut lines = BTreeSet::new();
    for package in ["ironwarp-ibverbs", "ironwarp-cli", "ironwarp-net"] {
        let edges = ["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--package"];
        let tree = output(command("cargo", &edges).args([package, "--format", "{p};{l}"]))?;
        // It marks a crate whose dependencies it has shown before.
        let crates = tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty());
        lines.extend(crates.map(str::to_owned));
    }
    let lock = fs::read_to_string(LOCK).map_err(at(Path::new(LOCK)))?;
    let checksums = checksums(&lock);
    let mut components = Vec::new();
    for line in &lines {
        components.push(component(line, &checksums)?);
    }
    components.push(standard_library(&output(&mut command("rustc", &["--version"]))?)?);
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.date("+%Y-%m-%dT%H:%M:%SZ")?,
            "component": {
                "type": "application", "bom-ref": "ironwarp", "name": "ironwarp", "version": VERSION,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
            },
        },
        "components": components,
    });
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    fs::write(release.sbom(), text + "\n").map_err(at(&release.sbom()))
}

/// A line of `cargo tree`, such as `libc v0.2.0;MIT OR Apache-2.0`, or with a path before the semicolon. What is
/// not ours must have a checksum.
fn component(line: &str, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let wrong = || format!("unexpected line of `cargo tree`: {line}");
    let (package, license) = line.split_once(';').ok_or_else(wrong)?;
    let license = license.replace('/', " OR ");
    let (name, rest) = package.split_once(" v").ok_or_else(wrong)?;
    let (version, ours) = rest.split_once(' ').map_or((rest, false), |(version, _)| (version, true));
    if license.is_empty() {
        return Err(format!("{name} has no licence"));
    }
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library", "bom-ref": purl, "name": name, "version": version,
        "licenses": [{"expression": license}],
    });
    match checksums.get(&(name.to_owned(), version.to_owned())) {
        Some(sum) => {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            component["purl"] = json!(purl);
        }
        None if ours => {}
        None => return Err(format!("{LOCK} has no checksum of {name} {version}")),
    }
    Ok(component)
}

/// The standard library, by the output of `rustc --version`.
fn standard_library(rustc: &str) -> Result<Value> {
    let version = rustc.split(' ').nth(1).ok_or_else(|| format!("unexpected version of rustc: {rustc}"))?;
    Ok(json!({
        "type": "library", "bom-ref": "std", "name": "std", "version": version, "description": rustc.trim(),
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }))
}

/// The checksums of Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        line.strip_suffix('"').map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    let row = |it: &str| Some(((field(it, "name")?, field(it, "version")?), field(it, "checksum")?));
    packages.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKED: &str = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ff\"\n\n[[package]]\nname = \"ours\"\nversion = \"2.0.0\"\n";

    #[test]
    fn a_crate_is_listed_with_its_licence_and_checksum() -> Result {
        let checksums = checksums(LOCKED);
        let a = component("a v1.0.0;MIT/Apache-2.0", &checksums)?;
        assert_eq!(a["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(a["hashes"][0]["content"], "ff");
        assert_eq!(component("ours v2.0.0 (/somewhere);MIT", &checksums)?["hashes"], Value::Null);
        Ok(())
    }

    #[test]
    fn a_crate_without_licence_or_checksum_is_found() {
        let checksums = checksums(LOCKED);
        assert!(component("a v1.0.0;", &checksums).is_err());
        assert!(component("b v1.0.0;MIT", &checksums).is_err());
    }
}
