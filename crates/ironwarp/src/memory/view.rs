//! Typed views: plain data in the bytes of a region or a chunk.

use super::contents::Contents;
use super::error::AccessError;
use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A value of type `T` in the bytes of a region or a chunk.
///
/// Values are copied in and out. There is no reference to them, because peers may write at any time: while a peer or a
/// request writes to the bytes, [`load`](Self::load) may return a value of some old and some new bytes. `T` is plain
/// data, for which every combination of bytes is a value, as [zerocopy](https://docs.rs/zerocopy/0.8) defines it. So
/// the result is always a valid `T`, and the bytes need no alignment.
///
/// To use types of your own, add `zerocopy` 0.8 with the feature `derive` to your dependencies. Both ends must agree on
/// the byte order: the integers of `zerocopy::byteorder` have one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// # use ironwarp::prelude::*;
/// use zerocopy::byteorder::little_endian::{U32, U64};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(FromBytes, IntoBytes, Immutable, PartialEq, Debug)]
/// #[repr(C)]
/// struct Header {
///     sequence: U64,
///     len: U32,
/// }
///
/// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let header = region.view::<Header>(100)?;
/// header.store(&Header { sequence: 7.into(), len: 3.into() });
/// assert_eq!(header.load().sequence.get(), 7);
/// assert_eq!(region.to_vec()?[100..112], [7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
/// # Ok(())
/// # }
/// ```
pub struct View<'a, T> {
    array: ArrayView<'a, T>,
}

impl<'a, T> View<'a, T> {
    /// Creates a view of the value at offset `at`. The caller checked that it is inside of the contents.
    pub(super) fn new(contents: &'a Contents, at: usize) -> Self {
        Self { array: ArrayView::new(contents, at, 1) }
    }
}

impl<T: FromBytes + IntoBytes + Immutable> View<'_, T> {
    /// Returns a copy of the value.
    ///
    /// # Panics
    /// Panics if the program unmapped memory that it owns.
    pub fn load(&self) -> T {
        self.array.load(0)
    }

    /// Replaces the value.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(16)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// region.view::<u32>(6)?.store(&0x0403_0201_u32.to_le());
    /// assert_eq!(region.to_vec()?[6..10], [1, 2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the program unmapped or write-protected memory that it owns.
    pub fn store(&self, value: &T) {
        self.array.store(0, value);
    }
}

/// Values of type `T`, one after the other, in the bytes of a region or a chunk. Copies in and out, as [`View`] does.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// # let region = domain.register(ironwarp::memory::Buffer::new(4096)?, ironwarp::memory::Access::LOCAL_READ)?;
/// // Three numbers, the first one at offset 64.
/// let numbers = region.array::<f32>(64, 3)?;
/// numbers.write(0, &[0.5, 1.5, 2.5]);
/// numbers.store(1, &4.0);
/// assert_eq!(numbers.iter().sum::<f32>(), 7.0);
/// # Ok(())
/// # }
/// ```
pub struct ArrayView<'a, T> {
    /// The bytes, which contain the whole array: checked when the view was created.
    contents: &'a Contents,
    /// Offset of the first element, in bytes.
    at: usize,
    /// Number of elements.
    len: usize,
    /// The view has no value of this type, but makes some.
    element: PhantomData<fn() -> T>,
}

