//! The program's memory, as the checker sees it: a digest of data that must not change, and a pattern in memory whose
//! content the program must not use yet.
//!
//! A buffer that the adapter will write to is filled with *poison*: words with the number of the request. Poison that
//! later turns up in data that the program sends shows that it read the buffer too early, and which one. When the
//! request completes, what is still poison gets its earlier content back: the adapter has not written to it.

use ironwarp_rnic::host::{Host, Span};
use smallvec::SmallVec;
use std::ops::Range;

/// Of a longer buffer, only this many bytes at each end are checked.
const EDGE: usize = 8 << 10;

/// The first bytes of a word of poison. Two bytes that depend on the process follow, because poison may be sent to
/// another, and then three with the number of the request.
const MAGIC: [u8; 3] = [0xb5, 0xd7, 0x9c];
/// The position of the number.
const NUMBER: usize = 5;
const WORD: usize = 8;

/// Fewer bytes that look like poison between others are not replaced: the peer may have written them, by a Write.
const MIN_RUN: usize = 4;

/// Parts of the program's memory.
pub(super) type Spans = SmallVec<[Span; 2]>;

/// Returns the parts of a buffer that are checked.
pub(super) fn checked_parts(buffers: &[Span]) -> Spans {
    let mut parts = Spans::new();
    for span in buffers.iter().filter(|span| span.len > 0) {
        if span.len <= 2 * EDGE {
            parts.push(*span);
        } else {
            parts.push(Span::new(span.addr, EDGE));
            parts.push(Span::new(span.addr + (span.len - EDGE) as u64, EDGE));
        }
    }
    parts
}

/// Reads memory. Returns `None` if a part is not mapped.
pub(super) fn read(host: &dyn Host, parts: &[Span]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; parts.iter().map(|span| span.len).sum()];
    host.gather(parts, &mut bytes).ok()?;
    Some(bytes)
}

/// Returns a digest of bytes. It need not resist an attacker: the program is its own.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    /// Number of sums that are computed side by side, because each multiplication waits for the one before.
    const SUMS: usize = 8;
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix =
        |sum: u64, word: [u8; WORD]| (sum.rotate_left(29) ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<WORD>();
    let (blocks, words) = words.as_chunks::<SUMS>();
    let mut sums = [bytes.len() as u64; SUMS];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = mix(*sum, *word);
        }
    }
    let mut last = [0; WORD];
    last[..rest.len()].copy_from_slice(rest);
    let sum = sums.iter().fold(0, |sum, part| mix(sum, part.to_le_bytes()));
    let sum = words.iter().fold(sum, |sum, word| mix(sum, *word));
    mix(sum, last)
}

/// The buffers of a request that the adapter will write to, and poison in them.
#[derive(Debug)]
pub(super) struct Poison {
    /// `None` if the buffers were left as they are.
    word: Option<[u8; WORD]>,
    parts: Spans,
    /// The earlier content of the parts.
    before: Vec<u8>,
}

impl Poison {
    /// Fills memory with the poison of request `number`. Returns `None` if it is not mapped.
    pub(super) fn fill(host: &dyn Host, number: u32, parts: Spans) -> Option<Self> {
        let before = read(host, &parts)?;
        let mut word = [0; WORD];
        word[..NUMBER].copy_from_slice(&magic());
        word[NUMBER..].copy_from_slice(&number.to_le_bytes()[..WORD - NUMBER]);
        let poison = Self { word: Some(word), parts, before };
        host.scatter(&poison.pattern(word), &poison.parts).ok()?;
        Some(poison)
    }

    /// Remembers the content of memory, without poison. Returns `None` if it is not mapped.
    pub(super) fn remember(host: &dyn Host, parts: Spans) -> Option<Self> {
        let before = read(host, &parts)?;
        Some(Self { word: None, parts, before })
    }

