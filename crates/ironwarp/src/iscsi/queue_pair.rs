//! The queue pair in iSCSI mode: posting commands, receives and other PDUs, and aborting commands.

use super::request::CommandRequest;
use crate::shared::Shared;
use ironwarp_engine::IscsiQueuePair as Inner;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::iscsi::{CommandEnded, CommandId, PduRequest};
use ironwarp_rnic::qp::{IllegalTransition, State};
use ironwarp_rnic::queue::{ReceiveRequest, Sge};
use std::fmt;
use std::sync::Arc;

/// A queue pair in iSCSI mode: the initiator's end of an iSCSI connection.
///
/// Every PDU of the target uses a receive, which gets the header of 48 bytes and the data, except that of Data-In, which goes
/// to the memory of its command. Data that does not fit the receive is discarded; the header has its length. The
/// connection is not read while no receive is posted. The completion's
/// [opcode](crate::completion::Opcode) is
/// - [`Response`](crate::completion::Opcode::Response) if the PDU has completed a command, whose memory is deregistered;
/// - [`RefusedPdu`](crate::completion::Opcode::RefusedPdu) if it has failed a check, so that nothing was placed or sent;
/// - [`Pdu`](crate::completion::Opcode::Pdu) otherwise.
///
/// A command ends by such a response, by [`abort`](Self::abort), or by a completion with the opcode
/// [`Command`](crate::completion::Opcode::Command) and an error.
///
/// Dropping the queue pair ends the connection at once, deregisters the memory of its commands, and removes its completions
/// from the completion queues.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::completion::Opcode;
/// use ironwarp::iscsi::{Command, CommandId, CommandRequest, SessionParameters};
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
/// let adapter = Adapter::new()?;
/// let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(256)?);
/// let qp = domain.iscsi_queue_pair(&cq, SessionParameters::default()).create(connection)?;
/// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
///
/// // A receive for the response, then a command that reads a block of 512 bytes.
/// qp.post_receive(7, &[region.slice(..256)?])?;
/// let mut header = Command { lun: 1 << 48, cmd_sn: 1, ..Default::default() };
/// header.cdb[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]); // READ(10)
/// let command = CommandRequest::new(header).read_to(&[region.slice(1024..1536)?]);
/// let ids = qp.post_commands([command])?;
///
/// let completion = cq.wait(Duration::from_secs(5))?.success()?;
/// assert_eq!((completion.wr_id, completion.opcode), (7, Opcode::Response));
/// assert_eq!(CommandId::of(&completion), Some(ids[0]));
/// let mut block = [0; 512];
/// region.read(1024, &mut block)?;
/// assert_eq!(block, [0xa5; 512], "what the target has sent");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a queue pair destroys it"]
pub struct IscsiQueuePair {
    pub(super) inner: Arc<Inner>,
    /// Keeps the adapter alive.
    pub(super) _shared: Arc<Shared>,
}

