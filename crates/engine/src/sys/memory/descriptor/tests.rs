//! Descriptors with memory that is not mapped, and calls that a signal interrupts.

use super::*;
use crate::sys::testing::{KERNEL, PAGE, Pages, Random, RawThread};
use rustix::fd::AsFd;
use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc;

#[test]
fn memory_that_is_not_mapped_gives_efault_and_keeps_the_descriptor_usable() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let pages = Pages::new(3);
    pages.unmap(1);
    let invalid = [
        vec![pages.span(PAGE, 8)],
        vec![pages.span(0, 8), pages.span(PAGE, 8)],
        vec![Span::new(KERNEL, 8)],
        vec![pages.span(0, 8), Span::new(KERNEL, 8)],
    ];
    for spans in invalid {
        let error = write_to(near.as_fd(), &[], &spans).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{spans:?}");
        far.send(&[1; 16]).unwrap();
        let error = read_from(near.as_fd(), &spans).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{spans:?}");
    }

    let bytes = Random(7).bytes(PAGE);
    pages.write(&bytes);
    assert_eq!(write_to(near.as_fd(), &[], &[pages.span(0, PAGE)]).unwrap(), PAGE);
    let mut received = vec![0; 2 * PAGE];
    assert_eq!(far.recv(&mut received).unwrap(), PAGE, "the failed writes sent nothing");
    assert_eq!(received[..PAGE], bytes);
}

#[test]
fn memory_that_is_write_protected_is_written_to_descriptors_and_not_read_from_them() {
    let (mut reader, mut writer) = io::pipe().unwrap();
    let pages = Pages::new(1);
    pages.write(b"hello");
    pages.protect(0, libc::PROT_READ);
    assert_eq!(write_to(writer.as_fd(), &[], &[pages.span(0, 5)]).unwrap(), 5);
    let mut five = [0; 5];
    reader.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"hello");
    writer.write_all(b"other").unwrap();
    let error = read_from(reader.as_fd(), &[pages.span(0, 5)]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(&pages.read()[..5], b"hello");
}

#[test]
fn a_read_that_a_signal_interrupts_is_repeated() {
    let (reader, mut writer) = io::pipe().unwrap();
    let (result, results) = mpsc::channel();
    let thread = RawThread::spawn(move || {
        let pages = Pages::new(1);
        let read = read_from(reader.as_fd(), &[pages.span(0, 8)]);
        result.send((read.map_err(|error| error.kind()), pages.read()[..8].to_vec())).unwrap();
    });
    while !thread.is_asleep() {
        std::thread::yield_now();
    }
    thread.interrupt();
    writer.write_all(b"hello").unwrap();
    thread.join();
    assert_eq!(results.recv().unwrap(), (Ok(5), b"hello\0\0\0".to_vec()));
}
