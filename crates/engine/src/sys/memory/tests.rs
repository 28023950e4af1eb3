//! Copies through files, pipes and staging buffers, for valid and invalid addresses.

use super::super::testing::{KERNEL, PAGE, Pages, Random, deny};
use super::*;
use ironwarp_testkit::child::in_child;
use rustix::process::Rlimit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Returns a `ProgramMemory` for each kind of window: files and pipes.
fn both() -> [ProgramMemory; 2] {
    [Window::file, Window::pipe].map(|make| ProgramMemory::with_windows(make).unwrap())
}

fn uses_pipes(memory: &ProgramMemory) -> bool {
    memory.pool.with(|window| matches!(window, Window::Pipe { .. }))
}

/// Returns disjoint spans in random order: few long ones, or many short ones.
fn spans(random: &mut Random, pages: &Pages, total: usize) -> Vec<Span> {
    let max_len = [3, 40, 5000, 60_000][random.below(4)];
    let (mut spans, mut at) = (Vec::new(), 0);
    loop {
        let len = random.below(max_len);
        if at + len > total {
            break;
        }
        spans.push(pages.span(at, len));
        at += len + random.below(3);
    }
    for i in (1..spans.len()).rev() {
        spans.swap(i, random.below(i + 1));
    }
    spans
}

/// Returns the bytes of the spans, from `all`, a copy of the pages.
fn expected(pages: &Pages, all: &[u8], spans: &[Span]) -> Vec<u8> {
    let start = pages.span(0, 0).addr;
    let at = |span: &Span| usize::try_from(span.addr - start).unwrap();
    spans.iter().flat_map(|span| &all[at(span)..at(span) + span.len]).copied().collect()
}

#[test]
fn copies_are_right_byte_by_byte() {
    for memory in both() {
        let mut random = Random(0x1234_5678_9abc_def1);
        for _ in 0..30 {
            let pages = Pages::new(32);
            let all = random.bytes(32 * PAGE);
            pages.write(&all);
            let spans = spans(&mut random, &pages, 32 * PAGE);
            let mut gathered = vec![0; spans.iter().map(|span| span.len).sum()];
            memory.gather(&spans, &mut gathered).unwrap();
            assert_eq!(gathered, expected(&pages, &all, &spans));

            let news = random.bytes(gathered.len());
            memory.scatter(&news, &spans).unwrap();
            let after = pages.read();
            assert_eq!(expected(&pages, &after, &spans), news);
            // Bytes outside of the spans have not changed: with the old bytes in the spans, all is as before.
            memory.scatter(&gathered, &spans).unwrap();
            assert_eq!(pages.read(), all);

            // The same from any offset of a staging buffer.
            let at = random.below(5000);
            let mut staging = memory.buffer(at + news.len());
            staging[at..].copy_from_slice(&news);
            memory.scatter(&staging[at..], &spans).unwrap();
            assert_eq!(expected(&pages, &pages.read(), &spans), news);
        }
    }
}

/// The entry of a staging buffer goes away with the buffer: other memory may be mapped at the same address later.
#[test]
fn a_staging_buffer_is_found_again_and_forgotten() {
    let memory = ProgramMemory::new().unwrap();
    let (one, other) = (memory.buffer(3 * PAGE), memory.buffer(PAGE));
    assert_eq!(memory.staging.find(&one[5..]).map(|position| position.offset), Some(5));
    assert_eq!(memory.staging.find(&other).map(|position| position.offset), Some(0));
    assert!(memory.staging.find(&[1, 2, 3]).is_none());
    assert_eq!(memory.staging.count(), 2);
    drop(one);
    assert_eq!(memory.staging.count(), 1);
    assert_eq!(memory.staging.find(&other).map(|position| position.offset), Some(0));
}

/// The first half of the destination is mapped, the second is not.
#[test]
fn staged_bytes_for_bad_memory_are_an_error() {
    let memory = ProgramMemory::new().unwrap();
    let pages = Pages::new(2);
    pages.unmap(1);
    let staging = memory.buffer(2 * PAGE);
    assert_eq!(memory.scatter(&staging, &[pages.span(0, 2 * PAGE)]), Err(Unmapped));
}

#[test]
fn nothing_is_copied_for_nothing() {
    for memory in both() {
        assert_eq!(memory.gather(&[], &mut []), Ok(()));
        // An empty span is valid at any address.
        assert_eq!(memory.scatter(&[], &[Span::new(KERNEL, 0)]), Ok(()));
        assert!(memory.is_mapped(Span::new(8, 0)));
    }
}

#[test]
#[should_panic(expected = "as long as the slice")]
fn spans_must_be_as_long_as_the_slice() {
    let pages = Pages::new(1);
    let _ = ProgramMemory::new().unwrap().gather(&[pages.span(0, 9)], &mut [0; 8]);
}

