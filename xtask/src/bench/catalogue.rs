//! The groups that are measured on one host: contenders, metrics and their targets. `ring.rs` adds what uses
//! shared memory, `busy.rs` groups beside busy neighbours, and `wan.rs` those between two hosts.

use super::contender::{Contender, name, ours, peer};
use super::group::{Baseline, Group, Metric, metric};
use super::peers::Tool;
use super::turn::Figure;
use super::{busy, ring, wan};

// Names that several groups use.
const BARE: &str = "bare TCP";
const BARE_DEFAULT: &str = "bare TCP, system's congestion control";
const BARE_POLLED: &str = "bare TCP, polled";
const BARE_BATCHED: &str = "bare TCP, as many per call";
const SENT: &str = "Ironwarp";
const ACKED: &str = "Ironwarp, acknowledged";
const UCX_TAG: &str = "UCX tag";
const UCX_PUT: &str = "UCX put";
const FI_MSG: &str = "libfabric msg";
const FI_RDM: &str = "libfabric rdm";

const UCX: Tool = Tool::Ucx("tcp");
const FABRIC: Tool = Tool::Fabric("tcp");

const MIB: usize = 1 << 20;

pub(super) fn all() -> Vec<Group> {
    let mut groups = vec![
        polled(),
        blocking(),
        watched(),
        bulk(),
        queued("write_64k", "64 KiB Writes, 16 queued", 65_536, [40_000, 15_000], (1.2, 1.5)),
        queued("write_4k", "4 KiB Writes, 16 queued", 4096, [150_000, 150_000], (3.0, 4.5)),
        rate(),
        single(),
        requests(),
        idle(),
        priority(),
        events(),
        wakes(),
        switches(),
    ];
    groups.iter_mut().for_each(ring::add_twins);
    groups.extend(busy::groups(&groups));
    groups.extend(wan::groups());
    groups
}

fn group(name: &'static str, title: &'static str, figure: Figure) -> Group {
    Group { name, title, figure, patience: 1, link: None, contenders: Vec::new(), metrics: Vec::new() }
}

fn polled() -> Group {
    const PERFTEST: &str = "perftest ib_send_lat";
    Group {
        contenders: vec![
            ours(BARE, "transport=bare workload=pingpong"),
            ours(BARE_DEFAULT, "transport=bare workload=pingpong reno=false"),
            ours(SENT, "workload=pingpong"),
            ours(ACKED, "workload=pingpong acked=true"),
            peer(UCX_TAG, UCX, "tag_lat", 8, 80_000),
            peer(FI_MSG, FABRIC, "msg", 8, 80_000),
            peer(FI_RDM, FABRIC, "rdm", 8, 80_000),
            peer(PERFTEST, Tool::Perftest, "ib_send_lat", 8, 80_000),
        ],
        metrics: vec![
            metric("send_8b_polled", SENT, &[BARE], 1.10, 1.05),
            metric("send_8b_polled_acked", ACKED, &[BARE], 1.10, 1.05),
            metric("perftest_send_lat", PERFTEST, &[ACKED], 1.10, 1.03),
            metric("perftest_send_8b", PERFTEST, &[BARE], None, None),
        ],
        ..group("send_8b_polled", "8 B ping-pong, polled", Figure::Latency)
    }
}

fn blocking() -> Group {
    Group {
        contenders: vec![
            ours(BARE, "transport=bare workload=pingpong blocking=true"),
            ours(SENT, "workload=pingpong blocking=true"),
            ours(ACKED, "workload=pingpong blocking=true acked=true"),
            ours(ASLEEP, WORDS_ASLEEP),
        ],
        metrics: vec![
            metric("send_8b_blocking", SENT, &[BARE], 1.15, 1.05),
            metric("send_8b_blocking_acked", ACKED, &[BARE], 1.15, 1.05),
            metric("send_8b_asleep", ASLEEP, &[BARE], None, 1.15),
        ],
        ..group("send_8b_blocking", "8 B ping-pong, sleeping", Figure::Latency)
    }
}

