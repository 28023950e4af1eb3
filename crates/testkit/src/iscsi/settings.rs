//! The name of a target, and what it offers.

use ironwarp_wire::iscsi::Digests;

/// The name of the target.
pub const NAME: &str = "iqn.2026-01.test.ironwarp:disk";
/// The tag of the target's only portal group.
pub(super) const PORTAL_GROUP: u16 = 1;

/// Size of the disk, and what the target offers when parameters are negotiated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Size of the disk in bytes: a multiple of [`BLOCK`].
    pub size: usize,
    /// The digests that the target supports. It takes them if the initiator prefers them to none.
    pub digests: Digests,
    /// MaxRecvDataSegmentLength of the target.
    pub max_recv: usize,
    /// InitialR2T: the initiator must wait for an R2T before it sends Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData: commands may carry data.
    pub immediate_data: bool,
    /// MaxBurstLength.
    pub max_burst: usize,
    /// FirstBurstLength.
    pub first_burst: usize,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: usize,
    /// Sends the status of a read with its last Data-In, instead of a Response.
    pub status_in_data: bool,
    /// Number of commands that the initiator may send before the target has seen the first of them.
    pub window: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: 1 << 20,
            digests: Digests { header: true, data: true },
            max_recv: 65_536,
            initial_r2t: false,
            immediate_data: true,
            max_burst: 262_144,
            first_burst: 65_536,
            max_outstanding_r2t: 1,
            status_in_data: true,
            window: 64,
        }
    }
}
