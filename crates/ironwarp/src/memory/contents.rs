//! The bytes of a region, and the methods with which programs copy them in and out.

use super::buffer::{Buffer, PAGE};
use super::error::{AccessError, PageListError};
use super::range::{check, resolve};
use crate::shared::{RegionBuffers, Shared};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::{Held, HeldPages, Span};
use ironwarp_rnic::memory::{Memory, PageSize, Rights, Spans, Translation, TranslationError};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{RemoteAddr, Tag};
use std::fmt;
use std::io;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The bytes of a region. Programs copy them in and out. There are no references to them, because peers may write at
/// any time.
pub struct Contents {
    translation: Arc<Translation>,
    /// The buffers that contain the bytes. `None` if the program owns the memory: then nothing is known about its
    /// alignment and other users, and the kernel copies.
    parts: Option<Arc<Parts>>,
    /// Number of bytes.
    len: usize,
    device: Arc<Device>,
}

/// The buffers of a region in order, each with the offset of its first byte in the region.
#[derive(Debug)]
pub(crate) struct Parts(Vec<(usize, Buffer)>);

impl RegionBuffers for Parts {
    fn files(&self) -> Vec<(Span, Option<BorrowedFd<'_>>)> {
        self.buffers().map(|buffer| (buffer.span(), buffer.shared_fd())).collect()
    }
}

impl Held for Parts {
    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.for_each_part(at, into.len(), |part, at, range| part.read(at, &mut into[range]));
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        self.for_each_part(at, from.len(), |part, at, range| part.write(at, &from[range]));
    }
}

impl Parts {
    /// Creates the parts of a region that consists of `buffers`, one after the other.
    pub(crate) fn new(buffers: Vec<Buffer>) -> Arc<Self> {
        let mut len = 0;
        let parts = buffers.into_iter().map(|buffer| {
            let at = len;
            len += buffer.len();
            (at, buffer)
        });
        Arc::new(Self(parts.collect()))
    }

    /// Returns the buffers, in order.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.iter().map(|(_, buffer)| buffer)
    }

    /// Returns a translation to all bytes, which keeps the buffers alive.
    pub(crate) fn translation(self: &Arc<Self>) -> Result<Translation, TranslationError> {
        let spans: Vec<Span> = self.buffers().map(Buffer::span).collect();
        let translation = match spans[..] {
            [one] => Translation::direct(one.addr, one.len as u64)?,
            _ => Translation::buffers(&spans)?,
        };
        Ok(translation.hold(Arc::clone(self) as Arc<dyn Held>))
    }

    /// Calls `copy` for each buffer that contains some of the `len` bytes at offset `at` of the region: with the
    /// buffer, the offset in the buffer, and the range of the `len` bytes that is there.
    fn for_each_part(&self, at: u64, len: usize, mut copy: impl FnMut(&Buffer, usize, Range<usize>)) {
        let mut at = usize::try_from(at).expect("the caller checked the range");
        let mut done = 0;
        let first = self.0.partition_point(|(begin, part)| begin + part.len() <= at);
        for (begin, part) in &self.0[first..] {
            if done == len {
                break;
            }
            let n = (begin + part.len() - at).min(len - done);
            copy(part, at - begin, done..done + n);
            (at, done) = (at + n, done + n);
        }
    }
}

/// Of each buffer, the address of its first byte and its index in [`Parts`], in the order of addresses.
#[derive(Debug)]
struct PartsByAddr {
    parts: Arc<Parts>,
    addrs: Box<[(u64, usize)]>,
}

impl PartsByAddr {
    /// Returns the buffer with the byte at this address, and the offset of the byte in the buffer.
    fn find(&self, addr: u64) -> (&Buffer, usize) {
        let after = self.addrs.partition_point(|&(start, _)| start <= addr);
        let (start, part) = self.addrs[after - 1];
        let offset = usize::try_from(addr - start).expect("an offset in memory");
        (&self.parts.0[part].1, offset)
    }
}

