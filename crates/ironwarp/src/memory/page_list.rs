//! Lists of pages that work requests register (requirement M3).

use super::contents::Contents;
use super::error::{AccessError, PageListError};
use super::fast_region::FastRegion;
use super::range::{check, resolve};
use super::tag_tracker::TagSequence;
use ironwarp_rnic::memory::{Memory, PageSize, Rights, Translation};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{RemoteAddr, Tag};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Pages of a [`FastRegion`], in any order, that [`WorkRequest::register_pages`](crate::queue::WorkRequest::register_pages)
/// registers with the tag of the region. To the peer they are contiguous. [`FastRegion::pages`] creates a list.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// use ironwarp::memory::PageSize;
///
/// let region = server.domain.allocate_region([Buffer::new(16 << 10)?])?;
/// region.write(0x1000, b"world")?;
/// region.write(0x2ffa, b"hello ")?;
/// // The last six bytes of the third page, followed by the first five of the second.
/// let pages = region.pages(PageSize::KIB_4, [0x2000, 0x1000])?.range(0xffa..0x1005)?;
/// server.qp.post_send(WorkRequest::register_pages(1, &pages, Access::LOCAL_READ | Access::REMOTE_READ))?;
/// server.cq.wait(Duration::from_secs(5))?.success()?;
///
/// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(..11)?], pages.remote_addr(0)?))?;
/// client.cq.wait(Duration::from_secs(5))?.success()?;
/// assert_eq!(&client.region.to_vec()?[..11], b"hello world");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PageList {
    /// The tags of the region.
    tags: Arc<TagSequence>,
    contents: Arc<Contents>,
    size: PageSize,
    /// The addresses of the pages.
    pages: Arc<[u64]>,
    /// Leads from the first registered byte to the end of the last page. Keeps the memory of the region alive.
    translation: Arc<Translation>,
    /// Number of registered bytes.
    len: usize,
}

impl PageList {
    /// Creates a list of the pages at these offsets of `contents`, which are registered with a tag of `tags`.
    fn new(
        tags: Arc<TagSequence>,
        contents: Arc<Contents>,
        size: PageSize,
        offsets: impl IntoIterator<Item = usize>,
    ) -> Result<Self, PageListError> {
        let pages = offsets.into_iter().map(|at| contents.page_addr(at, size));
        let pages: Arc<[u64]> = pages.collect::<Result<_, _>>()?;
        let translation = translate(&contents, size, 0, &pages)?;
        let len = usize::try_from(translation.len()).expect("the length of pages in memory");
        Ok(Self { tags, contents, size, pages, translation, len })
    }

