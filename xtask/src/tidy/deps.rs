//! The crates of the workspace depend in one direction.

use super::files::Files;
use crate::workspace::{Dependency, Member, Workspace};

const WIRE: &str = "ironwarp-wire";
const CAPTURE: &str = "ironwarp-capture";
const SHM: &str = "ironwarp-shm";
const RECORDER: &str = "ironwarp-recorder";
const RNIC: &str = "ironwarp-rnic";
const ENGINE: &str = "ironwarp-engine";
const IRONWARP: &str = "ironwarp";
const SIM: &str = "ironwarp-sim";
const ISCSI: &str = "ironwarp-iscsi";
const IO_UNIT: &str = "ironwarp-io-unit";
const PCAP: &str = "ironwarp-pcap";
const TESTKIT: &str = "ironwarp-testkit";

/// Every crate of the workspace, and the crates of the workspace that it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    (WIRE, &[]),
    (RECORDER, &[]),
    (RNIC, &[WIRE, RECORDER]),
    (CAPTURE, &[]),
    (SHM, &[]),
    (ENGINE, &[WIRE, RNIC, CAPTURE, SHM, RECORDER]),
    (IRONWARP, &[WIRE, RNIC, ENGINE]),
    ("ironwarp-ibverbs", &[WIRE, RNIC, ENGINE, IRONWARP, RECORDER]),
    ("ironwarp-cli", &[WIRE, RNIC, ENGINE, IRONWARP, RECORDER]),
    (SIM, &[WIRE, RNIC]),
    (IO_UNIT, &[]),
    (ISCSI, &[WIRE, RNIC, ENGINE, IRONWARP]),
    ("ironwarp-net", &[ENGINE, IRONWARP, IO_UNIT]),
    (PCAP, &[WIRE, CAPTURE]),
    ("ironwarp-fuzz", &[WIRE, RNIC, SHM, ENGINE, IRONWARP, "ironwarp-ibverbs", SIM, PCAP, IO_UNIT]),
    ("ironwarp-bench", &[IRONWARP, ISCSI]),
    (TESTKIT, &[WIRE, RNIC, ENGINE, IRONWARP]),
    ("xtask", &[TESTKIT]),
];

/// Crates whose tests must not use the crates above them. Tests of other crates may use any crate.
const TESTED_ALONE: &[&str] = &[WIRE, RNIC, SHM, IO_UNIT, RECORDER];
/// Test tools, which tests of every crate may use.
const TEST_TOOLS: &[&str] = &[SIM, PCAP, TESTKIT];

pub(super) fn check(workspace: &Workspace, _: &Files) -> Vec<String> {
    workspace.members.iter().flat_map(|member| check_member(workspace, member)).collect()
}

fn check_member(workspace: &Workspace, member: &Member) -> Vec<String> {
    let Member { name, directory, .. } = member;
    let Some((_, may_use)) = MAY_USE.iter().find(|(row, _)| row == name) else {
        let table = "add it to MAY_USE in xtask's tidy/deps.rs";
        return vec![format!("{directory}/Cargo.toml: no rule for the dependencies of {name}: {table}")];
    };
    let allowed = |Dependency { name: used, dev }: &Dependency| {
        let used = used.as_str();
        let free = *dev && (!TESTED_ALONE.contains(&name.as_str()) || TEST_TOOLS.contains(&used));
        free || may_use.contains(&used)
    };
    let wrong = member.dependencies.iter().filter(|used| workspace.member(&used.name).is_some());
    wrong
        .filter(|used| !allowed(used))
        .map(|used| format!("{directory}/Cargo.toml: {name} must not depend on {}", used.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{member, workspace};
    use super::*;

    fn findings(members: impl IntoIterator<Item = Member>) -> Vec<String> {
        check(&workspace(members), &Files::new())
    }

    #[test]
    fn dependencies_on_lower_crates_pass() {
        let engine = member(ENGINE, &[(WIRE, false), (RNIC, false), ("serde_json", false), (IRONWARP, true)]);
        let rnic = member(RNIC, &[(WIRE, false), (SIM, true)]);
        let sim = member(SIM, &[(RNIC, false)]);
        assert!(findings([member(WIRE, &[]), rnic, engine, sim, member(IRONWARP, &[])]).is_empty());
    }

    #[test]
    fn dependencies_on_higher_crates_are_found() {
        let wire = member(WIRE, &[(RNIC, true)]);
        let rnic = member(RNIC, &[(ENGINE, false), (ENGINE, true)]);
        assert_eq!(
            findings([wire, rnic, member(ENGINE, &[])]),
            [
                "ironwarp-wire/Cargo.toml: ironwarp-wire must not depend on ironwarp-rnic",
                "ironwarp-rnic/Cargo.toml: ironwarp-rnic must not depend on ironwarp-engine",
                "ironwarp-rnic/Cargo.toml: ironwarp-rnic must not depend on ironwarp-engine",
            ]
        );
    }

    #[test]
    fn a_crate_without_a_rule_is_found() {
        assert!(
            findings([member("ironwarp-new", &[])])[0]
                .contains("no rule for the dependencies of ironwarp-new")
        );
    }
}
