//! The contents of buffers, which are copied while the program goes on writing to them.
//!
//! The source keeps a copy of what it has sent, and sends the pages that differ from it. The comparison is exact, and works for
//! memory that anybody may have changed: peers, this program, and other processes. Both ends begin with zeros, so pages that
//! were never written are neither read into memory nor sent.

use super::super::error::{Failure, Refusal};
use super::super::name::Name;
use super::message::MAX_PAYLOAD;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Granularity of the comparison, in bytes.
const PAGE: usize = 4096;

/// The buffers of the source, as the target has them.
#[derive(Debug, Default)]
pub(super) struct Sent {
    buffers: HashMap<Name, Copy>,
}

/// A buffer, as the target has it.
#[derive(Debug)]
struct Copy {
    index: u32,
    contents: Vec<u8>,
}

/// A range of a buffer that the target does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed<'a> {
    pub(super) buffer: u32,
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

impl Sent {
    /// Adds a buffer if it is new. Returns whether it is.
    pub(super) fn add(&mut self, name: Name, len: usize) -> bool {
        let index = u32::try_from(self.buffers.len()).unwrap_or(u32::MAX); // the target refuses so many
        match self.buffers.entry(name) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Copy { index, contents: vec![0; len] });
                true
            }
        }
    }

    /// Finds the ranges of a buffer that have changed since they were last sent, and passes them to `send`. Returns the number
    /// of bytes in them.
    pub(super) fn send_changes(
        &mut self,
        name: Name,
        file: BorrowedFd<'_>,
        mut send: impl FnMut(Changed<'_>) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let Some(Copy { index, contents }) = self.buffers.get_mut(&name) else { return Ok(0) };
        let mut sent = 0;
        let mut now = vec![0; MAX_PAYLOAD];
        for (offset, known) in (0_u64..).step_by(MAX_PAYLOAD).zip(contents.chunks_mut(MAX_PAYLOAD)) {
            let now = &mut now[..known.len()];
            read_at(file, now, offset)?;
            if now == known {
                continue;
            }
            let pages = now.chunks(PAGE).zip(known.chunks(PAGE)).map(|(now, known)| now != known);
            for (first, count) in runs(pages) {
                let range = first * PAGE..((first + count) * PAGE).min(now.len());
                let bytes = &now[range.clone()];
                send(Changed { buffer: *index, offset: offset + range.start as u64, bytes })?;
                sent += bytes.len() as u64;
                known[range.clone()].copy_from_slice(&now[range]);
            }
        }
        Ok(sent)
    }
}

/// Returns the first index and the length of each run of true values.
fn runs(values: impl Iterator<Item = bool>) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, _) in values.enumerate().filter(|(_, value)| *value) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs
}

