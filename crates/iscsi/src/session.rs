//! A session with a target: one connection at error recovery level 0. Starts commands within the window of the target,
//! accounts for what the target answers, aborts commands, and reconnects.

use crate::connection::{BATCH, Connection, DEPTH, MAX_SGES, Received};
use crate::error::Error;
use crate::parameters::{Negotiated, Options};
use crate::request::{Direction, Finished, Request, TaskId};
use crate::scsi::{self, Capacity, GOOD, Inquiry, ScsiError};
use crate::task::{Task, Violation};
use ironwarp::completion::{Arm, Completion, Opcode, Status};
use ironwarp::iscsi::{Command, CommandId, CommandRequest, PduRequest};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{PostError, QpError, State};
use ironwarp::{Adapter, ProtectionDomain, WaitError};
use ironwarp_wire::iscsi::{
    InitiatorPdu, LogoutRequest, LogoutResponse, NO_TASK, NopIn, NopOut, Residual, SequenceNumbers,
    TargetPdu, TaskFunction, TaskRequest, TaskResponse,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the commands of [`Session::inquiry`], [`Session::capacity`] and [`Session::ready`] may take.
const QUERY_TIME: Duration = Duration::from_secs(30);
/// Pause between attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// While at least this many commands are outstanding, responses are gathered for a moment before the session waits for one:
/// the target has enough to do meanwhile, and one call receives several.
const GATHER_FROM: usize = 8;
/// How long responses are gathered at first. The kernel adds its timer slack, 50 microseconds by default.
const GATHER: Duration = Duration::from_micros(30);
/// Maximum of that time, which doubles while large data arrives without completing a command.
const MAX_GATHER: Duration = Duration::from_micros(480);
/// The identifier of requests other than commands, and that of answers to pings.
const CONTROL: u64 = 0;
const PING: u64 = 1;
/// Sense key, code and qualifier of a unit attention: power on, reset, or the like.
const RESET: [u8; 3] = [6, 0x29, 0];
/// The task attribute of commands: simple.
const SIMPLE: u8 = 1;
/// Number of aborted tasks that are remembered, to tell their late PDUs from others.
const REMEMBERED_ABORTS: usize = 65_536;

/// A session with an iSCSI target.
///
/// Commands are [started](Self::start) and end in any order ([`next`](Self::next)). While a command is outstanding, the
/// target can access its memory. When it has ended, was [aborted](Self::abort) or has timed out, not a byte of its memory
/// changes any more, whatever the target sends.
///
/// ```no_run
/// use ironwarp::prelude::*;
/// use ironwarp_iscsi::{Options, Request, Session};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new("iqn.2026-01.example.host:backup", "iqn.2026-01.example.storage:disk1");
/// let mut session = Session::connect(&Adapter::new()?, "192.0.2.1:3260".parse()?, &options)?;
/// let capacity = session.capacity(1)?;
/// let region = session.domain().register(Buffer::new(65_536)?, Access::LOCAL_WRITE)?;
/// let request = Request::read(1, &capacity, 0, &[region.slice(..)?])?;
/// session.execute(request, Duration::from_secs(10))?;
/// println!("{:02x?}", &region.to_vec()?[..512]);
/// session.logout()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    adapter: Adapter,
    domain: ProtectionDomain,
    address: SocketAddr,
    options: Options,
    connection: Option<Connection>,
    /// Sequence number of the next command.
    cmd_sn: u32,
    max_cmd_sn: u32,
    /// Number of the next status.
    exp_stat_sn: u32,
    next_task: u64,
    /// The commands that have not ended, in the order in which they were started.
    tasks: BTreeMap<TaskId, Task>,
    /// Those of them that are posted.
    posted: HashMap<CommandId, TaskId>,
    /// Those of them that are not.
    waiting: VecDeque<TaskId>,
    finished: VecDeque<Finished>,
    control: ControlTask,
    /// Whether the target has answered a logout.
    logged_out: bool,
    /// Task tags of pings that were sent instead of aborted commands.
    skips: BTreeSet<u32>,
    /// Task tags of aborted commands, the oldest first.
    aborted: VecDeque<u32>,
    late_pdus: u64,
    reconnects: u64,
    /// Memory for the data of queries.
    scratch: MemoryRegion,
}

