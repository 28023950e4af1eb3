//! Unit tests of queue pairs in iSCSI mode, on a mock link. The tests play the target: they build its PDUs, and parse those
//! that the queue pair sends.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may stop, and its numbers are small"
)]

mod aborts;
mod checks;
mod commands;
mod digests;
mod failures;
mod mock;
mod states;
mod transfers;

use super::*;
use crate::config::DeviceConfig;
use crate::link::LinkError;
use crate::memory::{Check, Direction, Domain, Memory, Rights, TagCipher};
use crate::queue::{Sge, Sges};
use ironwarp_wire::Tag;
use ironwarp_wire::iscsi::{
    Command, DataIn, DataOut, HEADER_LEN, InitiatorPdu, NO_TASK, PduLayout, R2t, Residual, Response,
    SequenceNumbers, TargetPdu, padding,
};
use ironwarp_wire::mpa::Crc;
use mock::{MockDriver, MockHost, MockLink};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;

/// The number of the queue pair under test.
const QPN: u32 = 7;
/// The program's memory: `LEN` bytes at `BASE`, followed by a page that is registered but not mapped.
const BASE: u64 = 0x10_0000;
const LEN: usize = 512 << 10;
/// Receives are at the beginning of the memory, in slots of this size.
const SLOT: u32 = 512;
const SLOTS: u64 = 128;
/// The offset of the memory after the receives, for the data of commands.
const DATA: u64 = SLOT as u64 * SLOTS;
/// The logical unit of the commands.
const LUN: u64 = 0x0001_0000_0000_0000;
/// Created once, because that takes longer than a test.
static CIPHER: LazyLock<Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));

/// A queue pair with its mock link and memory. `tag` names the memory.
struct Fixture {
    qp: Arc<IscsiQp>,
    link: Arc<MockLink>,
    driver: Arc<MockDriver>,
    host: Arc<MockHost>,
    device: Arc<Device>,
    domain: Domain,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    tag: Tag,
    /// Number of receives posted.
    receives: AtomicU64,
}

/// A PDU that the queue pair has sent.
#[derive(Debug)]
struct Sent {
    pdu: InitiatorPdu,
    data: Vec<u8>,
}

/// A receive that a PDU has used.
#[derive(Debug)]
struct Got {
    opcode: Opcode,
    command: Option<CommandId>,
    cause: Option<Arc<QpError>>,
    pdu: TargetPdu,
    data: Vec<u8>,
}

impl Got {
    /// Returns the check that the PDU failed. It was refused.
    fn failed_check(&self) -> Check {
        assert_eq!((self.opcode, self.command), (Opcode::RefusedPdu, None), "{self:?}");
        match self.cause.as_deref() {
            Some(QpError::Remote(denied)) => denied.check,
            other => panic!("{other:?}"),
        }
    }
}

/// Settings of a queue pair and its device.
struct Settings {
    session: SessionParameters,
    config: DeviceConfig,
    failure: RegistrationFailure,
    send_depth: usize,
    completions: usize,
}

impl Fixture {
    /// Creates a queue pair with the default settings and many receives.
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates a queue pair with these parameters of its session and many receives.
    fn with_session(adjust: impl FnOnce(&mut SessionParameters)) -> Self {
        Self::with(|settings| adjust(&mut settings.session))
    }

    /// Creates a queue pair with adjusted settings and many receives.
    fn with(adjust: impl FnOnce(&mut Settings)) -> Self {
        let fixture = Self::without_receives(adjust);
        fixture.post_receives(SLOTS);
        fixture
    }