/// Reads a part of a file, which has at least that length.
fn read_at(file: BorrowedFd<'_>, mut into: &mut [u8], mut offset: u64) -> Result<(), Failure> {
    let failed = Failure::system("read a buffer");
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(0) => return Err(failed(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))),
            Ok(read) => {
                into = &mut into[read..];
                offset += read as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

/// The buffers that arrive at the target.
#[derive(Debug)]
pub(super) struct Arriving {
    buffers: Vec<(Name, File)>,
    /// Number of buffers that were taken.
    taken: usize,
    /// How many more bytes buffers may have.
    room: u64,
}

impl Arriving {
    /// Takes buffers of at most `limit` bytes in total.
    pub(super) fn new(limit: u64) -> Self {
        Self { buffers: Vec::new(), taken: 0, room: limit }
    }

    /// Adds a buffer, which `allocate` creates, filled with zeros.
    pub(super) fn add(
        &mut self,
        name: Name,
        len: u64,
        allocate: impl FnOnce() -> Result<OwnedFd, Refusal>,
    ) -> Result<(), Refusal> {
        let Some(room) = self.room.checked_sub(len) else {
            let why = format!("a buffer of {len} bytes exceeds what is left of the limit: {}", self.room);
            return Err(Refusal(why));
        };
        self.buffers.push((name, allocate()?.into()));
        self.room = room;
        Ok(())
    }

    /// Writes contents to a buffer.
    pub(super) fn write(&self, buffer: u32, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let outside = || Failure::from(Refusal(format!("contents outside of buffer {buffer}")));
        let (name, file) = self.buffers.get(buffer as usize).ok_or_else(outside)?;
        let Name::Buffer { len, .. } = *name else { return Err(outside()) };
        match offset.checked_add(bytes.len() as u64) {
            Some(end) if end <= len => {}
            _ => return Err(outside()),
        }
        file.write_all_at(bytes, offset).map_err(Failure::system("write to a buffer"))
    }

    /// Returns the buffers that have arrived since the last call.
    pub(super) fn take_new(&mut self) -> Result<Vec<(Name, OwnedFd)>, Failure> {
        let new = self.buffers[self.taken..].iter();
        let files = new.map(|(name, file)| Ok((*name, OwnedFd::from(file.try_clone()?))));
        let files =
            files.collect::<std::io::Result<_>>().map_err(Failure::system("duplicate a descriptor"))?;
        self.taken = self.buffers.len();
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsFd;

    const LEN: usize = 3 * MAX_PAYLOAD + 100;

    fn name() -> Name {
        Name::Buffer { first: 0, addr: 0, len: LEN as u64 }
    }

    /// Creates a file of `len` zeros.
    fn zeros(len: usize) -> File {
        let file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len as u64).unwrap();
        file
    }

    /// Sends what has changed in a file to a target, and returns the offsets and lengths of the ranges.
    fn send(sent: &mut Sent, from: &File, to: &Arriving) -> Vec<(u64, usize)> {
        let mut ranges = Vec::new();
        let count = sent.send_changes(name(), from.as_fd(), |Changed { buffer, offset, bytes }| {
            ranges.push((offset, bytes.len()));
            to.write(buffer, offset, bytes)
        });
        assert_eq!(count.unwrap(), ranges.iter().map(|(_, len)| *len as u64).sum::<u64>());
        ranges
    }

    #[test]
    fn only_what_has_changed_is_sent_and_all_of_it() {
        let source = zeros(LEN);
        let mut sent = Sent::default();
        let mut to = Arriving::new(LEN as u64);
        assert!(sent.add(name(), LEN) && !sent.add(name(), LEN));
        to.add(name(), LEN as u64, || Ok(zeros(LEN).into())).unwrap();
        let target = File::from(to.take_new().unwrap().remove(0).1);
        assert!(to.take_new().unwrap().is_empty());
        let contents = |file: &File| {
            let mut bytes = vec![0; LEN];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(send(&mut sent, &source, &to), [], "both are zero");
        let page = PAGE as u64;
        source.write_all_at(&[7; 3], 2 * page - 1).unwrap();
        source.write_all_at(&[8], LEN as u64 - 1).unwrap();
        let tail = LEN as u64 - 100;
        assert_eq!(send(&mut sent, &source, &to), [(page, 2 * PAGE), (tail, 100)]);
        assert_eq!(send(&mut sent, &source, &to), []);
        source.write_all_at(&[0; 3], 2 * page - 1).unwrap();
        assert_eq!(send(&mut sent, &source, &to), [(page, 2 * PAGE)], "zeros count as any others");
        assert_eq!(contents(&source), contents(&target));
    }

    #[test]
    fn nothing_is_written_outside_of_buffers() {
        let mut to = Arriving::new(100);
        let name = Name::Buffer { first: 0, addr: 0, len: 60 };
        to.add(name, 60, || Ok(zeros(60).into())).unwrap();
        let error = to.add(name, 41, || unreachable!("checked first")).unwrap_err();
        assert!(error.to_string().contains("limit: 40"), "{error}");
        to.write(0, 59, b"x").unwrap();
        for (buffer, offset) in [(0, 60), (0, u64::MAX), (1, 0)] {
            let error = to.write(buffer, offset, b"x").unwrap_err().to_string();
            assert!(error.contains("outside of buffer"), "{error}");
        }
    }
}
