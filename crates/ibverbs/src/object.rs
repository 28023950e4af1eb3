//! Objects that C programs hold pointers to. Each begins with the C structure that the headers describe, so that a pointer to
//! the one is a pointer to the other, and has what is ours behind it.
//!
//! Every call but those of the data path looks up whether the pointer is one of ours, of this kind, and alive: NULL and what
//! was destroyed are EINVAL, not a crash. The data path trusts the pointer, as any provider does.
#![expect(unsafe_code, reason = "objects live behind raw pointers, because C holds them")]

use crate::errno::Errno;
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// An object with a C structure in it.
///
/// # Safety
/// At [`OFFSET`](Self::OFFSET) bytes from its start is an `UnsafeCell<Self::C>`.
pub(crate) unsafe trait CObject: Send + Sync + Sized + 'static {
    /// What the headers call it.
    type C;
    /// Where the C structure is.
    const OFFSET: usize = 0;

    /// The C structure of this object. C reads and writes it at any time, so there are no references to it.
    fn c(&self) -> *mut Self::C {
        let start = std::ptr::from_ref(self).cast::<u8>().cast_mut();
        // SAFETY: the trait says that it is there.
        unsafe { start.add(Self::OFFSET) }.cast()
    }
}

/// All objects that are alive: where their C structures are, and of which kind they are.
static LIVE: LazyLock<Mutex<HashMap<usize, TypeId>>> = LazyLock::new(Mutex::default);

fn live() -> MutexGuard<'static, HashMap<usize, TypeId>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an object that C may hold.
pub(crate) fn publish<T: CObject>(object: T) -> &'static T {
    let object: &'static T = Box::leak(Box::new(object));
    live().insert(object.c() as usize, TypeId::of::<T>());
    object
}

/// The object that C means, if it is alive.
pub(crate) fn find<T: CObject>(c: *const T::C) -> Result<&'static T, Errno> {
    if live().get(&(c as usize)) != Some(&TypeId::of::<T>()) {
        return Err(Errno::INVALID);
    }
    // SAFETY: `publish` made it, and it was not taken back. That no other thread destroys it during the call is the
    // caller's duty, as with every verb.
    Ok(unsafe { trusted(c) })
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
    live.iter().filter(|(_, kind)| **kind == TypeId::of::<T>()).find_map(|(c, _)| {
        // SAFETY: it is alive as long as the table is locked.
        let object: &'static T = unsafe { trusted(*c as *const T::C) };
        fits(object).then_some(object)
    })
}

/// Calls `call` with every object of a kind that is alive.
pub(crate) fn each<T: CObject>(mut call: impl FnMut(&'static T)) {
    let of_kind = |(c, kind): (&usize, &TypeId)| (*kind == TypeId::of::<T>()).then_some(*c);
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
        return Err(Errno::BUSY);
    }
    take_back(c)
}

/// How many other objects use one.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
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
