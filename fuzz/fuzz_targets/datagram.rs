//! The receive path of a connectionless queue pair with untrusted input. The input is a script of datagrams, valid or not, and of what
//! the program does meanwhile. There must be no panic, no byte outside the posted receives may change, and a sender without the Q_Key
//! must not consume a receive.
#![no_main]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a fuzz target: every panic is a finding"
)]

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::datagram::{
    AddressHandle, Arrived, DatagramAttributes, DatagramLink, DatagramQp, DatagramRequest, Destination, Grh,
    SendTo, Sent, qpn_of_port,
};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::memory::{Memory, Rights, TagCipher};
use ironwarp_rnic::qp::{Ready, State};
use ironwarp_rnic::queue::{
    Completes, Completion, Cq, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest,
};
use ironwarp_wire::Tag;
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::private::{DATAGRAM_LEN, Datagram, DatagramKind, Emitted, MAX_DATAGRAM_HEADER};
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The program's memory: receives are in the middle third; the rest is registered as well, but must not change. It is followed by
/// memory that is registered but not mapped.
const BASE: u64 = 0x10_0000;
const THIRD: usize = 0x1000;
const CANARY: u8 = 0xa5;
const QKEY: u32 = 0x51;
const PORT: u16 = 5000;
const STRANGER: u16 = 6000;
/// Created once, because that takes longer than a run.
static CIPHER: LazyLock<Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));

#[derive(Debug)]
struct Arena(Mutex<Vec<u8>>);

impl Arena {
    fn range(span: &Span) -> Result<std::ops::Range<usize>, Unmapped> {
        let start = span.addr.checked_sub(BASE).ok_or(Unmapped)? as usize;
        let end = start.checked_add(span.len).ok_or(Unmapped)?;
        if end > 3 * THIRD { Err(Unmapped) } else { Ok(start..end) }
    }
}

impl Host for Arena {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&self.0.lock().unwrap()[Self::range(span)?]);
            into = rest;
        }
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        for span in to {
            let (front, rest) = from.split_at(span.len);
            self.0.lock().unwrap()[Self::range(span)?].copy_from_slice(front);
            from = rest;
        }
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

/// The datagrams to receive. Everything that is sent must be a valid datagram.
#[derive(Debug, Default)]
struct Script(Mutex<VecDeque<Vec<u8>>>);

impl DatagramLink for Script {
    fn has_path(&self, _: Gid, _: Gid) -> bool {
        true
    }

    fn send(&self, _: Gid, _: SendTo, bytes: &[u8]) -> Sent {
        assert!(Datagram::parse(bytes).is_ok());
        Sent::Taken
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let bytes = self.0.lock().unwrap().pop_front()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Some(Arrived { from: Gid::ZERO, port: STRANGER, to: Gid::ZERO, len })
    }

    fn schedule(&self) {}

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn schedule_after(&self, _: Duration) {}
}

struct Bench {
    qp: Arc<DatagramQp>,
    cq: Arc<Cq>,
    link: Arc<Script>,
    arena: Arc<Arena>,
    tag: Tag,
}

impl Bench {
    fn new(completes: Completes) -> Self {
        let arena = Arc::new(Arena(Mutex::new(vec![CANARY; 3 * THIRD])));
        let config = DeviceConfig { tags: 4, tag_slots: 0..4096, ..DeviceConfig::default() };
        let device = Device::new(config, Arc::<Arena>::clone(&arena), Arc::clone(&CIPHER));
        let domain = device.allocate_domain();
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let memory = Memory::direct(BASE, 4 * THIRD as u64, rights).unwrap();
        let tag = device.register(domain, memory).unwrap();
        let cq = Arc::new(Cq::new(1, 256));
        let attributes = DatagramAttributes {
            send_depth: 8,
            receive_depth: 8,
            max_sges: 2,
            qkey: QKEY,
            completes,
            max_senders: 2,
            ..DatagramAttributes::new(domain, &cq)
        };
        let link = Arc::<Script>::default();
        let qp = DatagramQp::new(qpn_of_port(PORT), &device, attributes, Arc::<Script>::clone(&link));
        Self { qp, cq, link, arena, tag }
    }

