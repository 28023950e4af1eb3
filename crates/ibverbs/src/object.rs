//! Objects that C programs hold pointers to. Each begins with the C structure that the headers describe, so that a pointer to
//! the one is a pointer to the other, and has what is ours behind it.
//!
//! Every call but those of the data path looks up whether the pointer is one of ours, of this kind, and alive: NULL and what
//! was destroyed are EINVAL, not a crash. The data path trusts the pointer, as any provider does.
//!
//! A child that was forked off has all objects of its parent in its memory, but no threads that would drive them, and no
//! descriptors. It can make objects of its own; those it inherited answer EIO, as those of a device that was unplugged, and
//! are destroyed without being touched.
#![expect(unsafe_code, reason = "objects live behind raw pointers, because C holds them")]

use crate::errno::Errno;
use crate::sync::lock;
use std::any::TypeId;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, Once};

/// An object with a C structure in it.
///
/// # Safety
/// At [`OFFSET`](Self::OFFSET) bytes from its start is an `UnsafeCell<Self::C>`.
pub(crate) unsafe trait CObject: Send + Sync + Sized + 'static {
    /// What the headers call it.
    type C;
    /// Where the C structure is.
    const OFFSET: usize = 0;
    /// Whether children may use what their parent made.
    const SURVIVES_FORK: bool = false;

    /// The C structure of this object. C reads and writes it at any time, so there are no references to it.
    fn c(&self) -> *mut Self::C {
        let start = std::ptr::from_ref(self).cast::<u8>().cast_mut();
        // SAFETY: the trait says that it is there.
        unsafe { start.add(Self::OFFSET) }.cast()
    }
}

/// All objects that are alive: where their C structures are, of which kind they are, and of which generation.
static LIVE: LazyLock<Mutex<HashMap<usize, Entry>>> = LazyLock::new(Mutex::default);

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: TypeId,
    /// What the headers call it.
    name: &'static str,
    generation: u32,
}

impl Entry {
    fn of<T: CObject>() -> Self {
        Self { kind: TypeId::of::<T>(), name: name::<T>(), generation: generation() }
    }

    fn is<T: CObject>(&self) -> bool {
        self.kind == TypeId::of::<T>()
    }

    /// Made by this process, or good in its children as well.
    fn is_own<T: CObject>(&self) -> bool {
        T::SURVIVES_FORK || self.generation == generation()
    }
}

fn name<T: CObject>() -> &'static str {
    let name = std::any::type_name::<T::C>();
    let name = name.rsplit("::").next().unwrap_or(name);
    name.strip_suffix("_ex").unwrap_or(name)
}

/// How many forks led to this process: objects of another generation are those of an ancestor.
static GENERATION: AtomicU32 = AtomicU32::new(0);

pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

type Live = MutexGuard<'static, HashMap<usize, Entry>>;

fn live() -> Live {
    lock(&LIVE)
}

thread_local! {
    /// The table, held by a thread that forks.
    static HELD: RefCell<Option<Live>> = const { RefCell::new(None) };
}

/// Asks the C library to be told of forks, once: from then on what was made before one is not touched after it.
fn watch_forks() {
    unsafe extern "C" fn before() {
        let live = live();
        HELD.with_borrow_mut(|held| *held = Some(live));
    }
    unsafe extern "C" fn in_parent() {
        HELD.take();
    }
    unsafe extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        HELD.take();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of ours, in a library that stays loaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Makes an object that C may hold.
pub(crate) fn publish<T: CObject>(object: T) -> &'static T {
    watch_forks();
    let object: &'static T = Box::leak(Box::new(object));
    live().insert(object.c() as usize, Entry::of::<T>());
    object
}

/// The object that C means, if it is alive. EIO if it is one that a parent made before it forked.
pub(crate) fn find<T: CObject>(c: *const T::C) -> Result<&'static T, Errno> {
    let entry = live().get(&(c as usize)).copied();
    match entry {
        Some(entry) if !entry.is::<T>() => Err(stranger::<T>(c, Some(entry))),
        None => Err(stranger::<T>(c, None)),
        Some(entry) if !entry.is_own::<T>() => Err(Errno::INHERITED
            .because("it belongs to the process that this one was forked from: open the device anew")),
        // SAFETY: `publish` made it, and it was not taken back. That no other thread destroys it during the call is the
        // caller's duty, as with every verb.
        Some(_) => Ok(unsafe { trusted(c) }),
    }
}

