//! A frame that has arrived, in registered memory or inside of a message.

use crate::channel::Failure;
use crate::ring::Space;
use ironwarp::memory::MemoryRegion;
use ironwarp_io_unit::frame::HEAD;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes that are copied at a time from one region to another: they stay in the first-level cache.
const CHUNK: usize = 4096;

#[derive(Debug)]
pub(crate) struct Arrived {
    bytes: Bytes,
    /// The first bytes, which take the place of those in memory.
    head: Option<[u8; HEAD]>,
    /// The pool and the element that the frame is in, and that are to be released.
    pub(crate) element: Option<(u32, u32)>,
}

#[derive(Debug)]
enum Bytes {
    Memory { memory: Arc<MemoryRegion>, at: usize, len: usize },
    Inline(Vec<u8>),
}

impl Arrived {
    /// A frame in registered memory: in an element of a pool, or in memory of this end.
    pub(crate) fn in_memory(
        memory: &Arc<MemoryRegion>,
        at: usize,
        len: usize,
        element: Option<(u32, u32)>,
    ) -> Self {
        Self { bytes: Bytes::Memory { memory: Arc::clone(memory), at, len }, head: None, element }
    }

    /// A frame inside of a message.
    pub(crate) fn inline(bytes: Vec<u8>) -> Self {
        Self { bytes: Bytes::Inline(bytes), head: None, element: None }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Memory { len, .. } => *len,
            Bytes::Inline(bytes) => bytes.len(),
        }
    }

    /// Returns the first bytes, which hold the virtio header and the addresses, to check them. The peer may write to an element
    /// at any time: so these bytes, and not those in memory, are part of the frame from now on. Returns `None` if the
    /// frame is shorter.
    pub(crate) fn fix_head(&mut self) -> Option<[u8; HEAD]> {
        let mut head = [0; HEAD];
        if self.copy(0, &mut head).ok()? < HEAD {
            return None;
        }
        self.head = Some(head);
        self.head
    }

    /// Copies the bytes at offset `from` of the frame, as many as fit and are left. Returns their number.
    fn copy(&self, from: usize, into: &mut [u8]) -> Result<usize, Failure> {
        let count = into.len().min(self.len().saturating_sub(from));
        let into = &mut into[..count];
        match &self.bytes {
            Bytes::Memory { memory, at, .. } => memory.read(at + from, into)?,
            Bytes::Inline(bytes) => into.copy_from_slice(&bytes[from..from + count]),
        }
        if let Some(head) = self.head.as_ref().and_then(|head| head.get(from..)) {
            let fixed = head.len().min(count);
            into[..fixed].copy_from_slice(&head[..fixed]);
        }
        Ok(count)
    }

    /// Copies the whole frame.
    pub(crate) fn to_vec(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; self.len()];
        self.copy(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies the frame to memory of another session. The copy belongs to the receiver: a receiver that is slow holds no
    /// element of the sender.
    pub(crate) fn copy_to(&self, space: &Space) -> Result<(), Failure> {
        let mut chunk = [0; CHUNK];
        for from in (0..self.len()).step_by(CHUNK) {
            let count = self.copy(from, &mut chunk)?;
            space.memory.write(space.at + from, &chunk[..count])?;
        }
        Ok(())
    }

    /// Writes the frame with one system call. The kernel copies what is in memory.
    pub(crate) fn write_to(&self, to: impl AsFd) -> io::Result<usize> {
        match (&self.bytes, &self.head) {
            (Bytes::Memory { memory, at, len }, Some(head)) => {
                memory.write_to_after(to, head, at + HEAD..at + len)
            }
            (Bytes::Memory { memory, at, len }, None) => memory.write_to(to, *at..*at + *len),
            (Bytes::Inline(bytes), _) => Ok(rustix::io::write(to, bytes)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;
    use ironwarp::prelude::*;
    use std::io::Read;

    /// A host that writes to an element after the unit has checked the frame in it changes neither header nor addresses.
    #[test]
    fn the_head_of_a_frame_cannot_change_after_it_was_checked() {
        let domain = Adapter::new().unwrap().protection_domain();
        for len in [HEAD, HEAD + 1, CHUNK, 3 * CHUNK + 7] {
            let original: Vec<u8> = (0..=250u8).cycle().take(len).collect();
            let memory =
                Arc::new(domain.register(Buffer::new(10 + len).unwrap(), Access::LOCAL_WRITE).unwrap());
            memory.write(10, &original).unwrap();
            let mut frame = Arrived::in_memory(&memory, 10, len, Some((0, 0)));
            assert_eq!(frame.fix_head().unwrap()[..], original[..HEAD]);
            memory.fill(0xff).unwrap();
            let expected = [&original[..HEAD], &vec![0xff; len - HEAD]].concat();
            assert_eq!(frame.to_vec().unwrap(), expected);
            let space = Ring::new(&domain).unwrap().space(len).unwrap();
            frame.copy_to(&space).unwrap();
            let mut copied = vec![0; len];
            space.memory.read(space.at, &mut copied).unwrap();
            assert_eq!(copied, expected);
            let (mut reader, writer) = io::pipe().unwrap();
            assert_eq!(frame.write_to(&writer).unwrap(), len);
            let mut written = vec![0; len];
            reader.read_exact(&mut written).unwrap();
            assert_eq!(written, expected);
        }
        let short = domain.register(Buffer::new(HEAD - 1).unwrap(), Access::LOCAL_WRITE).unwrap();
        assert_eq!(Arrived::in_memory(&Arc::new(short), 0, HEAD - 1, None).fix_head(), None);
    }
}