impl IscsiQueuePair {
    /// Returns the queue pair number.
    pub fn qpn(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the current state: [`State::ReadyToSend`], [`State::Error`], or [`State::Drained`] after the memory of a command
    /// could not be registered.
    pub fn state(&self) -> State {
        self.inner.qp().state()
    }

    /// Returns why the queue pair has failed, or `None` if it has not.
    pub fn error(&self) -> Option<QpError> {
        self.inner.qp().error().map(Arc::unwrap_or_clone)
    }

    /// Moves the queue pair from [`State::Drained`] back to [`State::ReadyToSend`], or to [`State::Error`], which ends the
    /// connection.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::queue::State;
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, ironwarp::iscsi::SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// # let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// qp.set_state(State::Error)?;
    /// assert!(qp.post_receive(1, &[]).is_err(), "the connection has ended");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails for all other transitions.
    pub fn set_state(&self, to: State) -> Result<(), IllegalTransition> {
        self.inner.qp().modify(to)
    }

    /// Posts commands, all or none, in this order, and returns their numbers at once. Post a receive for each response
    /// before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::iscsi::{Command, CommandRequest, SessionParameters};
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// # let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// # let region = adapter.protection_domain().register(ironwarp::memory::Buffer::new(96)?, ironwarp::memory::Access::LOCAL_WRITE)?;
    /// # qp.post_receive(1, &[region.slice(..48)?])?;
    /// # qp.post_receive(2, &[region.slice(48..)?])?;
    /// let ready = |cmd_sn| CommandRequest::new(Command { lun: 1 << 48, cmd_sn, ..Default::default() });
    /// let ids = qp.post_commands([ready(1), ready(2)])?;
    /// assert_ne!(ids[0], ids[1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if too many commands are outstanding, if a list has too many elements, or if the connection has ended.
    pub fn post_commands(
        &self,
        commands: impl IntoIterator<Item = CommandRequest>,
    ) -> Result<Vec<CommandId>, PostError> {
        self.inner.post_commands(commands.into_iter().map(|command| command.inner).collect())
    }

    /// Posts a PDU that is not a SCSI command: a ping, a task management request, a logout. It completes only if it fails.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::iscsi::{PduRequest, SessionParameters};
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// # let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// let mut header = [0; 48];
    /// header[..2].copy_from_slice(&[0x40, 0x80]); // NOP-Out, for immediate delivery
    /// header[16..24].fill(0xff); // no answer is expected
    /// qp.post_pdu(PduRequest { id: 1, header, data: Box::default() })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if too many requests are outstanding, if the data is longer than the target accepts, or if the connection has
    /// ended.
    pub fn post_pdu(&self, request: PduRequest) -> Result<(), PostError> {
        self.inner.post_pdu(request)
    }

    /// Posts a receive into the buffers of `list`. Receives are consumed in the order of posting, each by one PDU of the
    /// target. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (Adapter::new()?, ironwarp::iscsi::SessionParameters::default());
    /// # let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(256)?);
    /// # let qp = domain.iscsi_queue_pair(&cq, session).create(connection)?;
    /// // Room for a header, and for sense data.
    /// let region = domain.register(Buffer::new(48 + 256)?, Access::LOCAL_WRITE)?;
    /// qp.post_receive(1, &[region.slice(..)?])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the receive queue is full, if the list has too many elements, or if the connection has ended.
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.post_receive(ReceiveRequest { id, buffers: list.into() })
    }

    /// Aborts a command: when this has returned, the adapter does not access its memory any more, whatever the target sends,
    /// and the command does not complete. Returns its task tag, or `None` if the target has not got the command. The target
    /// is not told: send it a task management request afterwards.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::iscsi::{Command, CommandEnded, CommandRequest, SessionParameters};
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// # let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// # let header = Command { lun: 1 << 48, cmd_sn: 1, ..Default::default() };
    /// let command = qp.post_commands([CommandRequest::new(header)])?[0];
    /// let task = qp.abort(command)?.expect("the command was sent");
    /// println!("tell the target to abort task {task:#x}");
    /// assert_eq!(qp.abort(command), Err(CommandEnded(command)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the command has ended. Its completion may not have been polled yet.
    pub fn abort(&self, command: CommandId) -> Result<Option<u32>, CommandEnded> {
        self.inner.abort(command)
    }

    /// As [`abort`](Self::abort), but sends `instead` in the place of a command that the target has not got: without a PDU
    /// with its number, the target would wait for it, and execute none of the commands behind it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::iscsi::{Command, CommandRequest, PduRequest, SessionParameters};
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// # let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// # let header = Command { lun: 1 << 48, cmd_sn: 1, ..Default::default() };
    /// let command = qp.post_commands([CommandRequest::new(header)])?[0];
    /// let mut header = [0; 48];
    /// header[1] = 0x80; // NOP-Out
    /// header[20..24].fill(0xff);
    /// header[27] = 1; // the number of the command
    /// qp.abort_or_replace(command, PduRequest { id: 1, header, data: Box::default() })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`abort`](Self::abort) does, and then sends nothing instead.
    pub fn abort_or_replace(
        &self,
        command: CommandId,
        instead: PduRequest,
    ) -> Result<Option<u32>, CommandEnded> {
        self.inner.abort_or_replace(command, instead)
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for IscsiQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IscsiQueuePair")
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
