//! Where the program made a call: the return addresses on its stack, and their names.
//!
//! Names are looked up only for a report. Each post would otherwise need a walk of the stack, which takes longer than
//! the post: so a walk is made once for each call site. A return address and a stack pointer identify it, and the return
//! addresses further up the stack, which are compared with those of the walk.
#![expect(
    unsafe_code,
    reason = "asks the loader for the addresses of this library, and reads the program's stack"
)]

use ironwarp_rnic::sync::lock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Maximum number of return addresses of a stack.
const MAX_FRAMES: usize = 24;

/// Maximum number of call sites that a thread remembers.
const MAX_SITES: usize = 1024;

/// Maximum number of stacks of one call site that a thread remembers.
const MAX_WALKS: usize = 16;

/// Number of words of a function's stack that are searched for its return address.
const MAX_WORDS: usize = 512;

/// The return addresses of the program at a call, innermost first. Those of this library are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stack(Arc<[usize]>);

/// The return address of a call of this library, and the stack pointer at its entry.
pub(crate) type Site = (usize, usize);

thread_local! {
    /// The stacks of call sites of this thread.
    static SITES: RefCell<HashMap<Site, Vec<Walk>>> = RefCell::default();
}

/// A stack, and where it is in the memory of its thread.
#[derive(Debug)]
struct Walk {
    stack: Stack,
    /// The addresses of the return addresses on the stack, innermost first, without that of the call.
    slots: Vec<usize>,
}

impl Walk {
    /// Returns whether a call by the same call site has this stack.
    fn is_current(&self) -> bool {
        self.slots.iter().zip(&self.stack.0[1..]).all(|(slot, expected)| {
            // SAFETY: aligned. The call has the stack pointer of the walk, and up to here the same callers, so this word is
            // in the stack of the thread.
            unsafe { (*slot as *const usize).read_volatile() == *expected }
        })
    }
}

/// Walks the stack of the calling thread. Returns the return address and the stack pointer of each function of the program,
/// innermost first.
fn walk() -> Vec<(usize, usize)> {
    let ours = library();
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    let visit = |frame: &backtrace::Frame| {
        let address = frame.ip() as usize;
        if address != 0 && (!frames.is_empty() || !ours.contains(&address)) {
            frames.push((address, frame.sp() as usize));
        }
        frames.len() < MAX_FRAMES
    };
    // SAFETY: on Linux, walks of several threads share nothing. `trace` has a lock, which a forked child may inherit locked.
    unsafe { backtrace::trace_unsynchronized(visit) };
    frames
}

/// Finds where the return address of a function is, between its stack pointer and that of its caller.
fn find_slot(stack_pointer: usize, (address, end): (usize, usize)) -> Option<usize> {
    const WORD: usize = size_of::<usize>();
    if !stack_pointer.is_multiple_of(WORD) {
        return None;
    }
    let last = end.checked_sub(WORD)?; // x86-64
    let first = (stack_pointer..end).step_by(WORD).take(MAX_WORDS);
    std::iter::once(last)
        .chain(first)
        .filter(|slot| slot.is_multiple_of(WORD) && *slot >= stack_pointer)
        .find(|slot| {
            // SAFETY: aligned, and a part of the stack of the calling thread.
            unsafe { (*slot as *const usize).read_volatile() == address }
        })
}

/// Locks the names of functions. A thread that forks has the lock during the fork, so that the child can look up names.
pub(super) fn lock_names() -> MutexGuard<'static, ()> {
    static NAMES: Mutex<()> = Mutex::new(());
    lock(&NAMES)
}

impl Stack {
    /// Walks the stack of the calling thread.
    pub(crate) fn capture() -> Self {
        Self(walk().into_iter().map(|(address, _)| address).collect())
    }

    /// Returns the stack at a call site, and walks it only the first time. A stack whose return addresses are not found is
    /// walked each time.
    pub(crate) fn at(site: Site) -> Self {
        let look_up = |sites: &RefCell<HashMap<Site, Vec<Walk>>>| {
            let sites = &mut *sites.borrow_mut();
            if let Some(known) = sites.get(&site).and_then(|walks| walks.iter().find(|it| it.is_current())) {
                return known.stack.clone();
            }
            if sites.len() == MAX_SITES {
                sites.clear();
            }
            let frames = walk();
            let stack = Self(frames.iter().map(|(address, _)| *address).collect());
            let slots = frames.windows(2).map(|pair| find_slot(pair[0].1, pair[1]));
            if let Some(slots) = slots.collect::<Option<Vec<_>>>()
                && !frames.is_empty()
            {
                let walks = sites.entry(site).or_default();
                if walks.len() == MAX_WALKS {
                    walks.clear();
                }
                walks.push(Walk { stack: stack.clone(), slots });
            }
            stack
        };
        // Fails in exit handlers: the storage of the thread has been destroyed.
        SITES.try_with(look_up).unwrap_or_else(|_| Self::capture())
    }

