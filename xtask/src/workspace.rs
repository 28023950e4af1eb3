//! The workspace as cargo knows it: members, their targets and dependencies.

use crate::shell::{Result, at, command, output};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::PathBuf;

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The directory of cargo's build output, where jobs also put their files.
    pub(crate) target: PathBuf,
    pub(crate) members: Vec<Member>,
}

pub(crate) struct Member {
    pub(crate) name: String,
    /// Relative to the root, without a trailing slash.
    pub(crate) directory: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) dev: bool,
}

pub(crate) struct Target {
    pub(crate) name: String,
    /// In cargo's words: `lib`, `bin`, `bench`, …
    pub(crate) kind: String,
    /// The crate root, relative to the root of the workspace.
    pub(crate) source: String,
}

/// Names a file with the output of `cargo metadata`, for jobs in a system without cargo, where everything was
/// built before.
pub(crate) const METADATA: &str = "IRON_XTASK_METADATA";

impl Workspace {
    /// Returns the output of `cargo metadata`.
    pub(crate) fn metadata() -> Result<String> {
        output(&mut command("cargo", &["metadata", "--no-deps", "--format-version", "1"]))
    }

    /// Whether this system has no cargo, because everything was built before.
    pub(crate) fn is_built() -> bool {
        env::var_os(METADATA).is_some()
    }

    pub(crate) fn load() -> Result<Self> {
        let text = match env::var_os(METADATA).map(PathBuf::from) {
            Some(file) => fs::read_to_string(&file).map_err(at(&file))?,
            None => Self::metadata()?,
        };
        let metadata: Value =
            serde_json::from_str(&text).map_err(|error| format!("`cargo metadata` is not JSON: {error}"))?;
        let root = string(&metadata["workspace_root"]);
        Ok(Self {
            members: list(&metadata["packages"]).map(|package| Member::new(&root, package)).collect(),
            target: string(&metadata["target_directory"]).into(),
            root: root.into(),
        })
    }

    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

impl Member {
    fn new(root: &str, package: &Value) -> Self {
        let from_root = |path: &Value| string(path).replacen(&format!("{root}/"), "", 1);
        Self {
            name: string(&package["name"]),
            directory: from_root(&package["manifest_path"]).trim_end_matches("/Cargo.toml").to_owned(),
            dependencies: list(&package["dependencies"])
                .map(|it| Dependency { name: string(&it["name"]), dev: it["kind"] == "dev" })
                .collect(),
            targets: list(&package["targets"])
                .map(|it| Target {
                    name: string(&it["name"]),
                    kind: string(&it["kind"][0]),
                    source: from_root(&it["src_path"]),
                })
                .collect(),
        }
    }

    pub(crate) fn targets_of(&self, kind: &str) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(move |target| target.kind == kind)
    }
}

/// A field that cargo always writes. If it were missing, the empty string would match no crate.
fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
