//! Objects that C programs hold pointers to. Each begins with the C structure that the headers describe, so that a pointer to
//! the one is a pointer to the other, and has what is ours behind it.
//!
//! An object is counted ([`Arc`]): the table of live objects holds one count, and every call but those of the data path
//! takes another while it runs. NULL, what was destroyed, and what is of another kind are EINVAL, not a crash, and what one
//! thread destroys stays in memory until no other thread uses it. The data path trusts the pointer, as any provider does.
//!
//! The table also knows which objects depend on which ([`Uses`]), so that none goes before those that were made with it.
//!
//! A child that was forked off has all objects of its parent in its memory, but no threads that would drive them, and no
//! descriptors. It can make objects of its own; those it inherited answer EIO, as those of a device that was unplugged, and
//! are destroyed without being touched.
#![expect(unsafe_code, reason = "objects live behind raw pointers, because C holds them")]

use crate::errno::Errno;
use crate::sync::lock;
use ironwarp_engine::sys::fork;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

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

    /// Its key in the table.
    fn key(&self) -> Key {
        self.c() as Key
    }
}

/// The address of an object's C structure.
type Key = usize;

/// All objects that are alive.
static LIVE: LazyLock<Mutex<HashMap<Key, Entry>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    /// What the headers call it.
    name: &'static str,
    generation: u32,
    /// The number of objects that depend on it.
    users: usize,
    /// The objects that it depends on.
    uses: Box<[Key]>,
    /// A thread is destroying it: nothing may come to depend on it, and no other thread may destroy it.
    ending: bool,
}

impl Entry {
    /// Made by this process, or good in its children as well.
    fn is_own<T: CObject>(&self) -> bool {
        T::SURVIVES_FORK || self.generation == generation()
    }

    fn object<T: CObject>(&self) -> Option<Arc<T>> {
        if self.object.is::<T>() { Arc::clone(&self.object).downcast().ok() } else { None }
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

type Live = MutexGuard<'static, HashMap<Key, Entry>>;

fn live() -> Live {
    lock(&LIVE)
}

thread_local! {
    /// The table, held by a thread that forks.
    static HELD: RefCell<Option<Live>> = const { RefCell::new(None) };
}

/// Asks the C library to be told of forks, once: from then on what was made before one is not touched after it.
fn watch_forks() {
    extern "C" fn before() {
        let live = live();
        HELD.with_borrow_mut(|held| *held = Some(live));
    }
    extern "C" fn in_parent() {
        HELD.take();
    }
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        HELD.take();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::handle(Some(before), Some(in_parent), Some(in_child)));
}

/// Makes an object that C may hold, and that depends on others.
pub(crate) fn publish<T: CObject>(object: T, mut uses: Uses) -> Arc<T> {
    watch_forks();
    let object = Arc::new(object);
    let entry = Entry {
        object: Arc::clone(&object) as Arc<dyn Any + Send + Sync>,
        name: name::<T>(),
        generation: generation(),
        users: 0,
        uses: std::mem::take(&mut uses.0).into(),
        ending: false,
    };
    live().insert(object.key(), entry);
    object
}

/// The object that C means, if it is alive. EIO if it is one that a parent made before it forked.
pub(crate) fn find<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    find_in::<T>(&mut live(), c).map(|(object, _)| object)
}

/// The object that C means, if it is alive, be it this process's or a parent's: for what only looks at it.
pub(crate) fn find_any<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    match live().get(&(c as Key)) {
        Some(entry) => entry.object().ok_or_else(|| stranger::<T>(c, Some(entry.name))),
        None => Err(stranger::<T>(c, None)),
    }
}

fn find_in<T: CObject>(live: &mut Live, c: *const T::C) -> Result<(Arc<T>, &mut Entry), Errno> {
    let Some(entry) = live.get_mut(&(c as Key)) else { return Err(stranger::<T>(c, None)) };
    let object = entry.object().ok_or_else(|| stranger::<T>(c, Some(entry.name)))?;
    if !entry.is_own::<T>() {
        return Err(Errno::INHERITED
            .because("it belongs to the process that this one was forked from: open the device anew"));
    }
    Ok((object, entry))
}

/// What was given is no such object.
#[cold]
fn stranger<T: CObject>(c: *const T::C, found: Option<&'static str>) -> Errno {
    let wanted = name::<T>();
    match found {
        _ if c.is_null() => Errno::null(wanted),
        Some(name) => Errno::INVALID.because(format_args!("{c:p} is of type {name}, {wanted} is wanted")),
        None => Errno::INVALID
            .because(format_args!("{c:p} is no {wanted}: it was destroyed, or never came from this library")),
    }
}

