//! Objects that C programs hold pointers to. Each begins with the C structure that the headers describe, so
//! that a pointer to one is a pointer to the other, followed by private fields.
//!
//! Objects are reference-counted ([`Arc`]). The table of live objects holds one reference, and every call
//! except those of the data path holds another while it runs. NULL, a destroyed object and an object of
//! another type are therefore EINVAL and not a crash, and an object that one thread destroys stays in memory
//! until no other thread uses it. The data path trusts the pointer, as every provider does: only
//! [`find_unchecked`], which is unsafe, returns a reference that the table does not keep alive.
//!
//! The table also records which objects depend on which ([`Uses`]), so that none is destroyed before those
//! that use it.
//!
//! A forked child has all objects of its parent in memory, but neither the threads that drive them nor the
//! descriptors. It can create objects of its own. Those it inherited answer EIO, as those of an unplugged
//! device do, and are destroyed without being touched.
#![expect(unsafe_code, reason = "objects live behind raw pointers, because C holds them")]

use crate::support::errno::Errno;
use ironwarp_engine::sys::fork;
use ironwarp_rnic::sync::lock;
use std::any::Any;
use std::cell::{RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

/// An object that contains a C structure.
///
/// # Safety
/// A `CCell<Self::C>` is located [`OFFSET`](Self::OFFSET) bytes from its start.
pub(crate) unsafe trait CObject: Send + Sync + Sized + 'static {
    /// The C structure.
    type C;
    /// Offset of the C structure.
    const OFFSET: usize = 0;
    /// Whether a forked child may use what its parent created.
    const SURVIVES_FORK: bool = false;

    /// The C structure of this object. C reads and writes it at any time, so no reference to it may exist.
    fn c(&self) -> *mut Self::C {
        let start = std::ptr::from_ref(self).cast::<u8>().cast_mut();
        // SAFETY: within the object, by the contract of the trait.
        unsafe { start.add(Self::OFFSET) }.cast()
    }

    /// Its key in the table.
    fn key(&self) -> Key {
        self.c() as Key
    }
}

/// A structure that C, or calls that take turns, may write to at any time. No reference to it may exist meanwhile.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct CCell<T>(UnsafeCell<T>);

// SAFETY: the content is only accessed through a pointer, in unsafe code that rules out data races.
unsafe impl<T> Sync for CCell<T> {}
// SAFETY: as above.
unsafe impl<T> Send for CCell<T> {}

impl<T> CCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> *mut T {
        self.0.get()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// The address of an object's C structure.
type Key = usize;

/// All live objects.
static LIVE: LazyLock<Mutex<HashMap<Key, Entry>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    /// Name of the C structure.
    name: &'static str,
    generation: u32,
    /// Number of objects that depend on this one.
    users: usize,
    /// Objects that this one depends on.
    uses: Box<[Key]>,
    /// A thread is destroying it: no object may start to depend on it, and no other thread may destroy it.
    destroying: bool,
}

impl Entry {
    /// Whether this process created it, or may use it all the same.
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

/// Number of forks between the first process and this one. Objects of another generation belong to an
/// ancestor.
static GENERATION: AtomicU32 = AtomicU32::new(0);

pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

type Live = MutexGuard<'static, HashMap<Key, Entry>>;

fn live() -> Live {
    lock(&LIVE)
}

thread_local! {
    /// The lock of the table, held by a thread while it forks.
    static HELD: RefCell<Option<Live>> = const { RefCell::new(None) };
}

/// Registers fork handlers, once. After a fork the child does not touch objects that the parent created.
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
    ONCE.call_once(|| fork::register_handlers(Some(before), Some(in_parent), Some(in_child)));
}

/// Adds an object to the table, so that C may hold it.
pub(crate) fn publish<T: CObject>(object: T, mut uses: Uses) -> Arc<T> {
    watch_forks();
    let object = Arc::new(object);
    let entry = Entry {
        object: Arc::clone(&object) as Arc<dyn Any + Send + Sync>,
        name: name::<T>(),
        generation: generation(),
        users: 0,
        uses: std::mem::take(&mut uses.0).into(),
        destroying: false,
    };
    live().insert(object.key(), entry);
    object
}

/// Finds the object that a C pointer refers to. EINVAL if there is none, EIO if the parent process created
/// it.
pub(crate) fn find<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    find_in::<T>(&mut live(), c).map(|(object, _)| object)
}

/// Finds the object that a C pointer refers to, even if the parent process created it: for calls that only
/// read it.
pub(crate) fn find_any<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    match live().get(&(c as Key)) {
        Some(entry) => entry.object().ok_or_else(|| unknown::<T>(c, Some(entry.name))),
        None => Err(unknown::<T>(c, None)),
    }
}

fn find_in<T: CObject>(live: &mut Live, c: *const T::C) -> Result<(Arc<T>, &mut Entry), Errno> {
    let Some(entry) = live.get_mut(&(c as Key)) else { return Err(unknown::<T>(c, None)) };
    let object = entry.object().ok_or_else(|| unknown::<T>(c, Some(entry.name)))?;
    if !entry.is_own::<T>() {
        return Err(
            Errno::INHERITED.because("it belongs to the parent process: open the device again after fork")
        );
    }
    Ok((object, entry))
}

