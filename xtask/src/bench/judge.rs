//! Decides whether a round counts by what else the machine did meanwhile, before any result of the round is
//! parsed, so that no round is repeated because of its result.

use crate::shell::{Result, at};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Maximum shares of the total CPU time.
pub(super) const STEAL: f64 = 0.02;
pub(super) const FOREIGN: f64 = 0.05;
/// Maximum number of attempts at a round. The last one always counts, and the result says so.
pub(super) const REPEATS: usize = 3;

/// CPU time since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Total, including idle time.
    total: u64,
    busy: u64,
    /// Stolen by another virtual machine.
    stolen: u64,
    /// Used by this process and its children.
    own: u64,
    /// Used by this process and its terminated children.
    ended: u64,
}

/// Disturbances during a round, as shares of the CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Disturbance {
    pub(crate) steal: f64,
    /// Of other processes.
    pub(crate) foreign: f64,
}

/// An attempt at a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) round: usize,
    pub(super) disturbance: Disturbance,
    pub(super) counts: bool,
}

impl Load {
    pub(crate) fn now() -> Result<Self> {
        let read = |file: &Path| fs::read_to_string(file).map_err(at(file));
        let me = Path::new("/proc/self/stat");
        // Running children count as ours, too: a link between two hosts may be one.
        let all = fs::read_dir("/proc").map_err(at(Path::new("/proc")))?;
        let others = all.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        let children = others.filter(|stat| parent(stat) == Some(std::process::id())).collect::<Vec<_>>();
        Self::parse(&read(Path::new("/proc/stat"))?, &read(me)?, &children)
            .ok_or_else(|| "unexpected format of /proc/stat".into())
    }

    fn parse(machine: &str, process: &str, children: &[String]) -> Option<Self> {
        let first = machine.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = first.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // Guest time is part of the first two.
        let [user, nice, system, idle, waiting, interrupts, soft, stolen] = *ticks.first_chunk()?;
        let busy = user + nice + system + interrupts + soft;
        let ended = worked(process)?;
        let own = ended + children.iter().filter_map(|child| worked(child)).sum::<u64>();
        Some(Self { total: busy + idle + waiting + stolen, busy, stolen, own, ended })
    }

    #[cfg(test)]
    pub(super) fn for_test(machine: &str) -> Self {
        Self::parse(machine, "7 (x) R 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1", &[]).unwrap()
    }

    /// The disturbances since then.
    pub(crate) fn until(&self, now: &Self) -> Disturbance {
        let total = now.total.saturating_sub(self.total).max(1) as f64;
        let own = now.own.saturating_sub(self.own);
        let foreign = now.busy.saturating_sub(self.busy).saturating_sub(own);
        Disturbance {
            steal: now.stolen.saturating_sub(self.stolen) as f64 / total,
            foreign: foreign as f64 / total,
        }
    }

    /// CPU seconds of children that have ended since then.
    pub(crate) fn seconds_of_children(&self, now: &Self) -> f64 {
        now.ended.saturating_sub(self.ended) as f64 / TICKS
    }
}

/// Ticks of a process and of its terminated children: the 12th to 15th word after its name, which may contain
/// blanks.
fn worked(stat: &str) -> Option<u64> {
    let words = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    Some(words.filter_map(|word| word.parse::<u64>().ok()).sum())
}

fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Ticks per second, which Linux fixes for user space.
const TICKS: f64 = 100.0;

impl Disturbance {
    pub(crate) fn is_too_much(&self) -> bool {
        self.steal > STEAL || self.foreign > FOREIGN
    }
}

impl Judged {
    pub(super) fn json(&self) -> Value {
        let Self { round, disturbance: Disturbance { steal, foreign }, counts } = self;
        let disturbed = self.disturbance.is_too_much();
        json!({ "round": round, "steal": steal, "foreign": foreign, "disturbed": disturbed, "counts": counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(own: &str) -> String {
        format!("7 (a (b) c) R 42 7 7 0 -1 0 0 0 0 0 {own} 20 0 1 0 5")
    }

    fn load(ticks: &str, own: &str) -> Load {
        let process = stat(own);
        Load::parse(&format!("cpu  {ticks} 0 0\ncpu0 1 2 3\n"), &process, &[]).unwrap()
    }

    #[test]
    fn what_others_did_is_all_but_our_own() {
        let before = load("100 0 100 1000 0 0 0 10", "10 10 20 20");
        assert_eq!(before, Load { total: 1210, busy: 200, stolen: 10, own: 60, ended: 60 });
        // 200 ticks: 90 ours, 40 of them of a child; 8 of others, 2 of them in interrupts; 4 stolen.
        let now = load("160 2 134 1098 0 1 1 14", "40 30 40 40");
        assert_eq!(before.until(&now), Disturbance { steal: 0.02, foreign: 0.04 });
        assert_eq!(before.seconds_of_children(&now), 0.9);
    }

    #[test]
    fn a_child_that_lives_is_no_stranger() {
        let child = stat("30 20 0 0");
        assert_eq!(parent(&child), Some(42));
        let load = Load::parse("cpu  100 0 0 100 0 0 0 0", &stat("1 1 1 1"), &[child]).unwrap();
        assert_eq!((load.own, load.ended), (54, 4));
    }

    #[test]
    fn thresholds_are_fixed() {
        let disturbance = |steal, foreign| Disturbance { steal, foreign }.is_too_much();
        assert!(!disturbance(STEAL, FOREIGN));
        assert!(disturbance(STEAL + 0.001, 0.0));
        assert!(disturbance(0.0, FOREIGN + 0.001));
    }

    #[test]
    fn a_machine_that_says_something_else_is_not_guessed_at() {
        assert_eq!(Load::parse("cpu  1 2 3", "7 (x) R", &[]), None);
    }
}