/// `wait` polls before it sleeps, and in a ping-pong it rarely sleeps. A completion handler never polls.
const ASLEEP: &str = "Ironwarp, asleep for every message";
const WORDS_ASLEEP: &str = "workload=pingpong events=1";

/// Shows that both ends sleep.
fn switches() -> Group {
    let asleep = |name, of| {
        let baseline = Baseline::Fixed(1.0, "one for each message");
        // A message that arrives before its receiver sleeps needs none.
        Metric { name, of, baseline, must: Some(0.99), aim: None }
    };
    Group {
        contenders: vec![
            ours(BARE, "transport=bare workload=pingpong blocking=true"),
            ours(ASLEEP, WORDS_ASLEEP),
        ],
        metrics: vec![asleep("switches_8b_bare", BARE), asleep("switches_8b_asleep", ASLEEP)],
        ..group("switches", "Voluntary context switches per message, both ends together", Figure::Switches)
    }
}

fn watched() -> Group {
    const POLLS: &str = "Ironwarp, as perftest does it";
    const PERFTEST: &str = "perftest ib_write_lat";
    Group {
        contenders: vec![
            ours(BARE, "transport=bare workload=watch"),
            ours(SENT, "workload=watch"),
            ours(ACKED, "workload=watch acked=true"),
            ours(POLLS, "workload=watch acked=true polls=true"),
            peer(UCX_PUT, UCX, "ucp_put_lat", 8, 40_000),
            peer(PERFTEST, Tool::Perftest, "ib_write_lat", 8, 80_000),
        ],
        metrics: vec![
            metric("write_8b_latency", SENT, &[BARE], 1.15, 1.05),
            metric("write_8b_latency_acked", ACKED, &[BARE], 1.15, 1.05),
            metric("write_8b_latency_vs_ucx", SENT, &[UCX_PUT], 1.0, 1.0),
            metric("perftest_write_lat", PERFTEST, &[POLLS], 1.10, 1.03),
        ],
        ..group("write_8b_latency", "8 B Write ping-pong, memory watched", Figure::Latency)
    }
}

fn bulk() -> Group {
    const WRITE_CRC: &str = "Ironwarp, CRC";
    const WRITE_CRC_ACKED: &str = "Ironwarp, CRC, acknowledged";
    const READ: &str = "Ironwarp Read";
    const SEND: &str = "Ironwarp Send";
    const SEND_ACKED: &str = "Ironwarp Send, acknowledged";
    const PING_PONG: &str = "Ironwarp Send, ping-pong";
    const PERFTEST_WRITE: &str = "perftest ib_write_bw";
    const PERFTEST_READ: &str = "perftest ib_read_bw";
    const PERFTEST_SEND: &str = "perftest ib_send_bw";
    let own = |name, words: &str| {
        ours(name, &format!("size={MIB} queued={} crc=false {words}", super::peers::DEPTH))
    };
    Group {
        contenders: vec![
            own(BARE, "transport=bare blocking=true"),
            own(BARE_POLLED, "transport=bare"),
            own(BARE_DEFAULT, "transport=bare blocking=true reno=false"),
            own(SENT, ""),
            own(ACKED, "acked=true"),
            own(WRITE_CRC, "crc=true"),
            own(WRITE_CRC_ACKED, "crc=true acked=true"),
            own(READ, "operation=read"),
            own(SEND, "operation=send"),
            own(SEND_ACKED, "operation=send acked=true"),
            own(PING_PONG, "workload=pingpong"),
            peer(UCX_TAG, UCX, "tag_bw", MIB, 5_000),
            peer(UCX_PUT, UCX, "ucp_put_bw", MIB, 600),
            peer(FI_MSG, FABRIC, "msg", MIB, 2_000),
            peer(FI_RDM, FABRIC, "rdm", MIB, 2_000),
            peer(PERFTEST_WRITE, Tool::Perftest, "ib_write_bw", MIB, 4_000),
            peer(PERFTEST_READ, Tool::Perftest, "ib_read_bw", MIB, 4_000),
            peer(PERFTEST_SEND, Tool::Perftest, "ib_send_bw", MIB, 4_000),
        ],
        metrics: vec![
            metric("write_1m", SENT, &[BARE], 0.90, 1.0),
            metric("write_1m_acked", ACKED, &[BARE], 0.90, 1.0),
            metric("read_1m", READ, &[BARE], 0.90, 1.0),
            metric("send_1m", SEND, &[BARE], 0.90, 1.0),
            metric("send_1m_acked", SEND_ACKED, &[BARE], 0.90, 1.0),
            metric("write_1m_crc", WRITE_CRC, &[BARE], 0.80, 0.90),
            metric("write_1m_crc_acked", WRITE_CRC_ACKED, &[BARE], 0.80, 0.90),
            metric("write_1m_vs_ucx", SENT, &[UCX_TAG, UCX_PUT], 1.0, 1.15),
            metric("write_1m_vs_ucx_acked", ACKED, &[UCX_TAG, UCX_PUT], 1.0, 1.15),
            metric("write_1m_vs_fi", SENT, &[FI_MSG, FI_RDM], 1.0, 1.15),
            metric("write_1m_vs_fi_acked", ACKED, &[FI_MSG, FI_RDM], 1.0, 1.15),
            metric("pingpong_1m_vs_fi", PING_PONG, &[FI_MSG, FI_RDM], None, 1.15),
            metric("perftest_write_bw", PERFTEST_WRITE, &[ACKED], 0.90, 0.97),
            metric("perftest_read_bw", PERFTEST_READ, &[READ], 0.90, 0.97),
            metric("perftest_send_bw", PERFTEST_SEND, &[SEND_ACKED], 0.90, 0.97),
            metric("perftest_write_1m", PERFTEST_WRITE, &[BARE], None, None),
            metric("perftest_read_1m", PERFTEST_READ, &[BARE], None, None),
            metric("perftest_send_1m", PERFTEST_SEND, &[BARE], None, None),
        ],
        ..group("bulk", "1 MiB messages", Figure::Bandwidth)
    }
}

