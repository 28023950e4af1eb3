//! How cost grows with the size of messages, the queue depth, and the number of connections. Each point is a
//! group of its own, measured like all others.

use super::contender::ours;
use super::group::Group;
use super::rounds::run_rounds;
use super::statistics::Summary;
use super::turn::{Figure, Place};
use crate::shell::Result;
use serde_json::{Value, json};
use std::time::Duration;

/// The results along one axis.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) axis: &'static str,
    pub(super) figure: Figure,
    pub(super) series: Vec<Series>,
}

/// The results of one contender along the axis.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) points: Vec<(usize, Summary)>,
}

/// What to measure. `{x}` in the words is the position on the axis.
struct Plan {
    name: &'static str,
    title: &'static str,
    axis: &'static str,
    figure: Figure,
    at: &'static [usize],
    who: &'static [(&'static str, &'static str)],
}

const PLANS: [Plan; 4] = [
    Plan {
        name: "curve_latency",
        title: "Ping-pong, polled, by message size",
        axis: "bytes",
        figure: Figure::Latency,
        at: &[8, 64, 512, 4096, 16_384, 65_536],
        who: &[
            ("bare TCP", "transport=bare workload=pingpong size={x}"),
            ("Ironwarp", "workload=pingpong size={x}"),
            ("Ironwarp, acknowledged", "workload=pingpong size={x} acked=true"),
        ],
    },
    Plan {
        name: "curve_size",
        title: "Writes, 16 queued, by message size",
        axis: "bytes",
        figure: Figure::Bandwidth,
        at: &[64, 512, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304],
        who: &[
            ("bare TCP, one per call", "transport=bare blocking=true size={x}"),
            ("Ironwarp", "size={x} queued=16 batch=16 crc=false"),
            ("Ironwarp, acknowledged", "size={x} queued=16 batch=16 crc=false acked=true"),
        ],
    },
    Plan {
        name: "curve_depth",
        title: "4 KiB Writes by queue depth",
        axis: "queued",
        figure: Figure::Rate,
        at: &[1, 2, 4, 8, 16, 32, 64, 128],
        who: &[
            ("bare TCP, as many per call", "transport=bare blocking=true size=4096 queued={x} batch={x}"),
            ("Ironwarp", "size=4096 queued={x} batch={x} crc=false"),
            ("Ironwarp, acknowledged", "size=4096 queued={x} batch={x} crc=false acked=true"),
        ],
    },
    Plan {
        name: "curve_connections",
        title: "64 B requests and answers, 32 outstanding, by connections",
        axis: "connections",
        figure: Figure::Rate,
        at: &[10, 100, 1000, 3000, 9000],
        who: &[
            ("bare TCP", "transport=bare workload=requests size=64 queued=32 connections={x}"),
            ("Ironwarp", "workload=requests size=64 queued=32 connections={x}"),
        ],
    },
];

/// Does not repeat rounds: the curve shows disturbances.
pub(super) fn measure(place: &Place, rounds: usize) -> Result<Vec<Curve>> {
    PLANS.iter().map(|plan| plan.measure(place, rounds)).collect()
}

impl Plan {
    fn measure(&self, place: &Place, rounds: usize) -> Result<Curve> {
        let Self { name, title, axis, figure, at, who } = *self;
        let named = |(name, _): &(&'static str, &str)| Series { name, points: Vec::new() };
        let mut series: Vec<_> = who.iter().map(named).collect();
        for x in at {
            let contender =
                |(name, words): &(&'static str, &str)| ours(name, &words.replace("{x}", &x.to_string()));
            let contenders = who.iter().map(contender).collect();
            let group =
                Group { name, title, figure, patience: 1, link: None, contenders, metrics: Vec::new() };
            let measured = run_rounds(group, place, rounds, &mut Duration::default())?;
            for one in &mut series {
                one.points.push((*x, Summary::of(measured.values(one.name))));
            }
        }
        Ok(Curve { name, title, axis, figure, series })
    }
}

impl Curve {
    /// An object for each point, with the same point of the first series.
    pub(super) fn json(&self) -> Vec<Value> {
        let Some(base) = self.series.first() else { return Vec::new() };
        let mut objects = Vec::new();
        for one in &self.series {
            for ((x, own), (_, of_base)) in one.points.iter().zip(&base.points) {
                objects.push(json!({
                    "metric": format!("{}: {}", self.name, one.name), "x": x, "axis": self.axis,
                    "value": own.median, "unit": self.figure.unit(), "baseline": base.name,
                    "ratio": own.median / of_base.median,
                    "spread": own.quartiles.map(|quartile| quartile / of_base.median),
                }));
            }
        }
        objects
    }
}
