//! The PDUs that an initiator sends (RFC 7143 §11.3, §11.5, §11.7, §11.10, §11.12, §11.14, §11.18).

use super::login_fields::LoginFields;
use super::raw::{CONTINUE, FINAL, HEADER_LEN, IMMEDIATE, RawHeader};
use super::{BadPdu, Stage, TaskFunction};

const NOP_OUT: u8 = 0x00;
const COMMAND: u8 = 0x01;
const TASK_REQUEST: u8 = 0x02;
const LOGIN_REQUEST: u8 = 0x03;
const TEXT_REQUEST: u8 = 0x04;
const DATA_OUT: u8 = 0x05;
const LOGOUT_REQUEST: u8 = 0x06;

/// Flag of a command: the target sends data.
const READ: u8 = 0x40;
/// Flag of a command: the initiator sends data.
const WRITE: u8 = 0x20;
/// The bits of the flags of a command that hold the task attribute.
const ATTRIBUTE: u8 = 0x07;

/// A PDU of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has the name of its contents")]
pub enum InitiatorPdu {
    NopOut(NopOut),
    Command(Command),
    TaskRequest(TaskRequest),
    LoginRequest(LoginRequest),
    TextRequest(TextRequest),
    DataOut(DataOut),
    LogoutRequest(LogoutRequest),
}

/// NOP-Out: a ping, or the answer to one (RFC 7143 §11.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// For immediate delivery: `cmd_sn` is not used up.
    pub immediate: bool,
    /// The logical unit, of an answer.
    pub lun: u64,
    /// The task tag; [`NO_TASK`](super::NO_TASK) if no answer is expected.
    pub task: u32,
    /// The target's tag, of the ping that this answers; [`NO_TASK`](super::NO_TASK) for a ping.
    pub target_task: u32,
    /// Sequence number of the command.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
}

/// SCSI Command (RFC 7143 §11.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// For immediate delivery: `cmd_sn` is not used up.
    pub immediate: bool,
    /// No unsolicited Data-Out follows this PDU.
    pub last: bool,
    /// The target sends data.
    pub read: bool,
    /// The initiator sends data.
    pub write: bool,
    /// The task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// The logical unit.
    pub lun: u64,
    /// The initiator task tag.
    pub task: u32,
    /// Number of bytes that the command transfers.
    pub expected_len: u32,
    /// Sequence number of the command.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
    /// The command descriptor block, padded with zeros.
    pub cdb: [u8; 16],
}

/// Task Management Function Request (RFC 7143 §11.5). ExpDataSN, which only [`TaskFunction::TaskReassign`] has, is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// For immediate delivery: `cmd_sn` is not used up.
    pub immediate: bool,
    /// What the target is to do.
    pub function: TaskFunction,
    /// The logical unit.
    pub lun: u64,
    /// The task tag of this request.
    pub task: u32,
    /// The task tag of the task to abort; [`NO_TASK`](super::NO_TASK) for other functions.
    pub referenced_task: u32,
    /// Sequence number of the command.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
    /// `cmd_sn` of the task to abort.
    pub referenced_cmd_sn: u32,
}

/// Login Request (RFC 7143 §11.12). Its data are keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// The stage to go to; `None` to stay in this one.
    pub next: Option<Stage>,
    /// The text continues in the next request.
    pub continues: bool,
    /// The stage of this request.
    pub stage: Stage,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's part of the session identifier; zero for a new session.
    pub tsih: u16,
    /// The task tag, equal in all requests of a login.
    pub task: u32,
    /// The identifier of the connection.
    pub cid: u16,
    /// Sequence number of the first command of the session.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
}

/// Text Request (RFC 7143 §11.10). Its data are keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// For immediate delivery: `cmd_sn` is not used up.
    pub immediate: bool,
    /// The last request of the exchange.
    pub last: bool,
    /// The text continues in the next request.
    pub continues: bool,
    /// The logical unit.
    pub lun: u64,
    /// The task tag.
    pub task: u32,
    /// The target's tag of the exchange; [`NO_TASK`](super::NO_TASK) for a new one.
    pub target_task: u32,
    /// Sequence number of the command.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
}

