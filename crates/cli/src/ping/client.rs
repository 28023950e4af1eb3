//! The client, which sends and measures.

use super::hello::{Hello, Welcome};
use super::message::{TIMEOUT, expected, message, succeeded};
use super::options::{Arguments, Op};
use super::report::{Report, micros};
use crate::say::{self, Failure};
use ironwarp::{
    Access, Adapter, Buffer, Completes, CompletionQueue, ConnectOptions, Established, MemoryRegion, Opcode,
    Place, PostError, QueuePair, Sge, WorkRequest,
};
use std::net::SocketAddr;
use std::sync::Arc;
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
    /// The message to send.
    out: MemoryRegion,
    /// The buffer for the answer.
    back: MemoryRegion,
    /// The memory of the server.
    there: Place,
    established: Arc<Established>,
    /// Whether Sends and Writes complete only when acknowledged.
    acknowledged: bool,
    introduced: bool,
}

impl Client {
    fn connect(adapter: &Adapter, to: SocketAddr, arguments: &Arguments) -> Result<Self, Failure> {
        let &Arguments { op, acknowledged, .. } = arguments;
        let size = arguments.size as usize;
        let cq = adapter.completion_queue(64)?;
        let domain = adapter.protection_domain();
        let completes = if acknowledged { Completes::WhenAcknowledged } else { Completes::WhenSent };
        let qp = domain.queue_pair(&cq).completes(completes).create()?;
        let out = domain.register(Buffer::new(size.max(1))?, Access::LOCAL_READ)?;
        let back = domain.register(Buffer::new(size.max(1))?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        post_receive(&qp, op, back.slice(0, size)?)?;
        let hello = Hello { op, size: arguments.size, place: back.place(0)? };
        let established = qp
            .connect(to, &ConnectOptions::new().private_data(&hello.to_bytes()))
            .map_err(|error| format!("failed to connect to {to}: {error}"))?;
        let welcome = Welcome::parse(&established.private_data).ok_or_else(|| {
            format!("{to} is an RDMA server, but not a compatible `ironwarp ping --listen`")
        })?;
        let there = welcome.place;
        Ok(Self { op, size, qp, cq, out, back, there, established, acknowledged, introduced: false })
    }

    /// Prints the parameters of the connection, once, after the first answer.
    fn print_parameters(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.introduced, true) {
            return Ok(());
        }
        let Established { peer, local, agreed, .. } = &*self.established;
        let title = say::bold(format_args!("PING {peer}"));
        let crc = if agreed.send.crc { "CRC" } else { "no CRC" };
        let (ird, ord) = (agreed.ird, agreed.ord);
        let recognised = if self.qp.is_peer_ironwarp() { ", Ironwarp peer" } else { "" };
        say::line(format_args!(
            "{title} from {local}: {} of {} bytes, {crc}, IRD {ird}, ORD {ord}{recognised}",
            self.op, self.size
        ))
    }

    fn ping_all(&mut self, arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
        let last = if arguments.count == 0 { u64::MAX } else { arguments.count };
        for seq in 1..=last {
            let began = Instant::now();
            report.sent();
            let took = self.ping(seq).map_err(|error| format!("seq={seq}: {error}"))?;
            report.received(took);
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

    /// Sends one ping. Returns its round-trip time, without preparing and verifying the message.
    fn ping(&self, seq: u64) -> Result<Duration, Failure> {
        let seed = if self.op == Op::Read { 0 } else { seq };
        self.out.write(0, &message(seed, self.size))?;
        self.back.fill(!expected(seed, 0))?;
        let (mine, sink) = (self.out.slice(0, self.size)?, self.back.slice(0, self.size)?);
        let requests = match self.op {
            Op::Send => vec![WorkRequest::send(seq, &[mine]).into()],
            Op::Write => vec![
                WorkRequest::write(seq, &[mine], self.there).unsignaled(),
                WorkRequest::send(seq, &[]).into(),
            ],
            Op::Read => vec![WorkRequest::read(seq, &[sink], self.there)],
        };
        let began = Instant::now();
        self.qp.post_send_all(requests)?;
        let took = self.wait(began)?;
        self.verify(seed)?;
        if self.op != Op::Read {
            post_receive(&self.qp, self.op, sink)?;
        }
        Ok(took)
    }

    /// Waits for all completions of a ping. Returns when the answer arrived.
    fn wait(&self, began: Instant) -> Result<Duration, Failure> {
        let (mut sent, mut answered) = (self.op == Op::Read, None);
        loop {
            let completion = self.cq.wait(TIMEOUT)?.ok_or_else(|| format!("no answer within {TIMEOUT:?}"))?;
            let now = began.elapsed();
            match succeeded(completion)?.opcode {
                Opcode::Receive | Opcode::Read => answered = Some(now),
                _ => sent = true,
            }
            if let Some(took) = answered.filter(|_| sent) {
                return Ok(if self.acknowledged { now } else { took });
            }
        }
    }

    fn verify(&self, seed: u64) -> Result<(), Failure> {
        let bytes = self.back.to_vec()?;
        let wrong = bytes[..self.size].iter().enumerate().find(|&(at, &byte)| byte != expected(seed, at));
        match wrong {
            None => Ok(()),
            Some((at, byte)) => {
                let due = expected(seed, at);
                Err(format!("byte {at} of {} is {byte:#04x}, expected {due:#04x}", self.size).into())
            }
        }
    }

    /// Waits until the next ping. Reports immediately if the connection ends.
    fn pause(&self, pause: Duration) -> Result<(), Failure> {
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let Some(completion) = self.cq.wait(left)? else { break };
            succeeded(completion)?;
        }
        match self.qp.error() {
            Some(fault) => Err(fault.to_string().into()),
            None => Ok(()),
        }
    }
}

/// Posts a receive for the next answer. There is always one, so that the end of an idle connection is noticed.
fn post_receive(qp: &QueuePair, op: Op, sink: Sge) -> Result<(), PostError> {
    match op {
        Op::Send => qp.post_receive(0, &[sink]),
        Op::Write | Op::Read => qp.post_receive(0, &[]),
    }
}