/// Many messages of one size, where all queued messages may be posted with one call. UCX moves `a_second`
/// messages with a tag and with a put.
fn queued(
    called: &'static str,
    title: &'static str,
    size: usize,
    a_second: [u64; 2],
    (must, aim): (f64, f64),
) -> Group {
    let own = |name, words: &str| ours(name, &format!("size={size} queued=16 crc=false {words}"));
    Group {
        contenders: vec![
            own(BARE, "transport=bare blocking=true"),
            own(BARE_BATCHED, "transport=bare blocking=true batch=16"),
            own(SENT, "batch=16"),
            own(ACKED, "batch=16 acked=true"),
            peer(UCX_TAG, UCX, "tag_bw", size, a_second[0]),
            peer(UCX_PUT, UCX, "ucp_put_bw", size, a_second[1]),
        ],
        metrics: vec![
            metric(called, SENT, &[BARE], must, aim),
            metric(name(format!("{called}_acked")), ACKED, &[BARE], must, aim),
            metric(name(format!("{called}_batched")), SENT, &[BARE_BATCHED], None, 0.9),
        ],
        ..group(called, title, Figure::Bandwidth)
    }
}

/// The size of the frame of an 8 B Write, which bare TCP sends instead.
const FRAME: usize = 30;

fn rate() -> Group {
    Group {
        contenders: vec![
            ours(BARE_BATCHED, &format!("transport=bare blocking=true size={FRAME} queued=64 batch=64")),
            ours(SENT, "size=8 queued=64 batch=64"),
            ours(ACKED, "size=8 queued=64 batch=64 acked=true"),
            peer(UCX_TAG, UCX, "tag_bw", 8, 250_000),
            peer(UCX_PUT, UCX, "ucp_put_bw", 8, 250_000),
        ],
        metrics: vec![
            metric("write_8b_rate", SENT, &[BARE_BATCHED], 0.3, 0.6),
            metric("write_8b_rate_acked", ACKED, &[BARE_BATCHED], 0.3, 0.6),
            metric("write_8b_rate_vs_ucx", SENT, &[UCX_TAG, UCX_PUT], 10.0, 20.0),
            metric("write_8b_rate_vs_ucx_acked", ACKED, &[UCX_TAG, UCX_PUT], 10.0, 20.0),
        ],
        ..group("write_8b_rate", "8 B Writes, 64 queued, CRC", Figure::Rate)
    }
}

