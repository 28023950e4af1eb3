//! Memory that peers may read and write. Before this: a protection domain, in which it is registered; after: work requests
//! and messages to the peer, which name parts of it.
//!
//! # Why no reference is handed out
//! A peer's bytes may arrive at any time. A Rust reference promises that this does not happen, so there is none: a program
//! copies out of a region with [`Contents::read`] and into it with [`Contents::write`].
//!
//! # Why these copies are sound
//! A [`Buffer`]'s memory is touched in two ways only. The device has the kernel copy from and to it, outside of Rust's
//! memory model. Programs copy by relaxed atomic loads and stores of whole aligned words, never of another size, so two
//! threads of the program do not race, and a word that changes meanwhile is old or new, never undefined. Who has seen
//! the completion of a message sees all its bytes: the completion queue's lock orders the two.
//!
//! # Why memory outlives its use
//! Whoever can still find the memory holds its [`Translation`]: the entry of a region, a window that is bound to it, a
//! registration that is posted. A [`Backing`] frees its buffers only when it has the last one. Until then the [`Attic`]
//! keeps it.
#![expect(unsafe_code, reason = "allocates memory that no reference may point to, and copies from and to it")]

use crate::adapter::{Shared, lock};
use crate::error::{AccessError, OutOfMemory};
use crate::name::Name;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{
    DeregisterError, Domain, Memory, RegisterError, Rights, Translation, TranslationError,
};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{Place, Tag};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();

/// Memory of the program, page-aligned and zero, to be registered.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// use ironwarp::{Access, Buffer};
///
/// let region = domain.register(Buffer::new(1 << 20)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    /// The first of `words(len)` words that this value owns.
    start: NonNull<u64>,
    len: usize,
}

// SAFETY: the memory belongs to this value, not to a thread, and is reached through atomics only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// So many zeros.
    pub fn new(len: usize) -> Result<Self, OutOfMemory> {
        let layout = layout(len).ok_or(OutOfMemory { len })?;
        // SAFETY: the layout is at least a page long.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start.cast()).ok_or(OutOfMemory { len })?;
        Ok(Self { start, len })
    }

    /// A copy of these bytes.
    ///
    /// ```
    /// let buffer = ironwarp::Buffer::copy_of(b"hello")?;
    /// assert_eq!(buffer.len(), 5);
    /// # Ok::<(), ironwarp::OutOfMemory>(())
    /// ```
    pub fn copy_of(bytes: &[u8]) -> Result<Self, OutOfMemory> {
        let buffer = Self::new(bytes.len())?;
        buffer.write(0, bytes);
        Ok(buffer)
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none. Such a buffer cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn span(&self) -> Span {
        // Exposed: the kernel gets this address from a table of numbers.
        Span { addr: self.start.as_ptr().expose_provenance() as u64, len: self.len }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < words(self.len), "a word outside of the buffer");
        // SAFETY: the word is aligned and within the allocation, which lives as long as `self`. Nothing in this program
        // reaches it but such atomics, all of this size.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(index)) }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let (head, body) = into.split_at_mut(up_to_word(at, into.len()));
        let copy = |index: usize, within: usize, to: &mut [u8]| {
            let word = self.word(index).load(Ordering::Relaxed).to_ne_bytes();
            to.copy_from_slice(&word[within..][..to.len()]);
        };
        if !head.is_empty() {
            copy(at / WORD, at % WORD, head);
        }
        let first = (at + head.len()) / WORD;
        let mut chunks = body.chunks_exact_mut(WORD);
        let mut index = first;
        for chunk in &mut chunks {
            copy(index, 0, chunk);
            index += 1;
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            copy(index, 0, tail);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        let (head, body) = from.split_at(up_to_word(at, from.len()));
        if !head.is_empty() {
            self.merge(at / WORD, at % WORD, head);
        }
        let first = (at + head.len()) / WORD;
        let (whole, tail) = body.as_chunks::<WORD>();
        for (index, word) in (first..).zip(whole) {
            self.word(index).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            self.merge(first + whole.len(), 0, tail);
        }
    }

    /// Changes part of a word. What a peer writes to the rest meanwhile stays: the exchange then fails, and is tried again.
    fn merge(&self, index: usize, within: usize, from: &[u8]) {
        let merged = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[within..][..from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(bytes))
        };
        let _ = self.word(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let layout = layout(self.len).expect("it was allocated with this layout");
        // SAFETY: `new` allocated it with this layout. No entry of the table leads to it any more: see `Backing`.
        unsafe { dealloc(self.start.as_ptr().cast(), layout) }
    }
}

