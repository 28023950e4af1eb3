//! The PDUs that a target sends (RFC 7143 §11.4, §11.6 to §11.9, §11.11, §11.13, §11.15, §11.17, §11.19).

use super::login_fields::LoginFields;
use super::raw::{CONTINUE, FINAL, HEADER_LEN, RawHeader};
use super::{BadPdu, NO_TASK, Stage};

const NOP_IN: u8 = 0x20;
const RESPONSE: u8 = 0x21;
const TASK_RESPONSE: u8 = 0x22;
const LOGIN_RESPONSE: u8 = 0x23;
const TEXT_RESPONSE: u8 = 0x24;
const DATA_IN: u8 = 0x25;
const LOGOUT_RESPONSE: u8 = 0x26;
const R2T: u8 = 0x31;
const ASYNC_MESSAGE: u8 = 0x32;
const REJECT: u8 = 0x3f;

/// Flag of a Data-In: the target asks for an acknowledgement.
const ACKNOWLEDGE: u8 = 0x40;
/// Flag of a Response or Data-In: the command would have transferred more than the initiator expects.
const OVERFLOW: u8 = 0x04;
/// Flag of a Response or Data-In: the command has transferred less than the initiator expects.
const UNDERFLOW: u8 = 0x02;
/// Flag of a Data-In: it carries the status of the command.
const STATUS: u8 = 0x01;

/// A PDU of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has the name of its contents")]
pub enum TargetPdu {
    NopIn(NopIn),
    Response(Response),
    TaskResponse(TaskResponse),
    LoginResponse(LoginResponse),
    TextResponse(TextResponse),
    DataIn(DataIn),
    LogoutResponse(LogoutResponse),
    R2t(R2t),
    AsyncMessage(AsyncMessage),
    Reject(Reject),
}

/// The sequence numbers that a target sends in each PDU (RFC 7143 §4.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceNumbers {
    /// Number of this status, or of the next one if the PDU carries none.
    pub stat_sn: u32,
    /// Number of the next command that the target expects.
    pub exp_cmd_sn: u32,
    /// Highest command number that the target accepts.
    pub max_cmd_sn: u32,
}

/// The difference between the expected and the actual length of a transfer (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// The expected number of bytes was transferred.
    #[default]
    None,
    /// Number of bytes that were not transferred because the initiator expected too few.
    Overflow(u32),
    /// Number of the expected bytes that were not transferred.
    Underflow(u32),
}

/// NOP-In: a ping, or the answer to one (RFC 7143 §11.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// The logical unit, of a ping.
    pub lun: u64,
    /// The task tag of the ping that this answers; [`NO_TASK`] for a ping of the target.
    pub task: u32,
    /// The tag that the answer must carry; [`NO_TASK`] if none is expected.
    pub target_task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
}

/// SCSI Response (RFC 7143 §11.4). Its data are the length of the sense data, in two bytes, and the sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Difference between the expected and the actual length of the transfer.
    pub residual: Residual,
    /// 0 if the command has completed at the target; other values are failures of the target.
    pub response: u8,
    /// The SCSI status: 0 is GOOD, 2 is CHECK CONDITION.
    pub status: u8,
    /// The initiator task tag of the command.
    pub task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
    /// Number of Data-In and R2T PDUs that the target has sent for the command.
    pub exp_data_sn: u32,
}

/// Task Management Function Response (RFC 7143 §11.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// 0 if the function is complete, 1 if the task does not exist; other values are failures.
    pub response: u8,
    /// The task tag of the request.
    pub task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
}

/// Login Response (RFC 7143 §11.13). Its data are keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// The stage to go to; `None` to stay in this one.
    pub next: Option<Stage>,
    /// The text continues in the next response.
    pub continues: bool,
    /// The stage of this response.
    pub stage: Stage,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's part of the session identifier, in the last response.
    pub tsih: u16,
    /// The task tag of the request.
    pub task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
    /// Class and detail of the status: class 0 is success, 1 redirection, 2 an initiator error, 3 a target error.
    pub status: [u8; 2],
}

/// Text Response (RFC 7143 §11.11). Its data are keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// The last response of the exchange.
    pub last: bool,
    /// The text continues in the next response.
    pub continues: bool,
    /// The logical unit.
    pub lun: u64,
    /// The task tag of the request.
    pub task: u32,
    /// The tag that the next request must carry; [`NO_TASK`] if the exchange has ended.
    pub target_task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
}

