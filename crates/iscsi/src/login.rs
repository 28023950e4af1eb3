//! The login on a socket (RFC 7143 §6.3): stages, exchanges of requests and responses, and their limits.

use crate::chap::{Credentials, MAX_BINARY, MD5};
use crate::error::{LoginError, Status};
use crate::negotiation::{Negotiation, bad_answer, sort};
use crate::parameters::{Negotiated, Options};
use crate::random::random;
use crate::text::{BadText, MAX_TEXT, Text, binary, number, parse};
use ironwarp_wire::iscsi::{
    Digests, HEADER_LEN, InitiatorPdu, LoginRequest, LoginResponse, PduLayout, Stage, TargetPdu, padding,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum length of the data of a PDU before the end of the login (RFC 7143 §13.12).
const MAX_SEGMENT: usize = 8192;
/// Maximum number of requests in a login.
const MAX_REQUESTS: u32 = 32;
/// The task tag of the login.
const TASK: u32 = 1;
/// Identifier of the only connection of the session.
const CID: u16 = 0;
/// CmdSN of the first command. Login requests do not use up numbers.
const FIRST_CMD_SN: u32 = 1;

/// A blocking socket with timeouts.
pub trait Stream: Read + Write {
    /// Sets how long a read or a write may take; `None` removes the limit.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

/// Logs in on a new connection to a target. The socket must be blocking; on success it has no timeouts afterwards, and
/// nothing has been read from it after the last login response. Close it after an error.
pub fn login(stream: &mut impl Stream, options: &Options) -> Result<Negotiated, LoginError> {
    options.check()?;
    let isid = match options.isid {
        Some(isid) => isid,
        // The format of random identifiers (RFC 7143 §11.12.5).
        None => random::<5>().map(|[a, b, c, d, e]| [0x80, a, b, c, d, e])?,
    };
    let too_long = LoginError::Option { option: "timeout", reason: "too long" };
    let deadline = Instant::now().checked_add(options.timeout).ok_or(too_long)?;
    let mut login =
        Login { stream, timeout: options.timeout, deadline, isid, requests: 0, exp_stat_sn: None };
    login.security(options)?;
    let mut session = Negotiated::new(options, isid);
    login.operational(options, &mut session)?;
    login.stream.set_timeout(None)?;
    Ok(session)
}

/// A login in progress.
#[derive(Debug)]
struct Login<'s, S> {
    stream: &'s mut S,
    timeout: Duration,
    /// When the timeout expires.
    deadline: Instant,
    isid: [u8; 6],
    /// Number of requests that were sent.
    requests: u32,
    /// StatSN of the next response, after the first.
    exp_stat_sn: Option<u32>,
}

/// The answer to a request: all its parts.
#[derive(Debug)]
struct Reply {
    text: Vec<u8>,
    /// The last response.
    last: LoginResponse,
}

impl<S: Stream> Login<'_, S> {
    /// Passes the security stage.
    fn security(&mut self, options: &Options) -> Result<(), LoginError> {
        let mut text = Text::default();
        text.push("InitiatorName", &options.initiator_name);
        text.push("TargetName", &options.target_name);
        text.push("SessionType", "Normal");
        let offer = if options.chap.is_some() { "CHAP" } else { "None" };
        text.push("AuthMethod", offer);
        let next = options.chap.is_none().then_some(Stage::Operational);
        let (done, [method]) = self.ask(next, text, ["AuthMethod"])?;
        if method != offer {
            return Err(bad_answer("AuthMethod", offer.to_owned(), &method));
        }
        match &options.chap {
            Some(credentials) => self.chap(credentials),
            None => self.leave_security(done),
        }
    }

    /// Authenticates this end, and the target if the credentials say so.
    fn chap(&mut self, credentials: &Credentials) -> Result<(), LoginError> {
        let mut text = Text::default();
        text.push("CHAP_A", MD5);
        let (_, [algorithm, id, challenge]) = self.ask(None, text, ["CHAP_A", "CHAP_I", "CHAP_C"])?;
        if algorithm != MD5 {
            return Err(bad_answer("CHAP_A", MD5.to_owned(), &algorithm));
        }
        let id = number(&id).and_then(|id| u8::try_from(id).ok());
        let id = id.ok_or(LoginError::Protocol("CHAP_I is not a number of 8 bits"))?;
        let challenge = binary(&challenge, MAX_BINARY);
        let challenge =
            challenge.ok_or(LoginError::Protocol("CHAP_C is not a binary value of 1 to 1,024 bytes"))?;
        let ours = credentials.challenge()?;
        let text = credentials.answer(id, &challenge, ours.as_ref())?;
        let next = Some(Stage::Operational);
        let Some(ours) = ours else {
            let (done, []) = self.ask(next, text, [])?;
            return self.leave_security(done);
        };
        let (done, [name, response]) = self.ask(next, text, ["CHAP_N", "CHAP_R"])?;
        let response = binary(&response, MAX_BINARY);
        let response =
            response.ok_or(LoginError::Protocol("CHAP_R is not a binary value of 1 to 1,024 bytes"))?;
        credentials.verify(&name, &response, &ours)?;
        self.leave_security(done)
    }

    /// Asks for the end of the security stage until the target agrees.
    fn leave_security(&mut self, mut done: bool) -> Result<(), LoginError> {
        while !done {
            (done, []) = self.ask(Some(Stage::Operational), Text::default(), [])?;
        }
        Ok(())
    }

    /// Sends keys in the security stage, until the target has answered `keys`. Returns their values, and whether the target
    /// has ended the stage.
    fn ask<const N: usize>(
        &mut self,
        next: Option<Stage>,
        mut text: Text,
        keys: [&'static str; N],
    ) -> Result<(bool, [String; N]), LoginError> {
        let mut values = [const { None }; N];
        loop {
            let reply = self.exchange(Stage::Security, next, text.as_bytes())?;
            let (answers, replies) = sort(&reply.text, &keys)?;
            for (index, value) in answers {
                if values[index].replace(value.to_owned()).is_some() {
                    return Err(LoginError::NotOffered(keys[index].to_owned()));
                }
            }
            let done = reply.last.next.is_some();
            match values.iter().position(Option::is_none) {
                Some(missing) if done => return Err(LoginError::Unanswered(keys[missing])),
                None if done || replies.as_bytes().is_empty() => {
                    return Ok((done, values.map(Option::unwrap_or_default)));
                }
                _ => text = replies,
            }
        }
    }

    /// Negotiates the operational parameters.
    fn operational(&mut self, options: &Options, session: &mut Negotiated) -> Result<(), LoginError> {
        let mut negotiation = Negotiation::new(options);
        let mut text = negotiation.offers();
        let last = loop {
            let reply = self.exchange(Stage::Operational, Some(Stage::FullFeature), text.as_bytes())?;
            text = negotiation.take(&reply.text)?;
            if reply.last.next.is_some() {
                break reply.last;
            }
        };
        negotiation.finish(session)?;
        if last.tsih == 0 {
            return Err(LoginError::Protocol("no session handle (TSIH) in the last response"));
        }
        let numbers = last.numbers;
        // The window is empty if MaxCmdSN is one less than ExpCmdSN.
        let window = numbers.max_cmd_sn.wrapping_sub(FIRST_CMD_SN).wrapping_add(1);
        if numbers.exp_cmd_sn != FIRST_CMD_SN || window > u32::MAX / 2 {
            return Err(LoginError::Protocol("ExpCmdSN or MaxCmdSN does not match the CmdSN of the login"));
        }
        session.tsih = last.tsih;
        session.cmd_sn = FIRST_CMD_SN;
        session.exp_stat_sn = numbers.stat_sn.wrapping_add(1);
        session.max_cmd_sn = numbers.max_cmd_sn;
        Ok(())
    }

    /// Sends a text and receives the answer, which can have several parts. All texts of this end fit into one PDU: offers are
    /// short, and the number and length of the keys that it answers are limited.
    fn exchange(&mut self, stage: Stage, next: Option<Stage>, text: &[u8]) -> Result<Reply, LoginError> {
        let mut reply = self.request(stage, next, text)?;
        while reply.last.continues {
            // An empty request asks for the next part.
            let Reply { text, last } = self.request(stage, next, &[])?;
            if reply.text.len() + text.len() > MAX_TEXT {
                return Err(BadText::TooLong.into());
            }
            reply.text.extend(text);
            reply.last = last;
        }
        Ok(reply)
    }

    /// Sends one request and receives one response.
    fn request(&mut self, stage: Stage, next: Option<Stage>, data: &[u8]) -> Result<Reply, LoginError> {
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return Err(LoginError::Protocol("the login does not end"));
        }
        let (exp_stat_sn, isid) = (self.exp_stat_sn.unwrap_or(0), self.isid);
        let (tsih, task, cid, cmd_sn) = (0, TASK, CID, FIRST_CMD_SN);
        let request =
            LoginRequest { next, continues: false, stage, isid, tsih, task, cid, cmd_sn, exp_stat_sn };
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        debug_assert!(data.len() <= MAX_SEGMENT);
        let mut pdu = InitiatorPdu::LoginRequest(request).emit(len).to_vec();
        pdu.extend_from_slice(data);
        pdu.extend_from_slice(&[0; 3][..padding(data.len())]);
        self.write(&pdu)?;
        let (last, text) = self.receive()?;
        self.check(&last, stage, next)?;
        Ok(Reply { text, last })
    }

    /// Receives a login response of the status success, and its data.
    fn receive(&mut self) -> Result<(LoginResponse, Vec<u8>), LoginError> {
        let mut header = [0; HEADER_LEN];
        self.read(&mut header)?;
        let layout = PduLayout::of(&header, Digests::default());
        let response = match TargetPdu::parse(&header)? {
            TargetPdu::LoginResponse(response) => response,
            TargetPdu::Reject(reject) => return Err(LoginError::Rejected(reject.reason)),
            _ => return Err(LoginError::Protocol("a PDU other than a login response")),
        };
        if layout.additional != 0 || layout.data > MAX_SEGMENT {
            return Err(LoginError::Protocol(
                "a response with additional headers or more than 8,192 bytes of data",
            ));
        }
        let mut data = vec![0; layout.data + layout.trailer_len()];
        self.read(&mut data)?;
        data.truncate(layout.data);
        match response.status {
            [0, _] => Ok((response, data)),
            [1, detail] => {
                let address = parse(&data)?.into_iter().find(|(key, _)| *key == "TargetAddress");
                let (_, address) =
                    address.ok_or(LoginError::Protocol("a redirection without a TargetAddress"))?;
                Err(LoginError::Redirected { address: address.to_owned(), permanent: detail == 2 })
            }
            [class, detail] => Err(LoginError::Refused(Status { class, detail })),
        }
    }

    /// Checks that a response belongs to the request and keeps the order of stages.
    fn check(
        &mut self,
        response: &LoginResponse,
        stage: Stage,
        next: Option<Stage>,
    ) -> Result<(), LoginError> {
        let stat_sn = response.numbers.stat_sn;
        let problem = if response.task != TASK || response.isid != self.isid {
            "a response with another task tag or ISID"
        } else if response.stage != stage {
            "a response in another stage"
        } else if response.next.is_some() && (response.next != next || response.continues) {
            "a transition to another stage than the requested one"
        } else if self.exp_stat_sn.is_some_and(|expected| expected != stat_sn) {
            "a response with an unexpected StatSN"
        } else {
            self.exp_stat_sn = Some(stat_sn.wrapping_add(1));
            return Ok(());
        };
        Err(LoginError::Protocol(problem))
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), LoginError> {
        while !bytes.is_empty() {
            let written = self.wait(|stream| stream.write(bytes))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Result<(), LoginError> {
        while !bytes.is_empty() {
            let read = self.wait(|stream| stream.read(bytes))?;
            bytes = &mut bytes[read..];
        }
        Ok(())
    }

    /// Reads or writes once, before the deadline. Returns the number of bytes, which is not zero.
    fn wait(&mut self, mut operation: impl FnMut(&mut S) -> io::Result<usize>) -> Result<usize, LoginError> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LoginError::Timeout(self.timeout));
            }
            self.stream.set_timeout(Some(left))?;
            match operation(self.stream) {
                Ok(0) => return Err(LoginError::Closed),
                Ok(count) => return Ok(count),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Err(LoginError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
    }
}