/// Whole pages, at least one.
fn layout(len: usize) -> Option<Layout> {
    let size = len.max(1).checked_next_multiple_of(PAGE)?;
    Layout::from_size_align(size, PAGE).ok()
}

const fn words(len: usize) -> usize {
    len.div_ceil(WORD)
}

/// How many of `len` bytes from `at` on are in a word that begins before them.
fn up_to_word(at: usize, len: usize) -> usize {
    ((WORD - at % WORD) % WORD).min(len)
}

/// The bytes of a region. They are copied in and out; nobody gets a reference, because peers may write at any time.
#[derive(Debug)]
pub struct Contents {
    translation: Arc<Translation>,
    parts: Parts,
    len: usize,
    device: Arc<Device>,
}

#[derive(Debug)]
enum Parts {
    /// Buffers, and at which byte of the region each begins.
    Owned(Vec<(usize, Buffer)>),
    /// Memory that the program keeps. Of its alignment and its other users nothing is known, so the kernel copies.
    Raw,
}

impl Contents {
    fn owned(device: &Arc<Device>, buffers: Vec<Buffer>) -> Result<Self, TranslationError> {
        let spans: Vec<Span> = buffers.iter().map(Buffer::span).collect();
        let translation = Arc::new(match spans[..] {
            [one] => Translation::direct(one.addr, one.len as u64)?,
            _ => Translation::buffers(&spans)?,
        });
        let mut len = 0;
        let parts = buffers.into_iter().map(|buffer| {
            let at = len;
            len += buffer.len();
            (at, buffer)
        });
        let parts = Parts::Owned(parts.collect());
        Ok(Self { translation, parts, len, device: Arc::clone(device) })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes from `at` on to `into`.
    ///
    /// While a peer writes them, some may be old and some new. Those of a message are all there once its completion was
    /// polled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(16)?, ironwarp::Access::LOCAL_READ)?;
    /// region.write(3, b"hello")?;
    /// let mut five = [0; 5];
    /// region.read(3, &mut five)?;
    /// assert_eq!(&five, b"hello");
    /// assert!(region.read(12, &mut five).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(at, into.len())?;
        match &self.parts {
            Parts::Owned(parts) => {
                each_part(parts, at, into.len(), |part, at, range| part.read(at, &mut into[range]));
                Ok(())
            }
            Parts::Raw => {
                let gathered = self.device.host().gather(&self.spans(at, into.len()), into);
                gathered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Copies `from` to the bytes from `at` on.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check(at, from.len())?;
        match &self.parts {
            Parts::Owned(parts) => {
                each_part(parts, at, from.len(), |part, at, range| part.write(at, &from[range]));
                Ok(())
            }
            Parts::Raw => {
                let scattered = self.device.host().scatter(from, &self.spans(at, from.len()));
                scattered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Sets all bytes to `byte`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(4)?, ironwarp::Access::LOCAL_READ)?;
    /// region.fill(7)?;
    /// assert_eq!(region.to_vec()?, [7; 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fill(&self, byte: u8) -> Result<(), AccessError> {
        let page = [byte; PAGE];
        for at in (0..self.len).step_by(PAGE) {
            self.write(at, &page[..PAGE.min(self.len - at)])?;
        }
        Ok(())
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn check(&self, at: usize, len: usize) -> Result<(), AccessError> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        if inside { Ok(()) } else { Err(AccessError::OutOfBounds { at, len, size: self.len }) }
    }

    pub(crate) fn memory(&self, start: u64, rights: Rights) -> Memory {
        Memory { start, len: self.len as u64, rights, translation: Arc::clone(&self.translation) }
    }

    fn spans(&self, at: usize, len: usize) -> ironwarp_rnic::memory::Spans {
        let mut spans = ironwarp_rnic::memory::Spans::new();
        self.translation.spans(at as u64, len, &mut spans);
        spans
    }
}

/// Calls `each` for the parts that hold the `len` bytes from `at` on: with where in the part they begin, and which of the
/// bytes they are.
fn each_part(
    parts: &[(usize, Buffer)],
    mut at: usize,
    len: usize,
    mut each: impl FnMut(&Buffer, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    let first = parts.partition_point(|(begin, part)| begin + part.len() <= at);
    for (begin, part) in &parts[first..] {
        if done == len {
            break;
        }
        let n = (begin + part.len() - at).min(len - done);
        each(part, at - begin, done..done + n);
        (at, done) = (at + n, done + n);
    }
}

/// What a region stands on, shared by all that were [shared](MemoryRegion::share) from it.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) contents: Contents,
}

impl Backing {
    pub(crate) fn owned(device: &Arc<Device>, buffers: Vec<Buffer>) -> Result<Arc<Self>, RegisterError> {
        Ok(Arc::new(Self { contents: Contents::owned(device, buffers)? }))
    }

    /// Whether nobody else can find the memory: who has no clone of the translation cannot make one.
    fn is_idle(&mut self) -> bool {
        Arc::get_mut(&mut self.contents.translation).is_some()
    }
}

impl Drop for Backing {
    /// The [`Attic`] waits for this; only the end of the adapter may come before it. Then memory is better lost than reused.
    fn drop(&mut self) {
        if !self.is_idle() {
            std::mem::forget(std::mem::replace(&mut self.contents.parts, Parts::Raw));
        }
    }
}

/// What the program gave up, and something still uses: a region that a window is bound to, memory of which a registration is
/// posted. Looked through whenever something else is given up.
#[derive(Debug, Default)]
pub(crate) struct Attic(Mutex<Vec<Retired>>);

/// Something the program gave up.
#[derive(Debug)]
struct Retired {
    /// The tags that the entry may have by now, the likeliest first; none if it is deregistered.
    tags: Vec<Tag>,
    backing: Option<Arc<Backing>>,
}

impl Attic {
    /// Gives something up, and whatever was given up before, as far as it can go.
    fn retire(&self, device: &Device, retired: Retired) {
        let mut attic = lock(&self.0);
        attic.push(retired);
        // A window that goes may be what a region waited for.
        loop {
            let before = attic.len();
            attic.retain_mut(|retired| !retired.go(device));
            if attic.len() == before || attic.is_empty() {
                return;
            }
        }
    }
}

impl Retired {
    /// True: it is gone.
    fn go(&mut self, device: &Device) -> bool {
        for &tag in &self.tags {
            match device.table().deregister(tag) {
                Ok(()) => break,
                Err(DeregisterError::Unknown(_)) => {}
                Err(DeregisterError::Busy { .. }) => return false,
            }
        }
        self.tags.clear();
        match self.backing.as_mut().map(Arc::get_mut) {
            Some(Some(backing)) => backing.is_idle(),
            // Another region shares it, and will come here, too.
            Some(None) | None => true,
        }
    }
}

/// An entry of the table, be it a region's or a window's. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<Name>,
    backing: Option<Arc<Backing>>,
}

impl Registration {
    pub(crate) fn new(shared: &Arc<Shared>, tag: Tag, backing: Option<&Arc<Backing>>) -> Self {
        let name = Arc::new(Name::new(tag));
        Self { shared: Arc::clone(shared), name, backing: backing.cloned() }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let retired = Retired { tags: self.name.candidates(), backing: self.backing.take() };
        self.shared.attic.retire(self.shared.device(), retired);
    }
}

/// Registered memory. Dropped, it is deregistered: when that returns, no peer touches the memory any more, and it is freed.
///
/// It reads and writes like its [`Contents`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::{CompletionExt, WorkRequest};
/// # use std::time::Duration;
/// client.region.write(0, b"hello")?;
/// let (here, there) = (client.region.slice(0, 5)?, server.region.place(100)?);
/// client.qp.post_send(WorkRequest::write(1, &[here], there))?;
/// # client.qp.post_send(WorkRequest::read(2, &[client.region.slice(8, 5)?], there))?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # let mut five = [0; 5];
/// # server.region.read(100, &mut five)?;
/// # assert_eq!(&five, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// While windows are bound to it, it cannot go: then it goes with the last of them.
#[derive(Debug)]
pub struct MemoryRegion {
    /// Before `registration`, which is dropped after it and then has the only one.
    backing: Arc<Backing>,
    registration: Registration,
    domain: Domain,
    tag: Tag,
    /// What names its first byte: zero, or the address if the program keeps the memory.
    start: u64,
    access: Rights,
}

impl MemoryRegion {
    pub(crate) fn owned(
        shared: &Arc<Shared>,
        domain: Domain,
        buffers: Vec<Buffer>,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let backing = Backing::owned(shared.device(), buffers)?;
        Self::register(shared, domain, backing, 0, access)
    }

    fn register(
        shared: &Arc<Shared>,
        domain: Domain,
        backing: Arc<Backing>,
        start: u64,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let tag = shared.device().register(domain, backing.contents.memory(start, access))?;
        Ok(Self::with_tag(shared, domain, backing, tag, (start, access)))
    }

    fn with_tag(
        shared: &Arc<Shared>,
        domain: Domain,
        backing: Arc<Backing>,
        tag: Tag,
        (start, access): (u64, Rights),
    ) -> Self {
        let registration = Registration::new(shared, tag, Some(&backing));
        Self { backing, registration, domain, tag, start, access }
    }

    /// Registers the same memory once more, with a tag and rights of its own (requirement M5). Each is deregistered by
    /// itself; the memory is freed with the last.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    /// let for_peers = region.share(Access::REMOTE_READ)?;
    /// region.write(0, b"hello")?;
    /// assert_eq!(&for_peers.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(&self, access: Rights) -> Result<Self, RegisterError> {
        let shared = &self.registration.shared;
        let tag = shared.device().table().share(self.tag, self.domain, self.start, access)?;
        Ok(Self::with_tag(shared, self.domain, Arc::clone(&self.backing), tag, (self.start, access)))
    }

    /// What names it, here and at the peer.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// What may be done with it.
    pub fn access(&self) -> Rights {
        self.access
    }

    /// A part of it, for the lists of work requests.
    pub fn slice(&self, at: usize, len: usize) -> Result<Sge, AccessError> {
        slice(self, self.tag, self.start, at, len)
    }

    /// A place in it, as a peer names it: send it to the peer, who then writes to it or reads from it.
    pub fn place(&self, at: usize) -> Result<Place, AccessError> {
        place(self, self.tag, self.start, at)
    }

    /// Deregisters it, like dropping it does, and tells if that has to wait for windows.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(64)?, ironwarp::Access::LOCAL_READ)?;
    /// region.deregister()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn deregister(self) -> Result<(), DeregisterError> {
        self.registration.shared.device().table().deregister(self.tag)
    }
}