/// The object that C means, without a look whether it is alive.
///
/// # Safety
/// `c` came from [`publish`] for this kind, and no thread destroys the object while the reference lives: on the data path
/// both are the caller's duty, as with any provider.
pub(crate) unsafe fn trusted<'o, T: CObject>(c: *const T::C) -> &'o T {
    // SAFETY: as above; the C structure is that far inside of it.
    unsafe { &*c.cast::<u8>().sub(T::OFFSET).cast::<T>() }
}

/// Every object of a kind that is alive and this process's.
pub(crate) fn all<T: CObject>() -> Vec<Arc<T>> {
    live().values().filter(|entry| entry.is_own::<T>()).filter_map(Entry::object).collect()
}

/// Begins to destroy an object. EBUSY if others depend on it, EINVAL if another thread does the same.
pub(crate) fn begin_destroy<T: CObject>(c: *const T::C) -> Result<Ending<T>, Errno> {
    let mut live = live();
    let (object, entry) = find_in::<T>(&mut live, c)?;
    match entry.users {
        _ if entry.ending => Err(being_destroyed::<T>(c)),
        0 => {
            entry.ending = true;
            Ok(Ending(object))
        }
        users => {
            Err(Errno::BUSY.because(format_args!("{users} other objects still use it: destroy these first")))
        }
    }
}

#[cold]
fn being_destroyed<T: CObject>(c: *const T::C) -> Errno {
    Errno::INVALID.because(format_args!("another thread is destroying the {} {c:p}", name::<T>()))
}

/// Destroys an object that needs no more than that. The same errors.
pub(crate) fn take_back<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    begin_destroy(c).map(Ending::finish)
}

/// Destroys an object for the program, whatever depends on it. It stays in memory for those that hold it.
pub(crate) fn withdraw<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    let mut live = live();
    let (object, entry) = find_in::<T>(&mut live, c)?;
    if entry.ending {
        return Err(being_destroyed::<T>(c));
    }
    let removed = remove(&mut live, object.key());
    drop(live); // first: what goes with the object may look into the table
    drop(removed);
    Ok(object)
}

/// An object that this thread destroys. Others still find it, because its events have to be acknowledged. Dropped, it stays
/// as it is.
#[derive(Debug)]
pub(crate) struct Ending<T: CObject>(Arc<T>);

impl<T: CObject> Ending<T> {
    /// C may not use it any more.
    pub(crate) fn finish(self) -> Arc<T> {
        let removed = remove(&mut live(), self.0.key());
        drop(removed);
        Arc::clone(&self.0)
    }
}

impl<T: CObject> Deref for Ending<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: CObject> Drop for Ending<T> {
    fn drop(&mut self) {
        // If it is finished, there is none: no other object can have got its address yet.
        if let Some(entry) = live().get_mut(&self.0.key()) {
            entry.ending = false;
        }
    }
}

/// Removes an object from the table. What is returned must be dropped when the table is not locked any more.
fn remove(live: &mut Live, key: Key) -> Option<Entry> {
    let entry = live.remove(&key)?;
    entry.uses.iter().for_each(|used| release(live, *used));
    Some(entry)
}

/// One object fewer depends on this one. There is no entry if it was withdrawn.
fn release(live: &mut Live, key: Key) {
    if let Some(entry) = live.get_mut(&key) {
        entry.users = entry.users.saturating_sub(1);
    }
}

/// What an object that is being made depends on. None of these can be destroyed before it.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<Key>);

impl Uses {
    pub(crate) fn of<T: CObject>(object: &T) -> Result<Self, Errno> {
        Self::default().and(object)
    }

    /// One more. EINVAL if a thread destroys it, or has done so.
    pub(crate) fn and<T: CObject>(mut self, object: &T) -> Result<Self, Errno> {
        let key = object.key();
        match live().get_mut(&key) {
            Some(entry) if !entry.ending => entry.users += 1,
            _ => return Err(being_destroyed::<T>(object.c())),
        }
        self.0.push(key);
        Ok(self)
    }

    /// Exchanges what is in here for `old`, which `user` depends on.
    pub(crate) fn exchange<T: CObject, U: CObject>(&mut self, user: &T, old: &U) {
        if let Some(entry) = live().get_mut(&user.key())
            && let Some(used) = entry.uses.iter_mut().find(|used| **used == old.key())
            && let Some(new) = self.0.first_mut()
        {
            std::mem::swap(used, new);
        }
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let mut live = live();
            self.0.iter().for_each(|used| release(&mut live, *used));
        }
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