    /// Creates a queue pair with adjusted settings and no receives.
    fn without_receives(adjust: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            session: SessionParameters::default(),
            config: DeviceConfig { tag_slots: 0..8192, ..DeviceConfig::default() },
            failure: RegistrationFailure::Anticipatory,
            send_depth: 16,
            completions: 1024,
        };
        adjust(&mut settings);
        let host = Arc::new(MockHost::new());
        let device = Device::new(settings.config, Arc::<MockHost>::clone(&host), Arc::clone(&CIPHER));
        let domain = device.allocate_domain();
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::BIND;
        let memory = Memory::direct(BASE, LEN as u64 + 4096, rights).unwrap();
        let tag = device.register(domain, memory).unwrap();
        let (send_cq, receive_cq) = (Arc::new(Cq::new(1, settings.completions)), Arc::new(Cq::new(2, 1024)));
        let attributes = IscsiAttributes {
            receive_cq: Arc::clone(&receive_cq),
            send_depth: settings.send_depth,
            registration_failure: settings.failure,
            ..IscsiAttributes::new(domain, &send_cq, settings.session)
        };
        let link = Arc::new(MockLink::new(&host));
        let driver = Arc::<MockDriver>::default();
        let qp = IscsiQp::new(
            QPN,
            &device,
            attributes,
            Arc::<MockLink>::clone(&link),
            Arc::<MockDriver>::clone(&driver),
        );
        let receives = AtomicU64::new(0);
        Self { qp, link, driver, host, device, domain, send_cq, receive_cq, tag, receives }
    }

    /// Creates another queue pair of the same device, with a link of its own.
    fn neighbour(&self, id: u32, domain: Domain) -> (Arc<IscsiQp>, Arc<MockLink>) {
        let link = Arc::new(MockLink::new(&self.host));
        let attributes =
            IscsiAttributes::new(domain, &Arc::new(Cq::new(3, 64)), SessionParameters::default());
        let driver = Arc::<MockDriver>::default();
        (IscsiQp::new(id, &self.device, attributes, Arc::<MockLink>::clone(&link), driver), link)
    }

    // --- The program ---

    fn sges(&self, parts: &[(u64, u32)]) -> Sges {
        let sge = |&(at, len): &(u64, u32)| Sge { tag: self.tag, addr: BASE + at, len };
        Sges::from(&*parts.iter().map(sge).collect::<Vec<_>>())
    }

    /// Posts a receive. Its buffer is the slot of its number.
    fn post_receive(&self) -> u64 {
        let id = self.receives.fetch_add(1, Ordering::Relaxed);
        let buffers = self.sges(&[(id % SLOTS * u64::from(SLOT), SLOT)]);
        self.qp.post_receive(ReceiveRequest { id, buffers }).unwrap();
        id
    }

    fn post_receives(&self, count: u64) {
        for _ in 0..count {
            self.post_receive();
        }
    }

    /// Posts a command.
    fn post(&self, data: Option<(Direction, Sges)>) -> CommandId {
        let header = Command { lun: LUN, cmd_sn: 42, cdb: [9; 16], attribute: 1, ..Command::default() };
        let ids = self.qp.post_commands(vec![CommandRequest { header, data }]).unwrap();
        self.settle();
        ids[0]
    }

    /// Posts a read to these parts of the memory, given as offset and length.
    fn read(&self, parts: &[(u64, u32)]) -> CommandId {
        self.post(Some((Direction::In, self.sges(parts))))
    }

    /// Posts a write from these parts of the memory, given as offset and length.
    fn write(&self, parts: &[(u64, u32)]) -> CommandId {
        self.post(Some((Direction::Out, self.sges(parts))))
    }

    /// Posts a read, and returns its number and task tag.
    fn start_read(&self, parts: &[(u64, u32)]) -> (CommandId, u32) {
        (self.read(parts), self.sent_command().task)
    }

    /// Posts a write, and returns its number and task tag. Discards what it sends.
    fn start_write(&self, parts: &[(u64, u32)]) -> (CommandId, u32) {
        let id = self.write(parts);
        let Some(Sent { pdu: InitiatorPdu::Command(Command { task, .. }), .. }) =
            self.sent().into_iter().next()
        else {
            panic!("no command was sent")
        };
        (id, task)
    }

    /// Returns the contents of the memory at offset `at`.
    fn bytes(&self, at: u64, len: u32) -> Vec<u8> {
        self.host.bytes()[at as usize..][..len as usize].to_vec()
    }

    /// Fills the memory at offset `at` with a pattern, and returns it.
    fn fill(&self, at: u64, len: u32, seed: u8) -> Vec<u8> {
        let bytes = pattern(len as usize, seed);
        self.host.bytes()[at as usize..][..len as usize].copy_from_slice(&bytes);
        bytes
    }

    /// Returns the completions of the send queue.
    fn ended(&self) -> Vec<Completion> {
        poll(&self.send_cq)
    }

    /// Returns the number and status of the commands that have failed.
    fn failed(&self) -> Vec<(CommandId, Status)> {
        let end = |end: Completion| {
            assert_eq!(end.opcode, Opcode::Command);
            (CommandId::of(&end).unwrap(), end.status)
        };
        self.ended().into_iter().map(end).collect()
    }

    /// Returns the receives that PDUs have used. All have succeeded.
    fn got(&self) -> Vec<Got> {
        let got = |completion: Completion| {
            assert_eq!((completion.status, completion.qp), (Status::Success, QPN), "{completion:?}");
            let bytes = self.bytes(completion.wr_id % SLOTS * u64::from(SLOT), completion.byte_len);
            let (header, data) = bytes.split_first_chunk().unwrap();
            let pdu = TargetPdu::parse(header).unwrap();
            let (opcode, command) = (completion.opcode, CommandId::of(&completion));
            Got { opcode, command, cause: completion.cause, pdu, data: data.to_vec() }
        };
        poll(&self.receive_cq).into_iter().map(got).collect()
    }

    /// Returns the only receive that a PDU has used.
    fn got_one(&self) -> Got {
        let mut got = self.got();
        assert_eq!(got.len(), 1, "{got:?}");
        got.remove(0)
    }

    /// Asserts that the last PDU has completed this command.
    fn assert_completed(&self, id: CommandId) {
        let got = self.got();
        let last = got.last().expect("a response");
        assert_eq!((last.opcode, last.command), (Opcode::Response, Some(id)), "{last:?}");
        let completed = got.iter().filter(|got| got.opcode == Opcode::Response).count();
        assert_eq!(completed, 1, "{got:?}");
    }

    // --- The driver ---

    /// Does everything that was scheduled.
    fn settle(&self) {
        while self.driver.take() {
            self.qp.resume();
        }
    }

    /// Reports to the queue pair that there is something to receive.
    fn report_readable(&self) {
        self.qp.drive(Ready { readable: true, writable: false, ended: false });
        self.settle();
    }

    /// Gives the link room for `bytes` more, and reports that.
    fn give_room(&self, bytes: usize) {
        self.link.give_room(bytes);
        self.qp.drive(Ready { readable: false, writable: true, ended: false });
        self.settle();
    }

    // --- The target ---

    /// Returns the bytes of a PDU, with the digests of the session.
    fn encode(&self, pdu: &TargetPdu, data: &[u8]) -> Vec<u8> {
        let digests = self.qp.attributes().session.digests;
        let mut bytes = pdu.emit(data.len() as u32).to_vec();
        if digests.header {
            bytes.extend(Crc::of(&bytes).to_bytes());
        }
        let padded = [data, &[0; 3][..padding(data.len())]].concat();
        bytes.extend(&padded);
        if digests.data && !data.is_empty() {
            bytes.extend(Crc::of(&padded).to_bytes());
        }
        bytes
    }

    /// Sends bytes to the queue pair.
    fn arrive(&self, bytes: &[u8]) {
        self.link.arrive(bytes);
        self.report_readable();
    }

    /// Sends a PDU to the queue pair.
    fn deliver(&self, pdu: TargetPdu, data: &[u8]) {
        self.arrive(&self.encode(&pdu, data));
    }

    /// Takes the complete PDUs that the queue pair has sent, and checks their padding and digests.
    fn sent(&self) -> Vec<Sent> {
        let digests = self.qp.attributes().session.digests;
        let mut all = Vec::new();
        let mut bytes = self.link.sent();
        while let Some(header) = bytes.first_chunk::<HEADER_LEN>() {
            let layout = PduLayout::of(header, digests);
            if bytes.len() < layout.len() {
                break;
            }
            let pdu = InitiatorPdu::parse(header).unwrap();
            let rest = bytes.split_off(layout.len());
            let (head, body) = bytes.split_at(layout.header_len());
            if digests.header {
                assert_eq!(head[HEADER_LEN..], Crc::of(&head[..HEADER_LEN]).to_bytes());
            }
            let (data, trailer) = body.split_at(layout.data);
            let (pad, digest) = trailer.split_at(padding(layout.data));
            assert!(pad.iter().all(|byte| *byte == 0));
            if digests.data && !data.is_empty() {
                assert_eq!(digest, Crc::of(&body[..body.len() - 4]).to_bytes());
            }
            all.push(Sent { pdu, data: data.to_vec() });
            bytes = rest;
        }
        self.link.put_back(&bytes);
        all
    }

    /// Returns the only PDU that was sent, a command.
    fn sent_command(&self) -> Command {
        match &self.sent()[..] {
            [Sent { pdu: InitiatorPdu::Command(command), .. }] => *command,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that Data-Out PDUs were sent that answer an R2T for these bytes, in order, the last one with its flag.
    fn assert_answered(&self, r2t: &R2t, expected: &[u8]) {
        let sent = self.sent();
        assert_eq!(answer(&sent, r2t.task, r2t.target_task, r2t.offset), expected);
    }
}

/// Checks a sequence of Data-Out PDUs and returns its data.
fn answer(sent: &[Sent], task: u32, target_task: u32, offset: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for (number, Sent { pdu, data }) in sent.iter().enumerate() {
        let InitiatorPdu::DataOut(out) = pdu else { panic!("{pdu:?}") };
        let expected = DataOut {
            last: number + 1 == sent.len(),
            lun: if target_task == NO_TASK { 0 } else { LUN },
            task,
            target_task,
            exp_stat_sn: out.exp_stat_sn,
            data_sn: number as u32,
            offset: offset + all.len() as u32,
        };
        assert_eq!(*out, expected);
        all.extend_from_slice(data);
    }
    all
}

/// Returns all completions.
fn poll(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    while cq.poll(64, |completion| all.push(completion)).unwrap() > 0 {}
    all
}

/// Returns bytes that differ from their neighbours.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed).collect()
}