impl HeldPages for PartsByAddr {
    fn read_page(&self, addr: u64, into: &mut [u8]) {
        let (buffer, at) = self.find(addr);
        buffer.read(at, into);
    }

    fn write_page(&self, addr: u64, from: &[u8]) {
        let (buffer, at) = self.find(addr);
        buffer.write(at, from);
    }
}

impl Contents {
    /// Creates contents of `len` bytes at `addr` that the program owns.
    pub(super) fn raw(device: &Arc<Device>, addr: u64, len: usize) -> Result<Arc<Self>, TranslationError> {
        let translation = Arc::new(Translation::direct(addr, len as u64)?);
        Ok(Arc::new(Self { translation, parts: None, len, device: Arc::clone(device) }))
    }

    /// Creates contents that own `buffers` and consist of them, one after the other.
    pub(crate) fn owned(
        shared: &Shared,
        buffers: impl IntoIterator<Item = Buffer>,
    ) -> Result<Arc<Self>, TranslationError> {
        Self::of_parts(shared, Parts::new(buffers.into_iter().collect()))
    }

    /// Adds the buffers to those that move with this adapter to another process.
    pub(super) fn list_in(&self, shared: &Shared) {
        if let Some(parts) = &self.parts {
            shared.buffers.add(Arc::<Parts>::downgrade(parts));
        }
    }