    /// Returns a list that registers a range of the bytes of these pages. The range starts in the first page, and may end
    /// before the end of the last.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::{Buffer, PageSize};
    /// let region = domain.allocate_region([Buffer::new(16 << 10)?])?;
    /// let pages = region.pages(PageSize::KIB_4, [0x3000, 0x1000])?;
    /// assert_eq!(pages.range(100..5000)?.len(), 4900);
    /// assert!(pages.range(5000..).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is empty, not completely inside the pages, or starts after the first page.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self, PageListError> {
        // Of all bytes of the pages, whatever range this list has.
        let all = self.pages.len() as u64 * self.size.bytes();
        let (at, len) = resolve(range, usize::try_from(all).expect("the length of pages in memory"))?;
        if len == 0 {
            return Err(ironwarp_rnic::memory::TranslationError::Empty.into());
        }
        let translation = translate(&self.contents, self.size, at as u64, &self.pages)?;
        Ok(Self { translation, len, ..self.clone() })
    }

    /// Returns the number of bytes that the list registers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a list is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size of a page.
    pub fn page_size(&self) -> PageSize {
        self.size
    }

    /// Returns the tag of the region, as of the last posted registration.
    pub fn tag(&self) -> Tag {
        self.tags.tag()
    }

    /// Returns a scatter/gather element for a range of the registered bytes, with the tag of the last posted registration.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::memory::PageSize;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # client.qp.post_receive(1, &[client.region.slice(..10)?])?;
    /// let region = server.domain.allocate_region([Buffer::new(8192)?])?;
    /// let pages = region.pages(PageSize::KIB_4, [0x1000, 0])?;
    /// server.qp.post_send(WorkRequest::register_pages(1, &pages, Access::LOCAL_READ).unsignaled())?;
    /// // The last five bytes of the second page, and the first five of the first.
    /// server.qp.post_send(WorkRequest::send(2, &[pages.slice(4091..4101)?]))?;
    /// # assert_eq!(client.cq.wait(Duration::from_secs(5))?.success()?.byte_len, 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the registered bytes, or longer than 4 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, AccessError> {
        let (at, len) = resolve(range, self.len)?;
        let size = u32::try_from(len).map_err(|_| AccessError::TooLong { len })?;
        Ok(Sge { tag: self.tag(), addr: at as u64, len: size })
    }

    /// Returns the remote address of offset `at` of the registered bytes, to be sent to a peer, with the tag of the last
    /// posted registration.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::{Buffer, PageSize};
    /// let region = domain.allocate_region([Buffer::new(8192)?])?;
    /// let pages = region.pages(PageSize::KIB_4, [0x1000, 0])?;
    /// // The first byte of the region.
    /// assert_eq!(pages.remote_addr(4096)?.offset, 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the offset is outside of the registered bytes.
    pub fn remote_addr(&self, at: usize) -> Result<RemoteAddr, AccessError> {
        check(at, 0, self.len)?;
        Ok(RemoteAddr { tag: self.tag(), offset: at as u64 })
    }

    /// Returns the tags of the region.
    pub(crate) fn tags(&self) -> &Arc<TagSequence> {
        &self.tags
    }

    /// Returns the parameters with which the device registers the pages, for one message or for many.
    pub(crate) fn memory(&self, rights: Rights, one_touch: bool) -> Memory {
        let translation = Arc::clone(&self.translation);
        Memory { start: 0, len: self.len as u64, rights, one_touch, translation }
    }
}

/// Creates a translation to these pages of `contents`, from byte `first` of the first page on.
fn translate(
    contents: &Contents,
    size: PageSize,
    first: u64,
    pages: &[u64],
) -> Result<Arc<Translation>, PageListError> {
    let memory = contents.held_pages().expect("a fast region consists of buffers");
    Ok(Arc::new(Translation::pages(size, first, pages, memory)?))
}

// Not derived: omits the addresses, which may be many.
impl fmt::Debug for PageList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageList")
            .field("tag", &self.tag())
            .field("pages", &self.pages.len())
            .field("page_size", &self.size)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl FastRegion {
    /// Returns a list of pages of this region, which
    /// [`WorkRequest::register_pages`](crate::queue::WorkRequest::register_pages) registers instead of the whole region
    /// (requirement M3). Pages are named by their offsets in the region. They can have any order, and the same page can be
    /// listed more than once.
    ///
    /// Each page must be completely inside one buffer, and its address a multiple of its size. Buffers start at a multiple
    /// of 4 KiB, or of the [page size](super::BufferBuilder::page_size) with which they were allocated.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::{Buffer, PageSize};
    /// let buffer = Buffer::builder().page_size(PageSize::MIB_2).allocate(8 << 20)?;
    /// let region = domain.allocate_region([buffer])?;
    /// let pages = region.pages(PageSize::MIB_2, [4 << 20, 0])?;
    /// assert_eq!(pages.len(), 4 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a page is not inside one buffer or not aligned, or if there are no pages, or more than 262,144.
    pub fn pages(
        &self,
        size: PageSize,
        offsets: impl IntoIterator<Item = usize>,
    ) -> Result<PageList, PageListError> {
        PageList::new(Arc::clone(&self.registration.tags), Arc::clone(&self.contents), size, offsets)
    }
}
