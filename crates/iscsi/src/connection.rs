//! The connection of a session: a queue pair in iSCSI mode, and its receives.

use crate::error::Error;
use crate::login::login;
use crate::parameters::{Negotiated, Options};
use ironwarp::completion::{Completion, CompletionQueue};
use ironwarp::iscsi::{HEADER_LEN, IscsiQueuePair, SessionParameters};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::RegistrationFailure;
use ironwarp::{Adapter, ProtectionDomain};
use ironwarp_wire::iscsi::PduLayout;
use std::net::{SocketAddr, TcpStream};

/// Maximum number of commands at the queue pair.
pub(crate) const DEPTH: usize = 128;
/// Maximum number of other requests at the queue pair.
const CONTROL_DEPTH: usize = 32;
/// Maximum number of scatter/gather elements of a command.
pub(crate) const MAX_SGES: usize = 16;
/// Number of receives: Data-In and R2T take one each. The connection is not read while all are used.
const RECEIVES: usize = 256;
/// Length of a receive: a header, and sense data of at most 252 bytes with its length, or the data of a ping.
const RECEIVE_LEN: usize = 512;
/// Maximum number of completions that are taken at once.
pub(crate) const BATCH: usize = 64;

/// A connection after the login.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) qp: IscsiQueuePair,
    pub(crate) cq: CompletionQueue,
    receives: MemoryRegion,
    pub(crate) session: Negotiated,
}

/// A PDU of the target.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) header: [u8; HEADER_LEN],
    /// Length of the data, all of it.
    pub(crate) data_len: u32,
    /// The data in the receive, which is empty for Data-In.
    pub(crate) data: Vec<u8>,
}

impl Connection {
    /// Connects, logs in, and creates the queue pair.
    pub(crate) fn open(
        adapter: &Adapter,
        domain: &ProtectionDomain,
        address: SocketAddr,
        options: &Options,
    ) -> Result<Self, Error> {
        let connect = |error| Error::Connect { address, error };
        let mut stream = TcpStream::connect_timeout(&address, options.timeout).map_err(connect)?;
        let session = login(&mut stream, options)?;
        let cq = adapter.completion_queue(DEPTH + CONTROL_DEPTH + RECEIVES)?;
        let receives = domain.register(Buffer::new(RECEIVES * RECEIVE_LEN)?, Access::LOCAL_WRITE)?;
        let qp = domain
            .iscsi_queue_pair(&cq, parameters(&session))
            .send_depth(DEPTH + CONTROL_DEPTH)
            .receive_depth(RECEIVES)
            .max_sges(MAX_SGES)
            .registration_failure(RegistrationFailure::Reactive)
            .create(stream)?;
        let connection = Self { qp, cq, receives, session };
        (0..RECEIVES as u64).try_for_each(|index| connection.post_receive(index))?;
        Ok(connection)
    }

    /// Posts the receive with this index.
    pub(crate) fn post_receive(&self, index: u64) -> Result<(), Error> {
        let at = place(index);
        let slice = self.receives.slice(at..at + RECEIVE_LEN).expect("within the region");
        Ok(self.qp.post_receive(index, &[slice])?)
    }

    /// Returns the task tag of a logout: that of a region, which no command has.
    pub(crate) fn logout_tag(&self) -> u32 {
        self.receives.tag().0
    }

    /// Returns the PDU that a receive has got.
    pub(crate) fn received(&self, completion: &Completion) -> Received {
        let mut header = [0; HEADER_LEN];
        let at = place(completion.wr_id);
        self.receives.read(at, &mut header).expect("within the region");
        let layout = PduLayout::of(&header, self.session.digests);
        let mut data = vec![0; (completion.byte_len as usize).saturating_sub(HEADER_LEN)];
        self.receives.read(at + HEADER_LEN, &mut data).expect("within the region");
        Received { header, data_len: u32::try_from(layout.data).unwrap_or(u32::MAX), data }
    }

    /// Returns the number of bytes of a write that are sent without an R2T.
    pub(crate) fn unsolicited(&self, len: u32) -> u32 {
        let session = &self.session;
        let unsolicited = len.min(session.first_burst);
        let immediate = match session.immediate_data {
            true => unsolicited.min(session.target_max_recv_data_segment),
            false => 0,
        };
        if session.initial_r2t { immediate } else { unsolicited }
    }
}

/// Returns the position of a receive in its region.
fn place(index: u64) -> usize {
    usize::try_from(index).map_or(0, |index| index % RECEIVES * RECEIVE_LEN)
}

/// Returns the parameters of the queue pair.
fn parameters(session: &Negotiated) -> SessionParameters {
    let mut parameters = SessionParameters::default();
    parameters.digests = session.digests;
    parameters.max_recv_data = session.max_recv_data_segment;
    parameters.max_send_data = session.target_max_recv_data_segment;
    parameters.first_burst = session.first_burst;
    parameters.max_burst = session.max_burst;
    parameters.immediate_data = session.immediate_data;
    parameters.initial_r2t = session.initial_r2t;
    parameters.max_outstanding_r2t = 1; // what the login offers
    parameters.exp_stat_sn = session.exp_stat_sn;
    parameters
}
