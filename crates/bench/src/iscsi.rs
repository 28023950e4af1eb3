//! Reads from logical unit 1 of an iSCSI target, in order, with a fixed number of outstanding commands.
//! `cargo xtask bench-iscsi` measures the processor time of this process.

use crate::control::TIMEOUT;
use crate::result::Result;
use ironwarp::Adapter;
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp_iscsi::{Capacity, DigestPolicy, Options, Request, Session, TaskId};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: ironwarp-bench iscsi ADDRESS TARGET SIZE DEPTH MILLIS each|one";
const INITIATOR: &str = "iqn.2026-01.example.ironwarp:bench";
const LUN: u16 = 1;
/// Maximum number of commands that are started at once.
const BATCH: usize = 16;

/// Reads for a fixed time, and prints how long it took and the number of commands. With `each`, every outstanding command has
/// a buffer of its own; with `one`, all read to the same buffer.
pub(crate) fn run(words: &[String]) -> Result {
    let [address, target, size, depth, millis, buffers] = words else { return Err(USAGE.into()) };
    let (size, depth): (usize, usize) = (size.parse()?, depth.parse()?);
    let time = Duration::from_millis(millis.parse()?);
    let count = match buffers.as_str() {
        "each" => depth,
        "one" => 1,
        _ => return Err(USAGE.into()),
    };
    let options =
        Options::new(INITIATOR, target).header_digest(DigestPolicy::None).data_digest(DigestPolicy::None);
    let mut session = Session::connect(&Adapter::new()?, address.parse()?, &options)?;
    let capacity = session.capacity(LUN)?;
    let memory = session.domain().register(Buffer::new(size * count)?, Access::LOCAL_WRITE)?;
    let mut reads = Reads { capacity, memory, size, count, lba: 0 };
    let start = Instant::now();
    let mut slots = reads.start(&mut session, 0..depth)?;
    let (mut commands, mut ended) = (0_u64, Vec::with_capacity(BATCH));
    while session.outstanding() > 0 {
        let mut timeout = TIMEOUT;
        while ended.len() < BATCH
            && let Some(command) = session.next(timeout)?
        {
            let read = command.result?;
            if read as usize != size {
                return Err(format!("read {read} bytes instead of {size}").into());
            }
            ended.push(slots.iter().position(|slot| *slot == command.task).ok_or("an unknown command")?);
            timeout = Duration::ZERO;
        }
        if ended.is_empty() {
            return Err("the target does not answer".into());
        }
        commands += ended.len() as u64;
        if start.elapsed() < time {
            let started = reads.start(&mut session, ended.iter().copied())?;
            ended.iter().zip(started).for_each(|(slot, task)| slots[*slot] = task);
        }
        ended.clear();
    }
    println!("seconds={} commands={commands}", start.elapsed().as_secs_f64());
    Ok(session.logout()?)
}

/// Where the commands read from, and to.
struct Reads {
    capacity: Capacity,
    memory: MemoryRegion,
    /// Bytes of a command.
    size: usize,
    /// Number of buffers.
    count: usize,
    /// The next block to read.
    lba: u64,
}

impl Reads {
    /// Starts a command for each slot. Two slots have the same buffer if there are not enough.
    fn start(
        &mut self,
        session: &mut Session,
        slots: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Vec<TaskId>> {
        let mut requests = Vec::with_capacity(slots.len());
        for slot in slots {
            let at = slot % self.count * self.size;
            let blocks = self.size as u64 / u64::from(self.capacity.block_size);
            if self.lba + blocks > self.capacity.blocks {
                self.lba = 0;
            }
            let list = [self.memory.slice(at..at + self.size)?];
            requests.push(Request::read(LUN, &self.capacity, self.lba, &list)?);
            self.lba += blocks;
        }
        Ok(session.start_all(requests)?)
    }
}
