//! A connection: receives PDUs, checks them, and does what they ask for.

use super::disk::{Operation, Sense, sense_data};
use super::login::{INITIATOR_ERROR, Parameters, Refusal, pairs};
use super::outbox::Outbox;
use super::settings::{NAME, PORTAL_GROUP};
use super::shared::Shared;
use super::transfer::{Write, data_in, residual};
use ironwarp_wire::iscsi::{
    BadPdu, Command, Digests, HEADER_LEN, InitiatorPdu, LoginRequest, LoginResponse, LogoutResponse, NO_TASK,
    NopIn, NopOut, PduLayout, Residual, Response, SequenceNumbers, Stage, TargetPdu, TaskFunction,
    TaskRequest, TaskResponse, TextRequest, TextResponse,
};
use ironwarp_wire::mpa::Crc;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// SCSI status codes.
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
/// Answers to task management requests (RFC 7143 §11.6.1).
const FUNCTION_COMPLETE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const FUNCTION_NOT_SUPPORTED: u8 = 5;
/// Fills the sequence numbers, which the [`Outbox`] replaces.
const NUMBERS: SequenceNumbers = SequenceNumbers { stat_sn: 0, exp_cmd_sn: 0, max_cmd_sn: 0 };

/// Why a connection ends early.
#[derive(Debug)]
pub(super) enum End {
    /// The initiator has closed or reset it, or the test is over.
    Closed,
    /// The initiator has violated the protocol.
    Violation(String),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

impl From<BadPdu> for End {
    fn from(error: BadPdu) -> Self {
        Self::Violation(error.to_string())
    }
}

impl From<String> for End {
    fn from(violation: String) -> Self {
        Self::Violation(violation)
    }
}

/// The receiving half of a connection, on its own thread.
pub(super) struct Connection<'a> {
    shared: &'a Shared,
    outbox: Arc<Outbox>,
    stream: TcpStream,
    parameters: Parameters,
    /// Digests of PDUs to receive: those of the parameters after the login.
    digests: Digests,
    exp_cmd_sn: u32,
    writes: HashMap<u32, Write>,
    /// Task tags of writes that were aborted.
    aborted: HashSet<u32>,
    /// Tag of the last R2T.
    last_tag: u32,
}

impl<'a> Connection<'a> {
    pub(super) fn new(shared: &'a Shared, stream: TcpStream, outbox: Arc<Outbox>) -> Self {
        Self {
            shared,
            outbox,
            stream,
            parameters: Parameters::default(),
            digests: Digests::default(),
            exp_cmd_sn: 0,
            writes: HashMap::new(),
            aborted: HashSet::new(),
            last_tag: 0x7a00_0000,
        }
    }

    /// Serves the connection until it ends.
    pub(super) fn serve(&mut self) -> Result<(), End> {
        while !self.log_in()? {}
        loop {
            let (pdu, data) = self.receive()?;
            match pdu {
                InitiatorPdu::NopOut(nop) => self.nop(nop, data)?,
                InitiatorPdu::Command(command) => self.command(command, &data)?,
                InitiatorPdu::TaskRequest(request) => self.task_request(request)?,
                InitiatorPdu::TextRequest(text) => self.text(text, &data)?,
                InitiatorPdu::DataOut(pdu) if self.aborted.contains(&pdu.task) => {} // was on its way
                InitiatorPdu::DataOut(pdu) => {
                    let unknown = || format!("Data-Out for an unknown task: {pdu:?}");
                    self.writes.get_mut(&pdu.task).ok_or_else(unknown)?.accept(&pdu, &data)?;
                    self.advance(pdu.task)?;
                }
                InitiatorPdu::LogoutRequest(logout) => {
                    self.count(logout.immediate, logout.cmd_sn)?;
                    let (task, time_to_wait, time_to_retain) = (logout.task, 2, 0);
                    let response =
                        LogoutResponse { response: 0, task, numbers: NUMBERS, time_to_wait, time_to_retain };
                    self.outbox.send(TargetPdu::LogoutResponse(response), Vec::new())?;
                    self.outbox.close(Shutdown::Write);
                    return Ok(());
                }
                other => return Err(End::Violation(format!("not allowed after the login: {other:?}"))),
            }
        }
    }

