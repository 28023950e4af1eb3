//! Counts the resources of this process that a peer with shared memory could make it use up.

use super::wait_until;
use std::path::Path;

/// Descriptors that may come and go with the poll sets and the windows of an adapter.
const SLACK: usize = 8;

/// Resources in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resources {
    /// Number of open descriptors.
    pub(crate) descriptors: usize,
    /// Number of mapped rings.
    pub(crate) rings: usize,
}

impl Resources {
    pub(crate) fn now() -> Self {
        Self { descriptors: descriptors(), rings: rings() }
    }

    /// Waits until all rings that were mapped since, and all descriptors, are given back.
    pub(crate) fn assert_given_back(self) {
        wait_until("the victim to give back rings and descriptors", || {
            let now = Self::now();
            now.rings <= self.rings && now.descriptors <= self.descriptors + SLACK
        });
    }

    /// Checks that not many more rings and descriptors are in use than before.
    pub(crate) fn assert_bounded(self, rings: usize, descriptors: usize) {
        let now = Self::now();
        assert!(now.rings <= self.rings + rings, "{now:?}, before: {self:?}");
        assert!(now.descriptors <= self.descriptors + descriptors, "{now:?}, before: {self:?}");
    }
}

/// Number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    Path::new("/proc/self/fd").read_dir().unwrap().count()
}

/// Number of rings that this process has mapped. The peers in these tests map none: they read and write the file.
pub(crate) fn rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:ironwarp-ring")).count()
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