/// SCSI Data-Out: data of a write (RFC 7143 §11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// The last PDU of its sequence.
    pub last: bool,
    /// The logical unit, if `target_task` is that of an R2T.
    pub lun: u64,
    /// The initiator task tag of the command.
    pub task: u32,
    /// The target's tag of the R2T that this answers; [`NO_TASK`](super::NO_TASK) for unsolicited data.
    pub target_task: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
    /// Number of the PDU in its sequence.
    pub data_sn: u32,
    /// Offset of the data in the buffer of the command.
    pub offset: u32,
}

/// Logout Request (RFC 7143 §11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// For immediate delivery: `cmd_sn` is not used up.
    pub immediate: bool,
    /// 0 closes the session, 1 the connection, 2 removes the connection for recovery.
    pub reason: u8,
    /// The task tag.
    pub task: u32,
    /// The connection to close.
    pub cid: u16,
    /// Sequence number of the command.
    pub cmd_sn: u32,
    /// Sequence number of the next status that is expected.
    pub exp_stat_sn: u32,
}

impl InitiatorPdu {
    /// Encodes the header of a PDU with `data_len` bytes of data, of which only the low 24 bits are used.
    pub fn emit(&self, data_len: u32) -> [u8; HEADER_LEN] {
        let immediate = |code: u8, immediate: bool| code | if immediate { IMMEDIATE } else { 0 };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let raw = match *self {
            Self::NopOut(NopOut { immediate: now, lun, task, target_task, cmd_sn, exp_stat_sn }) => {
                RawHeader {
                    lun: lun.to_be_bytes(),
                    task: task.into(),
                    words: [target_task, cmd_sn, exp_stat_sn, 0, 0, 0, 0].map(Into::into),
                    ..RawHeader::new(immediate(NOP_OUT, now), FINAL, data_len)
                }
            }
            Self::Command(command) => command.to_raw(data_len),
            Self::TaskRequest(request) => {
                let TaskRequest { function, lun, task, referenced_task, cmd_sn, exp_stat_sn, .. } = request;
                let words = [referenced_task, cmd_sn, exp_stat_sn, request.referenced_cmd_sn, 0, 0, 0]
                    .map(Into::into);
                let code = immediate(TASK_REQUEST, request.immediate);
                let (lun, task) = (lun.to_be_bytes(), task.into());
                RawHeader { lun, task, words, ..RawHeader::new(code, FINAL | function as u8, data_len) }
            }
            Self::LoginRequest(login) => {
                let LoginRequest { next, continues, stage, isid, tsih, task, cid, cmd_sn, exp_stat_sn } =
                    login;
                let fields = LoginFields { next, continues, stage, isid, tsih };
                let words = [u32::from(cid) << 16, cmd_sn, exp_stat_sn, 0, 0, 0, 0].map(Into::into);
                let task = task.into();
                RawHeader { task, words, ..fields.to_raw(LOGIN_REQUEST | IMMEDIATE, data_len) }
            }
            Self::TextRequest(text) => {
                let TextRequest { last, continues, lun, task, target_task, cmd_sn, exp_stat_sn, .. } = text;
                let flags = flag(last, FINAL) | flag(continues, CONTINUE);
                RawHeader {
                    lun: lun.to_be_bytes(),
                    task: task.into(),
                    words: [target_task, cmd_sn, exp_stat_sn, 0, 0, 0, 0].map(Into::into),
                    ..RawHeader::new(immediate(TEXT_REQUEST, text.immediate), flags, data_len)
                }
            }
            Self::DataOut(DataOut { last, lun, task, target_task, exp_stat_sn, data_sn, offset }) => {
                RawHeader {
                    lun: lun.to_be_bytes(),
                    task: task.into(),
                    words: [target_task, 0, exp_stat_sn, 0, data_sn, offset, 0].map(Into::into),
                    ..RawHeader::new(DATA_OUT, flag(last, FINAL), data_len)
                }
            }
            Self::LogoutRequest(logout) => {
                let LogoutRequest { immediate: now, reason, task, cid, cmd_sn, exp_stat_sn } = logout;
                RawHeader {
                    task: task.into(),
                    words: [u32::from(cid) << 16, cmd_sn, exp_stat_sn, 0, 0, 0, 0].map(Into::into),
                    ..RawHeader::new(immediate(LOGOUT_REQUEST, now), FINAL | reason & 0x7f, data_len)
                }
            }
        };
        raw.to_bytes()
    }