fn single() -> Group {
    Group {
        contenders: vec![
            ours(BARE, &format!("transport=bare blocking=true size={FRAME}")),
            ours(SENT, "size=8 queued=64"),
            ours(ACKED, "size=8 queued=64 acked=true"),
        ],
        metrics: vec![
            metric("write_8b_single", SENT, &[BARE], 0.9, 1.0),
            metric("write_8b_single_acked", ACKED, &[BARE], 0.9, 1.0),
        ],
        ..group("write_8b_single", "8 B Writes, 64 outstanding, one per call", Figure::Rate)
    }
}

fn requests() -> Group {
    const BARE_MANY: &str = "bare TCP, 9,000";
    const BARE_FEW: &str = "bare TCP, 100";
    const MANY: &str = "Ironwarp, 9,000";
    const FEW: &str = "Ironwarp, 100";
    const ACKED_MANY: &str = "Ironwarp, acknowledged, 9,000";
    const ACKED_FEW: &str = "Ironwarp, acknowledged, 100";
    let own = |name, words: &str| ours(name, &format!("workload=requests size=64 queued=32 {words}"));
    Group {
        contenders: vec![
            own(BARE_FEW, "transport=bare connections=100"),
            own(BARE_MANY, "transport=bare connections=9000"),
            own(FEW, "connections=100"),
            own(MANY, "connections=9000"),
            own(ACKED_FEW, "connections=100 acked=true"),
            own(ACKED_MANY, "connections=9000 acked=true"),
        ],
        metrics: vec![
            metric("qps_9k", MANY, &[FEW], 0.65, 0.70),
            metric("qps_9k_acked", ACKED_MANY, &[ACKED_FEW], 0.65, 0.70),
            metric("qps_9k_bare", BARE_MANY, &[BARE_FEW], None, None),
            metric("qps_9k_vs_bare", MANY, &[BARE_MANY], None, None),
        ],
        patience: 2,
        ..group("qps_9k", "64 B requests and answers, 32 outstanding, by connections", Figure::Rate)
    }
}

fn idle() -> Group {
    let memory = Metric {
        name: "qp_idle_bytes",
        of: SENT,
        baseline: Baseline::Fixed(2048.0, "2 KiB"),
        must: Some(1.0),
        aim: Some(0.5),
    };
    Group {
        contenders: vec![ours(SENT, "workload=idle connections=5000")],
        metrics: vec![memory],
        patience: 2,
        ..group("qp_idle_bytes", "Memory of an idle connected queue pair", Figure::Memory)
    }
}

/// The 99th percentile without polling, which completion handler classes are for.
fn priority() -> Group {
    const ALONE: &str = "low latency, alone";
    const URGENT: &str = "low latency, beside bulk";
    const RANKED: &str = "low latency, with a priority, beside bulk";
    const BULK: &str = "bulk, beside bulk";
    let own = |name, words: &str| ours(name, &format!("workload=priority size=64 {words}"));
    Group {
        contenders: vec![
            own(ALONE, "urgent=true ordinary=true"),
            own(URGENT, "urgent=true ordinary=true load=8"),
            own(RANKED, "urgent=true load=8"),
            own(BULK, "urgent=false load=8"),
        ],
        metrics: vec![
            metric("priority_loaded", URGENT, &[ALONE], 2.0, None),
            metric("priority_ranked", RANKED, &[ALONE], 2.0, None),
            metric("priority_class", URGENT, &[BULK], 0.2, None),
        ],
        patience: 3,
        ..group("priority", "64 B ping-pong, sleeping, 99th percentile", Figure::Latency)
    }
}

const EACH: &str = "an event for each completion";
const MODERATED: &str = "an event for 8, or after 100 µs";

fn sleepers() -> Vec<Contender> {
    let own = |name, events: usize| {
        ours(name, &format!("operation=send size=64 queued=8 acked=true events={events}"))
    };
    vec![own(EACH, 1), own(MODERATED, 8)]
}