    /// Looks up the names of the frames.
    pub(crate) fn resolve(&self) -> Vec<Frame> {
        self.0.iter().flat_map(|address| Frame::look_up(*address)).collect()
    }
}

/// A function on the stack, as far as its name is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) address: usize,
    pub(crate) function: Option<String>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) line: Option<u32>,
    /// The executable or library.
    pub(crate) object: Option<PathBuf>,
}

impl Frame {
    /// Returns the function at a return address, and those that were inlined into it, innermost first.
    fn look_up(address: usize) -> Vec<Self> {
        let object = object_of(address);
        let mut frames = Vec::new();
        let visit = |symbol: &backtrace::Symbol| {
            frames.push(Self {
                address,
                function: symbol.name().map(|name| name.to_string()),
                file: symbol.filename().map(PathBuf::from),
                line: symbol.lineno(),
                object: object.clone(),
            });
        };
        // The return address is behind the call, possibly in another line or function.
        let call = address.saturating_sub(1) as *mut c_void;
        let _names = lock_names();
        // SAFETY: no other thread resolves, because all of this library do so here, with the lock.
        unsafe { backtrace::resolve_unsynchronized(call, visit) };
        if frames.is_empty() {
            frames.push(Self { address, object, ..Self::default() });
        }
        frames
    }
}

/// Displays a frame as valgrind does: `main (main.c:7)`, or `0x4011d6 (in /bin/program)` without a name.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function}")?,
            None => write!(f, "{:#x}", self.address)?,
        }
        match (&self.file, self.line, &self.object) {
            (Some(file), Some(line), _) => {
                let name = file.file_name().unwrap_or(file.as_os_str());
                write!(f, " ({}:{line})", name.to_string_lossy())
            }
            (_, _, Some(object)) => write!(f, " (in {})", object.display()),
            _ => Ok(()),
        }
    }
}

/// Returns the addresses of the object that contains this function: this library.
fn library() -> Range<usize> {
    static LIBRARY: OnceLock<Range<usize>> = OnceLock::new();
    LIBRARY.get_or_init(|| find_object(library as fn() -> Range<usize> as usize).0).clone()
}

/// Returns the file of the object that contains an address.
fn object_of(address: usize) -> Option<PathBuf> {
    let name = find_object(address).1?;
    // The loader has no name for the executable.
    if name.as_os_str().is_empty() { std::env::current_exe().ok() } else { Some(name) }
}

/// Finds the addresses and the name of the object that contains an address.
fn find_object(address: usize) -> (Range<usize>, Option<PathBuf>) {
    struct Search {
        address: usize,
        found: Range<usize>,
        name: Option<PathBuf>,
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the `Search` below, which nothing else refers to during the iteration.
        let search = unsafe { &mut *data.cast::<Search>() };
        // SAFETY: the loader passes a valid structure, whose headers stay valid during the call.
        let (info, headers) = unsafe {
            (&*info, std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum)))
        };
        #[expect(clippy::cast_possible_truncation, reason = "addresses of this process")]
        let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        });
        let all = segments.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
        let Some(all) = all.filter(|all| all.contains(&search.address)) else { return 0 };
        search.found = all;
        if !info.dlpi_name.is_null() {
            // SAFETY: not NULL, so a string that the loader keeps.
            let name = unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) };
            search.name = Some(PathBuf::from(name.to_string_lossy().into_owned()));
        }
        1
    }

    let mut search = Search { address, found: 0..0, name: None };
    // SAFETY: `visit` has the required signature, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    (search.found, search.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_displays_what_is_known() {
        let mut frame = Frame { address: 0x10, ..Frame::default() };
        assert_eq!(frame.to_string(), "0x10");
        frame.object = Some("/bin/program".into());
        assert_eq!(frame.to_string(), "0x10 (in /bin/program)");
        frame.function = Some("main".to_owned());
        assert_eq!(frame.to_string(), "main (in /bin/program)");
        (frame.file, frame.line) = (Some("/src/main.c".into()), Some(7));
        assert_eq!(frame.to_string(), "main (main.c:7)");
    }

    #[test]
    fn the_object_of_a_function_is_found() {
        let (addresses, _) = find_object(find_object as *const () as usize);
        assert!(addresses.contains(&(find_object as *const () as usize)));
        assert!(find_object(1).0.is_empty());
        assert_eq!(object_of(library as *const () as usize), std::env::current_exe().ok());
    }
}
