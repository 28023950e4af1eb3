//! The memory of a simulated program: made-up addresses, and nothing between them.

use crate::lock;
use crate::ranges::Ranges;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Allocations begin at multiples of this, with at least as much unmapped memory between them.
const PAGE: u64 = 4096;

/// An address space. What was never allocated, or was unmapped, is not there.
///
/// It can keep a record of what the device reached for, so that a test can prove that it touched nothing else.
/// The methods for tests panic on a bad address, and are not recorded.
#[derive(Debug)]
pub struct Arena {
    memory: Mutex<Memory>,
}

#[derive(Debug)]
struct Memory {
    /// By their addresses. They do not overlap; one that was allocated may have been cut into several.
    blocks: BTreeMap<u64, Block>,
    /// Where the next allocation goes.
    free: u64,
    /// What the device reached for, to read and to write, if someone wants to know.
    record: Option<(Ranges, Ranges)>,
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    writable: bool,
}

impl Arena {
    /// The memory of a program. Programs of different numbers have no address in common: what is looked for in the memory
    /// of the wrong one is not there.
    pub fn new(program: u16) -> Arc<Self> {
        let free = (u64::from(program) + 1) << 40;
        Arc::new(Self { memory: Mutex::new(Memory { blocks: BTreeMap::new(), free, record: None }) })
    }

    /// Memory, full of zeros.
    pub fn alloc(&self, len: usize) -> Span {
        let mut memory = lock(&self.memory);
        let addr = memory.free;
        memory.free = (addr + len as u64).next_multiple_of(PAGE) + PAGE;
        if len > 0 {
            memory.blocks.insert(addr, Block { bytes: vec![0; len], writable: true });
        }
        Span { addr, len }
    }

    /// Takes memory away; what of it is not there stays so.
    pub fn unmap(&self, span: Span) {
        let mut memory = lock(&self.memory);
        for addr in memory.cut_out(span) {
            memory.blocks.remove(&addr);
        }
    }

    /// Protects memory from being written, or no longer.
    pub fn set_writable(&self, span: Span, writable: bool) {
        let mut memory = lock(&self.memory);
        for addr in memory.cut_out(span) {
            memory.blocks.entry(addr).and_modify(|block| block.writable = writable);
        }
    }

    /// What memory holds.
    pub fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len];
        let copied = lock(&self.memory).read(span.addr, &mut bytes);
        assert_eq!(copied, span.len, "{span:x?} is mapped");
        bytes
    }

    /// Writes, as the program itself would.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        let copied = lock(&self.memory).write(addr, bytes);
        assert_eq!(copied, bytes.len(), "{} bytes at {addr:x} are mapped and writable", bytes.len());
    }

    /// Writes the same byte everywhere.
    pub fn fill(&self, span: Span, byte: u8) {
        self.write(span.addr, &vec![byte; span.len]);
    }

    /// Writes bytes that [`check_pattern`](Self::check_pattern) knows again.
    pub fn fill_pattern(&self, span: Span, seed: u64) {
        self.write(span.addr, &pattern(seed, span.len));
    }

    /// Panics unless the memory holds the pattern of this seed, whole and from its beginning, wherever it was written.
    pub fn check_pattern(&self, span: Span, seed: u64) {
        let (found, wanted) = (self.read(span), pattern(seed, span.len));
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "first byte of {span:x?} that is not of pattern {seed}");
    }

    /// Begins to record what the device reaches for; forgets what was recorded.
    pub fn record(&self) {
        lock(&self.memory).record = Some(Default::default());
    }

    /// What the device reached for, to read and to write, since it was recorded. An address counts even if nothing was
    /// there, or if there were too few bytes to write it.
    pub fn reached(&self) -> (Ranges, Ranges) {
        lock(&self.memory).record.clone().unwrap_or_default()
    }

    /// The device reads the spans, one after another, as far as they are mapped and `into` has room. Returns how many
    /// bytes that were, as the kernel would.
    pub(crate) fn device_reads(&self, from: &[Span], into: &mut [u8]) -> usize {
        let mut memory = lock(&self.memory);
        memory.note(from, |(read, _)| read);
        let mut done = 0;
        for span in from {
            let part = span.len.min(into.len() - done);
            let copied = memory.read(span.addr, &mut into[done..done + part]);
            done += copied;
            if copied < span.len {
                break;
            }
        }
        done
    }

    /// The device writes to the spans, one after another. Mirrors `device_reads`.
    pub(crate) fn device_writes(&self, from: &[u8], to: &[Span]) -> usize {
        let mut memory = lock(&self.memory);
        memory.note(to, |(_, written)| written);
        let mut done = 0;
        for span in to {
            let part = span.len.min(from.len() - done);
            let copied = memory.write(span.addr, &from[done..done + part]);
            done += copied;
            if copied < span.len {
                break;
            }
        }
        done
    }
}