/// The task for requests other than commands: one at a time.
#[derive(Debug, Default)]
struct ControlTask {
    /// The request that the target has not answered.
    current: Option<ControlRequest>,
    waiting: VecDeque<ControlRequest>,
}

/// A request other than a command.
#[derive(Clone, Copy, Debug)]
enum ControlRequest {
    /// Abort the task with this tag, number and logical unit.
    Abort {
        task: u32,
        cmd_sn: u32,
        lun: u64,
    },
    Logout,
}

impl Session {
    /// Connects to a target at `address`, and logs in.
    ///
    /// # Errors
    /// Fails if the target cannot be reached, or refuses the login.
    pub fn connect(adapter: &Adapter, address: SocketAddr, options: &Options) -> Result<Self, Error> {
        let domain = adapter.protection_domain();
        let connection = Connection::open(adapter, &domain, address, options)?;
        let scratch = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
        let Negotiated { cmd_sn, max_cmd_sn, exp_stat_sn, isid, .. } = connection.session;
        Ok(Self {
            adapter: adapter.clone(),
            domain,
            address,
            // The same identifier again makes the target end the lost session (RFC 7143 §6.3.5).
            options: options.clone().isid(isid),
            connection: Some(connection),
            cmd_sn,
            max_cmd_sn,
            exp_stat_sn,
            next_task: 0,
            tasks: BTreeMap::new(),
            posted: HashMap::new(),
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            control: ControlTask::default(),
            logged_out: false,
            skips: BTreeSet::new(),
            aborted: VecDeque::new(),
            late_pdus: 0,
            reconnects: 0,
            scratch,
        })
    }