    /// Returns the bytes that the memory was filled with. They depend on the address, so that parts of it can be recognised.
    fn pattern(&self, word: [u8; WORD]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.before.len());
        for span in &self.parts {
            let mut word = word;
            #[expect(clippy::cast_possible_truncation, reason = "less than eight")]
            word.rotate_left((span.addr % WORD as u64) as usize);
            let end = bytes.len() + span.len;
            while bytes.len() < end {
                bytes.extend_from_slice(&word[..WORD.min(end - bytes.len())]);
            }
        }
        bytes
    }

    /// Returns the poison at an address, or `None` if there is none.
    #[expect(clippy::cast_possible_truncation, reason = "less than eight")]
    fn byte_at(&self, addr: u64) -> Option<u8> {
        Some(self.word?[(addr % WORD as u64) as usize])
    }

    /// Ends the poison after `written` bytes were received: gives what is still poison its earlier content back. Returns
    /// whether the memory behind those bytes was written to.
    pub(super) fn end(self, host: &dyn Host, whole: &[Span], written: usize) -> bool {
        if written >= whole.iter().map(|span| span.len).sum() {
            return false; // nothing is poison any more
        }
        let Some(now) = read(host, &self.parts) else { return false };
        let (mut at, mut changed) = (0, false);
        for span in &self.parts {
            let start = position(whole, span.addr).unwrap_or(0);
            let skipped = written.saturating_sub(start).min(span.len);
            let rest = at + skipped..at + span.len;
            let first = span.addr + skipped as u64;
            if self.word.is_none() {
                changed |= now[rest.clone()] != self.before[rest];
                at += span.len;
                continue;
            }
            let is_poison: Vec<bool> = (first..)
                .zip(&now[rest.clone()])
                .map(|(addr, byte)| Some(*byte) == self.byte_at(addr))
                .collect();
            let mut from = 0;
            for run in is_poison.chunk_by(|one, other| one == other) {
                let is_all = run.len() == is_poison.len();
                if !run[0] {
                    changed = true;
                } else if is_all || run.len() >= MIN_RUN {
                    let before = &self.before[rest.start + from..][..run.len()];
                    // Fails only if the program has unmapped the memory meanwhile.
                    let _ = host.scatter(before, &[Span::new(first + from as u64, run.len())]);
                }
                from += run.len();
            }
            at += span.len;
        }
        changed
    }
}

/// Returns the position of an address in a message that is received into these buffers.
fn position(buffers: &[Span], addr: u64) -> Option<usize> {
    let mut before = 0;
    for span in buffers {
        match usize::try_from(addr.wrapping_sub(span.addr)) {
            Ok(inside) if inside < span.len => return Some(before + inside),
            _ => before += span.len,
        }
    }
    None
}

/// Returns the first bytes of a word of poison in this process.
fn magic() -> [u8; NUMBER] {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let [first, second, third] = MAGIC;
    // No byte is zero, as most memory is.
    [first, second, third, low | 0x80, high | 0x40]
}

/// Finds poison in data. Returns the number of its request.
pub(super) fn find_poison(bytes: &[u8]) -> Option<u32> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == MAGIC[0]) {
        let start = from + at;
        let word = bytes.get(start..start + WORD)?;
        if word[..NUMBER] == magic() {
            return Some(u32::from_le_bytes([word[5], word[6], word[7], 0]));
        }
        from = start + 1;
    }
    None
}

/// Returns whether two sets of buffers overlap.
pub(super) fn overlap(one: &[Span], other: &[Span]) -> bool {
    let overlaps = |a: &Span, b: &Span| {
        a.addr < b.addr.saturating_add(b.len as u64) && b.addr < a.addr.saturating_add(a.len as u64)
    };
    one.iter().any(|a| other.iter().any(|b| overlaps(a, b)))
}

/// Returns the smallest range of addresses with all of these buffers.
pub(super) fn extent(buffers: &[Span]) -> Range<u64> {
    let extents = buffers.iter().map(|span| span.addr..span.addr.saturating_add(span.len as u64));
    extents.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end)).unwrap_or(0..0)
}