/// SCSI Data-In: data of a read (RFC 7143 §11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// The last PDU of its sequence.
    pub last: bool,
    /// The target asks for an acknowledgement, which it may only at recovery levels above 0.
    pub acknowledge: bool,
    /// The SCSI status and the difference in length, if this PDU ends the command.
    pub status: Option<(u8, Residual)>,
    /// The logical unit, if `target_task` is not [`NO_TASK`].
    pub lun: u64,
    /// The initiator task tag of the command.
    pub task: u32,
    /// The tag of the acknowledgement that the target asks for; otherwise [`NO_TASK`].
    pub target_task: u32,
    /// Sequence numbers. `stat_sn` counts only if there is a status.
    pub numbers: SequenceNumbers,
    /// Number of the PDU among those of its command.
    pub data_sn: u32,
    /// Offset of the data in the buffer of the command.
    pub offset: u32,
}

/// Logout Response (RFC 7143 §11.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// 0 if the connection or session was closed; other values are failures.
    pub response: u8,
    /// The task tag of the request.
    pub task: u32,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
    /// Minimum number of seconds before a reconnect.
    pub time_to_wait: u16,
    /// Maximum number of seconds for which the target keeps the tasks.
    pub time_to_retain: u16,
}

/// Ready To Transfer: the target asks for data of a write (RFC 7143 §11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// The logical unit.
    pub lun: u64,
    /// The initiator task tag of the command.
    pub task: u32,
    /// The tag that each Data-Out must carry.
    pub target_task: u32,
    /// Sequence numbers. `stat_sn` is that of the next status.
    pub numbers: SequenceNumbers,
    /// Number of the R2T among those of its command.
    pub r2t_sn: u32,
    /// Offset of the data in the buffer of the command.
    pub offset: u32,
    /// Number of bytes that the target asks for.
    pub len: u32,
}

/// Asynchronous Message: an event at the target (RFC 7143 §11.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// The logical unit.
    pub lun: u64,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
    /// 0 a SCSI event, 1 a logout is requested, 2 the connection and 3 the session will be dropped, 4 a negotiation is
    /// requested, 5 the tasks of the logical unit are terminated.
    pub event: u8,
    /// A code of the vendor.
    pub vendor_code: u8,
    /// Three parameters, which depend on the event.
    pub parameters: [u16; 3],
}

/// Reject: the target has refused a PDU, whose header is the data (RFC 7143 §11.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why the PDU was refused.
    pub reason: u8,
    /// Sequence numbers.
    pub numbers: SequenceNumbers,
    /// Number of the next R2T or data PDU, for some reasons.
    pub data_sn: u32,
}

impl SequenceNumbers {
    fn from_raw(raw: &RawHeader) -> Self {
        Self { stat_sn: raw.word(1), exp_cmd_sn: raw.word(2), max_cmd_sn: raw.word(3) }
    }
}

impl Residual {
    fn from_raw(raw: &RawHeader) -> Result<Self, BadPdu> {
        match raw.flags & (OVERFLOW | UNDERFLOW) {
            0 => Ok(Self::None),
            UNDERFLOW => Ok(Self::Underflow(raw.word(6))),
            OVERFLOW => Ok(Self::Overflow(raw.word(6))),
            // RFC 7143 §11.4.1: both are a protocol error.
            value => Err(BadPdu::Reserved { field: "O and U", value }),
        }
    }

    fn to_bits(self) -> (u8, u32) {
        match self {
            Self::None => (0, 0),
            Self::Overflow(count) => (OVERFLOW, count),
            Self::Underflow(count) => (UNDERFLOW, count),
        }
    }
}

impl TargetPdu {
    /// Returns the sequence numbers of the PDU, and whether its `stat_sn` is the number of its own status, which the initiator
    /// acknowledges, or only that of the next one.
    pub fn numbers(&self) -> (SequenceNumbers, bool) {
        match self {
            // RFC 7143 §11.19.2: a ping of the target does not use up a number.
            Self::NopIn(it) => (it.numbers, it.task != NO_TASK),
            Self::Response(it) => (it.numbers, true),
            Self::TaskResponse(it) => (it.numbers, true),
            // RFC 7143 §11.13.4: a response with an error has no number.
            Self::LoginResponse(it) => (it.numbers, it.status[0] == 0),
            Self::TextResponse(it) => (it.numbers, true),
            Self::DataIn(it) => (it.numbers, it.status.is_some()),
            Self::LogoutResponse(it) => (it.numbers, true),
            Self::R2t(it) => (it.numbers, false),
            Self::AsyncMessage(it) => (it.numbers, true),
            Self::Reject(it) => (it.numbers, true),
        }
    }

