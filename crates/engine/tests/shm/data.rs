//! Every operation in both directions at once, from 0 bytes to 8 MiB, with every byte verified: between two adapters of one
//! process, and between two processes.

use super::common::{
    End, Host, SHARED, TIMEOUT, Waits, accept_parent, addr_text, begin_sharing, check, connect_at,
};
use super::common::{dial, parse_addr, pattern};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Completion, Opcode, Operation, Status};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::wait::until;
use ironwarp_wire::{AtomicOp, RemoteAddr};

/// Maximum length of a message.
const MAX: usize = 8 << 20;
/// Lengths: around those of records (32 KiB), of the ring and of the credit (256 KiB).
const LENGTHS: [usize; 14] =
    [0, 1, 7, 64, 1_000, 4_096, 32_760, 32_768, 32_769, 100_001, 262_144, 262_145, 1_048_577, 4_000_003];

// The memory of an end: what it sends and the peer reads, what it receives, what the peer writes, what it reads, and words
// for atomic operations.
const SOURCE: usize = 0;
const RECEIVED: usize = MAX;
const WRITTEN: usize = 2 * MAX;
const READ: usize = 3 * MAX;
/// The word that the peer changes, and where this end gets the old value.
pub(crate) const WORD: usize = 4 * MAX;
const OLD: usize = WORD + 8;
const BYTES: usize = WORD + 16;

/// A combination of settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    crc: bool,
    completes: Completes,
    waits: Waits,
    pub(crate) at: &'static str,
    /// Whether messages of the maximum length are sent, too.
    pub(crate) long: bool,
}

pub(crate) const CASES: [Case; 6] = [
    Case { crc: true, completes: Completes::WhenSent, waits: Waits::Polling, at: "127.0.0.1:0", long: true },
    Case {
        crc: false,
        completes: Completes::WhenAcknowledged,
        waits: Waits::Sleeping,
        at: "[::1]:0",
        long: true,
    },
    Case {
        crc: true,
        completes: Completes::WhenAcknowledged,
        waits: Waits::ForEvents,
        at: "127.0.0.1:0",
        long: false,
    },
    Case {
        crc: false,
        completes: Completes::WhenSent,
        waits: Waits::ForEvents,
        at: "127.0.0.1:0",
        long: false,
    },
    Case {
        crc: true,
        completes: Completes::WhenSent,
        waits: Waits::Sleeping,
        at: "127.0.0.1:0",
        long: false,
    },
    Case {
        crc: false,
        completes: Completes::WhenAcknowledged,
        waits: Waits::Polling,
        at: "127.0.0.1:0",
        long: false,
    },
];

impl Case {
    pub(crate) fn end(&self) -> End {
        let config = Config::default().shm(true).crc(self.crc).ird(8).ord(8);
        Host::new(config, BYTES).end(self.completes).waits(self.waits)
    }

    fn lengths(&self) -> impl Iterator<Item = usize> {
        LENGTHS.into_iter().chain(self.long.then_some(MAX))
    }
}

/// Completions that came before they were waited for.
struct Talk<'a> {
    end: &'a End,
    early: Vec<Completion>,
}

impl Talk<'_> {
    /// Waits until this request has succeeded.
    #[track_caller]
    fn await_one(&mut self, opcode: Opcode, id: u64) -> Completion {
        loop {
            if let Some(at) = self.early.iter().position(|it| (it.opcode, it.wr_id) == (opcode, id)) {
                return self.early.remove(at);
            }
            let completion = self.end.next();
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            self.early.push(completion);
        }
    }
}

