//! Objects that C programs hold pointers to, and the table in which calls look these pointers up. An object is
//! the C structure that the headers describe, followed by private fields, so a pointer to the structure is a
//! pointer to the object.
//!
//! Objects are reference-counted ([`Arc`]). The table of live objects holds one reference, and every call
//! except those of the data path holds another while it runs. NULL, a destroyed object and an object of
//! another type are therefore EINVAL and not a crash, and an object that one thread destroys stays in memory
//! until no other thread uses it. The data path trusts the pointer, as every provider does: it calls
//! [`find_unchecked`], which is unsafe and the only function that returns an object without holding a reference.
//!
//! The table also records which objects depend on which ([`Uses`]). An object that others depend on cannot be
//! destroyed.
//!
//! A forked child has all objects of its parent in memory, but not the threads that drive them. The child can
//! create objects of its own. Calls on inherited objects fail with EIO, as with a device that was unplugged,
//! and destroying an inherited object does nothing.
#![expect(unsafe_code, reason = "objects live behind raw pointers, because C holds them")]

use crate::check;
use crate::support::errno::Errno;
use ironwarp_engine::sys::fork::{self, WhileForking};
use ironwarp_rnic::sync::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, Weak};

/// An object that contains a C structure.
///
/// # Safety
/// An implementor contains a `CCell<Self::C>` at [`OFFSET`](Self::OFFSET) bytes from its start.
pub(crate) unsafe trait CObject: Send + Sync + Sized + 'static {
    /// The C structure.
    type C;
    /// Offset of the C structure in the object, in bytes.
    const OFFSET: usize = 0;
    /// Whether a forked child may use an object that its parent created.
    const SURVIVES_FORK: bool = false;

    /// Returns a pointer to the C structure of this object. Do not turn the pointer into a reference: C reads and
    /// writes the structure at any time.
    fn c(&self) -> *mut Self::C {
        let start = std::ptr::from_ref(self).cast::<u8>().cast_mut();
        // SAFETY: `OFFSET` is within the object, by the contract of the trait.
        unsafe { start.add(Self::OFFSET) }.cast()
    }

    /// Returns the key of this object in the table of live objects.
    fn key(&self) -> Key {
        self.c() as Key
    }
}

/// Memory that is written while other threads hold a shared reference to the object around it: by C, or by calls
/// that take turns ([`Turn`](crate::support::turn::Turn)). Access goes through the pointer from [`get`](Self::get).
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct CCell<T>(UnsafeCell<T>);

// SAFETY: shared access is only possible through the pointer from `get`, in unsafe code that rules out data races.
unsafe impl<T> Sync for CCell<T> {}
// SAFETY: the content has no thread affinity: it is plain data, and pointers that C may use from any thread.
unsafe impl<T> Send for CCell<T> {}

impl<T> CCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns a pointer to the content.
    pub(crate) fn get(&self) -> *mut T {
        self.0.get()
    }

    /// Returns a reference to the content, before other threads can reach it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// The address of an object's C structure.
type Key = usize;

/// The table of live objects.
static LIVE: LazyLock<Mutex<HashMap<Key, Entry>>> = LazyLock::new(Mutex::default);

/// A live object, as the table has it.
#[derive(Debug)]
struct Entry {
    /// The reference that keeps the object alive until it is destroyed.
    object: Arc<dyn Any + Send + Sync>,
    /// Name of the C structure, for messages.
    name: &'static str,
    /// The [`GENERATION`] of the process that created the object.
    generation: u32,
    /// Number of objects that depend on this one.
    users: usize,
    /// Objects that this one depends on.
    uses: Box<[Key]>,
    /// Whether a thread is destroying this object. Then no object may start to depend on it, and no other thread
    /// may destroy it.
    destroying: bool,
}

impl Entry {
    /// Returns whether this process may use the object: because it created the object, or because objects of this
    /// type survive a fork.
    fn is_usable<T: CObject>(&self) -> bool {
        T::SURVIVES_FORK || self.generation == generation()
    }

    /// Returns the object, or `None` if it has another type.
    fn object<T: CObject>(&self) -> Option<Arc<T>> {
        if self.object.is::<T>() { Arc::clone(&self.object).downcast().ok() } else { None }
    }
}

/// Returns the name of the C structure, for messages. Programs know extended structures by their plain name.
fn c_name<T: CObject>() -> &'static str {
    let name = std::any::type_name::<T::C>();
    let name = name.rsplit("::").next().unwrap_or(name);
    name.strip_suffix("_ex").unwrap_or(name)
}

/// Number of forks between the first process and this one. An object with another generation was created by an
/// ancestor of this process. Relaxed ordering is enough: only a new child writes it, before it has other threads.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the generation of this process. Two processes that share objects by fork have different ones.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

