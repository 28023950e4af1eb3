//! Rows over the ring in shared memory: twins of the rows over TCP, and programs of other projects that use
//! shared memory as well.

use super::contender::{Contender, name, peer};
use super::group::{Baseline, Group, Metric, metric};
use super::peers::Tool;

/// What the name of a row over the ring begins with.
pub(super) const PREFIX: &str = "shm_";

/// Rows without a twin: the ring has no CRC.
const WITHOUT: [&str; 2] = ["write_1m_crc", "write_1m_crc_acked"];

/// Targets of twins, by the names of their rows over TCP: what must be reached, and the aim. All others have
/// the targets of the row over TCP. The figures come from a prototype of the ring.
const TARGETS: [(&str, f64, f64); 15] = [
    ("send_8b_polled", 0.35, 0.25),
    ("send_8b_polled_acked", 0.4, 0.3),
    ("send_8b_blocking", 0.2, 0.13),
    ("send_8b_blocking_acked", 0.2, 0.13),
    ("send_8b_asleep", 1.0, 0.6),
    ("write_1m", 1.6, 1.8),
    ("write_1m_acked", 1.6, 1.8),
    ("read_1m", 1.6, 1.8),
    ("send_1m", 1.6, 1.8),
    ("send_1m_acked", 1.6, 1.8),
    ("write_8b_single", 6.0, 7.0),
    ("perftest_send_8b", 0.5, 0.4),
    ("perftest_write_1m", 0.9, 1.1),
    ("perftest_read_1m", 0.9, 1.1),
    ("perftest_send_1m", 0.9, 1.1),
];

/// Adds a twin of each row that compares Ironwarp with itself, with bare TCP or with a constant, and the
/// contenders for it.
pub(super) fn add_twins(group: &mut Group) {
    let twins: Vec<_> = group.metrics.iter().filter_map(|metric| twin(group, metric)).collect();
    let needed = |contender: &&Contender| {
        let twin = Contender::ring_name(contender.name);
        twins.iter().any(|metric| metric.needs(twin))
    };
    let contenders: Vec<_> = group.contenders.iter().filter(needed).map(Contender::over_ring).collect();
    let (rivals, rows) = rivals(group);
    group.contenders.extend(contenders.into_iter().chain(rivals));
    group.metrics.extend(twins.into_iter().chain(rows));
}

/// The twin of a row, or `None` if it has none.
fn twin(group: &Group, metric: &Metric) -> Option<Metric> {
    let find = |name: &str| group.contenders.iter().find(|contender| contender.name == name);
    if WITHOUT.contains(&metric.name) || !find(metric.of)?.is_ironwarp() {
        return None;
    }
    // What another project does over TCP says nothing about a ring.
    let compared = |name: &&'static str| match find(name)? {
        contender if contender.is_ironwarp() => Some(Contender::ring_name(name)),
        contender => contender.is_bare().then_some(*name),
    };
    let baseline = match &metric.baseline {
        Baseline::Best(names) => Baseline::Best(names.iter().map(compared).collect::<Option<_>>()?),
        other => other.clone(),
    };
    let target = TARGETS.iter().find(|(name, ..)| *name == metric.name);
    let (must, aim) = target.map_or((metric.must, metric.aim), |(_, must, aim)| (Some(*must), Some(*aim)));
    let name = name(format!("{PREFIX}{}", metric.name));
    Some(Metric { name, of: Contender::ring_name(metric.of), baseline, must, aim })
}

const UCX: Tool = Tool::Ucx("posix,self");
const UCX_CMA: Tool = Tool::Ucx("posix,cma,self");
const FABRIC: Tool = Tool::Fabric("shm");

const TAG: &str = "UCX tag, posix";
const TAG_CMA: &str = "UCX tag, posix and cma";
const PUT: &str = "UCX put, posix";
const PUT_CMA: &str = "UCX put, posix and cma";
/// The provider has no endpoints of type `msg`.
const RDM: &str = "libfabric rdm, shm";

/// Programs of other projects in shared memory, and the rows that compare the ring with them.
fn rivals(group: &Group) -> (Vec<Contender>, Vec<Metric>) {
    let ring = Contender::ring_name("Ironwarp");
    match group.name {
        "send_8b_polled" => (
            vec![
                peer(TAG, UCX, "tag_lat", 8, 600_000),
                peer(TAG_CMA, UCX_CMA, "tag_lat", 8, 600_000),
                peer(RDM, FABRIC, "rdm", 8, 300_000),
            ],
            vec![
                metric("shm_send_8b_vs_ucx", ring, &[TAG, TAG_CMA], None, 1.0),
                metric("shm_send_8b_vs_fi", ring, &[RDM], None, 1.0),
            ],
        ),
        "bulk" => (
            vec![
                peer(TAG, UCX, "tag_bw", MIB, 8_000),
                peer(TAG_CMA, UCX_CMA, "tag_bw", MIB, 8_000),
                peer(PUT, UCX, "ucp_put_bw", MIB, 12_000),
                peer(PUT_CMA, UCX_CMA, "ucp_put_bw", MIB, 12_000),
                peer(RDM, FABRIC, "rdm", MIB, 3_000),
            ],
            vec![
                metric("shm_write_1m_vs_ucx", ring, &[TAG, TAG_CMA, PUT, PUT_CMA], None, 1.0),
                metric("shm_write_1m_vs_fi", ring, &[RDM], None, 1.0),
            ],
        ),
        _ => (Vec::new(), Vec::new()),
    }
}

const MIB: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::contender::ours;
    use super::super::turn::Figure;
    use super::*;

    #[test]
    fn a_twin_is_compared_with_the_same_bare_loop_and_with_the_ring_otherwise() {
        let mut group = Group {
            name: "g",
            title: "G",
            figure: Figure::Latency,
            patience: 1,
            link: None,
            contenders: vec![
                ours("bare", "transport=bare"),
                ours("Ironwarp", ""),
                ours("few", "connections=1"),
                peer("UCX", Tool::Ucx("tcp"), "tag_lat", 8, 1),
            ],
            metrics: vec![
                metric("send_8b_polled", "Ironwarp", &["bare"], 1.1, 1.05),
                metric("many", "Ironwarp", &["few"], 0.6, None),
                metric("bare_many", "bare", &["bare"], None, None),
                metric("vs_ucx", "Ironwarp", &["UCX"], None, None),
            ],
        };
        add_twins(&mut group);
        let names: Vec<_> = group.contenders.iter().map(|contender| contender.name).collect();
        assert_eq!(names[4..], ["Ironwarp, ring", "few, ring"]);
        let twins: Vec<_> = group.metrics[4..]
            .iter()
            .map(|twin| (twin.name, twin.of, twin.baseline.contenders(), twin.must))
            .collect();
        assert_eq!(
            twins,
            [
                ("shm_send_8b_polled", "Ironwarp, ring", vec!["bare"], Some(TARGETS[0].1)),
                ("shm_many", "Ironwarp, ring", vec!["few, ring"], Some(0.6)),
            ]
        );
    }
}
