//! An offer of shared memory, while its parts arrive.

use ironwarp_wire::private::OFFER_LEN;

/// The parts of an offer that have arrived.
#[derive(Debug, Default)]
pub(super) struct OfferParts {
    bytes: [u8; OFFER_LEN],
    /// Number of bytes that have arrived.
    len: usize,
}

/// What a part makes of an offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The part is out of order: drop the offer.
    OutOfOrder,
    /// More parts are missing.
    More,
    /// This was the last part.
    Whole([u8; OFFER_LEN]),
}

impl OfferParts {
    /// Adds the part with this number.
    pub(super) fn add(&mut self, part: u8, data: &[u8]) -> Added {
        let start = usize::from(part) * data.len();
        let end = start + data.len();
        if self.len != start || end > OFFER_LEN {
            return Added::OutOfOrder;
        }
        self.bytes[start..end].copy_from_slice(data);
        self.len = end;
        if end == OFFER_LEN { Added::Whole(self.bytes) } else { Added::More }
    }
}