impl ProtectionDomain {
    /// Registers memory that the program keeps: mapped by itself, shared with another process, or a C program's. Peers name
    /// its bytes by their addresses.
    ///
    /// # Safety
    /// From now on until the region is dropped, and any region [shared](MemoryRegion::share) from it, peers and requests of
    /// this program may read and write this memory at any time, as far as `access` lets them. Until then nothing may rely
    /// on it not to change or not to be read: there must be no Rust reference to it, but to atomics or cells, and it must
    /// not become memory of anything else. If it is unmapped and nothing else is mapped there, accesses fail, and nothing
    /// worse happens.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::Access;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// static COUNTER: AtomicU64 = AtomicU64::new(0);
    /// // SAFETY: it is never freed, and reached through atomics only.
    /// let region = unsafe { domain.register_raw(COUNTER.as_ptr().cast(), 8, Access::LOCAL_WRITE)? };
    /// region.write(0, &7_u64.to_ne_bytes())?;
    /// assert_eq!(COUNTER.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let addr = start.expose_provenance() as u64;
        let translation = Arc::new(Translation::direct(addr, len as u64)?);
        let device = Arc::clone(self.shared.device());
        let contents = Contents { translation, parts: Parts::Raw, len, device };
        MemoryRegion::register(&self.shared, self.domain(), Arc::new(Backing { contents }), addr, access)
    }
}

impl Deref for MemoryRegion {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.backing.contents
    }
}

pub(crate) fn slice(
    contents: &Contents,
    tag: Tag,
    start: u64,
    at: usize,
    len: usize,
) -> Result<Sge, AccessError> {
    contents.check(at, len)?;
    let size = u32::try_from(len).map_err(|_| AccessError::TooLong { len })?;
    Ok(Sge { tag, addr: start + at as u64, len: size })
}

pub(crate) fn place(contents: &Contents, tag: Tag, start: u64, at: usize) -> Result<Place, AccessError> {
    contents.check(at, 0)?;
    Ok(Place { tag, offset: start + at as u64 })
}