#[test]
fn bad_memory_is_an_error_wherever_it_is() {
    for memory in both() {
        for (bad, len) in [(0, 3 * PAGE), (1, 3 * PAGE), (2, 3 * PAGE), (5, 40 * PAGE), (39, 40 * PAGE)] {
            for gone in [true, false] {
                let pages = Pages::new(len / PAGE);
                if gone {
                    pages.unmap(bad);
                } else {
                    pages.protect(bad, libc::PROT_NONE);
                }
                let halves = [pages.span(0, len / 2 + 5), pages.span(len / 2 + 5, len - len / 2 - 5)];
                for spans in [&[pages.span(0, len)][..], &halves] {
                    assert_eq!(memory.gather(spans, &mut vec![0; len]), Err(Unmapped), "{bad} of {len}");
                    assert_eq!(memory.scatter(&vec![0; len], spans), Err(Unmapped), "{bad} of {len}");
                }
                // The failure does not affect the next copy.
                let good = pages.span(if bad == 0 { PAGE } else { 0 }, PAGE);
                assert_eq!(memory.scatter(&[7; PAGE], &[good]), Ok(()));
                let mut bytes = [0; PAGE];
                assert_eq!(memory.gather(&[good], &mut bytes), Ok(()));
                assert_eq!(bytes, [7; PAGE]);
            }
        }
    }
}

#[test]
fn write_protected_memory_can_be_gathered_only() {
    for memory in both() {
        let pages = Pages::new(2);
        pages.write(&[9; 2 * PAGE]);
        pages.protect(1, libc::PROT_READ);
        let span = pages.span(PAGE - 8, 16);
        let mut bytes = [0; 16];
        assert_eq!(memory.gather(&[span], &mut bytes), Ok(()));
        assert_eq!(bytes, [9; 16]);
        assert_eq!(memory.scatter(&[1; 16], &[span]), Err(Unmapped));
        assert_eq!(pages.read()[PAGE..], [9; PAGE]);
    }
}

#[test]
fn addresses_that_no_program_has() {
    let pages = Pages::new(1);
    for memory in both() {
        for addr in [0, 8, KERNEL - 4, KERNEL, u64::MAX - 15, u64::MAX - 7, u64::MAX] {
            let span = Span::new(addr, 16);
            for spans in [&[span][..], &[pages.span(0, 16), span]] {
                assert_eq!(memory.gather(spans, &mut vec![0; spans.len() * 16]), Err(Unmapped), "{addr:#x}");
                assert_eq!(memory.scatter(&vec![0; spans.len() * 16], spans), Err(Unmapped), "{addr:#x}");
            }
            assert!(!memory.is_mapped(span), "{addr:#x}");
        }
    }
}

#[test]
fn mapped_or_not() {
    let memory = ProgramMemory::new().unwrap();
    let pages = Pages::new(5);
    assert!(!memory.is_mapped(pages.span(0, usize::MAX)));
    assert!(!memory.is_mapped(pages.span(8, usize::MAX - 8)));
    pages.unmap(3);
    pages.protect(1, libc::PROT_READ);
    for (offset, len, mapped) in [
        (0, 1, true),
        (0, 3 * PAGE, true),
        (5, 3 * PAGE - 5, true),
        (5, 3 * PAGE - 4, false),
        (2 * PAGE + 4095, 1, true),
        (2 * PAGE + 4095, 2, false),
        (3 * PAGE, 1, false),
        (4 * PAGE - 1, 1, false),
        (4 * PAGE, PAGE, true),
        (0, 5 * PAGE, false),
    ] {
        assert_eq!(memory.is_mapped(pages.span(offset, len)), mapped, "{len} at {offset}");
    }
}

/// A program may name memory of the adapter: the buffer that is the other end of the copy, or a window.
#[test]
fn own_memory_is_memory_too() {
    let mut bytes: Vec<u8> = (0..100).collect();
    let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
    for memory in both() {
        let addr = at(&bytes) + 10;
        memory.gather(&[Span::new(addr, 50)], &mut bytes[..50]).unwrap();
        assert_eq!(bytes[..50], (10..60).collect::<Vec<u8>>());
        bytes = (0..100).collect();
    }
    let memory = ProgramMemory::with_windows(Window::file).unwrap();
    let window = memory.pool.with(|window| match window {
        Window::File { map, .. } => map.start.as_ptr().expose_provenance() as u64,
        Window::Pipe { .. } => unreachable!(),
    });
    memory.scatter(&[1, 2, 3], &[Span::new(window, 3)]).unwrap();
    let mut through = [0; 3];
    memory.gather(&[Span::new(window, 3)], &mut through).unwrap();
    assert_eq!(through, [1, 2, 3]);
}

#[test]
fn memory_may_go_away_during_a_copy() {
    if !in_child("sys::memory::tests::memory_may_go_away_during_a_copy") {
        return;
    }
    for memory in both() {
        let (pages, done) = (Pages::new(8), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    pages.unmap(4);
                    pages.map_again(4);
                }
            });
            let (mut good, mut bad, begin) = (0, 0, Instant::now());
            let mut bytes = vec![0; 8 * PAGE];
            while (good < 200 || bad < 200) && begin.elapsed().as_secs() < 20 {
                for result in [
                    memory.scatter(&bytes, &[pages.span(0, 8 * PAGE)]),
                    memory.gather(&[pages.span(3, 8 * PAGE - 3)], &mut bytes[3..]),
                ] {
                    match result {
                        Ok(()) => good += 1,
                        Err(Unmapped) => bad += 1,
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(good >= 200 && bad >= 200, "{good} copies, {bad} errors");
        });
    }
}