    /// Returns the protection domain, in which the memory of commands must be registered.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns what the last login has negotiated; `None` if the connection is lost.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.connection.as_ref().map(|connection| &connection.session)
    }

    /// Returns the number of PDUs that arrived for commands that had been aborted. None of them changed memory.
    pub fn late_pdus(&self) -> u64 {
        self.late_pdus
    }

    /// Returns how often the session has reconnected.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Returns the number of commands that have not ended.
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    // --- Commands ---

    /// Starts a command, which [`next`](Self::next) returns when it has ended. It may wait for the target to accept more
    /// commands.
    ///
    /// # Errors
    /// Fails if the memory is 4 GiB or longer or has more than 16 elements, or if the connection is lost.
    pub fn start(&mut self, request: Request) -> Result<TaskId, Error> {
        let ids = self.start_all([request])?;
        Ok(ids[0])
    }

    /// Starts several commands, with as few system calls as possible.
    ///
    /// # Errors
    /// Fails as [`start`](Self::start) does, and then starts none.
    pub fn start_all(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<Vec<TaskId>, Error> {
        if self.connection.is_none() {
            return Err(Error::Ended);
        }
        let mut tasks = Vec::new();
        for request in requests {
            let (len, have) = (request.len(), request.data.as_ref().map_or(0, |(_, list)| list.len()));
            if have > MAX_SGES {
                return Err(PostError::TooManySges { have, limit: MAX_SGES }.into());
            }
            tasks.push(Task::new(request, u32::try_from(len).map_err(|_| Error::TooLong(len))?));
        }
        let ids: Vec<_> = tasks.into_iter().map(|task| self.add_task(task)).collect();
        self.post_waiting();
        Ok(ids)
    }

    fn add_task(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.next_task);
        self.next_task += 1;
        self.tasks.insert(id, task);
        self.waiting.push_back(id);
        id
    }

    /// Returns the next command that has ended. `None` if none has before the timeout, or if none is outstanding.
    ///
    /// A session has no thread of its own: it answers pings of the target only while the program calls it. A program that is
    /// idle for longer than the target tolerates calls this from time to time; without outstanding commands, it does not wait.
    ///
    /// # Errors
    /// Fails if the adapter has stopped. Errors of commands are in their results.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Finished>, Error> {
        let deadline = Instant::now() + timeout;
        if self.finished.is_empty() && self.tasks.is_empty() {
            self.progress(Instant::now())?; // answers pings
        }
        while self.finished.is_empty() && !self.tasks.is_empty() {
            if !self.progress(deadline)? {
                break;
            }
        }
        Ok(self.finished.pop_front())
    }

    /// Executes a command, and waits until it has ended. Aborts it if that takes longer than the timeout. Returns the number
    /// of bytes that were transferred.
    ///
    /// # Errors
    /// Fails if the command fails, if it times out, or if the connection is lost.
    pub fn execute(&mut self, request: Request, timeout: Duration) -> Result<u32, Error> {
        let (task, deadline) = (self.start(request)?, Instant::now() + timeout);
        loop {
            if let Some(at) = self.finished.iter().position(|finished| finished.task == task) {
                return self.finished.remove(at).map_or(Err(Error::Ended), |finished| finished.result);
            }
            if !self.progress(deadline)? && self.abort(task) {
                return Err(Error::TimedOut(timeout));
            }
        }
    }

    /// Aborts a command. When this has returned true, the command has ended without a result, and its memory is not accessed
    /// any more, whatever the target sends. The target is told to abort the task. Returns false if the command has ended:
    /// [`next`](Self::next) returns its result.
    pub fn abort(&mut self, task: TaskId) -> bool {
        let Some(found) = self.tasks.get(&task) else { return false };
        let (cmd_sn, lun) = (found.cmd_sn, scsi::encode_lun(found.request.lun));
        if let (Some(command), Some(connection)) = (found.command, &self.connection) {
            // First of all, the memory becomes inaccessible.
            let (skip, instead) = self.skip(cmd_sn);
            match connection.qp.abort_or_replace(command, instead) {
                Ok(Some(tag)) => {
                    if self.aborted.len() == REMEMBERED_ABORTS {
                        self.aborted.pop_front();
                    }
                    self.aborted.push_back(tag);
                    self.control.waiting.push_back(ControlRequest::Abort { task: tag, cmd_sn, lun });
                }
                Ok(None) => drop(self.skips.insert(skip)),
                Err(_) => return false, // its completion is in the queue
            }
            self.posted.remove(&command);
        }
        self.waiting.retain(|other| *other != task);
        self.tasks.remove(&task);
        self.post_control();
        true
    }

    /// Returns a ping that uses up the number of a command that was not sent, and its tag.
    fn skip(&self, cmd_sn: u32) -> (u32, PduRequest) {
        // No command has these tags, which differ from that of a region in the low byte, its key.
        let tags = (1..=u32::from(u8::MAX)).map(|key| self.scratch.tag().0 ^ key);
        let task = tags.into_iter().find(|tag| !self.skips.contains(tag)).unwrap_or(self.scratch.tag().0);
        let (immediate, lun, target_task, exp_stat_sn) = (false, 0, NO_TASK, 0);
        let ping = NopOut { immediate, lun, task, target_task, cmd_sn, exp_stat_sn };
        let header = InitiatorPdu::NopOut(ping).emit(0);
        (task, PduRequest { id: PING, header, data: Box::default() })
    }

    // --- Queries ---

    /// Asks what a logical unit is.
    ///
    /// # Errors
    /// Fails if the target refuses the command, or does not answer in time.
    pub fn inquiry(&mut self, lun: u16) -> Result<Inquiry, Error> {
        let data = self.query(lun, scsi::inquiry(), scsi::INQUIRY_LEN.into())?;
        Inquiry::parse(&data).ok_or(Error::Protocol("malformed answer to INQUIRY"))
    }

    /// Asks for the size of a logical unit.
    ///
    /// # Errors
    /// Fails if the target refuses the command, or does not answer in time.
    pub fn capacity(&mut self, lun: u16) -> Result<Capacity, Error> {
        self.ready(lun)?;
        let data = self.query(lun, scsi::read_capacity(), scsi::CAPACITY_LEN.into())?;
        Capacity::parse(&data).ok_or(Error::Protocol("malformed answer to READ CAPACITY"))
    }

    /// Asks whether a logical unit is ready. A logical unit reports once that it was reset or has changed (unit attention); such
    /// reports are skipped.
    ///
    /// # Errors
    /// Fails if the logical unit is not ready.
    pub fn ready(&mut self, lun: u16) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.query(lun, scsi::test_unit_ready(), 0) {
                Err(Error::Scsi(ScsiError { sense: Some([6, ..]), .. })) if attempts < 8 => {}
                result => return result.map(drop),
            }
        }
    }

    /// Executes a command that returns at most `len` bytes.
    fn query(&mut self, lun: u16, cdb: [u8; 16], len: usize) -> Result<Vec<u8>, Error> {
        let list = [self.scratch.slice(..len).expect("the region is longer")];
        let data = (len > 0).then_some((Direction::In, &list[..]));
        let received = self.execute(Request::new(lun, cdb, data), QUERY_TIME)?;
        let mut bytes = vec![0; (received as usize).min(len)];
        self.scratch.read(0, &mut bytes).expect("the region is longer");
        Ok(bytes)
    }

    /// Ends the session: waits until all commands have ended, and logs out.
    ///
    /// # Errors
    /// Fails if the target does not answer in time, or if the connection is lost.
    pub fn logout(mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.options.timeout;
        self.options = self.options.reconnect(Duration::ZERO);
        let mut is_asked = false;
        while !self.logged_out {
            if self.connection.is_none() {
                return Err(Error::Ended);
            }
            if self.tasks.is_empty() && !is_asked {
                // Does not wait for answers to aborts.
                self.control = ControlTask { current: None, waiting: [ControlRequest::Logout].into() };
                self.post_control();
                is_asked = true;
            }
            if !self.progress(deadline)? && self.connection.is_some() && !self.logged_out {
                return Err(Error::TimedOut(self.options.timeout));
            }
        }
        Ok(())
    }

    // --- Progress ---

    /// Waits for completions until the deadline, and handles all that have come. Returns false at the deadline, and if the
    /// connection is lost.
    fn progress(&mut self, deadline: Instant) -> Result<bool, Error> {
        let completions = self.wait(deadline)?;
        let reconnects = self.reconnects;
        for completion in &completions {
            if self.connection.is_none() || self.reconnects != reconnects {
                break; // of a connection that is gone: the next one uses the same numbers for other commands
            }
            self.handle(completion);
        }
        if !completions.is_empty() {
            self.post_waiting();
            self.post_control();
        }
        // Also checked after completions: a target that never stops sending does not stop time.
        Ok(self.connection.is_some() && Instant::now() < deadline)
    }

    /// Returns completions, at least one unless the deadline is over or the event was for one that is gone.
    fn wait(&self, deadline: Instant) -> Result<Vec<Completion>, Error> {
        let mut completions = Vec::with_capacity(BATCH);
        let Some(Connection { cq, .. }) = &self.connection else { return Ok(completions) };
        if cq.poll(&mut completions, BATCH)? > 0 {
            return Ok(completions);
        }
        let mut pause = GATHER;
        while self.posted.len() >= GATHER_FROM && pause <= MAX_GATHER && Instant::now() + pause < deadline {
            std::thread::sleep(pause);
            if cq.poll(&mut completions, BATCH)? > 0 {
                return Ok(completions);
            }
            pause *= 2;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() && !cq.arm(Arm::Next) {
            match cq.own_handler().wait(left) {
                Ok(_) | Err(WaitError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        cq.poll(&mut completions, BATCH)?;
        Ok(completions)
    }

    /// Posts commands that wait, as far as the target and the queue pair accept them.
    fn post_waiting(&mut self) {
        let Some(connection) = &self.connection else { return };
        let window = self.max_cmd_sn.wrapping_sub(self.cmd_sn).wrapping_add(1);
        let window = if window.cast_signed() > 0 { window as usize } else { 0 };
        let count = self.waiting.len().min(window).min(DEPTH.saturating_sub(self.posted.len()));
        if count == 0 {
            return;
        }
        let ids: Vec<_> = self.waiting.drain(..count).collect();
        let mut cmd_sn = self.cmd_sn;
        let commands = ids.iter().map(|id| {
            let Request { lun, cdb, data } = &self.tasks[id].request;
            let (lun, cdb) = (scsi::encode_lun(*lun), *cdb);
            let header = Command { lun, cdb, cmd_sn, attribute: SIMPLE, ..Command::default() };
            cmd_sn = cmd_sn.wrapping_add(1);
            let command = CommandRequest::new(header);
            match data {
                Some((Direction::In, list)) => command.read_to(list),
                Some((Direction::Out, list)) => command.write_from(list),
                None => command,
            }
        });
        let Ok(commands) = connection.qp.post_commands(commands) else {
            // The connection has just ended, which its completions tell; or answers to pings fill the send queue.
            self.waiting = ids.into_iter().chain(std::mem::take(&mut self.waiting)).collect();
            return;
        };
        for (id, command) in ids.into_iter().zip(commands) {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.begin(command, self.cmd_sn, connection.unsolicited(task.len));
            }
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
            self.posted.insert(command, id);
        }
    }

    /// Posts the next request other than a command, if none is outstanding.
    fn post_control(&mut self) {
        let Some(connection) = &self.connection else { return };
        if self.control.current.is_some() {
            return;
        }
        let Some(request) = self.control.waiting.pop_front() else { return };
        self.control.current = Some(request);
        // A tag of this process that no command has: that of a region.
        let (task, cmd_sn, exp_stat_sn) = (self.scratch.tag().0, self.cmd_sn, 0);
        let pdu = match request {
            ControlRequest::Abort { task: referenced_task, cmd_sn: referenced_cmd_sn, lun } => {
                let (immediate, function) = (true, TaskFunction::AbortTask);
                InitiatorPdu::TaskRequest(TaskRequest {
                    immediate,
                    function,
                    lun,
                    task,
                    referenced_task,
                    cmd_sn,
                    exp_stat_sn,
                    referenced_cmd_sn,
                })
            }
            ControlRequest::Logout => {
                let (immediate, reason, cid, task) = (true, 0, 0, connection.logout_tag());
                InitiatorPdu::LogoutRequest(LogoutRequest {
                    immediate,
                    reason,
                    task,
                    cid,
                    cmd_sn,
                    exp_stat_sn,
                })
            }
        };
        let pdu = PduRequest { id: CONTROL, header: pdu.emit(0), data: Box::default() };
        if connection.qp.post_pdu(pdu).is_err() {
            // The connection has just ended, which its completions tell; or answers to pings fill the send queue.
            self.control.waiting.extend(self.control.current.take());
            self.control.waiting.rotate_right(1);
        }
    }

    /// Handles a completion of the queue pair.
    fn handle(&mut self, completion: &Completion) {
        let Some(connection) = &self.connection else { return };
        if completion.status != Status::Success {
            return match connection.qp.error() {
                Some(error) => self.lose(Error::Lost(Arc::new(error))),
                None => self.handle_refusal(completion),
            };
        }
        let received = connection.received(completion);
        // Fails if the connection has ended, which the next completions tell.
        let _ = connection.post_receive(completion.wr_id);
        let handled = match completion.opcode {
            Opcode::RefusedPdu => self.handle_refused(&received, completion.cause.as_deref()),
            _ => self.handle_pdu(completion, &received),
        };
        if let Err(violation) = handled {
            self.give_up(&Error::Protocol(violation));
        }
    }

    /// Handles the failure of a request that was not sent, on a connection that goes on (requirement M7): the memory of a
    /// command could not be registered, and all requests behind it were flushed.
    fn handle_refusal(&mut self, completion: &Completion) {
        if completion.opcode == Opcode::Send && completion.wr_id == CONTROL {
            self.control.waiting.extend(self.control.current.take());
        }
        let Some(task) = CommandId::of(completion).and_then(|command| self.posted.get(&command).copied())
        else {
            return; // it is posted again, or an answer to a ping
        };
        let cmd_sn = self.tasks.get(&task).map_or(self.cmd_sn, |account| account.cmd_sn);
        self.end(task, Err(Error::Adapter(completion.cause.clone(), completion.status)));
        // The numbers from here on were not used: the commands behind get new ones.
        let is_behind = |task: &TaskId| self.tasks[task].cmd_sn.wrapping_sub(cmd_sn).cast_signed() > 0;
        let mut behind: Vec<_> = self.posted.values().filter(|task| is_behind(task)).copied().collect();
        behind.sort_unstable();
        self.posted.retain(|_, task| behind.binary_search(task).is_err());
        for task in &behind {
            self.tasks.get_mut(task).into_iter().for_each(Task::withdraw);
        }
        self.waiting = behind.into_iter().chain(std::mem::take(&mut self.waiting)).collect();
        self.cmd_sn = cmd_sn;
        if let Some(connection) = &self.connection {
            let _ = connection.qp.set_state(State::ReadyToSend); // fails if the connection has ended meanwhile
        }
    }

    /// Handles a PDU of the target.
    fn handle_pdu(&mut self, completion: &Completion, received: &Received) -> Result<(), Violation> {
        let pdu = TargetPdu::parse(&received.header).map_err(|_| "malformed PDU")?;
        self.record_numbers(&pdu)?;
        let task = CommandId::of(completion).and_then(|command| self.posted.get(&command).copied());
        let account = task.and_then(|task| self.tasks.get_mut(&task));
        match pdu {
            TargetPdu::DataIn(data) => {
                let Some(account) = account else { return Ok(()) };
                account.record_data(&data, received.data_len)?;
                if let (Some((status, residual)), Some(task)) = (data.status, task) {
                    self.finish(task, status, residual, &[])?;
                }
            }
            TargetPdu::R2t(r2t) => account.map_or(Ok(()), |account| account.record_r2t(&r2t))?,
            TargetPdu::Response(response) => {
                let Some(task) = task else { return Ok(()) };
                if response.response != 0 {
                    return Err("the target has failed to execute a command");
                }
                if completion.cause.is_some() && response.status == GOOD {
                    return Err("success is reported, but not all data was sent");
                }
                self.finish(task, response.status, response.residual, &received.data)?;
            }
            TargetPdu::NopIn(ping) if ping.task == NO_TASK => self.answer_ping(&ping, &received.data),
            TargetPdu::NopIn(NopIn { task, .. })
            | TargetPdu::TaskResponse(TaskResponse { task, .. })
            | TargetPdu::LogoutResponse(LogoutResponse { task, .. }) => self.handle_answer(&pdu, task)?,
            TargetPdu::AsyncMessage(message) if (1..=3).contains(&message.event) => {
                self.lose(Error::Protocol("the target ends the connection"));
            }
            TargetPdu::AsyncMessage(_) => {}
            TargetPdu::Reject(_) => return Err("the target has rejected a PDU"),
            _ => return Err("unexpected PDU"),
        }
        Ok(())
    }

    /// Handles the answer to a request other than a command.
    fn handle_answer(&mut self, pdu: &TargetPdu, task: u32) -> Result<(), Violation> {
        let (abort, logout) = (self.scratch.tag().0, self.connection.as_ref().map(Connection::logout_tag));
        match (pdu, self.control.current) {
            (TargetPdu::NopIn(_), _) if self.skips.remove(&task) => {}
            (TargetPdu::TaskResponse(_), Some(ControlRequest::Abort { .. })) if task == abort => {
                self.control.current = None;
            }
            // A late one: the logout has not waited for it.
            (TargetPdu::TaskResponse(_), Some(ControlRequest::Logout)) if task == abort => {}
            (TargetPdu::LogoutResponse(answer), Some(ControlRequest::Logout)) if Some(task) == logout => {
                if answer.response != 0 {
                    return Err("the target has refused the logout");
                }
                self.logged_out = true;
            }
            _ => return Err("an answer to no request"),
        }
        Ok(())
    }

    /// Handles a PDU that failed a check of the queue pair: it belongs to a command that was aborted, or the target violates
    /// the protocol.
    fn handle_refused(&mut self, received: &Received, cause: Option<&QpError>) -> Result<(), Violation> {
        let pdu = TargetPdu::parse(&received.header).map_err(|_| "malformed PDU")?;
        self.record_numbers(&pdu)?;
        let tag = match pdu {
            TargetPdu::DataIn(data) => data.task,
            TargetPdu::R2t(r2t) => r2t.task,
            TargetPdu::Response(response) => response.task,
            _ => NO_TASK,
        };
        if self.aborted.contains(&tag) {
            self.late_pdus += 1;
            return Ok(());
        }
        tracing::warn!(?cause, "the target named memory that it may not access");
        Err("a PDU names memory that the target may not access")
    }

    /// Checks and records the sequence numbers of a PDU.
    fn record_numbers(&mut self, pdu: &TargetPdu) -> Result<(), Violation> {
        let (SequenceNumbers { stat_sn, max_cmd_sn, .. }, is_status) = pdu.numbers();
        if is_status {
            if stat_sn != self.exp_stat_sn {
                return Err("a status of the target is missing");
            }
            self.exp_stat_sn = stat_sn.wrapping_add(1);
        }
        if max_cmd_sn.wrapping_sub(self.max_cmd_sn).cast_signed() > 0 {
            self.max_cmd_sn = max_cmd_sn;
        }
        Ok(())
    }

    /// Ends a command that the target has completed.
    fn finish(&mut self, task: TaskId, status: u8, residual: Residual, data: &[u8]) -> Result<(), Violation> {
        let Some(account) = self.tasks.get(&task) else { return Ok(()) };
        let result = match status {
            GOOD => Ok(account.transferred(residual)?),
            status => match ScsiError::new(status, data) {
                // A target that was started again reports that once, instead of executing a command.
                ScsiError { sense: Some(RESET), .. } if self.reconnects > 0 => {
                    self.issue_again(task);
                    return Ok(());
                }
                error => Err(Error::Scsi(error)),
            },
        };
        self.end(task, result);
        Ok(())
    }

    /// Puts a command that the target has not executed at the front of those that wait.
    fn issue_again(&mut self, task: TaskId) {
        if let Some(command) = self.tasks.get_mut(&task).and_then(|account| account.command.take()) {
            self.posted.remove(&command);
            self.waiting.push_front(task);
        }
    }

    /// Removes a command, and keeps its result for the program.
    fn end(&mut self, task: TaskId, result: Result<u32, Error>) {
        if let Some(command) = self.tasks.remove(&task).and_then(|account| account.command) {
            self.posted.remove(&command);
        }
        self.finished.push_back(Finished { task, result });
    }

    /// Answers a ping of the target, if it expects an answer.
    fn answer_ping(&mut self, ping: &NopIn, data: &[u8]) {
        let Some(connection) = &self.connection else { return };
        let NopIn { lun, target_task, .. } = *ping;
        if target_task == NO_TASK {
            return;
        }
        let (immediate, task, cmd_sn, exp_stat_sn) = (true, NO_TASK, self.cmd_sn, 0);
        let answer = NopOut { immediate, lun, task, target_task, cmd_sn, exp_stat_sn };
        let header = InitiatorPdu::NopOut(answer).emit(u32::try_from(data.len()).unwrap_or(0));
        // If it cannot be posted, the connection has ended, which its completions tell.
        let _ = connection.qp.post_pdu(PduRequest { id: PING, header, data: data.into() });
    }

    // --- The end of a connection ---

    /// Handles the loss of the connection: reconnects, and issues all commands again that have not ended; or fails them.
    fn lose(&mut self, cause: Error) {
        let deadline = Instant::now() + self.options.reconnect;
        self.drop_connection();
        if self.options.reconnect.is_zero() {
            return self.fail_all(&cause);
        }
        tracing::warn!(%cause, "the connection to the target was lost: reconnecting");
        loop {
            match Connection::open(&self.adapter, &self.domain, self.address, &self.options) {
                Ok(connection) => return self.resume(connection),
                Err(error) if Instant::now() + RECONNECT_PAUSE >= deadline => {
                    tracing::warn!(%error, "failed to reconnect in time");
                    return self.fail_all(&cause);
                }
                Err(_) => std::thread::sleep(RECONNECT_PAUSE),
            }
        }
    }

    /// Ends the connection because the target violates the protocol, and fails all commands.
    fn give_up(&mut self, cause: &Error) {
        if let Some(connection) = &self.connection {
            let _ = connection.qp.set_state(State::Error); // always allowed
        }
        self.drop_connection();
        self.fail_all(cause);
    }

    /// Drops the connection. From here on, nothing accesses the memory of its commands.
    fn drop_connection(&mut self) {
        self.connection = None;
        self.posted.clear();
        self.tasks.values_mut().for_each(Task::withdraw);
        self.waiting.clear();
        self.aborted.clear();
        self.skips.clear();
        self.control = ControlTask::default();
    }

    /// Fails all commands.
    fn fail_all(&mut self, cause: &Error) {
        for (task, _) in std::mem::take(&mut self.tasks) {
            self.finished.push_back(Finished { task, result: Err(cause.of_command()) });
        }
    }

    /// Continues on a new connection: issues all commands again that have not ended, in their order.
    fn resume(&mut self, connection: Connection) {
        let Negotiated { cmd_sn, max_cmd_sn, exp_stat_sn, .. } = connection.session;
        (self.cmd_sn, self.max_cmd_sn, self.exp_stat_sn) = (cmd_sn, max_cmd_sn, exp_stat_sn);
        self.connection = Some(connection);
        self.waiting = self.tasks.keys().copied().collect();
        self.reconnects += 1;
        self.post_waiting();
    }
}
