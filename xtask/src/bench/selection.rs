//! Selects what to measure: all groups, those of some metrics, or fewer for a quick run; and only what the
//! installed packages can run.

use super::contender::How;
use super::group::Group;
use super::peers::Offered;
use super::{busy, catalogue, ring};
use crate::shell::Result;

/// The rows over the ring and beside neighbours that a quick run has, too.
const QUICK: [&str; 3] = ["shm_send_8b_polled", "shm_write_1m", "busy_send_8b_polled"];

/// Returns all groups, or those with metrics whose names contain this text. Contenders that only other metrics
/// need are left out.
pub(super) fn selected(only: Option<&str>, quick: bool) -> Result<Vec<Group>> {
    let mut groups = catalogue::all();
    let names = || groups.iter().flat_map(|group| &group.metrics).map(|metric| metric.name);
    let whole = only.is_some_and(|only| names().any(|name| name == only));
    let wanted = |name: &str| match only {
        Some(only) => {
            if whole {
                name == only
            } else {
                name.contains(only)
            }
        }
        None => !quick || is_quick(name),
    };
    for group in &mut groups {
        let (metrics, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut group.metrics).into_iter().partition(|metric| wanted(metric.name));
        group.metrics = metrics;
        // Some contenders have no metric of their own. They are measured unless metrics were requested.
        group.contenders.retain(|contender| {
            let needed = |metric: &super::group::Metric| metric.needs(contender.name);
            group.metrics.iter().any(needed) || only.is_none() && !others.iter().any(needed)
        });
    }
    groups.retain(|group| !group.metrics.is_empty());
    match only {
        Some(only) if groups.is_empty() => Err(format!("unknown metric {only}")),
        _ => Ok(groups),
    }
}

fn is_quick(name: &str) -> bool {
    let is_new = name.starts_with(ring::PREFIX) || name.starts_with(busy::PREFIX);
    !is_new || QUICK.contains(&name)
}

/// Removes what the installed packages do not have. Returns the removed contenders, with the reasons.
pub(super) fn remove_absent(groups: &mut Vec<Group>, offered: &Offered) -> Vec<String> {
    let mut reasons = Vec::new();
    for group in groups.iter_mut() {
        let mut absent = Vec::new();
        for contender in &group.contenders {
            if let How::Peer(peer) = &contender.how
                && let Some(reason) = offered.lacks(peer)
            {
                reasons.push(format!("{}, {}: {reason}", group.name, contender.name));
                absent.push(contender.name);
            }
        }
        group.remove(|name| absent.contains(&name));
    }
    groups.retain(|group| !group.contenders.is_empty());
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contenders(group: &Group) -> Vec<&str> {
        group.contenders.iter().map(|contender| contender.name).collect()
    }

    #[test]
    fn one_metric_needs_its_own_contenders_only() {
        let groups = selected(Some("write_1m"), false).unwrap();
        assert_eq!((groups.len(), contenders(&groups[0])), (1, vec!["bare TCP", "Ironwarp"]));
        assert!(selected(Some("1m"), false).unwrap()[0].metrics.len() > 5, "all that have it in their names");
        assert!(selected(Some("nothing"), false).is_err());
    }

    #[test]
    fn rows_over_the_ring_can_be_measured_alone() {
        let groups = selected(Some("shm_"), true).unwrap();
        let names: Vec<_> =
            groups.iter().flat_map(|group| &group.metrics).map(|metric| metric.name).collect();
        assert!(names.iter().all(|name| name.contains("shm_")), "{names:?}");
        assert!(names.contains(&"shm_write_4k"), "also in a quick run, because it was requested");
    }

    #[test]
    fn a_quick_run_has_few_of_the_twins() {
        let groups = selected(None, true).unwrap();
        let group = |name| groups.iter().find(|group| group.name == name);
        let names = groups.iter().flat_map(|group| &group.metrics).map(|metric| metric.name);
        let twins: Vec<_> =
            names.filter(|name| name.starts_with("shm_") || name.starts_with("busy_")).collect();
        assert_eq!(twins, QUICK);
        let polled = contenders(group("send_8b_polled").unwrap());
        assert!(polled.contains(&"Ironwarp, ring") && !polled.contains(&"Ironwarp, acknowledged, ring"));
        assert!(polled.contains(&"UCX tag") && !polled.contains(&"UCX tag, posix"));
        assert_eq!(
            contenders(group("busy_send_8b_polled").unwrap()),
            ["bare TCP", "bare TCP, busy", "Ironwarp", "Ironwarp, busy"]
        );
        assert!(group("busy_bulk").is_none());
    }

    #[test]
    fn what_is_absent_is_reported_and_not_compared_with() {
        let mut groups = selected(Some("shm_write_1m_vs"), false).unwrap();
        let without = Offered::for_test("# Transport: posix\n# Transport: self\n", "tcp:\n");
        let reasons = remove_absent(&mut groups, &without);
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert!(reasons[0].contains("posix and cma: the installed UCX has no transport `cma`"));
        assert_eq!(contenders(&groups[0]), ["Ironwarp, ring", "UCX tag, posix", "UCX put, posix"]);
        let names: Vec<_> = groups[0].metrics.iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["shm_write_1m_vs_ucx"]);
        assert_eq!(groups[0].metrics[0].baseline.contenders(), ["UCX tag, posix", "UCX put, posix"]);
    }
}
