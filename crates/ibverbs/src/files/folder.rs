//! Reading folders. The streams of ours are real ones, of a folder beside the library, so that everything else can be done with
//! them; what is read from them is the list of `tree.txt`.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::tree::{self, Node};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uchar, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The streams of ours that are open, by their addresses.
static OPEN: Mutex<BTreeMap<usize, Listing>> = Mutex::new(BTreeMap::new());
/// How many: most programs never open one, and the others find out by this.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Listing {
    entries: Vec<libc::dirent64>,
    next: usize,
}

impl Listing {
    fn of(folder: &str) -> Self {
        let itself = [".", ".."].map(|name| (name.to_owned(), Node::Folder));
        let entries = itself.into_iter().chain(tree::entries(folder)).zip(1..);
        Self { entries: entries.map(|((name, node), number)| entry(&name, node, number)).collect(), next: 0 }
    }
}

fn entry(name: &str, node: Node, number: u64) -> libc::dirent64 {
    // SAFETY: numbers and characters.
    let mut entry: libc::dirent64 = unsafe { std::mem::zeroed() };
    entry.d_ino = number;
    entry.d_off = number.cast_signed();
    entry.d_reclen = u16::try_from(size_of::<libc::dirent64>()).unwrap_or(u16::MAX);
    entry.d_type = match node {
        Node::Folder => libc::DT_DIR,
        Node::Link(_) => libc::DT_LNK,
        _ if name == crate::device::DEVICE_FILE => libc::DT_CHR,
        Node::Line(_) | Node::File => libc::DT_REG,
    };
    for (to, from) in entry.d_name.iter_mut().zip(name.bytes()) {
        *to = c_uchar::cast_signed(from);
    }
    entry
}

/// A stream of this folder was opened.
pub(super) fn opened(stream: *mut libc::DIR, folder: &str) {
    if lock(&OPEN).insert(stream as usize, Listing::of(folder)).is_none() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream is about to be closed.
pub(super) fn closed(stream: *mut libc::DIR) {
    if any() && lock(&OPEN).remove(&(stream as usize)).is_some() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// It is read from the beginning.
pub(super) fn rewound(stream: *mut libc::DIR) {
    if any()
        && let Some(listing) = lock(&OPEN).get_mut(&(stream as usize))
    {
        listing.next = 0;
    }
}

/// The next entry of a stream of ours, NULL behind the last. It is there until the stream is closed.
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

/// Says which entries to take.
pub(super) type Filter = unsafe extern "C" fn(*const libc::dirent64) -> c_int;
/// Compares two entries, by pointers to pointers to them.
pub(super) type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// All entries of a folder that `filter` takes, in an array of C, in the order that `compare` wants: scandir(3).
///
/// # Safety
/// As of scandir.
pub(super) unsafe fn scan(
    folder: &str,
    list: *mut *mut *mut libc::dirent64,
    filter: Option<Filter>,
    compare: Option<Compare>,
) -> c_int {
    let mut entries = Listing::of(folder).entries;
    // SAFETY: an entry for the program's own function, which takes one.
    entries.retain(|entry| filter.is_none_or(|filter| unsafe { filter(entry) } != 0));
    // SAFETY: as many pointers as there are entries, and one more, so that there is something.
    let array = unsafe { libc::calloc(entries.len() + 1, size_of::<*mut libc::dirent64>()) }
        .cast::<*mut libc::dirent64>();
    if array.is_null() {
        return -1;
    }
    for (at, entry) in entries.iter().enumerate() {
        // SAFETY: room for one entry, and a place of the array. The program frees both.
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
        // SAFETY: the program's own function, for two elements of such an array.
        unsafe { libc::qsort(array.cast(), entries.len(), size_of::<*mut libc::dirent64>(), Some(compare)) };
    }
    // SAFETY: the caller's pointer, as scandir wants it.
    unsafe { list.write(array) };
    c_int::try_from(entries.len()).unwrap_or(-1)
}
