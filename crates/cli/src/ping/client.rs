//! The client, which sends pings and measures their round trips.

use super::hello::{Hello, Welcome};
use super::message::{TIMEOUT, check_success, expected_byte, message_bytes};
use super::options::{Arguments, Op};
use super::report::{Report, micros};
use crate::say::{self, Failure};
use ironwarp::Adapter;
use ironwarp::WaitError;
use ironwarp::completion::{CompletionQueue, Opcode};
use ironwarp::connection::{ConnectOptions, Established};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr, Sge};
use ironwarp::queue::{Completes, PostError, QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pings a server and prints the results. Returns false if not all pings were answered.
pub(super) fn run(adapter: &Adapter, to: SocketAddr, arguments: &Arguments) -> Result<bool, Failure> {
    let mut client = Client::connect(adapter, to, arguments)?;
    let mut report = Report::default();
    let pinged = client.ping_all(arguments, &mut report);
    client.print_parameters()?;
    if let Err(error) = &pinged {
        say::error(&**error);
    }
    say::line(format_args!("{}\n{report}", say::bold(format_args!("--- {to} ---"))))?;
    Ok(pinged.is_ok())
}

/// A connection to a server.
struct Client {
    op: Op,
    size: usize,
    qp: QueuePair,
    cq: CompletionQueue,
    /// The memory of the message to send.
    source: MemoryRegion,
    /// The memory for the answer.
    sink: MemoryRegion,
    /// The remote address of the server's memory.
    remote: RemoteAddr,
    established: Established,
    /// Whether Sends and Writes complete only when acknowledged.
    acknowledged: bool,
    /// Whether the parameters of the connection were printed.
    parameters_printed: bool,
}

impl Client {
    /// Connects to a server, and tells it operation and size.
    fn connect(adapter: &Adapter, to: SocketAddr, arguments: &Arguments) -> Result<Self, Failure> {
        let &Arguments { op, acknowledged, .. } = arguments;
        let size = arguments.size as usize;
        let cq = adapter.completion_queue(64)?;
        let domain = adapter.protection_domain();
        let completes = if acknowledged { Completes::WhenAcknowledged } else { Completes::WhenSent };
        let qp = domain.queue_pair(&cq).completes(completes).create()?;
        let source = domain.register(Buffer::new(size.max(1))?, Access::LOCAL_READ)?;
        let sink = domain.register(Buffer::new(size.max(1))?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        post_receive(&qp, op, sink.slice(..size)?)?;
        let hello = Hello { op, size: arguments.size, addr: sink.remote_addr(0)? };
        let established = qp
            .connect(to, &ConnectOptions::new().private_data(&hello.to_bytes()))
            .map_err(|error| format!("failed to connect to {to}: {error}"))?;
        let welcome = Welcome::parse(&established.private_data).ok_or_else(|| {
            format!("{to} is an RDMA server, but not a compatible `ironwarp ping --listen`")
        })?;
        let remote = welcome.addr;
        Ok(Self {
            op,
            size,
            qp,
            cq,
            source,
            sink,
            remote,
            established,
            acknowledged,
            parameters_printed: false,
        })
    }

    /// Prints the parameters of the connection, once, after the first answer.
    fn print_parameters(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.parameters_printed, true) {
            return Ok(());
        }
        let Established { peer, local, agreed, .. } = &self.established;
        let title = say::bold(format_args!("PING {peer}"));
        let crc = if agreed.send.crc { "CRC" } else { "no CRC" };
        let (ird, ord) = (agreed.ird, agreed.ord);
        let recognised = if self.qp.is_peer_ironwarp() { ", Ironwarp peer" } else { "" };
        say::line(format_args!(
            "{title} from {local}: {} of {} bytes, {crc}, IRD {ird}, ORD {ord}{recognised}",
            self.op, self.size
        ))
    }

    /// Sends all pings at the requested interval, and adds their times to the report.
    fn ping_all(&mut self, arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
        let last = if arguments.count == 0 { u64::MAX } else { arguments.count };
        for seq in 1..=last {
            let began = Instant::now();
            report.record_sent();
            let took = self.ping(seq).map_err(|error| format!("seq={seq}: {error}"))?;
            report.record_answer(took);
            self.print_parameters()?;
            if !arguments.quiet {
                let Self { size, established, .. } = self;
                let (peer, time) = (established.peer, micros(took));
                say::line(format_args!("{size} bytes from {peer}: seq={seq} time={time:.1} µs, verified"))?;
            }
            if seq < last {
                let left = arguments.interval.saturating_sub(began.elapsed());
                self.pause(left).map_err(|error| format!("after seq={seq}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Sends one ping and verifies the answer. Returns the round-trip time, which excludes preparing and verifying the
    /// message.
    fn ping(&self, seq: u64) -> Result<Duration, Failure> {
        let seed = if self.op == Op::Read { 0 } else { seq };
        self.source.write(0, &message_bytes(seed, self.size))?;
        self.sink.fill(!expected_byte(seed, 0))?;
        let (ours, answer) = (self.source.slice(..self.size)?, self.sink.slice(..self.size)?);
        let requests = match self.op {
            Op::Send => vec![WorkRequest::send(seq, &[ours]).into()],
            Op::Write => vec![
                WorkRequest::write(seq, &[ours], self.remote).unsignaled(),
                WorkRequest::send(seq, &[]).into(),
            ],
            Op::Read => vec![WorkRequest::read(seq, &[answer], self.remote)],
        };
        let began = Instant::now();
        self.qp.post_send_all(requests)?;
        let took = self.wait(began)?;
        self.verify(seed)?;
        if self.op != Op::Read {
            post_receive(&self.qp, self.op, answer)?;
        }
        Ok(took)
    }

    /// Waits for all completions of a ping. Returns the time from `began` to the answer, or to the acknowledgement if
    /// that is requested.
    fn wait(&self, began: Instant) -> Result<Duration, Failure> {
        let (mut sent, mut answered) = (self.op == Op::Read, None);
        loop {
            let completion = self.cq.wait(TIMEOUT).map_err(|error| match error {
                WaitError::TimedOut => format!("no answer within {TIMEOUT:?}"),
                other => other.to_string(),
            })?;
            let now = began.elapsed();
            match check_success(completion)?.opcode {
                Opcode::Receive | Opcode::Read => answered = Some(now),
                _ => sent = true,
            }
            if let Some(took) = answered.filter(|_| sent) {
                return Ok(if self.acknowledged { now } else { took });
            }
        }
    }

    /// Checks every byte of the answer.
    fn verify(&self, seed: u64) -> Result<(), Failure> {
        let bytes = self.sink.to_vec()?;
        let wrong =
            bytes[..self.size].iter().enumerate().find(|&(at, &byte)| byte != expected_byte(seed, at));
        match wrong {
            None => Ok(()),
            Some((at, byte)) => {
                let expected = expected_byte(seed, at);
                Err(format!("byte {at} of {} is {byte:#04x}, expected {expected:#04x}", self.size).into())
            }
        }
    }

    /// Waits until the next ping is due. Fails at once if the connection ends.
    fn pause(&self, pause: Duration) -> Result<(), Failure> {
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            match self.cq.wait(left) {
                Ok(completion) => check_success(completion).map(drop)?,
                Err(WaitError::TimedOut) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match self.qp.error() {
            Some(fault) => Err(fault.to_string().into()),
            None => Ok(()),
        }
    }
}

/// Posts a receive for the next answer. A receive is always posted, because its completion reports that an idle
/// connection has ended.
fn post_receive(qp: &QueuePair, op: Op, sink: Sge) -> Result<(), PostError> {
    match op {
        Op::Send => qp.post_receive(0, &[sink]),
        Op::Write | Op::Read => qp.post_receive(0, &[]),
    }
}