    /// Decodes the header of a PDU that an initiator has sent.
    pub fn parse(header: &[u8; HEADER_LEN]) -> Result<Self, BadPdu> {
        let raw = RawHeader::read(header);
        let immediate = raw.opcode & IMMEDIATE != 0;
        let (lun, task, last) = (u64::from_be_bytes(raw.lun), raw.task.get(), raw.flags & FINAL != 0);
        let (cmd_sn, exp_stat_sn) = (raw.word(1), raw.word(2));
        Ok(match raw.code() {
            NOP_OUT => {
                let target_task = raw.word(0);
                Self::NopOut(NopOut { immediate, lun, task, target_task, cmd_sn, exp_stat_sn })
            }
            COMMAND => Self::Command(Command::from_raw(&raw)),
            TASK_REQUEST => Self::TaskRequest(TaskRequest {
                immediate,
                function: TaskFunction::from_bits(raw.flags)
                    .ok_or(BadPdu::Reserved { field: "Function", value: raw.flags & 0x7f })?,
                lun,
                task,
                referenced_task: raw.word(0),
                cmd_sn,
                exp_stat_sn,
                referenced_cmd_sn: raw.word(3),
            }),
            LOGIN_REQUEST => {
                let LoginFields { next, continues, stage, isid, tsih } = LoginFields::read(&raw)?;
                Self::LoginRequest(LoginRequest {
                    next,
                    continues,
                    stage,
                    isid,
                    tsih,
                    task,
                    cid: cid_of(&raw),
                    cmd_sn,
                    exp_stat_sn,
                })
            }
            TEXT_REQUEST => {
                let (continues, target_task) = (raw.flags & CONTINUE != 0, raw.word(0));
                let text =
                    TextRequest { immediate, last, continues, lun, task, target_task, cmd_sn, exp_stat_sn };
                Self::TextRequest(text)
            }
            DATA_OUT => {
                let (target_task, data_sn, offset) = (raw.word(0), raw.word(4), raw.word(5));
                Self::DataOut(DataOut { last, lun, task, target_task, exp_stat_sn, data_sn, offset })
            }
            LOGOUT_REQUEST => {
                let (reason, cid) = (raw.flags & 0x7f, cid_of(&raw));
                Self::LogoutRequest(LogoutRequest { immediate, reason, task, cid, cmd_sn, exp_stat_sn })
            }
            other => return Err(BadPdu::Opcode(other)),
        })
    }
}

/// Returns the connection identifier of a login or logout request.
fn cid_of(raw: &RawHeader) -> u16 {
    let [high, low, ..] = raw.bytes(0);
    u16::from_be_bytes([high, low])
}

impl Command {
    fn to_raw(self, data_len: u32) -> RawHeader {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.last, FINAL)
            | flag(self.read, READ)
            | flag(self.write, WRITE)
            | self.attribute & ATTRIBUTE;
        let [a, b, c, d] = zerocopy::transmute!(self.cdb);
        RawHeader {
            lun: self.lun.to_be_bytes(),
            task: self.task.into(),
            words: [self.expected_len.into(), self.cmd_sn.into(), self.exp_stat_sn.into(), a, b, c, d],
            ..RawHeader::new(COMMAND | flag(self.immediate, IMMEDIATE), flags, data_len)
        }
    }

    fn from_raw(raw: &RawHeader) -> Self {
        let [.., a, b, c, d] = raw.words;
        Self {
            immediate: raw.opcode & IMMEDIATE != 0,
            last: raw.flags & FINAL != 0,
            read: raw.flags & READ != 0,
            write: raw.flags & WRITE != 0,
            attribute: raw.flags & ATTRIBUTE,
            lun: u64::from_be_bytes(raw.lun),
            task: raw.task.get(),
            expected_len: raw.word(0),
            cmd_sn: raw.word(1),
            exp_stat_sn: raw.word(2),
            cdb: zerocopy::transmute!([a, b, c, d]),
        }
    }
}
