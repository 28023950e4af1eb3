//! The processors of lanes, and the lanes within the processors of a completion handler (requirement N5).
//!
//! A lane fits a handler if its thread may run on no processor outside of the handler's set. Lanes start without a
//! restriction of their own. So for a handler whose set no lane fits, lanes that were never restricted are restricted to
//! their part of the set: of all processors, lane 0 has the first, lane 1 the second, and so on, in turn.

use super::lanes::Steering;
use crate::reactor::class::{Class, Processors};
use crate::reactor::lane::Lane;
use crate::reactor::member::{Member, Placement};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// No lane of the adapter can run on the processors of a completion handler only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no lane of the adapter can be restricted to processors {processors:?}: every lane is restricted to others"
)]
#[non_exhaustive]
pub struct NoLaneWithin {
    /// The processors of the handler.
    pub processors: Vec<usize>,
}

impl Steering {
    /// Returns the processors on which a lane may run. Starts the lanes if necessary.
    pub fn processors(self: &Arc<Self>, lane: usize) -> io::Result<Vec<usize>> {
        self.check_lane(lane).map_err(io::Error::other)?;
        self.lane_processors(lane)
    }

    /// Restricts a lane to these processors (requirement N5). Threads that wait for its completions may run there, too.
    /// Queue pairs of handlers with other processors move to lanes that fit. Fails if the process may use none of the
    /// processors.
    pub fn set_processors(self: &Arc<Self>, lane: usize, processors: &[usize]) -> io::Result<()> {
        self.check_lane(lane).map_err(io::Error::other)?;
        self.restrict(&mut lock(&self.restricted), lane, processors)?;
        let members = self.lane(lane)?.sets().into_iter().flat_map(|set| set.members());
        members.filter_map(Member::movable).try_for_each(|member| self.steer(&member))
    }

    /// Fails if no lane can serve queue pairs of this class on these processors. Restricts lanes if necessary.
    pub(crate) fn check_processors(
        self: &Arc<Self>,
        class: Class,
        processors: &Processors,
    ) -> io::Result<()> {
        match class {
            Class::LowLatency => self.low_latency_within(processors).map(drop),
            Class::Bulk(_) => self.lanes_within(processors).map(drop),
        }
    }

    /// Returns whether a lane fits class and processors of a placement. Restricts no lane.
    pub(super) fn fits(self: &Arc<Self>, lane: usize, placement: &Placement) -> io::Result<bool> {
        let fits_class = (lane == self.lanes()) == (placement.class == Class::LowLatency);
        let processors = &placement.processors;
        Ok(fits_class && (processors.is_unlimited() || processors.contain(&self.lane_processors(lane)?)))
    }

    /// Returns the lanes within these processors, without the low-latency lane. Restricts lanes if there is none; fails
    /// if there is none even then.
    pub(super) fn lanes_within(self: &Arc<Self>, processors: &Processors) -> io::Result<Vec<usize>> {
        if processors.is_unlimited() {
            return Ok((0..self.lanes()).collect());
        }
        let mut restricted = lock(&self.restricted);
        let mut fitting = Vec::new();
        for lane in 0..self.lanes() {
            if processors.contain(&self.lane_processors(lane)?) {
                fitting.push(lane);
            }
        }
        if !fitting.is_empty() {
            return Ok(fitting);
        }
        let free: Vec<_> = (0..self.lanes()).filter(|lane| !restricted.contains(lane)).collect();
        for &lane in &free {
            let part = self.part_of(lane, processors)?;
            if !part.is_empty() {
                self.restrict(&mut restricted, lane, &part)?;
                fitting.push(lane);
            }
        }
        if fitting.is_empty() {
            let lane = *free.first().ok_or_else(|| no_lane_within(processors))?;
            self.restrict(&mut restricted, lane, processors.numbers())?;
            fitting.push(lane);
        }
        Ok(fitting)
    }

    /// Returns the low-latency lane, which is restricted to these processors if it was never restricted. Fails if it
    /// may run on others.
    pub(super) fn low_latency_within(self: &Arc<Self>, processors: &Processors) -> io::Result<&Arc<Lane>> {
        let lane = self.low_latency()?;
        if processors.is_unlimited() {
            return Ok(lane);
        }
        let number = self.lanes();
        let mut restricted = lock(&self.restricted);
        if !processors.contain(&self.lane_processors(number)?) {
            if restricted.contains(&number) {
                return Err(no_lane_within(processors));
            }
            self.restrict(&mut restricted, number, processors.numbers())?;
        }
        Ok(lane)
    }

    /// Returns the part of these processors that a lane would be restricted to: those that it may use, and that are its
    /// own if all lanes share them in turn.
    fn part_of(self: &Arc<Self>, lane: usize, processors: &Processors) -> io::Result<Vec<usize>> {
        let own = self.lane_processors(lane)?.into_iter().skip(lane).step_by(self.lanes());
        Ok(own.filter(|processor| processors.contain(&[*processor])).collect())
    }

    /// Restricts a lane to these processors. The low-latency lane has the number after all others.
    fn restrict(
        self: &Arc<Self>,
        restricted: &mut BTreeSet<usize>,
        lane: usize,
        processors: &[usize],
    ) -> io::Result<()> {
        self.lane(lane)?.handle().await_thread().set_processors(processors)?;
        restricted.insert(lane);
        Ok(())
    }

    /// Returns the processors on which a lane may run. The low-latency lane has the number after all others.
    fn lane_processors(self: &Arc<Self>, lane: usize) -> io::Result<Vec<usize>> {
        self.lane(lane)?.handle().await_thread().processors()
    }
}

/// Returns the error for processors that no lane can be restricted to.
fn no_lane_within(processors: &Processors) -> io::Error {
    io::Error::other(NoLaneWithin { processors: processors.numbers().to_vec() })
}
