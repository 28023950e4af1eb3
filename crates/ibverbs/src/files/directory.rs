//! Reads virtual directories. The stream of a virtual directory is a real one, of a directory beside the library, so
//! that all other functions of the C library work with it. Only the entries come from `tree.txt`.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::list::Node;
use super::tree::Tree;
use crate::objects::device;
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open streams of virtual directories, by their addresses.
static OPEN: Mutex<BTreeMap<usize, Listing>> = Mutex::new(BTreeMap::new());
/// Number of streams in `OPEN`. In most programs it is always zero, and `OPEN` is never locked.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The entries of a virtual directory.
struct Listing {
    entries: Vec<libc::dirent64>,
    /// Index of the entry that the next read returns.
    next: usize,
}

impl Listing {
    /// Lists a virtual directory, including `.` and `..`. The entries are numbered from 1, because the number
    /// becomes the inode, and programs skip entries with inode 0.
    fn of(directory: &str) -> Self {
        let dots = [".", ".."].map(|name| (name.to_owned(), Node::Directory));
        let entries = dots.into_iter().chain(Tree::of_process().list(directory)).zip(1..);
        let entries = entries.map(|((name, node), number)| to_dirent(&name, node, number)).collect();
        Self { entries, next: 0 }
    }
}

/// Converts a directory entry to C. `number` becomes its inode (`d_ino`), and the position after it (`d_off`).
fn to_dirent(name: &str, node: Node, number: u64) -> libc::dirent64 {
    // SAFETY: the structure has only integers, for which zeros are valid.
    let mut entry: libc::dirent64 = unsafe { std::mem::zeroed() };
    entry.d_ino = number;
    entry.d_off = number.cast_signed();
    entry.d_reclen = u16::try_from(size_of::<libc::dirent64>()).unwrap_or(u16::MAX);
    entry.d_type = match node {
        Node::SameAs("/dev/null") => libc::DT_CHR,
        Node::Link(_) | Node::SameAs("/sys/class/net/INTERFACE") => libc::DT_LNK,
        Node::Directory | Node::SameAs(_) => libc::DT_DIR,
        Node::Line(_) | Node::File => libc::DT_REG,
    };
    device::write_name(&mut entry.d_name, name); // names are shorter than `d_name`
    entry
}

/// Adds the stream of a virtual directory that was opened.
pub(super) fn add_stream(stream: *mut libc::DIR, directory: &str) {
    if lock(&OPEN).insert(stream as usize, Listing::of(directory)).is_none() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Removes a stream that is about to be closed. Does nothing if the stream is not that of a virtual directory.
pub(super) fn remove_stream(stream: *mut libc::DIR) {
    if is_any_open() && lock(&OPEN).remove(&(stream as usize)).is_some() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes the next read of a stream return the first entry. Does nothing if the stream is not that of a virtual
/// directory. Called by the wrapper of rewinddir(3).
pub(super) fn rewind(stream: *mut libc::DIR) {
    if is_any_open()
        && let Some(listing) = lock(&OPEN).get_mut(&(stream as usize))
    {
        listing.next = 0;
    }
}

/// Returns the next entry of a stream, or NULL after the last. `None` if it is not the stream of a virtual directory.
/// The entry is valid until the stream is closed.
pub(super) fn next_entry(stream: *mut libc::DIR) -> Option<*mut libc::dirent64> {
    if !is_any_open() {
        return None;
    }
    let mut open = lock(&OPEN);
    let listing = open.get_mut(&(stream as usize))?;
    let entry = listing.entries.get_mut(listing.next).map_or(std::ptr::null_mut(), std::ptr::from_mut);
    listing.next += usize::from(!entry.is_null());
    Some(entry)
}

/// Returns whether any stream of a virtual directory is open.
fn is_any_open() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// The function of the program that selects entries: those for which it returns a number other than zero.
pub(super) type Filter = unsafe extern "C" fn(*const libc::dirent64) -> c_int;
/// The function of the program that compares two entries. Its arguments are pointers to pointers to them.
pub(super) type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// Implements scandir(3) for a virtual directory: allocates an array of the entries that `filter` selects, in the
/// order of `compare`, and returns their number.
///
/// # Safety
/// As for scandir.
pub(super) unsafe fn scan(
    directory: &str,
    list: *mut *mut *mut libc::dirent64,
    filter: Option<Filter>,
    compare: Option<Compare>,
) -> c_int {
    let mut entries = Listing::of(directory).entries;
    // SAFETY: a function of the program that accepts any entry, by the contract of scandir.
    entries.retain(|entry| filter.is_none_or(|filter| unsafe { filter(entry) } != 0));
    // SAFETY: calloc has no preconditions. One more pointer than there are entries, so that the size is not zero.
    let array = unsafe { libc::calloc(entries.len() + 1, size_of::<*mut libc::dirent64>()) }
        .cast::<*mut libc::dirent64>();
    if array.is_null() {
        return -1;
    }
    for (at, entry) in entries.iter().enumerate() {
        // SAFETY: `copy` is new memory for one entry, and `at` is less than the length of the array. The program
        // frees both.
        unsafe {
            let copy = libc::malloc(size_of::<libc::dirent64>()).cast::<libc::dirent64>();
            if copy.is_null() {
                return -1;
            }
            copy.write(*entry);
            array.add(at).write(copy);
        }
    }
    if let Some(compare) = compare {
        // SAFETY: the array has this many elements of this size. By the contract of scandir, `compare` accepts
        // pointers to any two.
        unsafe { libc::qsort(array.cast(), entries.len(), size_of::<*mut libc::dirent64>(), Some(compare)) };
    }
    // SAFETY: valid for a write, by the contract of scandir.
    unsafe { list.write(array) };
    c_int::try_from(entries.len()).unwrap_or(-1)
}