#[test]
fn threads_do_not_mix_their_copies() {
    /// Creates a window only once, as if there were no more file descriptors.
    fn one_window() -> io::Result<Window> {
        static MADE: AtomicBool = AtomicBool::new(false);
        if MADE.swap(true, Ordering::Relaxed) { Err(Errno::MFILE.into()) } else { Window::file() }
    }
    for make in [Window::file, Window::pipe, one_window] {
        let memory = ProgramMemory::with_windows(make).unwrap();
        thread::scope(|scope| {
            // More threads than windows.
            for seed in 1..=20 {
                let memory = &memory;
                scope.spawn(move || {
                    let (mut random, pages) = (Random(seed << 20), Pages::new(2));
                    for _ in 0..200 {
                        let bytes = random.bytes(900);
                        let spans = [pages.span(0, 400), pages.span(PAGE - 100, 500)];
                        memory.scatter(&bytes, &spans).unwrap();
                        let mut back = [0; 900];
                        memory.gather(&spans, &mut back).unwrap();
                        assert_eq!(bytes, back);
                    }
                });
            }
        });
    }
}

/// Without descriptors, threads share a window, and do not try to create one for every copy.
#[test]
fn a_window_that_cannot_be_created_is_not_tried_at_every_copy() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    fn one_window() -> io::Result<Window> {
        if MADE.fetch_add(1, Ordering::Relaxed) == 0 { Window::file() } else { Err(Errno::MFILE.into()) }
    }
    let (pool, start) = (Pool::new(one_window).unwrap(), Instant::now());
    (0..1000).for_each(|_| pool.with(|_| ()));
    let attempts = MADE.load(Ordering::Relaxed) - 1;
    assert!(attempts as u64 <= 1 + start.elapsed().as_secs(), "{attempts} attempts");
    assert!(attempts >= 1);
}

#[test]
fn two_copies_at_once_have_a_window_each() {
    let pool = Pool::new(Window::file).unwrap();
    let address = |window: &Window| ptr::from_ref(window).addr();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        pool.with(|window| {
            let pool = &pool;
            scope.spawn(move || pool.with(|other| sender.send(address(other)).unwrap()));
            let other = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_ne!(other, address(window));
        });
    });
}

#[test]
fn a_sandbox_may_refuse_files_in_memory() {
    if !in_child("sys::memory::tests::a_sandbox_may_refuse_files_in_memory") {
        return;
    }
    deny(&[libc::SYS_memfd_create, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
    assert!(Window::file().is_err());
    let memory = ProgramMemory::new().unwrap();
    assert!(uses_pipes(&memory));
    let pages = Pages::new(3);
    let bytes = Random(77).bytes(2 * PAGE);
    memory.scatter(&bytes, &[pages.span(PAGE, PAGE), pages.span(0, PAGE)]).unwrap();
    let mut back = vec![0; 2 * PAGE];
    memory.gather(&[pages.span(PAGE, PAGE), pages.span(0, PAGE)], &mut back).unwrap();
    assert_eq!(bytes, back);
    pages.unmap(2);
    assert_eq!(memory.scatter(&bytes, &[pages.span(PAGE + 1, 2 * PAGE)]), Err(Unmapped));
}

#[test]
fn a_sandbox_may_refuse_to_tell_what_is_mapped() {
    if !in_child("sys::memory::tests::a_sandbox_may_refuse_to_tell_what_is_mapped") {
        return;
    }
    let pages = Pages::new(2);
    pages.unmap(1);
    let memory = ProgramMemory::new().unwrap();
    assert!(!memory.is_mapped(pages.span(PAGE, 1)));
    deny(&[libc::SYS_msync]);
    assert!(memory.is_mapped(pages.span(PAGE, 1)));
}

/// SIGXFSZ would end the child process.
#[test]
fn a_limit_for_files_raises_no_signal() {
    if !in_child("sys::memory::tests::a_limit_for_files_raises_no_signal") {
        return;
    }
    let limit = Rlimit { current: Some(PAGE as u64), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let memory = ProgramMemory::new().unwrap();
    assert!(uses_pipes(&memory));
    let pages = Pages::new(2);
    memory.scatter(&[5; 2 * PAGE], &[pages.span(0, 2 * PAGE)]).unwrap();
    assert_eq!(pages.read(), [5; 2 * PAGE]);
}

/// If the file shrank, a copy would raise SIGBUS. If a forked child shared the mapping, its copies would be mixed with
/// those of the parent.
#[test]
fn a_window_keeps_its_size_and_is_not_inherited() {
    let Window::File { file, map } = Window::file().unwrap() else { unreachable!() };
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, ours) = maps.split_once(&format!("{:x}-", map.start.as_ptr().addr())).unwrap();
    let flags = ours.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}"); // "do not copy on fork"
}