type Live = MutexGuard<'static, HashMap<Key, Entry>>;

/// Locks the table of live objects.
fn live() -> Live {
    lock(&LIVE)
}

thread_local! {
    /// The locked table, while this thread forks.
    static HELD: WhileForking<Live> = const { WhileForking::new() };
}

/// Registers fork handlers, once. They increment the generation in the child, and hold the table locked during a
/// fork, so that the child inherits neither a half-written table nor a lock that no thread of it holds.
fn watch_forks() {
    extern "C" fn before() {
        let live = live();
        HELD.with(|held| held.set(live));
    }
    extern "C" fn in_parent() {
        drop(HELD.with(WhileForking::take));
    }
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        in_parent();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::register_handlers(Some(before), Some(in_parent), Some(in_child)));
}

/// Adds an object to the table, after which C may hold pointers to it. `uses` names the objects that the new one
/// depends on.
pub(crate) fn publish<T: CObject>(object: T, mut uses: Uses) -> Arc<T> {
    watch_forks();
    let object = Arc::new(object);
    let entry = Entry {
        object: Arc::clone(&object) as Arc<dyn Any + Send + Sync>,
        name: c_name::<T>(),
        generation: generation(),
        users: 0,
        uses: std::mem::take(&mut uses.0).into(),
        destroying: false,
    };
    live().insert(object.key(), entry);
    if let Some(checker) = check::active() {
        checker.created(c_name::<T>(), object.key());
    }
    object
}

/// Finds the object that a C pointer refers to. Fails with EINVAL if there is no such object, and with EIO if the
/// parent process created it.
pub(crate) fn find<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    find_in::<T>(&mut live(), c).map(|(object, _)| object)
}

/// Finds the object that a C pointer refers to, even if the parent process created it: for calls that only read
/// the object.
pub(crate) fn find_any<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    match live().get(&(c as Key)) {
        Some(entry) => entry.object().ok_or_else(|| not_found::<T>(c, Some(entry.name))),
        None => Err(not_found::<T>(c, None)),
    }
}

/// Finds an object and its entry, in a table that the caller has locked. Fails like [`find`].
fn find_in<T: CObject>(live: &mut Live, c: *const T::C) -> Result<(Arc<T>, &mut Entry), Errno> {
    let Some(entry) = live.get_mut(&(c as Key)) else { return Err(not_found::<T>(c, None)) };
    let object = entry.object().ok_or_else(|| not_found::<T>(c, Some(entry.name)))?;
    if !entry.is_usable::<T>() {
        if let Some(checker) = check::active() {
            checker.inherited(c_name::<T>(), c as Key);
        }
        return Err(
            Errno::INHERITED.because("it belongs to the parent process: open the device again after fork")
        );
    }
    Ok((object, entry))
}

/// Returns the error for a C pointer that does not refer to an object of type `T`. `found` is the name of the type
/// that the object has, or `None` if there is no object.
#[cold]
fn not_found<T: CObject>(c: *const T::C, found: Option<&'static str>) -> Errno {
    let expected = c_name::<T>();
    if let Some(checker) = check::active() {
        checker.not_found(c as Key);
    }
    match found {
        _ if c.is_null() => Errno::null(expected),
        Some(name) => Errno::INVALID.because(format_args!("{c:p} is of type {name}, expected {expected}")),
        None => Errno::INVALID.because(format_args!(
            "{c:p} is not a live {expected}: it was destroyed, or did not come from this library"
        )),
    }
}

/// Returns the object that a C pointer refers to, without looking it up in the table.
///
/// # Safety
/// `c` came from [`publish`] for this type, and no thread destroys the object while the reference is in use.
/// On the data path both are the duty of the C caller, as with any provider.
pub(crate) unsafe fn find_unchecked<'o, T: CObject>(c: *const T::C) -> &'o T {
    // SAFETY: the caller guarantees that `c` is the C structure of a live object, which begins `OFFSET` bytes before.
    unsafe { &*c.cast::<u8>().sub(T::OFFSET).cast::<T>() }
}

/// Returns all live objects of a type that this process may use.
pub(crate) fn all<T: CObject>() -> Vec<Arc<T>> {
    live().values().filter(|entry| entry.is_usable::<T>()).filter_map(Entry::object).collect()
}

/// Starts to destroy an object, which [`Destroying::finish`] completes. Fails with EBUSY if other objects depend on
/// this one, and with EINVAL if there is no such object or another thread is destroying it.
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
            report_users::<T>(&live, c as Key);
            Err(Errno::BUSY.because(format_args!("{users} other objects still use it: destroy them first")))
        }
    }
}

