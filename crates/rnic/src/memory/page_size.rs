//! Sizes of pages.

use std::fmt;

/// The size of a page: a power of two from 4 KiB to 256 MiB (requirement M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    /// The binary logarithm of the size.
    order: u32,
}

impl PageSize {
    /// 4 KiB, the smallest size.
    pub const KIB_4: Self = Self { order: 12 };
    /// 2 MiB.
    pub const MIB_2: Self = Self { order: 21 };
    /// 256 MiB, the largest size.
    pub const MIB_256: Self = Self { order: 28 };

    /// Returns the page size of this number of bytes. `None` if it is not a power of two from 4 KiB to 256 MiB.
    ///
    /// ```
    /// # use ironwarp_rnic::memory::PageSize;
    /// assert_eq!(PageSize::new(64 << 10).map(PageSize::bytes), Some(64 << 10));
    /// assert_eq!(PageSize::new(1 << 30), None);
    /// ```
    pub const fn new(bytes: u64) -> Option<Self> {
        let order = bytes.trailing_zeros();
        let fits = order >= Self::KIB_4.order && order <= Self::MIB_256.order;
        if bytes.is_power_of_two() && fits { Some(Self { order }) } else { None }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.order
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() >> 20 {
            0 => write!(f, "{} KiB", self.bytes() >> 10),
            mib => write!(f, "{mib} MiB"),
        }
    }
}