/// Returns whether all bytes of `part` are in `whole`.
pub(super) fn covers(whole: Span, part: Span) -> bool {
    let end = |span: Span| span.addr.saturating_add(span.len as u64);
    whole.addr <= part.addr && end(part) <= end(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_engine::sys::memory::ProgramMemory;
    use smallvec::smallvec;

    fn span(bytes: &[u8]) -> Span {
        Span::new(bytes.as_ptr() as u64, bytes.len())
    }

    #[test]
    fn untouched_bytes_get_their_content_back() {
        let host = ProgramMemory::new().unwrap();
        let mut buffer: Vec<u8> = (0..100).collect();
        let whole = [span(&buffer)];
        let poison = Poison::fill(&host, 0x01_0203, smallvec![whole[0]]).unwrap();
        let seen = read(&host, &whole).unwrap();
        assert_eq!(find_poison(&seen), Some(0x01_0203));
        assert!(seen.iter().zip(0..).all(|(byte, before)| *byte != before));
        host.scatter(&[7; 10], &[Span::new(whole[0].addr, 10)]).unwrap();
        assert!(!poison.end(&host, &whole, 10));
        let expected: Vec<u8> = std::iter::repeat_n(7, 10).chain(10..100).collect();
        assert_eq!(read(&host, &whole).unwrap(), expected);
        let poison = Poison::fill(&host, 1, smallvec![whole[0]]).unwrap();
        host.scatter(&[MAGIC[0]; 60], &[Span::new(whole[0].addr + 30, 60)]).unwrap();
        assert!(poison.end(&host, &whole, 10));
        let expected: Vec<u8> =
            std::iter::repeat_n(7, 10).chain(10..30).chain([MAGIC[0]; 60]).chain(90..100).collect();
        assert_eq!(
            read(&host, &whole).unwrap()[10..],
            expected[10..],
            "a Write of bytes like those of poison"
        );
        let poison = Poison::fill(&host, 1, smallvec![whole[0]]).unwrap();
        buffer[50] ^= 1;
        assert!(poison.end(&host, &whole, 50), "a byte behind the message was written");
        drop(buffer);
    }

    #[test]
    fn poison_is_found_at_any_offset() {
        let host = ProgramMemory::new().unwrap();
        let buffer = vec![0u8; 64];
        let _poison = Poison::fill(&host, 9, smallvec![span(&buffer)]).unwrap();
        let bytes = read(&host, &[span(&buffer)]).unwrap();
        for start in 0..40 {
            assert_eq!(find_poison(&bytes[start..]), Some(9));
        }
        assert_eq!(find_poison(&bytes[..7]), None);
        assert_eq!(find_poison(&[MAGIC[0]; 100]), None);
        assert_eq!(find_poison(&[]), None);
    }

    #[test]
    fn a_digest_depends_on_each_byte_and_the_length() {
        let bytes: Vec<u8> = (0..100).collect();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(digest(&bytes), digest(&other));
            assert_ne!(digest(&bytes), digest(&bytes[..at]));
        }
    }

    #[test]
    fn the_ends_of_long_buffers_are_checked() {
        let parts = checked_parts(&[Span::new(0, 1 << 20), Span::new(5, 0), Span::new(7, 3)]);
        let expected = [Span::new(0, EDGE), Span::new((1 << 20) - EDGE as u64, EDGE), Span::new(7, 3)];
        assert_eq!(parts.as_slice(), expected);
    }

    #[test]
    fn buffers_overlap_if_they_share_a_byte() {
        let (one, other) = ([Span::new(0, 10), Span::new(20, 10)], [Span::new(10, 10)]);
        assert!(!overlap(&one, &other));
        assert!(overlap(&one, &[Span::new(29, 1)]));
        assert_eq!(position(&one, 25), Some(15));
        assert_eq!(position(&one, 15), None);
    }
}