/// Runs one end of a case. Both ends do the same. `others` is the seed of the peer, and `peer` its memory.
pub(crate) fn talk(end: &End, case: Case, (own, others): (u64, u64), peer: RemoteAddr) {
    let remote = |at: usize| RemoteAddr { offset: peer.offset + at as u64, ..peer };
    let (send, mut talk) = (Operation::Send { invalidate: None }, Talk { end, early: Vec::new() });
    let memory = &end.host.memory;
    memory.write(WORD, &0_u64.to_le_bytes());
    for (round, len) in (0..).zip(case.lengths()) {
        let (mine, theirs) = (own << 8 | round, others << 8 | round);
        let (message, written, go_on) = (10 * round, 10 * round + 1, 10 * round + 2);
        end.receive(message, RECEIVED, len);
        end.receive(written, RECEIVED, 0);
        end.receive(go_on, RECEIVED, 0);
        memory.write(SOURCE, &pattern(mine, len));
        end.post(message, send.clone(), SOURCE, len);
        let mut write = end.request(written, Operation::Write(remote(WRITTEN)), SOURCE, len);
        write.immediate = Some(u32::try_from(round).unwrap());
        end.pair.post_send([write]).unwrap();

        let received = talk.await_one(Opcode::Receive, message);
        assert_eq!((received.byte_len as usize, received.immediate), (len, None));
        check(&memory.read(RECEIVED, len), theirs, "what was received");
        let received = talk.await_one(Opcode::ReceiveWrite, written);
        assert_eq!(received.immediate, Some(u32::try_from(round).unwrap()));
        check(&memory.read(WRITTEN, len), theirs, "what was written");
        talk.await_one(Opcode::Send, message);
        talk.await_one(Opcode::Write, written);

        memory.fill(READ, len, 0);
        end.post(go_on, Operation::Read(remote(SOURCE)), READ, len);
        talk.await_one(Opcode::Read, go_on);
        check(&memory.read(READ, len), theirs, "what was read");

        atomics(&mut talk, round, remote(WORD));
        // The peer changes its source only after this message.
        let mut done = end.request(go_on, send.clone(), SOURCE, 0);
        done.immediate = Some(!0);
        end.pair.post_send([done]).unwrap();
        assert_eq!(talk.await_one(Opcode::Receive, go_on).immediate, Some(!0));
        talk.await_one(Opcode::Send, go_on);
    }
    assert!(talk.early.is_empty(), "{:?}", talk.early);
}

/// Changes the word of the peer, which is twice the number of the round.
fn atomics(talk: &mut Talk<'_>, round: u64, word: RemoteAddr) {
    let old = |end: &End| u64::from_le_bytes(end.host.memory.read(OLD, 8).try_into().unwrap());
    let id = 10 * round + 3;
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    talk.end.post(id, Operation::Atomic { target: word, op: add }, OLD, 8);
    talk.await_one(Opcode::FetchAdd, id);
    assert_eq!(old(talk.end), 2 * round);
    let (compare, swap) = (2 * round + 1, 2 * round + 2);
    let op = AtomicOp::CompareSwap { swap, swap_mask: !0, compare, compare_mask: !0 };
    talk.end.post(id, Operation::Atomic { target: word, op }, OLD, 8);
    talk.await_one(Opcode::CompareSwap, id);
    assert_eq!(old(talk.end), compare);
}

#[test]
fn all_operations_between_two_adapters_of_one_process() {
    for case in CASES {
        let (client, server) = (case.end(), case.end());
        connect_at(&client, &server, case.at);
        begin_sharing(&client, &server);
        std::thread::scope(|scope| {
            scope.spawn(|| talk(&client, case, (1, 2), server.remote_addr(0)));
            talk(&server, case, (2, 1), client.remote_addr(0));
        });
        assert_eq!((client.routes(), server.routes()), (SHARED, SHARED), "{case:?}");
    }
}

const TWO_PROCESSES: &str = "data::all_operations_between_two_processes";

/// The first messages use TCP, and shared memory is set up meanwhile.
#[test]
fn all_operations_between_two_processes() {
    if let Some(role) = child::role() {
        let case = CASES[role.parse::<usize>().unwrap()];
        let end = case.end();
        accept_parent(&end);
        child::tell(&format!("memory {}", addr_text(end.remote_addr(0))));
        let peer = parse_addr(&child::wait_for("memory "));
        talk(&end, case, (2, 1), peer);
        until(|| end.routes() == SHARED);
        child::tell("done");
        child::wait_for_end();
        return;
    }
    for (number, case) in CASES.into_iter().enumerate() {
        let mut partner = Partner::start(child::command(TWO_PROCESSES, &number.to_string()));
        let end = case.end();
        dial(&end, partner.wait_for("address ").parse().unwrap());
        end.pair.wait_connected(TIMEOUT).unwrap();
        partner.tell(&format!("memory {}", addr_text(end.remote_addr(0))));
        let peer = parse_addr(&partner.wait_for("memory "));
        talk(&end, case, (1, 2), peer);
        until(|| end.routes() == SHARED);
        partner.wait_for("done");
        partner.finish();
    }
}