    /// Performs one step of the script. Returns the rest of it.
    fn step<'a>(&self, script: &'a [u8]) -> &'a [u8] {
        let [what, a, b, rest @ ..] = script else { return &[] };
        let len = usize::from(*a).min(rest.len());
        match what % 6 {
            0 => self.arrives(rest[..len].to_vec(), false),
            1 => {
                // Valid, except for some bits of the header. If the CRC is right nevertheless, the header is parsed.
                let mut bytes = [&proper(&rest[..len])[..], &rest[..len]].concat();
                let at = usize::from(*b) % (2 * DATAGRAM_LEN);
                let proper = at >= DATAGRAM_LEN;
                if !proper {
                    bytes[at] ^= what / 6;
                    reseal(&mut bytes);
                }
                self.arrives(bytes, proper);
            }
            2 => self.receive(usize::from(*a) * 16, usize::from(*b)),
            3 => drop(self.qp.modify(State::ALL[usize::from(*a) % State::ALL.len()])),
            4 => self.send(u64::from(*a) * 64, u32::from(*b) * 32),
            _ => drop(self.polled()),
        }
        if what % 6 < 2 { &rest[len..] } else { rest }
    }

    fn arrives(&self, bytes: Vec<u8>, proper: bool) {
        let header = Datagram::parse(&bytes).ok().map(|(header, _)| header);
        let fits = header.is_some_and(|it| it.qkey == QKEY && it.destination == qpn_of_port(PORT));
        assert!(fits || !proper);
        let _ = self.polled();
        self.link.0.lock().unwrap().push_back(bytes);
        self.qp.drive(Ready { readable: true, writable: false, ended: false });
        let received = self.polled().iter().any(|it| it.sender.is_some());
        assert!(fits || !received, "received without QPN or Q_Key: {header:?}");
    }

    /// Posts a receive that ends in the middle third, or is not fully mapped.
    fn receive(&self, at: usize, len: usize) {
        let end = if at % 7 == 6 { 4 * THIRD } else { 2 * THIRD };
        let at = (THIRD + at % THIRD).max(end - THIRD);
        let len = len.min(end - at);
        let sge = Sge { tag: self.tag, addr: BASE + at as u64, len: len as u32 };
        let _ = self.qp.post_receive(ReceiveRequest { id: len as u64, buffers: sge.into() });
    }

    fn send(&self, at: u64, len: u32) {
        let address = AddressHandle::new(Gid::ZERO, Gid::ZERO);
        let destination = Destination { address, qpn: qpn_of_port(STRANGER), qkey: QKEY };
        let data = Data::Memory(Sge { tag: self.tag, addr: BASE + at, len }.into());
        let request = WorkRequest::new(0, Operation::Send { invalidate: None }, data);
        let _ = self.qp.post_send(vec![DatagramRequest { request, destination }]);
    }

    fn polled(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        let _ = self.cq.poll(256, |completion| all.push(completion));
        for completion in &all {
            let received = completion.opcode == Opcode::Receive && completion.status == Status::Success;
            assert_eq!(completion.sender.is_some(), received);
            // The identifier of a receive is its length.
            assert!(!received || u64::from(completion.byte_len) <= completion.wr_id);
            assert!(!received || completion.byte_len as usize >= Grh::LEN);
        }
        all
    }

    fn untouched(&self) {
        let memory = self.arena.0.lock().unwrap();
        let outside = memory[..THIRD].iter().chain(&memory[2 * THIRD..]);
        assert!(outside.copied().all(|byte| byte == CANARY), "a byte outside the receives changed");
    }
}

/// Corrects the CRC.
fn reseal(bytes: &mut [u8]) {
    let mut crc = Crc::of(&bytes[..DATAGRAM_LEN - 4]);
    crc.update(&bytes[DATAGRAM_LEN..]);
    bytes[DATAGRAM_LEN - 4..DATAGRAM_LEN].copy_from_slice(&crc.to_bytes());
}

fn proper(payload: &[u8]) -> Emitted<MAX_DATAGRAM_HEADER> {
    let header = Datagram {
        kind: DatagramKind::Message,
        destination: qpn_of_port(PORT),
        source: qpn_of_port(STRANGER),
        qkey: QKEY,
        sequence: 5,
        solicited: false,
        immediate: Some(1),
        hop_limit: 1,
        traffic_class: 2,
        flow_label: 3,
        service_level: 4,
    };
    header.emit(payload).unwrap()
}

fuzz_target!(|script: &[u8]| {
    let [ready, rest @ ..] = script else { return };
    let bench = Bench::new(if ready & 0x80 == 0 { Completes::WhenSent } else { Completes::WhenAcknowledged });
    if ready % 4 != 0 {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            bench.qp.modify(state).unwrap();
        }
        bench.receive(0, 255);
    }
    let mut left = rest;
    while !left.is_empty() {
        left = bench.step(left);
    }
    bench.untouched();
});
