//! Opens one end of a segment.

use crate::progress::Progress;
use crate::reader::Reader;
use crate::ring::Ring;
use crate::segment::Segment;
use crate::watch::Watch;
use crate::writer::Writer;
use std::sync::Arc;

/// One of the two processes that share a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Created the memory; writes ring 0 and reads ring 1.
    Creator,
    /// Was given the memory; writes ring 1 and reads ring 0.
    Joiner,
}

/// Opens one end of a new segment. Each end must be opened once: it starts at position 0.
///
/// Panics if the segment is not aligned.
pub fn open(segment: Arc<dyn Segment>, side: Side) -> (Writer, Reader, Watch) {
    end(Ring::both(&segment), side)
}

/// Opens one end of two rings.
pub(crate) fn end(rings: [Ring; 2], side: Side) -> (Writer, Reader, Watch) {
    let [outgoing, incoming] = match side {
        Side::Creator => rings,
        Side::Joiner => {
            let [first, second] = rings;
            [second, first]
        }
    };
    let progress = Arc::new(Progress::new());
    let watch = Watch::new(incoming.clone(), outgoing.clone(), Arc::clone(&progress));
    (Writer::new(outgoing, Arc::clone(&progress)), Reader::new(incoming, progress), watch)
}