    /// Encodes the header of a PDU with `data_len` bytes of data, of which only the low 24 bits are used.
    pub fn emit(&self, data_len: u32) -> [u8; HEADER_LEN] {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let words = |first: u32, numbers: SequenceNumbers, rest: [u32; 3]| {
            let SequenceNumbers { stat_sn, exp_cmd_sn, max_cmd_sn } = numbers;
            let [a, b, c] = rest;
            [first, stat_sn, exp_cmd_sn, max_cmd_sn, a, b, c].map(Into::into)
        };
        let raw = match *self {
            Self::NopIn(NopIn { lun, task, target_task, numbers }) => RawHeader {
                lun: lun.to_be_bytes(),
                task: task.into(),
                words: words(target_task, numbers, [0; 3]),
                ..RawHeader::new(NOP_IN, FINAL, data_len)
            },
            Self::Response(Response { residual, response, status, task, numbers, exp_data_sn }) => {
                let (flags, residual) = residual.to_bits();
                RawHeader {
                    specific: [response, status],
                    task: task.into(),
                    words: words(0, numbers, [exp_data_sn, 0, residual]),
                    ..RawHeader::new(RESPONSE, FINAL | flags, data_len)
                }
            }
            Self::TaskResponse(TaskResponse { response, task, numbers }) => RawHeader {
                specific: [response, 0],
                task: task.into(),
                words: words(0, numbers, [0; 3]),
                ..RawHeader::new(TASK_RESPONSE, FINAL, data_len)
            },
            Self::LoginResponse(login) => {
                let LoginResponse { next, continues, stage, isid, tsih, task, numbers, status } = login;
                let fields = LoginFields { next, continues, stage, isid, tsih };
                let status = u32::from(u16::from_be_bytes(status)) << 16;
                let (task, words) = (task.into(), words(0, numbers, [status, 0, 0]));
                RawHeader { task, words, ..fields.to_raw(LOGIN_RESPONSE, data_len) }
            }
            Self::TextResponse(TextResponse { last, continues, lun, task, target_task, numbers }) => {
                RawHeader {
                    lun: lun.to_be_bytes(),
                    task: task.into(),
                    words: words(target_task, numbers, [0; 3]),
                    ..RawHeader::new(TEXT_RESPONSE, flag(last, FINAL) | flag(continues, CONTINUE), data_len)
                }
            }
            Self::DataIn(data) => data.to_raw(data_len),
            Self::LogoutResponse(logout) => {
                let LogoutResponse { response, task, numbers, time_to_wait, time_to_retain } = logout;
                let times = u32::from(time_to_wait) << 16 | u32::from(time_to_retain);
                RawHeader {
                    specific: [response, 0],
                    task: task.into(),
                    words: words(0, numbers, [0, times, 0]),
                    ..RawHeader::new(LOGOUT_RESPONSE, FINAL, data_len)
                }
            }
            Self::R2t(R2t { lun, task, target_task, numbers, r2t_sn, offset, len }) => RawHeader {
                lun: lun.to_be_bytes(),
                task: task.into(),
                words: words(target_task, numbers, [r2t_sn, offset, len]),
                ..RawHeader::new(R2T, FINAL, data_len)
            },
            Self::AsyncMessage(message) => message.to_raw(data_len),
            Self::Reject(Reject { reason, numbers, data_sn }) => RawHeader {
                specific: [reason, 0],
                task: NO_TASK.into(),
                words: words(0, numbers, [data_sn, 0, 0]),
                ..RawHeader::new(REJECT, FINAL, data_len)
            },
        };
        raw.to_bytes()
    }