fn numbers(stat_sn: u32) -> SequenceNumbers {
    SequenceNumbers { stat_sn, exp_cmd_sn: 43, max_cmd_sn: 100 }
}

/// A Data-In without status.
fn data_in(task: u32, offset: u32) -> TargetPdu {
    TargetPdu::DataIn(DataIn {
        last: false,
        acknowledge: false,
        status: None,
        lun: 0,
        task,
        target_task: NO_TASK,
        numbers: numbers(0),
        data_sn: 0,
        offset,
    })
}

/// A Data-In with the status GOOD.
fn last_data_in(task: u32, offset: u32) -> TargetPdu {
    let TargetPdu::DataIn(data) = data_in(task, offset) else { unreachable!() };
    TargetPdu::DataIn(DataIn { last: true, status: Some((0, Residual::None)), ..data })
}

/// A response with the status GOOD.
fn response(task: u32) -> TargetPdu {
    response_at(task, 0)
}

/// A response with the status GOOD and this sequence number.
fn response_at(task: u32, stat_sn: u32) -> TargetPdu {
    let numbers = numbers(stat_sn);
    let residual = Residual::None;
    TargetPdu::Response(Response { residual, response: 0, status: 0, task, numbers, exp_data_sn: 0 })
}

fn r2t(task: u32, offset: u32, len: u32) -> R2t {
    R2t { lun: LUN, task, target_task: 0x77 + offset, numbers: numbers(0), r2t_sn: 0, offset, len }
}