    /// Creates contents that consist of all of these parts.
    pub(crate) fn of_parts(shared: &Shared, parts: Arc<Parts>) -> Result<Arc<Self>, TranslationError> {
        let translation = Arc::new(parts.translation()?);
        let (len, device) = (parts.buffers().map(Buffer::len).sum(), Arc::clone(shared.device()));
        let contents = Self { translation, parts: Some(parts), len, device };
        contents.list_in(shared);
        Ok(Arc::new(contents))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: the length of registered memory is never zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes at offset `at` to `into`.
    ///
    /// While a peer writes to these bytes, the copy may have some old and some new bytes. After the completion of a
    /// message is polled, the copy has all bytes of the message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(16)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// region.write(3, b"hello")?;
    /// let mut five = [0; 5];
    /// region.read(3, &mut five)?;
    /// assert_eq!(&five, b"hello");
    /// assert!(region.read(12, &mut five).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region, or if the program unmapped memory that it owns.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.check_range(at, into.len())?;
        match &self.parts {
            Some(parts) => {
                parts.read(at as u64, into);
                Ok(())
            }
            None => {
                let gathered = self.device.host().gather(&self.spans(at, into.len()), into);
                gathered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Copies `from` to the bytes at offset `at`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::AccessError;
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::new(8)?, Access::LOCAL_READ)?;
    /// region.write(3, b"hello")?;
    /// assert_eq!(region.to_vec()?, b"\0\0\0hello");
    /// assert_eq!(region.write(4, b"hello"), Err(AccessError::OutOfBounds { at: 4, len: 5, size: 8 }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region, or if the program unmapped or write-protected memory
    /// that it owns.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check_range(at, from.len())?;
        match &self.parts {
            Some(parts) => {
                parts.write(at as u64, from);
                Ok(())
            }
            None => {
                let scattered = self.device.host().scatter(from, &self.spans(at, from.len()));
                scattered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Reads once from a descriptor, as read(2) does, into this range: at most as many bytes as it has. Returns the
    /// number of bytes read, which is 0 at the end of the file, or if the range is empty. The other bytes of the range
    /// do not change.
    ///
    /// The kernel copies the bytes: they do not pass through another buffer. There is one system call, so that one frame
    /// of a TAP device or one datagram of a socket is read, even if the range is in several buffers. A call that a signal
    /// interrupts is repeated.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::prelude::*;
    /// use std::io::Write;
    ///
    /// let region = domain.register(Buffer::new(8)?, Access::LOCAL_READ)?;
    /// let (reader, mut writer) = std::io::pipe()?;
    /// writer.write_all(b"hello")?;
    /// assert_eq!(region.read_from(&reader, 2..)?, 5);
    /// assert_eq!(region.to_vec()?, b"\0\0hello\0");
    /// drop(writer);
    /// assert_eq!(region.read_from(&reader, 2..)?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails with [`InvalidInput`](io::ErrorKind::InvalidInput) if the range is not completely inside the region, or is
    /// in more than 1,024 separate parts of memory. Otherwise fails as read(2) does: with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the descriptor is non-blocking and has no bytes, and with EFAULT if
    /// the program unmapped or write-protected memory that it owns.
    pub fn read_from(&self, from: impl AsFd, range: impl RangeBounds<usize>) -> io::Result<usize> {
        ironwarp_engine::sys::memory::read_from(from.as_fd(), &self.spans_of(range)?)
    }

    /// Writes this range to a descriptor, with one write(2). Returns the number of bytes written, which may be fewer than
    /// the range has.
    ///
    /// The kernel copies the bytes: they do not pass through another buffer. There is one system call, so that the range
    /// is one frame of a TAP device or one datagram of a socket, even if it is in several buffers. A call that a signal
    /// interrupts is repeated. An empty range writes nothing, not even an empty datagram.
    ///
    /// While a peer writes to these bytes, some old and some new bytes may be written.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::prelude::*;
    /// use std::io::Read;
    ///
    /// let region = domain.register(Buffer::copy_of(b"say hello")?, Access::LOCAL_READ)?;
    /// let (mut reader, writer) = std::io::pipe()?;
    /// assert_eq!(region.write_to(&writer, 4..)?, 5);
    /// let mut five = [0; 5];
    /// reader.read_exact(&mut five)?;
    /// assert_eq!(&five, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails with [`InvalidInput`](io::ErrorKind::InvalidInput) if the range is not completely inside the region, or is
    /// in more than 1,024 separate parts of memory. Otherwise fails as write(2) does: with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the descriptor is non-blocking and has no room, and with EFAULT if
    /// the program unmapped memory that it owns.
    pub fn write_to(&self, to: impl AsFd, range: impl RangeBounds<usize>) -> io::Result<usize> {
        ironwarp_engine::sys::memory::write_to(to.as_fd(), &[], &self.spans_of(range)?)
    }

    /// Writes `head`, and then this range, to a descriptor, like [`write_to`](Self::write_to) with one system call.
    ///
    /// A program that has checked the start of a message passes the copy that it has checked: a peer that may write to
    /// these bytes can change them at any time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::prelude::*;
    /// use std::io::Read;
    ///
    /// let region = domain.register(Buffer::copy_of(b"say hello")?, Access::LOCAL_READ)?;
    /// let (mut reader, writer) = std::io::pipe()?;
    /// assert_eq!(region.write_to_after(&writer, b"Oh, ", 4..)?, 9);
    /// let mut nine = [0; 9];
    /// reader.read_exact(&mut nine)?;
    /// assert_eq!(&nine, b"Oh, hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`write_to`](Self::write_to).
    pub fn write_to_after(
        &self,
        to: impl AsFd,
        head: &[u8],
        range: impl RangeBounds<usize>,
    ) -> io::Result<usize> {
        ironwarp_engine::sys::memory::write_to(to.as_fd(), head, &self.spans_of(range)?)
    }

    /// Sets all bytes to `byte`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(4)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// region.fill(7)?;
    /// assert_eq!(region.to_vec()?, [7; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the program unmapped or write-protected memory that it owns.
    pub fn fill(&self, byte: u8) -> Result<(), AccessError> {
        let page = [byte; PAGE];
        for at in (0..self.len).step_by(PAGE) {
            self.write(at, &page[..PAGE.min(self.len - at)])?;
        }
        Ok(())
    }

    /// Returns a copy of all bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::copy_of(b"hello")?, Access::LOCAL_READ)?;
    /// assert_eq!(region.to_vec()?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the program unmapped memory that it owns.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the file that other processes map to share the bytes, from offset 0 of the file on. `None` unless the
    /// region consists of one buffer that was created as [shareable](super::BufferBuilder::shareable).
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.parts.as_ref()?.0[..] {
            [(_, only)] => only.shared_fd(),
            _ => None,
        }
    }

    /// Checks that the `len` bytes at offset `at` are inside the region.
    pub(crate) fn check_range(&self, at: usize, len: usize) -> Result<(), AccessError> {
        check(at, len, self.len)
    }

    /// Returns the offset and length of a range. Fails if the range is not completely inside.
    pub(crate) fn resolve(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize), AccessError> {
        resolve(range, self.len)
    }

    /// Returns the parameters with which the device registers these bytes, at remote addresses from `start` on.
    pub(crate) fn memory(&self, start: u64, rights: Rights) -> Memory {
        let translation = Arc::clone(&self.translation);
        Memory { start, len: self.len as u64, rights, one_touch: false, translation }
    }

    /// Returns the address of the page of this size at offset `at`. Fails unless the whole page is in one buffer, and its
    /// address is a multiple of its size. Contents that the program owns have no pages.
    pub(super) fn page_addr(&self, at: usize, size: PageSize) -> Result<u64, PageListError> {
        let parts = self.parts.as_ref().map_or(&[][..], |parts| &parts.0[..]);
        let part = parts[..parts.partition_point(|(begin, _)| *begin <= at)].last();
        let out_of_bounds = PageListError::OutOfBounds { at, size, len: self.len };
        let (begin, buffer) = part.ok_or(out_of_bounds)?;
        let (within, Span { addr, len, .. }) = ((at - begin) as u64, buffer.span());
        if within + size.bytes() > len as u64 {
            return Err(out_of_bounds);
        }
        let addr = addr + within;
        if addr.is_multiple_of(size.bytes()) {
            Ok(addr)
        } else {
            Err(PageListError::Unaligned { at, addr, size })
        }
    }

    /// Returns the memory that pages of these contents belong to. `None` if the program owns it.
    pub(super) fn held_pages(&self) -> Option<Arc<dyn HeldPages>> {
        let parts = Arc::clone(self.parts.as_ref()?);
        let addrs = parts.0.iter().enumerate().map(|(index, (_, buffer))| (buffer.span().addr, index));
        let mut addrs: Box<[_]> = addrs.collect();
        addrs.sort_unstable();
        Some(Arc::new(PartsByAddr { parts, addrs }))
    }

    /// Returns where in the program's memory the bytes of a range are. Fails if the range is not completely inside.
    fn spans_of(&self, range: impl RangeBounds<usize>) -> io::Result<Spans> {
        let resolved =
            self.resolve(range).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error));
        resolved.map(|(at, len)| self.spans(at, len))
    }

    /// Returns where in the program's memory the `len` bytes at offset `at` are.
    fn spans(&self, at: usize, len: usize) -> Spans {
        let mut spans = Spans::new();
        self.translation.append_spans(at as u64, len, &mut spans);
        spans
    }
}

// Not derived: omits the translation and the device, which are long and internal.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Returns a scatter/gather element for a range of `contents`, for the methods `slice` of regions. The bytes are
/// registered with this tag, the first one at the remote address `start`. Fails if they are not all inside, or if their
/// number does not fit the element.
pub(super) fn slice(
    contents: &Contents,
    tag: Tag,
    start: u64,
    range: impl RangeBounds<usize>,
) -> Result<Sge, AccessError> {
    let (at, len) = contents.resolve(range)?;
    let size = u32::try_from(len).map_err(|_| AccessError::TooLong { len })?;
    Ok(Sge { tag, addr: start + at as u64, len: size })
}

/// Returns the remote address of offset `at` of `contents`, for the methods `remote_addr` of regions. The bytes are
/// registered with this tag, the first one at the remote address `start`. The offset just past the last byte is
/// allowed.
pub(super) fn remote_addr(
    contents: &Contents,
    tag: Tag,
    start: u64,
    at: usize,
) -> Result<RemoteAddr, AccessError> {
    contents.check_range(at, 0)?;
    Ok(RemoteAddr { tag, offset: start + at as u64 })
}