/// Returns the error for an object that another thread is destroying.
#[cold]
fn being_destroyed<T: CObject>(c: *const T::C) -> Errno {
    Errno::INVALID.because(format_args!("another thread is destroying the {} {c:p}", c_name::<T>()))
}

/// Removes an object that needs no cleanup from the table. Fails like [`begin_destroy`].
pub(crate) fn destroy_object<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    begin_destroy(c).map(Destroying::finish)
}

/// Removes an object from the table even if other objects depend on it. The object stays in memory as long as
/// they hold references to it.
pub(crate) fn remove_object<T: CObject>(c: *const T::C) -> Result<Arc<T>, Errno> {
    let mut live = live();
    let (object, entry) = find_in::<T>(&mut live, c)?;
    if entry.destroying {
        return Err(being_destroyed::<T>(c));
    }
    let removed = remove(&mut live, object.key());
    report_destroyed::<T>(&object);
    // In this order: dropping the object may drop others, which lock the table.
    drop(live);
    drop(removed);
    Ok(object)
}

/// Tells the checker that an object was removed from the table.
fn report_destroyed<T: CObject>(object: &Arc<T>) {
    if let Some(checker) = check::active() {
        let memory = Arc::downgrade(object) as Weak<dyn Any + Send + Sync>;
        checker.destroyed(c_name::<T>(), object.key(), memory);
    }
}

/// Tells the checker that an object cannot be destroyed, because others depend on it.
#[cold]
fn report_users<T: CObject>(live: &Live, key: Key) {
    if let Some(checker) = check::active() {
        let users = live.iter().filter(|(_, entry)| entry.uses.contains(&key));
        let users: Vec<(&'static str, usize)> = users.map(|(key, entry)| (entry.name, *key)).collect();
        checker.destroyed_busy(c_name::<T>(), key, &users);
    }
}

/// An object that this thread is destroying. Other threads still find the object in the table, because the program
/// has to acknowledge its events. Dropping a `Destroying` without [`finish`](Self::finish) leaves the object alive.
#[derive(Debug)]
pub(crate) struct Destroying<T: CObject>(Arc<T>);

impl<T: CObject> Destroying<T> {
    /// Completes the destruction: removes the object from the table, and returns it.
    pub(crate) fn finish(self) -> Arc<T> {
        let removed = remove(&mut live(), self.0.key());
        report_destroyed::<T>(&self.0);
        drop(removed); // after the table was unlocked: see `remove`
        Arc::clone(&self.0) // not moved out, because `drop` below uses it
    }
}

impl<T: CObject> Deref for Destroying<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: CObject> Drop for Destroying<T> {
    /// Abandons the destruction, unless [`finish`](Destroying::finish) completed it: other threads may destroy the
    /// object, or create objects that depend on it, again.
    fn drop(&mut self) {
        // After `finish` there is no entry, nor can a new object have this address: `self.0` still occupies it.
        if let Some(entry) = live().get_mut(&self.0.key()) {
            entry.destroying = false;
        }
    }
}

/// Removes an object from the table, and its dependencies on others. The caller must drop the returned entry after
/// it unlocked the table, because dropping an object may lock the table.
fn remove(live: &mut Live, key: Key) -> Option<Entry> {
    let entry = live.remove(&key)?;
    entry.uses.iter().for_each(|used| release(live, *used));
    Some(entry)
}

/// Removes one dependency on the object `key`. Does nothing if [`remove_object`] removed the object before.
fn release(live: &mut Live, key: Key) {
    if let Some(entry) = live.get_mut(&key) {
        entry.users = entry.users.saturating_sub(1);
    }
}

/// The objects that a new object depends on. They cannot be destroyed as long as the new object is alive, or this
/// value, if the new object was never published.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<Key>);

impl Uses {
    /// Adds `object` to an empty set. Fails like [`and`](Self::and).
    pub(crate) fn of<T: CObject>(object: &T) -> Result<Self, Errno> {
        Self::default().and(object)
    }

    /// Adds an object. Fails with EINVAL if the object was destroyed, or another thread is destroying it.
    pub(crate) fn and<T: CObject>(mut self, object: &T) -> Result<Self, Errno> {
        let key = object.key();
        match live().get_mut(&key) {
            Some(entry) if !entry.destroying => entry.users += 1,
            _ => return Err(being_destroyed::<T>(object.c())),
        }
        self.0.push(key);
        Ok(self)
    }

    /// Makes `user` depend on the object in `self` instead of `old`. Then `self` holds the dependency on `old`,
    /// and releases it when dropped.
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

/// Writes a result through an out pointer, unless the pointer is NULL.
///
/// # Safety
/// `to` is NULL or valid for writes.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not NULL, so valid for writes by the caller's contract.
        unsafe { to.write(value) };
    }
}
