use super::*;

fn part(span: Span, from: usize, to: usize) -> Span {
    Span::new(span.addr + from as u64, to - from)
}

#[test]
fn writes_are_read_back_across_spans() {
    let arena = Arena::new(0);
    let (one, other) = (arena.alloc(10), arena.alloc(5000));
    arena.scatter(b"abcdefgh", &[part(one, 2, 5), part(other, 4090, 4095)]).unwrap();
    assert_eq!(arena.read(one), b"\0\0abc\0\0\0\0\0");
    let mut back = [0; 6];
    arena.gather(&[part(other, 4092, 4095), part(one, 0, 0), part(one, 2, 5)], &mut back).unwrap();
    assert_eq!(&back, b"fghabc");
}

#[test]
fn memory_between_allocations_is_unmapped() {
    let arena = Arena::new(0);
    let (one, other) = (arena.alloc(4096), arena.alloc(1));
    assert!(arena.is_mapped(one) && arena.is_mapped(other));
    assert!(other.addr >= one.addr + 2 * 4096, "no unmapped page between them");
    assert!(!arena.is_mapped(Span::new(one.addr, 4097)));
    assert!(!arena.is_mapped(Span::new(one.addr - 1, 2)));
    assert!(!arena.is_mapped(Span::new(one.addr, 8193)));
    assert!(!arena.is_mapped(Span::new(u64::MAX, 2)));
    assert!(arena.is_mapped(Span::new(1, 0)));
    let (_, third) = (arena.alloc(0), arena.alloc(8));
    arena.fill(third, 3);
    assert!(!Arena::new(1).is_mapped(one), "programs share an address");
}

#[test]
fn accesses_stop_at_an_unmapped_address() {
    let arena = Arena::new(0);
    let span = arena.alloc(8);
    let beyond = Span::new(span.addr + 4, 8);
    assert_eq!(arena.gather(&[beyond], &mut [0; 8]), Err(Unmapped));
    assert_eq!(arena.scatter(b"12345678", &[beyond]), Err(Unmapped));
    assert_eq!(arena.read(span), b"\0\0\0\x001234");
    let (mut bytes, behind) = ([0; 16], arena.alloc(8));
    assert_eq!(
        arena.device_reads(&[beyond, behind], &mut bytes),
        4,
        "bytes after the unmapped part are not read"
    );
    assert_eq!(&bytes[..5], b"1234\0");
    assert_eq!(arena.device_writes(&[9; 16], &[beyond, behind]), 4);
    assert_eq!(arena.read(behind), [0; 8]);
}

#[test]
fn unmapping_does_not_affect_adjacent_memory() {
    let arena = Arena::new(0);
    let span = arena.alloc(100);
    arena.fill_pattern(span, 1);
    let before = arena.read(span);
    arena.unmap(part(span, 40, 60));
    assert!(!arena.is_mapped(part(span, 39, 41)) && !arena.is_mapped(part(span, 59, 60)));
    assert_eq!(arena.read(part(span, 0, 40)), before[..40]);
    assert_eq!(arena.read(part(span, 60, 100)), before[60..]);
    arena.unmap(span);
    assert!(!arena.is_mapped(part(span, 0, 1)) && !arena.is_mapped(part(span, 99, 100)));
    arena.unmap(span);
}

#[test]
fn read_only_memory_cannot_be_written() {
    let arena = Arena::new(0);
    let span = arena.alloc(100);
    arena.set_writable(part(span, 40, 60), false);
    assert!(arena.is_mapped(span));
    assert_eq!(arena.gather(&[span], &mut [0; 100]), Ok(()));
    assert_eq!(arena.device_writes(&[1; 100], &[span]), 40);
    assert_eq!(arena.scatter(&[1; 40], &[part(span, 60, 100)]), Ok(()));
    assert_eq!(arena.scatter(&[1], &[part(span, 59, 60)]), Err(Unmapped));
    arena.set_writable(span, true);
    arena.fill(span, 9);
    assert_eq!(arena.read(span), [9; 100]);
}

#[test]
fn device_accesses_are_recorded() {
    let arena = Arena::new(0);
    let span = arena.alloc(100);
    arena.scatter(&[1; 10], &[part(span, 0, 10)]).unwrap();
    assert_eq!(arena.reached(), Default::default(), "nothing is recorded yet");
    arena.record();
    arena.write(span.addr, b"the program itself");
    arena.scatter(&[1; 10], &[part(span, 20, 30)]).unwrap();
    arena.scatter(&[1; 10], &[part(span, 30, 40)]).unwrap();
    arena.gather(&[part(span, 50, 60)], &mut [0; 10]).unwrap();
    let gone = Span::new(span.addr + 100, 1);
    assert_eq!(arena.gather(&[gone], &mut [0]), Err(Unmapped));
    let (read, written) = arena.reached();
    assert_eq!(read.spans(), [part(span, 50, 60), gone]);
    assert_eq!(written.spans(), [part(span, 20, 40)]);
    assert!(written.within(&[part(span, 0, 30), part(span, 30, 50)]));
    assert!(!read.within(&[span]));
}

#[test]
fn no_more_is_read_or_written_than_there_are_bytes() {
    let arena = Arena::new(0);
    let (one, other) = (arena.alloc(10), arena.alloc(10));
    arena.fill(one, 1);
    arena.fill(other, 2);
    let mut bytes = [0; 15];
    assert_eq!(arena.device_reads(&[one, other], &mut bytes), 15);
    assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!(arena.device_writes(&[3; 15], &[one, other]), 15);
    assert_eq!(arena.read(other), [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]);
}

#[test]
fn a_pattern_is_recognised() {
    let arena = Arena::new(0);
    let (one, other) = (arena.alloc(1000), arena.alloc(1000));
    arena.fill_pattern(one, 7);
    assert_ne!(arena.read(one), arena.read(other));
    arena.write(other.addr, &arena.read(one));
    arena.check_pattern(other, 7);
}

#[test]
#[should_panic(expected = "left: Some(999)")]
fn one_wrong_byte_of_a_pattern_is_found() {
    let arena = Arena::new(0);
    let span = arena.alloc(1000);
    arena.fill_pattern(span, 7);
    let last = arena.read(span)[999];
    arena.write(span.addr + 999, &[last ^ 1]);
    arena.check_pattern(span, 7);
}
