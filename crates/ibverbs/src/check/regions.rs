//! Memory regions: what the keys of requests refer to, and whether that memory is still there.

use super::finding::{Finding, Kind};
use super::memory::{Spans, covers, overlap};
use super::stack::Stack;
use super::watch::{self, Released, What};
use crate::abi::IBV_ACCESS_ON_DEMAND;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::sync::{read, write};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A buffer of a request, as the program names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A memory region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Address of the memory in this process, and its length.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The address by which requests refer to the first byte.
    pub(crate) start: u64,
    pub(crate) access: u32,
    /// Whether the program can access the memory itself. Not that of the device.
    pub(crate) accessible: bool,
    pub(crate) created: Stack,
}

/// What happened to a part of registered memory, behind its registration.
#[derive(Debug)]
struct Change {
    memory: Span,
    what: What,
    stack: Stack,
}

/// A region, with the changes since it was registered.
#[derive(Debug)]
struct Entry {
    region: Region,
    /// Number of registrations before this one.
    number: usize,
    changes: Vec<Change>,
}

/// Memory regions by adapter and key.
#[derive(Debug, Default)]
pub(super) struct Regions {
    all: RwLock<BTreeMap<(usize, u32), Entry>>,
    /// Number of changes of all regions.
    changes: AtomicUsize,
}

impl Regions {
    fn all(&self) -> RwLockReadGuard<'_, BTreeMap<(usize, u32), Entry>> {
        read(&self.all)
    }

    fn all_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<(usize, u32), Entry>> {
        write(&self.all)
    }

    pub(super) fn add(&self, adapter: usize, key: u32, region: Region) {
        let number = if region.is_pinned() { watch::add(region.span()) } else { 0 };
        self.all_mut().insert((adapter, key), Entry { region, number, changes: Vec::new() });
    }

    pub(super) fn remove(&self, adapter: usize, key: u32) -> Option<Region> {
        let Entry { region, changes, .. } = self.all_mut().remove(&(adapter, key))?;
        self.changes.fetch_sub(changes.len(), Ordering::Relaxed);
        Some(region)
    }

    /// Returns the number of bytes that hardware would pin. Memory that is registered twice counts twice, as on hardware.
    pub(super) fn total(&self) -> u64 {
        let all = self.all();
        let pinned = all.values().map(|entry| &entry.region).filter(|region| region.is_pinned());
        pinned.fold(0, |sum, region| sum.saturating_add(region.len))
    }

    /// Returns the buffers of a request as addresses of this process. `None` if a key is unknown, a range is outside of its
    /// region, or the program cannot access it.
    pub(super) fn buffers(&self, adapter: usize, elements: &[Element]) -> Option<Spans> {
        let all = self.all();
        let mut buffers = Spans::new();
        for element in elements.iter().filter(|element| element.len > 0) {
            let entry = all.get(&(adapter, element.lkey)).filter(|entry| entry.region.accessible)?;
            buffers.push(entry.region.locate(element)?);
        }
        Some(buffers)
    }

    /// Records that the program frees or unmaps memory. Returns whether any of it is pinned.
    pub(super) fn change(&self, released: Released) -> bool {
        let Released { memory, what, before } = released;
        let is_affected = |entry: &Entry| {
            entry.region.is_pinned() && entry.number < before && overlap(&[entry.region.span()], &[memory])
        };
        if !self.all().values().any(is_affected) {
            return false;
        }
        // Without the lock: a walk waits for the loader, which may wait for a thread that frees memory.
        let stack = Stack::capture();
        for entry in self.all_mut().values_mut().filter(|entry| is_affected(entry)) {
            // Replaces earlier changes of the same memory: a program may free and allocate it again and again.
            let ended =
                entry.changes.extract_if(.., |it| it.what == what && covers(memory, it.memory)).count();
            entry.changes.push(Change { memory, what, stack: stack.clone() });
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.changes.fetch_sub(ended, Ordering::Relaxed);
        }
        true
    }

    /// Records that memory was allocated: it is no longer free.
    pub(super) fn allocate(&self, memory: Span) {
        if self.changes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut ended = 0;
        for entry in self.all_mut().values_mut() {
            let before = entry.changes.len();
            entry.changes.retain(|it| it.what != What::Freed || !overlap(&[it.memory], &[memory]));
            ended += before - entry.changes.len();
        }
        self.changes.fetch_sub(ended, Ordering::Relaxed);
    }

    /// Returns a finding if a request uses memory that was freed or unmapped since it was registered.
    pub(super) fn find_stale(
        &self,
        adapter: usize,
        elements: &[Element],
        name: impl FnOnce() -> String,
        stack: &Stack,
    ) -> Option<Finding> {
        if self.changes.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let all = self.all();
        let find = |element: &Element| {
            let entry = all.get(&(adapter, element.lkey)).filter(|entry| entry.region.accessible)?;
            let memory = entry.region.locate(element)?;
            let mut changes = entry.changes.iter();
            Some((entry, changes.find(|change| overlap(&[change.memory], &[memory]))?))
        };
        let (entry, change) = elements.iter().filter(|element| element.len > 0).find_map(find)?;
        let (kind, what, when) = match change.what {
            What::Freed => (Kind::UseAfterFree, "was freed", "freed"),
            What::Unmapped => (
                Kind::StaleRegistration,
                "was unmapped after it was registered, so that hardware would access other memory than the program",
                "unmapped",
            ),
        };
        let text = format!("{} uses memory at {:#x} that {what}", name(), change.memory.addr);
        let finding = Finding::posted(kind, text, stack);
        Some(finding.after(when, &change.stack).after("registered", &entry.region.created))
    }
}