impl Host for Arena {
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped> {
        let len = total(from);
        assert_eq!(len, into.len(), "the spans are as long as the bytes");
        if self.device_reads(from, into) == len { Ok(()) } else { Err(Unmapped) }
    }

    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let len = total(to);
        assert_eq!(len, from.len(), "the spans are as long as the bytes");
        if self.device_writes(from, to) == len { Ok(()) } else { Err(Unmapped) }
    }

    fn is_mapped(&self, span: Span) -> bool {
        lock(&self.memory).mapped(span) == span.len
    }
}

impl Memory {
    fn note(&mut self, spans: &[Span], which: impl Fn(&mut (Ranges, Ranges)) -> &mut Ranges) {
        if let Some(record) = &mut self.record {
            spans.iter().for_each(|span| which(record).insert(*span));
        }
    }

    fn read(&self, addr: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let Some((block, at)) = self.find(addr, done) else { break };
            let bytes = &block.bytes[at..];
            let len = bytes.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        done
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len() {
            let Some((block, at)) = self.find_mut(addr, done) else { break };
            if !block.writable {
                break;
            }
            let bytes = &mut block.bytes[at..];
            let len = bytes.len().min(from.len() - done);
            bytes[..len].copy_from_slice(&from[done..done + len]);
            done += len;
        }
        done
    }

    /// How many bytes of the span are mapped, from its beginning on.
    fn mapped(&self, span: Span) -> usize {
        let mut done = 0;
        while done < span.len {
            let Some((block, at)) = self.find(span.addr, done) else { break };
            done += block.bytes.len() - at;
        }
        done.min(span.len)
    }

    /// The block that holds the byte `done` bytes behind `addr`, and where in it that byte is.
    fn find(&self, addr: u64, done: usize) -> Option<(&Block, usize)> {
        let addr = addr.checked_add(done as u64)?;
        let (start, block) = self.blocks.range(..=addr).next_back()?;
        let at = usize::try_from(addr - start).ok()?;
        (at < block.bytes.len()).then_some((block, at))
    }

    fn find_mut(&mut self, addr: u64, done: usize) -> Option<(&mut Block, usize)> {
        let addr = addr.checked_add(done as u64)?;
        let (start, block) = self.blocks.range_mut(..=addr).next_back()?;
        let at = usize::try_from(addr - start).ok()?;
        (at < block.bytes.len()).then_some((block, at))
    }

    /// Cuts blocks at both ends of the span, and returns those that are within.
    fn cut_out(&mut self, span: Span) -> Vec<u64> {
        let end = span.addr + span.len as u64;
        self.cut_at(span.addr);
        self.cut_at(end);
        self.blocks.range(span.addr..end).map(|(addr, _)| *addr).collect()
    }

    fn cut_at(&mut self, addr: u64) {
        if let Some((block, at)) = self.find_mut(addr, 0)
            && at > 0
        {
            let rest = Block { bytes: block.bytes.split_off(at), writable: block.writable };
            self.blocks.insert(addr, rest);
        }
    }
}

/// The length of all together.
pub(crate) fn total(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.len).sum()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words = std::iter::repeat_with(|| rng.next().to_le_bytes());
    words.flatten().take(len).collect()
}

#[cfg(test)]
mod tests;
