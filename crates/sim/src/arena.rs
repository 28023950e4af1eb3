//! The memory of a simulated program.

use crate::lock;
use crate::ranges::Ranges;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Alignment of allocations, and minimum unmapped gap between them.
const PAGE: u64 = 4096;

/// An address space. Memory exists only where it was allocated and not unmapped.
///
/// An arena can record the device's accesses, so that a test can check which memory the device accessed. Accesses by
/// tests are not recorded, and panic on an unmapped address.
#[derive(Debug)]
pub struct Arena {
    memory: Mutex<Memory>,
}

#[derive(Debug)]
struct Memory {
    /// Blocks by address. They do not overlap; an allocation may have been split.
    blocks: BTreeMap<u64, Block>,
    /// Address of the next allocation.
    free: u64,
    /// Addresses that the device has read, and those that it has written. `None` if accesses are not recorded.
    record: Option<(Ranges, Ranges)>,
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    writable: bool,
}

impl Arena {
    /// Creates the memory of a program. Programs with different numbers have disjoint addresses, so that an access to
    /// the memory of the wrong program fails.
    pub fn new(program: u16) -> Arc<Self> {
        let free = (u64::from(program) + 1) << 40;
        Arc::new(Self { memory: Mutex::new(Memory { blocks: BTreeMap::new(), free, record: None }) })
    }

    /// Allocates zeroed memory, with unmapped addresses before and after it.
    pub fn alloc(&self, len: usize) -> Span {
        let mut memory = lock(&self.memory);
        let addr = memory.free;
        memory.free = (addr + len as u64).next_multiple_of(PAGE) + PAGE;
        if len > 0 {
            memory.blocks.insert(addr, Block { bytes: vec![0; len], writable: true });
        }
        Span::new(addr, len)
    }

    /// Unmaps memory. Parts that are already unmapped are ignored.
    pub fn unmap(&self, span: Span) {
        let mut memory = lock(&self.memory);
        for addr in memory.split_out(span) {
            memory.blocks.remove(&addr);
        }
    }

    /// Makes memory writable or read-only.
    pub fn set_writable(&self, span: Span, writable: bool) {
        let mut memory = lock(&self.memory);
        for addr in memory.split_out(span) {
            memory.blocks.entry(addr).and_modify(|block| block.writable = writable);
        }
    }

    /// Reads memory as the program itself would.
    pub fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len];
        let copied = lock(&self.memory).read(span.addr, &mut bytes);
        assert_eq!(copied, span.len, "{span:x?} is not fully mapped");
        bytes
    }

    /// Writes memory as the program itself would.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        let copied = lock(&self.memory).write(addr, bytes);
        assert_eq!(copied, bytes.len(), "{} bytes at {addr:x} are not all mapped and writable", bytes.len());
    }

    /// Fills memory with a byte.
    pub fn fill(&self, span: Span, byte: u8) {
        self.write(span.addr, &vec![byte; span.len]);
    }

    /// Fills memory with the pattern that [`check_pattern`](Self::check_pattern) checks.
    pub fn fill_pattern(&self, span: Span, seed: u64) {
        self.write(span.addr, &pattern(seed, span.len));
    }

    /// Panics unless the memory contains the complete pattern of this seed.
    pub fn check_pattern(&self, span: Span, seed: u64) {
        let (found, expected) = (self.read(span), pattern(seed, span.len));
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "first byte of {span:x?} that differs from pattern {seed}");
    }

    /// Starts recording the device's accesses, and discards earlier records.
    pub fn record(&self) {
        lock(&self.memory).record = Some(Default::default());
    }

    /// Returns the recorded addresses that the device has read, and those that it has written. An access is recorded
    /// with its full length, even if an address is unmapped or there were too few bytes to write.
    pub fn reached(&self) -> (Ranges, Ranges) {
        lock(&self.memory).record.clone().unwrap_or_default()
    }

    /// Reads the spans in order for the device, as far as they are mapped and `into` has room. Returns the number of
    /// bytes read, as the kernel does.
    pub(crate) fn device_reads(&self, from: &[Span], into: &mut [u8]) -> usize {
        let mut memory = lock(&self.memory);
        memory.record_access(from, |(read, _)| read);
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

    /// Writes to the spans in order for the device, as far as they are mapped and writable and `from` has bytes.
    /// Returns the number of bytes written.
    pub(crate) fn device_writes(&self, from: &[u8], to: &[Span]) -> usize {
        let mut memory = lock(&self.memory);
        memory.record_access(to, |(_, written)| written);
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
        let len = total_len(from);
        assert_eq!(len, into.len(), "the lengths differ");
        if self.device_reads(from, into) == len { Ok(()) } else { Err(Unmapped) }
    }

    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let len = total_len(to);
        assert_eq!(len, from.len(), "the lengths differ");
        if self.device_writes(from, to) == len { Ok(()) } else { Err(Unmapped) }
    }

    fn is_mapped(&self, span: Span) -> bool {
        lock(&self.memory).mapped_len(span) == span.len
    }
}

impl Memory {
    /// Adds spans to the record that `which` selects, if accesses are recorded.
    fn record_access(&mut self, spans: &[Span], which: impl Fn(&mut (Ranges, Ranges)) -> &mut Ranges) {
        if let Some(record) = &mut self.record {
            spans.iter().for_each(|span| which(record).insert(*span));
        }
    }

    /// Reads up to the first unmapped address. Returns the number of bytes read.
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

    /// Writes up to the first address that is unmapped or read-only. Returns the number of bytes written.
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

    /// Returns how many bytes of the span are mapped, from its start.
    fn mapped_len(&self, span: Span) -> usize {
        let mut done = 0;
        while done < span.len {
            let Some((block, at)) = self.find(span.addr, done) else { break };
            done += block.bytes.len() - at;
        }
        done.min(span.len)
    }

    /// Returns the block that contains the byte `done` bytes after `addr`, and the offset of the byte in the block.
    fn find(&self, addr: u64, done: usize) -> Option<(&Block, usize)> {
        let addr = addr.checked_add(done as u64)?;
        let (start, block) = self.blocks.range(..=addr).next_back()?;
        let at = usize::try_from(addr - start).ok()?;
        (at < block.bytes.len()).then_some((block, at))
    }

    /// Like [`find`](Self::find), with a mutable block.
    fn find_mut(&mut self, addr: u64, done: usize) -> Option<(&mut Block, usize)> {
        let addr = addr.checked_add(done as u64)?;
        let (start, block) = self.blocks.range_mut(..=addr).next_back()?;
        let at = usize::try_from(addr - start).ok()?;
        (at < block.bytes.len()).then_some((block, at))
    }

    /// Splits blocks at both ends of the span, and returns the addresses of the blocks within the span.
    fn split_out(&mut self, span: Span) -> Vec<u64> {
        let end = span.addr + span.len as u64;
        self.split_at(span.addr);
        self.split_at(end);
        self.blocks.range(span.addr..end).map(|(addr, _)| *addr).collect()
    }

    /// Splits the block that contains this address, so that a block starts there.
    fn split_at(&mut self, addr: u64) {
        if let Some((block, at)) = self.find_mut(addr, 0)
            && at > 0
        {
            let rest = Block { bytes: block.bytes.split_off(at), writable: block.writable };
            self.blocks.insert(addr, rest);
        }
    }
}

/// Returns the total length of spans, in bytes.
pub(crate) fn total_len(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.len).sum()
}

/// Returns the pattern of a seed: random bytes.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests;