fn events() -> Group {
    let bare = ours(BARE, "transport=bare size=64 queued=8 acked=true blocking=true");
    Group {
        contenders: [vec![bare], sleepers()].concat(),
        metrics: vec![
            metric("events_each", EACH, &[BARE], None, None),
            metric("events_moderated", MODERATED, &[EACH], 1.0, None),
        ],
        ..group("events", "64 B Sends to a sleeping consumer, 8 outstanding", Figure::Rate)
    }
}

fn wakes() -> Group {
    let one = Baseline::Fixed(1.0, "one for each completion");
    Group {
        contenders: sleepers(),
        metrics: vec![
            Metric { name: "wakes_each", of: EACH, baseline: one.clone(), must: Some(1.0), aim: None },
            Metric { name: "wakes_moderated", of: MODERATED, baseline: one, must: Some(0.5), aim: None },
        ],
        ..group("wakes", "Wakeups of that consumer per completion", Figure::Wakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn metrics_have_names_of_their_own_and_compare_contenders_of_their_group() {
        let mut names = BTreeSet::new();
        for group in all() {
            let contenders: Vec<_> = group.contenders.iter().map(|contender| contender.name).collect();
            let distinct: BTreeSet<_> = contenders.iter().collect();
            assert_eq!(distinct.len(), contenders.len(), "{contenders:?}");
            for Metric { name, of, baseline, must, aim } in &group.metrics {
                assert!(names.insert(*name), "{name} twice");
                assert!(contenders.contains(of), "{name}: {of}");
                let needed = baseline.contenders();
                assert!(needed.iter().all(|one| contenders.contains(one)), "{name}: {needed:?}");
                if let (Some(must), Some(aim)) = (must, aim) {
                    assert!(if group.figure.less_is_better() { aim <= must } else { aim >= must }, "{name}");
                }
            }
        }
    }

    #[test]
    fn every_metric_of_the_table_is_there() {
        let groups = all();
        let names: BTreeSet<_> =
            groups.iter().flat_map(|group| &group.metrics).map(|metric| metric.name).collect();
        for name in [
            "send_8b_polled",
            "send_8b_blocking",
            "write_8b_latency",
            "write_1m",
            "read_1m",
            "send_1m",
            "write_1m_crc",
            "write_1m_vs_ucx",
            "write_1m_vs_fi",
            "write_64k",
            "write_4k",
            "write_8b_rate_vs_ucx",
            "write_8b_rate",
            "write_8b_single",
            "perftest_write_bw",
            "perftest_write_lat",
            "perftest_send_lat",
            "perftest_read_bw",
            "shm_send_8b_polled",
            "shm_send_8b_polled_acked",
            "shm_send_8b_blocking",
            "shm_send_8b_asleep",
            "shm_switches_8b_asleep",
            "shm_write_8b_latency",
            "shm_write_1m",
            "shm_read_1m",
            "shm_send_1m",
            "shm_write_64k",
            "shm_write_4k",
            "shm_write_8b_rate",
            "shm_write_8b_single",
            "shm_events_each",
            "shm_events_moderated",
            "shm_perftest_write_1m",
            "shm_perftest_read_1m",
            "shm_perftest_send_1m",
            "shm_perftest_send_8b",
            "shm_send_8b_vs_ucx",
            "shm_send_8b_vs_fi",
            "shm_write_1m_vs_ucx",
            "shm_write_1m_vs_fi",
            "busy_send_8b_polled",
            "busy_shm_send_8b_polled_acked",
            "busy_shm_send_8b_asleep",
            "busy_events_each",
            "busy_shm_write_1m",
            "busy_bare_send_8b_polled",
            "qps_9k",
            "qp_idle_bytes",
            "wan_1ms_write_1m",
            "wan_20ms_write_1m",
            "wan_20ms_loss_write_1m",
            "wan_1ms_write_64k_acked",
            "wan_20ms_write_64k_acked",
            "wan_20ms_loss_write_64k_acked",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }
}