impl<'a, T> ArrayView<'a, T> {
    /// Creates a view of `len` elements. The caller checked that they are inside of the contents.
    pub(super) fn new(contents: &'a Contents, at: usize, len: usize) -> Self {
        Self { contents, at, len, element: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset of element `first` in bytes. Panics if the `count` elements from there on are not all in the
    /// array.
    #[track_caller]
    fn offset(&self, first: usize, count: usize) -> usize {
        let inside = first.checked_add(count).is_some_and(|end| end <= self.len);
        assert!(inside, "index out of bounds: {count} elements at index {first} of {}", self.len);
        self.at + first * size_of::<T>()
    }
}

impl<T: FromBytes + IntoBytes + Immutable> ArrayView<'_, T> {
    /// Returns a copy of an element.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::copy_of(&[1, 0, 2, 0, 3, 0])?, Access::LOCAL_READ)?;
    /// assert_eq!(u16::from_le(region.array::<u16>(0, 3)?.load(2)), 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the index is out of bounds, and if the program unmapped memory that it owns.
    #[track_caller]
    pub fn load(&self, index: usize) -> T {
        let mut value = T::new_zeroed();
        self.read(index, std::slice::from_mut(&mut value));
        value
    }

    /// Replaces an element.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(6)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// region.array::<u16>(0, 3)?.store(1, &7_u16.to_le());
    /// assert_eq!(region.to_vec()?, [0, 0, 7, 0, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the index is out of bounds, and if the program unmapped or write-protected memory that it owns.
    #[track_caller]
    pub fn store(&self, index: usize, value: &T) {
        self.write(index, std::slice::from_ref(value));
    }

    /// Copies the elements from index `first` on to `into`. Faster than a loop of [`load`](Self::load).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(4096)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// let numbers = region.array::<u64>(0, 512)?;
    /// numbers.store(9, &7);
    /// let mut some = [0; 3];
    /// numbers.read(8, &mut some);
    /// assert_eq!(some, [0, 7, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if an index is out of bounds, and if the program unmapped memory that it owns.
    #[track_caller]
    pub fn read(&self, first: usize, into: &mut [T]) {
        let at = self.offset(first, into.len());
        self.contents.read(at, into.as_mut_bytes()).expect("the memory is mapped");
    }

    /// Replaces the elements from index `first` on with `from`. Faster than a loop of [`store`](Self::store).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(4096)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// let numbers = region.array::<u64>(0, 512)?;
    /// numbers.write(8, &[1, 2, 3]);
    /// assert_eq!(numbers.load(10), 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if an index is out of bounds, and if the program unmapped or write-protected memory that it owns.
    #[track_caller]
    pub fn write(&self, first: usize, from: &[T]) {
        let at = self.offset(first, from.len());
        self.contents.write(at, from.as_bytes()).expect("the memory is mapped and writable");
    }

    /// Returns an iterator over copies of the elements. Each is copied when the iterator gets there.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + DoubleEndedIterator {
        (0..self.len).map(|index| self.load(index))
    }
}

impl Contents {
    /// Returns a view of the value of type `T` at offset `at`. The view borrows the region.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(16)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// let counter = region.view::<u64>(8)?;
    /// counter.store(&(counter.load() + 1));
    /// assert_eq!(counter.load(), 1);
    /// assert!(region.view::<u64>(9).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the value is not completely inside the region.
    pub fn view<T: FromBytes + IntoBytes + Immutable>(&self, at: usize) -> Result<View<'_, T>, AccessError> {
        self.check_range(at, size_of::<T>())?;
        Ok(View::new(self, at))
    }

    /// Returns a view of `len` values of type `T`, the first of them at offset `at` in bytes. The view borrows the
    /// region.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(16)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// let pair = region.array::<u64>(0, 2)?;
    /// pair.store(1, &7);
    /// assert_eq!(pair.iter().collect::<Vec<_>>(), [0, 7]);
    /// assert!(region.array::<u64>(1, 2).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the values are not completely inside the region.
    pub fn array<T: FromBytes + IntoBytes + Immutable>(
        &self,
        at: usize,
        len: usize,
    ) -> Result<ArrayView<'_, T>, AccessError> {
        self.check_range(at, byte_len::<T>(len))?;
        Ok(ArrayView::new(self, at, len))
    }
}

/// Returns the length of `len` values of type `T` in bytes: `usize::MAX`, which no memory has, if it is more than that.
pub(super) fn byte_len<T>(len: usize) -> usize {
    len.saturating_mul(size_of::<T>())
}

// These are not derived, because they need nothing of `T`.

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<T> Clone for ArrayView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArrayView<'_, T> {}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("type", &type_name::<T>())
            .field("at", &self.array.at)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ArrayView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayView")
            .field("type", &type_name::<T>())
            .field("at", &self.at)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
