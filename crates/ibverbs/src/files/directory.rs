//! Reading directories. A stream of a virtual directory is a real one, of a directory beside the library, so
//! that everything else works with it. Only the entries come from `tree.txt`.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::tree::{self, Node};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uchar, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open streams of virtual directories, by their addresses.
static OPEN: Mutex<BTreeMap<usize, Listing>> = Mutex::new(BTreeMap::new());
/// The number of them. In most programs it is always zero, and nothing else is looked at.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Listing {
    entries: Vec<libc::dirent64>,
    next: usize,
}

impl Listing {
    fn of(directory: &str) -> Self {
        let itself = [".", ".."].map(|name| (name.to_owned(), Node::Directory));
        let entries = itself.into_iter().chain(tree::entries(directory)).zip(1..);
        Self { entries: entries.map(|((name, node), number)| entry(&name, node, number)).collect(), next: 0 }
    }
}

fn entry(name: &str, node: Node, number: u64) -> libc::dirent64 {
    // SAFETY: zeros are valid for numbers and characters.
    let mut entry: libc::dirent64 = unsafe { std::mem::zeroed() };
    entry.d_ino = number;
    entry.d_off = number.cast_signed();
    entry.d_reclen = u16::try_from(size_of::<libc::dirent64>()).unwrap_or(u16::MAX);
    entry.d_type = match node {
        Node::Directory => libc::DT_DIR,
        Node::Link(_) => libc::DT_LNK,
        _ if name == crate::objects::device::DEVICE_FILE => libc::DT_CHR,
        Node::Line(_) | Node::File => libc::DT_REG,
    };
    for (to, from) in entry.d_name.iter_mut().zip(name.bytes()) {
        *to = c_uchar::cast_signed(from);
    }
    entry
}

/// Records that a stream of a virtual directory was opened.
pub(super) fn opened(stream: *mut libc::DIR, directory: &str) {
    if lock(&OPEN).insert(stream as usize, Listing::of(directory)).is_none() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Forgets a stream that is about to be closed.
pub(super) fn closed(stream: *mut libc::DIR) {
    if any() && lock(&OPEN).remove(&(stream as usize)).is_some() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts to read a stream from the beginning.
pub(super) fn rewound(stream: *mut libc::DIR) {
    if any()
        && let Some(listing) = lock(&OPEN).get_mut(&(stream as usize))
    {
        listing.next = 0;
    }
}

/// The next entry of a stream, NULL after the last. `None` if it is not the stream of a virtual directory.
/// The entry is valid until the stream is closed.
pub(super) fn next(stream: *mut libc::DIR) -> Option<*mut libc::dirent64> {
    if !any() {
        return None;
    }
    let mut open = lock(&OPEN);
    let listing = open.get_mut(&(stream as usize))?;
    let entry = listing.entries.get_mut(listing.next).map_or(std::ptr::null_mut(), std::ptr::from_mut);
    listing.next += usize::from(!entry.is_null());
    Some(entry)
}

fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Selects entries.
pub(super) type Filter = unsafe extern "C" fn(*const libc::dirent64) -> c_int;
/// Compares two entries, given pointers to pointers to them.
pub(super) type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// Implements scandir(3): allocates an array of the entries that `filter` selects, in the order of `compare`.
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
    // SAFETY: a function of the program, called with an entry.
    entries.retain(|entry| filter.is_none_or(|filter| unsafe { filter(entry) } != 0));
    // SAFETY: one more pointer than there are entries, so that the size is not zero.
    let array = unsafe { libc::calloc(entries.len() + 1, size_of::<*mut libc::dirent64>()) }
        .cast::<*mut libc::dirent64>();
    if array.is_null() {
        return -1;
    }
    for (at, entry) in entries.iter().enumerate() {
        // SAFETY: memory for one entry, and an element of the array. The program frees both.
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
        // SAFETY: a function of the program, called with two elements of the array.
        unsafe { libc::qsort(array.cast(), entries.len(), size_of::<*mut libc::dirent64>(), Some(compare)) };
    }
    // SAFETY: valid by the contract of scandir.
    unsafe { list.write(array) };
    c_int::try_from(entries.len()).unwrap_or(-1)
}