/// A C pointer does not refer to an object of the expected type.
#[cold]
fn unknown<T: CObject>(c: *const T::C, found: Option<&'static str>) -> Errno {
    let wanted = name::<T>();
    match found {
        _ if c.is_null() => Errno::null(wanted),
        Some(name) => Errno::INVALID.because(format_args!("{c:p} is of type {name}, expected {wanted}")),
        None => Errno::INVALID.because(format_args!(
            "{c:p} is not a live {wanted}: it was destroyed, or did not come from this library"
        )),
    }
}

/// The object that a C pointer refers to, without looking it up in the table.
///
/// # Safety
/// `c` came from [`publish`] for this type, and no thread destroys the object while the reference is in use.
/// On the data path both are the duty of the C caller, as with any provider.
pub(crate) unsafe fn find_unchecked<'o, T: CObject>(c: *const T::C) -> &'o T {
    // SAFETY: guaranteed by the caller. The C structure is `OFFSET` bytes into the object.
    unsafe { &*c.cast::<u8>().sub(T::OFFSET).cast::<T>() }
}

/// All live objects of a type that belong to this process.
pub(crate) fn all<T: CObject>() -> Vec<Arc<T>> {
    live().values().filter(|entry| entry.is_own::<T>()).filter_map(Entry::object).collect()
}

/// Starts to destroy an object. EBUSY if other objects depend on it, EINVAL if another thread is destroying
/// it.
pub(crate) fn begin_destroy<T: CObject>(c: *const T::C) -> Result<Destroying<T>, Errno> {
    let mut live = live();
    let (object, entry) = find_in::<T>(&mut live, c)?;
    match entry.users {
        _ if entry.destroying => Err(being_destroyed::<T>(c)),
        0 => {
            entry.destroying = true;
            Ok(Destroying(object))
        }
        users => {
            Err(Errno::BUSY.because(format_args!("{users} other objects still use it: destroy them first")))
        }
    }
}

#[cold]
fn being_destroyed<T: CObject>(c: *const T::C) -> Errno {
    Errno::INVALID.because(format_args!("another thread is destroying the {} {c:p}", name::<T>()))
}

/// Destroys an object that needs no other cleanup. Fails like [`begin_destroy`].
pub(crate) fn destroy_object<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    begin_destroy(c).map(Destroying::finish)
}

/// Removes an object even if others depend on it. It stays in memory while they hold it.
pub(crate) fn remove_object<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    let mut live = live();
    let (object, entry) = find_in::<T>(&mut live, c)?;
    if entry.destroying {
        return Err(being_destroyed::<T>(c));
    }
    let removed = remove(&mut live, object.key());
    drop(live); // before `removed`, whose drop may lock the table
    drop(removed);
    Ok(object)
}

/// An object that this thread is destroying. Other threads still find it, because its events have to be
/// acknowledged. Dropping this without [`finish`](Self::finish) leaves the object alive.
#[derive(Debug)]
pub(crate) struct Destroying<T: CObject>(Arc<T>);

impl<T: CObject> Destroying<T> {
    /// Removes the object from the table.
    pub(crate) fn finish(self) -> Arc<T> {
        let removed = remove(&mut live(), self.0.key());
        drop(removed);
        Arc::clone(&self.0)
    }
}

impl<T: CObject> Deref for Destroying<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: CObject> Drop for Destroying<T> {
    fn drop(&mut self) {
        // After `finish` there is no entry: no other object can have the same address yet.
        if let Some(entry) = live().get_mut(&self.0.key()) {
            entry.destroying = false;
        }
    }
}

/// Removes an object from the table. The result must be dropped after the table is unlocked.
fn remove(live: &mut Live, key: Key) -> Option<Entry> {
    let entry = live.remove(&key)?;
    entry.uses.iter().for_each(|used| release(live, *used));
    Some(entry)
}

/// Removes one dependency on an object, which may be gone already.
fn release(live: &mut Live, key: Key) {
    if let Some(entry) = live.get_mut(&key) {
        entry.users = entry.users.saturating_sub(1);
    }
}

/// The objects that a new object depends on. None of them can be destroyed before it.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<Key>);

impl Uses {
    pub(crate) fn of<T: CObject>(object: &T) -> Result<Self, Errno> {
        Self::default().and(object)
    }

    /// Adds an object. EINVAL if it was destroyed, or is being destroyed.
    pub(crate) fn and<T: CObject>(mut self, object: &T) -> Result<Self, Errno> {
        let key = object.key();
        match live().get_mut(&key) {
            Some(entry) if !entry.destroying => entry.users += 1,
            _ => return Err(being_destroyed::<T>(object.c())),
        }
        self.0.push(key);
        Ok(self)
    }

    /// Has `user` depend on this instead of `old`. Dropping this then releases `old`.
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

/// Writes a result through an out pointer, unless it is NULL.
///
/// # Safety
/// `to` is NULL or valid for writes.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write(value) };
    }
}
