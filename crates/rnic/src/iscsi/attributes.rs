//! The attributes of a queue pair in iSCSI mode, and the parameters of its session.

use crate::context::RegistrationFailure;
use crate::memory::{Direction, Domain};
use crate::queue::{Cq, Sges};
use ironwarp_wire::iscsi::{Command, Digests, HEADER_LEN};
use std::fmt;
use std::sync::Arc;

/// The attributes of a queue pair in iSCSI mode, in every layer. `C` is the layer's handle to a completion queue.
#[derive(Clone, Debug)]
pub struct IscsiAttributes<C = Arc<Cq>> {
    /// The protection domain.
    pub domain: Domain,
    /// The completion queue for commands that fail.
    pub send_cq: C,
    /// The completion queue for received PDUs.
    pub receive_cq: C,
    /// Maximum number of commands that the target has not completed, and of other PDUs that are not sent.
    pub send_depth: usize,
    /// Depth of the receive queue.
    pub receive_depth: usize,
    /// Maximum number of scatter/gather elements of a command or a receive.
    pub max_sges: usize,
    /// What happens if the buffers of a command cannot be registered (requirement M7).
    pub registration_failure: RegistrationFailure,
    /// What the two ends agreed on at the login.
    pub session: SessionParameters,
}

impl<C> IscsiAttributes<C> {
    /// Returns attributes of a queue pair with 128 commands and 256 receives, of up to four elements each.
    pub fn new(domain: Domain, cq: &C, session: SessionParameters) -> Self
    where
        C: Clone,
    {
        Self {
            domain,
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            send_depth: 128,
            receive_depth: 256,
            max_sges: 4,
            registration_failure: RegistrationFailure::default(),
            session,
        }
    }

    /// Replaces the two handles to completion queues by those of another layer, which `convert` returns.
    pub fn map_cqs<D>(self, mut convert: impl FnMut(C) -> D) -> IscsiAttributes<D> {
        IscsiAttributes {
            domain: self.domain,
            send_cq: convert(self.send_cq),
            receive_cq: convert(self.receive_cq),
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            max_sges: self.max_sges,
            registration_failure: self.registration_failure,
            session: self.session,
        }
    }
}

/// What initiator and target agreed on at the login (RFC 7143 §13). The defaults are those of RFC 7143.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionParameters {
    /// The digests of both directions.
    pub digests: Digests,
    /// Maximum number of bytes of data in a PDU that is received (MaxRecvDataSegmentLength of this end).
    pub max_recv_data: u32,
    /// Maximum number of bytes of data in a PDU that is sent (MaxRecvDataSegmentLength of the target).
    pub max_send_data: u32,
    /// Maximum number of bytes of a command that are sent unsolicited (FirstBurstLength).
    pub first_burst: u32,
    /// Maximum number of bytes that an R2T may ask for (MaxBurstLength).
    pub max_burst: u32,
    /// The PDU of a command carries data (ImmediateData).
    pub immediate_data: bool,
    /// All data but that in the PDU of the command waits for an R2T (InitialR2T).
    pub initial_r2t: bool,
    /// Maximum number of R2Ts of a command that are not answered (MaxOutstandingR2T).
    pub max_outstanding_r2t: u16,
    /// The sequence number of the first status after the login.
    pub exp_stat_sn: u32,
}

impl Default for SessionParameters {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            max_recv_data: 8192,
            max_send_data: 8192,
            first_burst: 65_536,
            max_burst: 262_144,
            immediate_data: true,
            initial_r2t: true,
            max_outstanding_r2t: 1,
            exp_stat_sn: 0,
        }
    }
}

/// A SCSI command for the send queue of a queue pair in iSCSI mode.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// The header. The adapter sets the task tag, the lengths and the flags of the data, and the expected status number.
    pub header: Command,
    /// The buffers, and the direction in which the command transfers them. `None` for a command without data.
    pub data: Option<(Direction, Sges)>,
}

/// Any other PDU for the send queue of a queue pair in iSCSI mode. It completes only if it fails.
#[derive(Clone, Debug)]
pub struct PduRequest {
    /// The identifier returned in the completion.
    pub id: u64,
    /// The header, whose length of data is that of `data`. The adapter sets the expected status number.
    pub header: [u8; HEADER_LEN],
    /// The data.
    pub data: Box<[u8]>,
}

/// The driver of a queue pair in iSCSI mode: a lane, or a test.
pub trait IscsiDriver: Send + Sync + fmt::Debug {
    /// Makes another thread call [`IscsiQp::resume`](super::IscsiQp::resume) soon. Called when work is left that the
    /// calling thread must not do.
    fn schedule(&self);

    /// Returns the number of the lane that events belong to. Zero if there are no lanes.
    fn lane(&self) -> u16 {
        0
    }
}
