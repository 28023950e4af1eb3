//! Executes the operations that send nothing: binding, registration and invalidation by work request.

use super::Tx;
use super::payload::check_memory_of;
use super::stop::Stop;
use crate::broken;
use crate::context::QpContext;
use crate::error::QpError;
use crate::memory::{Memory, Rights};
use crate::queue::{BlamedRequest, Data, Operation, Status, WorkRequest};
use crate::sync::lock;
use ironwarp_wire::Tag;

impl Tx {
    /// Executes the local operation of the request `seq`, and moves the cursor behind the request, unless it is to be
    /// sent as well.
    #[cold]
    pub(super) fn execute_local(
        &mut self,
        qp: &QpContext,
        seq: u64,
        request: &WorkRequest,
    ) -> Result<(), Stop> {
        match execute(qp, seq, request) {
            Ok(Executed::All) => self.cursor.seq += 1,
            Ok(Executed::Registration) => {}
            Err(LocalFailure { error: error @ QpError::Register { .. }, .. }) if qp.survives_refusal() => {
                self.registration_refused = true;
                self.cursor.seq = qp.refuse(seq, error);
            }
            Err(LocalFailure { error, status }) => {
                return Err(Stop::failed_request(error, BlamedRequest { seq, status }));
            }
        }
        Ok(())
    }
}

/// What was executed of a request.
enum Executed {
    /// All of it. The request is complete.
    All,
    /// Its registration. The request is a Send now.
    Registration,
}

/// The failure of a local operation.
struct LocalFailure {
    error: QpError,
    /// The status with which the request completes.
    status: Status,
}

impl From<QpError> for LocalFailure {
    fn from(error: QpError) -> Self {
        Self { error, status: Status::WindowBind }
    }
}

/// Executes a local operation, which sends nothing, and completes its request, unless the request is to be sent as well.
fn execute(qp: &QpContext, seq: u64, request: &WorkRequest) -> Result<Executed, LocalFailure> {
    let (device, stream) = (qp.device(), qp.stream());
    match &request.operation {
        Operation::Bind { window, binding } => {
            device.table().bind(stream, *window, *binding).map(drop).map_err(QpError::Local)?;
        }
        Operation::BindAs { tag, binding } => {
            device.table().bind_as(stream, *tag, *binding).map_err(QpError::Local)?;
        }
        Operation::Register { tag, memory } => register(qp, *tag, memory)?,
        Operation::RegisterSend { tag, memory, .. } => {
            return register_to_send(qp, seq, *tag, memory, &request.data);
        }
        Operation::Invalidate(tag) => device.table().invalidate(stream, *tag).map_err(QpError::Local)?,
        _ => {} // not a local operation
    }
    lock(&qp.sq).mark_executed(seq);
    qp.retire();
    Ok(Executed::All)
}

/// Registers memory by work request.
fn register(qp: &QpContext, tag: Tag, memory: &Memory) -> Result<(), QpError> {
    qp.device()
        .register_by_request(qp.stream(), tag, memory.clone())
        .map_err(|error| QpError::Register { tag, error })
}

/// Executes the registration of a request that registers memory and sends `data` (requirement M12), and makes the request
/// a Send. Registers nothing if `data` may not be read. As the registration may be what allows that, only the memory
/// under other tags is checked before it: a request that waits for one of these (requirement X6) has registered nothing.
fn register_to_send(
    qp: &QpContext,
    seq: u64,
    tag: Tag,
    memory: &Memory,
    data: &Data,
) -> Result<Executed, LocalFailure> {
    let denied = |error| LocalFailure { error, status: Status::LocalProtection };
    check_memory_of(qp, data, Rights::LOCAL_READ, |used| used != tag).map_err(denied)?;
    let registered = register(qp, tag, memory);
    if !broken::is("combined") {
        registered?;
    }
    let readable = check_memory_of(qp, data, Rights::LOCAL_READ, |used| used == tag);
    if readable.is_err() || !lock(&qp.sq).become_send(seq) {
        // Fails only if the program has invalidated or deregistered the memory meanwhile.
        let _ = qp.device().table().invalidate(qp.stream(), tag);
    }
    readable.map_err(denied)?;
    Ok(Executed::Registration)
}