    /// Decodes the header of a PDU that a target has sent.
    pub fn parse(header: &[u8; HEADER_LEN]) -> Result<Self, BadPdu> {
        let raw = RawHeader::read(header);
        let numbers = SequenceNumbers::from_raw(&raw);
        let (lun, task, last) = (u64::from_be_bytes(raw.lun), raw.task.get(), raw.flags & FINAL != 0);
        let [first, second] = raw.specific;
        Ok(match raw.code() {
            NOP_IN => Self::NopIn(NopIn { lun, task, target_task: raw.word(0), numbers }),
            RESPONSE => Self::Response(Response {
                residual: Residual::from_raw(&raw)?,
                response: first,
                status: second,
                task,
                numbers,
                exp_data_sn: raw.word(4),
            }),
            TASK_RESPONSE => Self::TaskResponse(TaskResponse { response: first, task, numbers }),
            LOGIN_RESPONSE => {
                let LoginFields { next, continues, stage, isid, tsih } = LoginFields::read(&raw)?;
                let [class, detail, ..] = raw.bytes(4);
                Self::LoginResponse(LoginResponse {
                    next,
                    continues,
                    stage,
                    isid,
                    tsih,
                    task,
                    numbers,
                    status: [class, detail],
                })
            }
            TEXT_RESPONSE => {
                let (continues, target_task) = (raw.flags & CONTINUE != 0, raw.word(0));
                Self::TextResponse(TextResponse { last, continues, lun, task, target_task, numbers })
            }
            DATA_IN => Self::DataIn(DataIn::from_raw(&raw)?),
            LOGOUT_RESPONSE => {
                let [a, b, c, d] = raw.bytes(5);
                let (time_to_wait, time_to_retain) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                let response = first;
                Self::LogoutResponse(LogoutResponse { response, task, numbers, time_to_wait, time_to_retain })
            }
            R2T => Self::R2t(R2t {
                lun,
                task,
                target_task: raw.word(0),
                numbers,
                r2t_sn: raw.word(4),
                offset: raw.word(5),
                len: raw.word(6),
            }),
            ASYNC_MESSAGE => {
                let ([event, vendor_code, a, b], [c, d, e, f]) = (raw.bytes(4), raw.bytes(5));
                let parameters = [[a, b], [c, d], [e, f]].map(u16::from_be_bytes);
                Self::AsyncMessage(AsyncMessage { lun, numbers, event, vendor_code, parameters })
            }
            REJECT => Self::Reject(Reject { reason: first, numbers, data_sn: raw.word(4) }),
            other => return Err(BadPdu::Opcode(other)),
        })
    }
}

impl AsyncMessage {
    fn to_raw(self, data_len: u32) -> RawHeader {
        let SequenceNumbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers;
        let [a, b, c] = self.parameters.map(u32::from);
        let event = u32::from(self.event) << 24 | u32::from(self.vendor_code) << 16 | a;
        RawHeader {
            lun: self.lun.to_be_bytes(),
            task: NO_TASK.into(),
            words: [0, stat_sn, exp_cmd_sn, max_cmd_sn, event, b << 16 | c, 0].map(Into::into),
            ..RawHeader::new(ASYNC_MESSAGE, FINAL, data_len)
        }
    }
}

impl DataIn {
    fn to_raw(self, data_len: u32) -> RawHeader {
        let (bits, status, residual) = match self.status {
            Some((status, residual)) => {
                let (bits, count) = residual.to_bits();
                (STATUS | bits, status, count)
            }
            None => (0, 0, 0),
        };
        let flags = bits | if self.last { FINAL } else { 0 } | if self.acknowledge { ACKNOWLEDGE } else { 0 };
        let SequenceNumbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers;
        RawHeader {
            specific: [0, status],
            lun: self.lun.to_be_bytes(),
            task: self.task.into(),
            words: [self.target_task, stat_sn, exp_cmd_sn, max_cmd_sn, self.data_sn, self.offset, residual]
                .map(Into::into),
            ..RawHeader::new(DATA_IN, flags, data_len)
        }
    }

    fn from_raw(raw: &RawHeader) -> Result<Self, BadPdu> {
        let [_, status] = raw.specific;
        let has_status = raw.flags & STATUS != 0;
        Ok(Self {
            last: raw.flags & FINAL != 0,
            acknowledge: raw.flags & ACKNOWLEDGE != 0,
            status: if has_status { Some((status, Residual::from_raw(raw)?)) } else { None },
            lun: u64::from_be_bytes(raw.lun),
            task: raw.task.get(),
            target_task: raw.word(0),
            numbers: SequenceNumbers::from_raw(raw),
            data_sn: raw.word(4),
            offset: raw.word(5),
        })
    }
}