/// The object that C means, if it is alive, be it this process's or a parent's: for what only looks at it.
pub(crate) fn find_any<T: CObject>(c: *const T::C) -> Result<&'static T, Errno> {
    let entry = live().get(&(c as usize)).copied();
    match entry {
        // SAFETY: as above.
        Some(entry) if entry.is::<T>() => Ok(unsafe { trusted(c) }),
        other => Err(stranger::<T>(c, other)),
    }
}

/// What was given is no such object.
#[cold]
fn stranger<T: CObject>(c: *const T::C, found: Option<Entry>) -> Errno {
    let wanted = name::<T>();
    match found {
        _ if c.is_null() => Errno::null(wanted),
        Some(Entry { name, .. }) => {
            Errno::INVALID.because(format_args!("{c:p} is of type {name}, {wanted} is wanted"))
        }
        None => Errno::INVALID
            .because(format_args!("{c:p} is no {wanted}: it was destroyed, or never came from this library")),
    }
}

/// The object that C means, without a look whether it is alive.
///
/// # Safety
/// `c` came from [`publish`] for this kind, and was not [taken back](take_back).
pub(crate) unsafe fn trusted<'o, T: CObject>(c: *const T::C) -> &'o T {
    // SAFETY: as above; the C structure is that far inside of it.
    unsafe { &*c.cast::<u8>().sub(T::OFFSET).cast::<T>() }
}

/// The first object of a kind that `fits`. The table is locked meanwhile, so that it cannot go.
pub(crate) fn search<T: CObject>(fits: impl Fn(&'static T) -> bool) -> Option<&'static T> {
    let live = live();
    live.iter().filter(|(_, entry)| entry.is::<T>() && entry.is_own::<T>()).find_map(|(c, _)| {
        // SAFETY: it is alive as long as the table is locked.
        let object: &'static T = unsafe { trusted(*c as *const T::C) };
        fits(object).then_some(object)
    })
}

/// Calls `call` with every object of a kind that is alive and this process's.
pub(crate) fn each<T: CObject>(mut call: impl FnMut(&'static T)) {
    let of_kind = |(c, entry): (&usize, &Entry)| (entry.is::<T>() && entry.is_own::<T>()).then_some(*c);
    let found: Vec<_> = live().iter().filter_map(of_kind).collect();
    for c in found {
        // SAFETY: it was alive a moment ago, and only the end of the process asks for all.
        call(unsafe { trusted(c as *const T::C) });
    }
}

/// The object is destroyed: C may not use it any more.
pub(crate) fn take_back<T: CObject>(c: *const T::C) -> Result<Box<T>, Errno> {
    let object = find::<T>(c)?;
    live().remove(&(c as usize)).ok_or(Errno::INVALID)?;
    let object: *const T = object;
    // SAFETY: it was leaked by `publish`, and whoever removes it from the table is the one who owns it.
    Ok(unsafe { Box::from_raw(object.cast_mut()) })
}

/// Takes back an object that nobody may be using. EBUSY if somebody does.
pub(crate) fn take_back_unused<T: CObject>(c: *const T::C, users: &Users) -> Result<Box<T>, Errno> {
    if users.any() {
        return Err(users.busy());
    }
    take_back(c)
}

/// How many other objects use one.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    /// It cannot go before they do.
    pub(crate) fn busy(&self) -> Errno {
        let count = self.0.load(Ordering::Acquire);
        Errno::BUSY.because(format_args!("{count} other objects still use it: destroy these first"))
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// One object's use of another, until this is dropped.
#[derive(Debug)]
pub(crate) struct Use(&'static Users);

impl Use {
    pub(crate) fn of(users: &'static Users) -> Self {
        users.0.fetch_add(1, Ordering::AcqRel);
        Self(users)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Writes a result where C wants it, unless it wants none.
///
/// # Safety
/// `to` is NULL or can be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's word.
        unsafe { to.write(value) };
    }
}
