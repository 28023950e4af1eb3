//! How cost grows: with the size of messages, with how many are queued, and with the number of connections. Each point is a group
//! of its own, played like all others.

use super::contender::{Contender, Figure, How, Place};
use super::group::Group;
use super::rounds::play;
use super::statistics::Summary;
use crate::shell::Result;
use serde_json::{Value, json};
use std::time::Duration;

/// What was measured along one axis.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) axis: &'static str,
    pub(super) figure: Figure,
    pub(super) series: Vec<Series>,
}

/// One contender along the axis: where, and what came out.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) points: Vec<(usize, Summary)>,
}

/// What is to be measured. `{x}` in the words is the place on the axis.
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
        title: "There and back, polled, by message size",
        axis: "bytes",
        figure: Figure::Latency,
        at: &[8, 64, 512, 4096, 16_384, 65_536],
        who: &[
            ("bare TCP", "who=bare what=pingpong size={x}"),
            ("Ironwarp", "what=pingpong size={x}"),
            ("Ironwarp, acknowledged", "what=pingpong size={x} acked=true"),
        ],
    },
    Plan {
        name: "curve_size",
        title: "Writes, 16 queued, by message size",
        axis: "bytes",
        figure: Figure::Bandwidth,
        at: &[64, 512, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304],
        who: &[
            ("bare TCP, one call for each", "who=bare blocking=true size={x}"),
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
            ("bare TCP, as many per call", "who=bare blocking=true size=4096 queued={x} batch={x}"),
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
            ("bare TCP", "who=bare what=requests size=64 queued=32 connections={x}"),
            ("Ironwarp", "what=requests size=64 queued=32 connections={x}"),
        ],
    },
];

/// No round is repeated: a curve shows where it was disturbed.
pub(super) fn measure(place: &Place, rounds: usize) -> Result<Vec<Curve>> {
    PLANS.iter().map(|plan| plan.measure(place, rounds)).collect()
}

impl Plan {
    fn measure(&self, place: &Place, rounds: usize) -> Result<Curve> {
        let Self { name, title, axis, figure, at, who } = *self;
        let named = |(name, _): &(&'static str, &str)| Series { name, points: Vec::new() };
        let mut series: Vec<_> = who.iter().map(named).collect();
        for x in at {
            let contender = |(name, words): &(&'static str, &str)| Contender {
                name,
                how: How::Ours(words.replace("{x}", &x.to_string())),
            };
            let contenders = who.iter().map(contender).collect();
            let group =
                Group { name, title, figure, patience: 1, link: None, contenders, metrics: Vec::new() };
            let played = play(group, place, rounds, &mut Duration::default())?;
            for one in &mut series {
                one.points.push((*x, Summary::of(played.values(one.name))));
            }
        }
        Ok(Curve { name, title, axis, figure, series })
    }
}

impl Curve {
    /// An object for each point, beside the same point of the first series.
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