impl Region {
    /// Returns whether hardware would pin the memory: with on-demand paging it follows what the program maps, and memory of
    /// the device is not the program's.
    fn is_pinned(&self) -> bool {
        self.accessible && self.access & IBV_ACCESS_ON_DEMAND == 0
    }

    /// Returns the memory of an element. `None` if it is not inside the region.
    fn locate(&self, element: &Element) -> Option<Span> {
        let inside = element.addr.checked_sub(self.start)?;
        let end = inside.checked_add(u64::from(element.len))?;
        (end <= self.len).then(|| Span::new(self.addr + inside, element.len as usize))
    }

    /// Returns the memory.
    pub(super) fn span(&self) -> Span {
        Span::new(self.addr, usize::try_from(self.len).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_unmapped_again_and_again_is_recorded_once() {
        let regions = Regions::default();
        let created = Stack::default();
        let region =
            Region { addr: 0x1000, len: 0x4000, start: 0x1000, access: 0, accessible: true, created };
        regions.add(1, 7, region);
        let part = Span::new(0x2000, 0x1000);
        let change = |memory, what, before| regions.change(Released { memory, what, before });
        for _ in 0..3 {
            assert!(change(part, What::Unmapped, 1));
        }
        assert!(!change(part, What::Unmapped, 0), "the memory was unmapped before the registration");
        assert_eq!(regions.changes.load(Ordering::Relaxed), 1);
        // An allocation makes freed memory valid again, but not the registration of memory that was unmapped.
        assert!(change(part, What::Freed, 1));
        assert_eq!(regions.changes.load(Ordering::Relaxed), 2);
        regions.allocate(part);
        assert_eq!(regions.changes.load(Ordering::Relaxed), 1);
        assert!(change(Span::new(0, 0x10000), What::Unmapped, 1));
        assert_eq!(regions.changes.load(Ordering::Relaxed), 1);
        let element = Element { addr: 0x1000, len: 8, lkey: 7 };
        let finding = regions.find_stale(1, &[element], String::new, &Stack::default()).unwrap();
        assert_eq!(finding.kind, Kind::StaleRegistration);
        regions.remove(1, 7);
        assert_eq!(regions.changes.load(Ordering::Relaxed), 0);
    }
}