    /// Receives a PDU and its data, and verifies the digests.
    fn receive(&mut self) -> Result<(InitiatorPdu, Vec<u8>), End> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header)?;
        let layout = PduLayout::of(&header, self.digests);
        if layout.additional > 0 || layout.data > self.parameters.max_recv {
            return Err(End::Violation(format!("invalid lengths: {layout:?}")));
        }
        let mut rest = vec![0; layout.len() - HEADER_LEN];
        self.stream.read_exact(&mut rest)?;
        let (header_digest, data) = rest.split_at(layout.header_len() - HEADER_LEN);
        if self.digests.header && header_digest != Crc::of(&header).to_bytes() {
            return Err(End::Violation("wrong header digest".to_owned()));
        }
        if self.digests.data && layout.data > 0 {
            let (padded, digest) = data.split_at(data.len() - 4);
            if digest != Crc::of(padded).to_bytes() {
                return Err(End::Violation("wrong data digest".to_owned()));
            }
        }
        let (pdu, data) = (InitiatorPdu::parse(&header)?, &data[..layout.data]);
        self.shared.script.received(&pdu, data);
        Ok((pdu, data.to_vec()))
    }

    /// Checks the number of a command, and uses it up unless the command is for immediate delivery.
    fn count(&mut self, immediate: bool, cmd_sn: u32) -> Result<(), End> {
        if cmd_sn != self.exp_cmd_sn {
            return Err(End::Violation(format!("CmdSN {cmd_sn:#x}, expected {:#x}", self.exp_cmd_sn)));
        }
        if !immediate {
            self.exp_cmd_sn = cmd_sn.wrapping_add(1);
            let window = self.shared.script.window().unwrap_or(self.shared.settings.window);
            self.outbox.set_window(self.exp_cmd_sn, window);
        }
        Ok(())
    }

    /// Answers a login request with all its continuations. Returns whether the login is complete.
    fn log_in(&mut self) -> Result<bool, End> {
        let mut text = Vec::new();
        let request = loop {
            let (InitiatorPdu::LoginRequest(request), data) = self.receive()? else {
                return Err(End::Violation("not a login request".to_owned()));
            };
            self.exp_cmd_sn = request.cmd_sn;
            self.outbox.set_window(request.cmd_sn, self.shared.settings.window);
            text.extend(data);
            if !request.continues {
                break request;
            }
            self.login_response(&request, None, [0, 0], String::new())?;
            if text.len() > 65_536 {
                return Err(End::Violation("too long a login text".to_owned()));
            }
        };
        let mut answers = match self.parameters.negotiate(&self.shared.settings, &text) {
            Ok(_) if request.tsih != 0 => return self.refuse(&request, INITIATOR_ERROR),
            Ok(answers) => answers,
            Err(refusal) => return self.refuse(&request, refusal),
        };
        if pairs(&text).is_ok_and(|pairs| pairs.iter().any(|(key, _)| *key == "TargetName")) {
            answers += &format!("TargetPortalGroupTag={PORTAL_GROUP}\0");
        }
        let complete = request.next == Some(Stage::FullFeature);
        if complete {
            self.digests = self.parameters.digests;
            self.outbox.set_digests(self.digests);
        }
        self.login_response(&request, request.next, [0, 0], answers)?;
        Ok(complete)
    }

    fn refuse(&self, request: &LoginRequest, refusal: Refusal) -> Result<bool, End> {
        self.login_response(request, None, refusal, String::new())?;
        Err(End::Closed)
    }

    fn login_response(
        &self,
        request: &LoginRequest,
        next: Option<Stage>,
        status: Refusal,
        text: String,
    ) -> io::Result<()> {
        let LoginRequest { stage, isid, task, .. } = *request;
        let tsih = if next == Some(Stage::FullFeature) { 1 } else { request.tsih };
        let response =
            LoginResponse { next, continues: false, stage, isid, tsih, task, numbers: NUMBERS, status };
        self.outbox.send(TargetPdu::LoginResponse(response), text.into_bytes())
    }

    fn nop(&mut self, nop: NopOut, mut data: Vec<u8>) -> Result<(), End> {
        if nop.task == NO_TASK {
            return Ok(()); // the answer to a ping, or an acknowledgement
        }
        self.count(nop.immediate, nop.cmd_sn)?;
        data.truncate(self.parameters.max_send);
        let answer = NopIn { lun: 0, task: nop.task, target_task: NO_TASK, numbers: NUMBERS };
        Ok(self.outbox.send(TargetPdu::NopIn(answer), data)?)
    }

    /// Answers SendTargets, of which discovery consists.
    fn text(&mut self, request: TextRequest, text: &[u8]) -> Result<(), End> {
        self.count(request.immediate, request.cmd_sn)?;
        let malformed = |_| "malformed text".to_owned();
        let asked = pairs(text).map_err(malformed)?.iter().any(|(key, _)| *key == "SendTargets");
        let address = format!("TargetName={NAME}\0TargetAddress={},{PORTAL_GROUP}\0", self.shared.addr);
        let answer = if asked { address } else { String::new() };
        let response = TextResponse {
            last: true,
            continues: false,
            lun: 0,
            task: request.task,
            target_task: NO_TASK,
            numbers: NUMBERS,
        };
        Ok(self.outbox.send(TargetPdu::TextResponse(response), answer.into_bytes())?)
    }

    fn task_request(&mut self, request: TaskRequest) -> Result<(), End> {
        self.count(request.immediate, request.cmd_sn)?;
        let response = match request.function {
            TaskFunction::AbortTask => {
                let found = self.writes.remove(&request.referenced_task);
                self.aborted.extend(found.iter().map(|write| write.command.task));
                if found.is_some() { FUNCTION_COMPLETE } else { NO_SUCH_TASK }
            }
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                self.aborted.extend(self.writes.drain().map(|(task, _)| task));
                FUNCTION_COMPLETE
            }
            _ => FUNCTION_NOT_SUPPORTED,
        };
        let response = TaskResponse { response, task: request.task, numbers: NUMBERS };
        Ok(self.outbox.send(TargetPdu::TaskResponse(response), Vec::new())?)
    }

    fn command(&mut self, command: Command, data: &[u8]) -> Result<(), End> {
        self.count(command.immediate, command.cmd_sn)?;
        // libiscsi takes the StatSN of an R2T, which is that of the next status, for one that was sent.
        let early = command.exp_stat_sn.wrapping_sub(self.outbox.next_stat_sn()).cast_signed() > 1;
        let no_write = !command.write && (!data.is_empty() || !command.last);
        if command.task == NO_TASK || self.writes.contains_key(&command.task) || early || no_write {
            return Err(End::Violation(format!("invalid {command:?} with {} bytes", data.len())));
        }
        if !data.is_empty() && !self.parameters.immediate_data {
            return Err(End::Violation("immediate data, which were not agreed on".to_owned()));
        }
        self.aborted.remove(&command.task);
        let (place, len) = match self.shared.disk.execute(command.lun, &command.cdb) {
            Operation::Receive { offset, len } => (Ok(offset), len),
            Operation::Fail(sense) => (Err(Some(sense)), 0),
            Operation::Send(data) if command.last => return Ok(self.answer(&command, &data)?),
            Operation::Send(data) => (Err(None), data.len()), // it is a read, but Data-Out follows
        };
        let write = Write::new(command, place, len, data, &self.parameters)?;
        self.writes.insert(command.task, write);
        self.advance(command.task)
    }

    /// Asks for the next data of a write, or completes it.
    fn advance(&mut self, task: u32) -> Result<(), End> {
        let Some(write) = self.writes.get_mut(&task) else { return Ok(()) };
        while let Some(r2t) = write.next_r2t(self.last_tag + 1, &self.parameters) {
            self.last_tag += 1;
            self.outbox.send(TargetPdu::R2t(r2t), Vec::new())?;
        }
        if !write.is_complete() {
            return Ok(());
        }
        let write = self.writes.remove(&task).unwrap();
        if let Ok(offset) = write.place {
            self.shared.disk.bytes()[offset..offset + write.data().len()].copy_from_slice(write.data());
        }
        let residual = residual(write.len, write.command.expected_len);
        Ok(self.respond(&write.command, residual, write.r2t_sn, write.place.err().flatten())?)
    }

    /// Sends the data of a command and its status.
    fn answer(&self, command: &Command, data: &[u8]) -> io::Result<()> {
        let residual = residual(data.len(), command.expected_len);
        let len = if command.read { data.len().min(command.expected_len as usize) } else { 0 };
        let with_data = self.shared.settings.status_in_data && len > 0;
        let pdus = data_in(command, len, &self.parameters, with_data.then_some((GOOD, residual)));
        let count = u32::try_from(pdus.len()).unwrap();
        for (pdu, len) in pdus {
            let at = pdu.offset as usize;
            self.outbox.send(TargetPdu::DataIn(pdu), data[at..at + len].to_vec())?;
        }
        if with_data { Ok(()) } else { self.respond(command, residual, count, None) }
    }

    /// Sends the status of a command in a PDU of its own.
    fn respond(
        &self,
        command: &Command,
        residual: Residual,
        exp_data_sn: u32,
        failure: Option<Sense>,
    ) -> io::Result<()> {
        let status = if failure.is_some() { CHECK_CONDITION } else { GOOD };
        let response =
            Response { residual, response: 0, status, task: command.task, numbers: NUMBERS, exp_data_sn };
        self.outbox.send(TargetPdu::Response(response), failure.map_or(Vec::new(), sense_data))
    }
}
