//! Registered memory and descriptors of the program: the kernel copies between them (requirement P7).
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::memory::{Access, AccessError, Buffer, MemoryRegion};
use ironwarp::{Adapter, ProtectionDomain};
use ironwarp_testkit::native::pattern;
use rustix::pipe::PipeFlags;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

/// The kernel's UIO_MAXIOV.
const MAX_VECTORS: usize = 1024;

fn domain() -> ProtectionDomain {
    Adapter::new().unwrap().protection_domain()
}

/// Registers buffers of these lengths as one region. It has no rights: the program itself needs none.
fn region(domain: &ProtectionDomain, lens: impl IntoIterator<Item = usize>) -> MemoryRegion {
    let buffers: Vec<_> = lens.into_iter().map(|len| Buffer::new(len).unwrap()).collect();
    domain.register_list(buffers, Access::empty()).unwrap()
}

/// Every offset and length within a few words and buffers. Each call moves one datagram, as it moves one frame of a TAP
/// device.
#[test]
fn each_call_moves_one_datagram_from_or_to_all_buffers_of_a_range() {
    let domain = domain();
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    for region in [region(&domain, [40]), region(&domain, [1, 6, 9, 24])] {
        let all = pattern(1, 40);
        for at in 0..40 {
            for len in 1..=40 - at {
                region.write(0, &all).unwrap();
                assert_eq!(region.write_to(&near, at..at + len).unwrap(), len);
                let mut received = [0; 41];
                assert_eq!(far.recv(&mut received).unwrap(), len, "one datagram with all bytes");
                assert_eq!(received[..len], all[at..at + len]);
                assert_eq!(far.recv(&mut received).unwrap_err().kind(), io::ErrorKind::WouldBlock);

                // Two datagrams are there, and only the first is read, though it does not fill the range.
                let news = pattern(2, len - 1);
                far.send(&news).unwrap();
                far.send(b"next").unwrap();
                assert_eq!(region.read_from(&near, at..at + len).unwrap(), len - 1);
                let mut expected = all.clone();
                expected[at..at + len - 1].copy_from_slice(&news);
                assert_eq!(region.to_vec().unwrap(), expected, "{} bytes at {at}", len - 1);
                let mut next = [0; 5];
                assert_eq!(near.recv(&mut next).unwrap(), 4);
                assert_eq!(&next, b"next\0");
            }
        }
    }
}

#[test]
fn a_head_and_a_range_are_one_datagram() {
    let domain = domain();
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let region = region(&domain, [1, 6, 9, 24]);
    let (all, head) = (pattern(1, 40), pattern(3, 26));
    region.write(0, &all).unwrap();
    for (head_len, at, len) in [(26, 0, 40), (26, 5, 30), (1, 39, 1), (0, 3, 20), (26, 40, 0)] {
        let written = region.write_to_after(&near, &head[..head_len], at..at + len).unwrap();
        assert_eq!(written, head_len + len);
        let mut received = [0; 80];
        assert_eq!(far.recv(&mut received).unwrap(), written, "one datagram with all bytes");
        assert_eq!(received[..written], [&head[..head_len], &all[at..at + len]].concat());
        assert_eq!(far.recv(&mut received).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    let outside = region.write_to_after(&near, &head, 1..41).unwrap_err();
    assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(far.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_pipe_is_read_until_its_end() {
    let domain = domain();
    let region = region(&domain, [3, 8]);
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"frames").unwrap();
    assert_eq!(region.read_from(&reader, 1..=4).unwrap(), 4, "no more than the range has");
    assert_eq!(region.read_from(&reader, 5..).unwrap(), 2, "no more than the pipe has");
    assert_eq!(region.to_vec().unwrap(), b"\0frames\0\0\0\0");
    drop(writer);
    assert_eq!(region.read_from(&reader, ..).unwrap(), 0);
    assert_eq!(region.read_from(&reader, 11..).unwrap(), 0);
    assert_eq!(region.to_vec().unwrap(), b"\0frames\0\0\0\0");
}

#[test]
fn a_descriptor_that_would_block_says_so_and_a_full_one_takes_a_part() {
    let domain = domain();
    let (reader, writer): (OwnedFd, OwnedFd) =
        rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(&reader).unwrap();
    let from = region(&domain, [100, capacity, 100]);
    let sent = pattern(3, from.len());
    from.write(0, &sent).unwrap();
    let into = region(&domain, [100, capacity]);

    assert_eq!(into.read_from(&reader, ..).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(into.to_vec().unwrap(), vec![0; into.len()]);
    let taken = from.write_to(&writer, ..).unwrap();
    assert_eq!(taken, capacity, "a short write");
    assert_eq!(from.write_to(&writer, taken..).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(into.read_from(&reader, ..).unwrap(), taken);
    assert_eq!(into.to_vec().unwrap()[..taken], sent[..taken]);

    let left = from.len() - taken;
    assert_eq!(from.write_to(&writer, taken..).unwrap(), left);
    assert_eq!(into.read_from(&reader, ..).unwrap(), left);
    assert_eq!(into.to_vec().unwrap()[..left], sent[taken..]);
    assert_eq!(from.to_vec().unwrap(), sent);
}

#[test]
fn a_range_that_is_not_inside_the_region_moves_nothing() {
    let domain = domain();
    let region = region(&domain, [10, 6]);
    let (mut reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"untouched").unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
    let rows = [
        (15..17, AccessError::OutOfBounds { at: 15, len: 2, size: 16 }),
        (17..17, AccessError::OutOfBounds { at: 17, len: 0, size: 16 }),
        (0..usize::MAX, AccessError::OutOfBounds { at: 0, len: usize::MAX, size: 16 }),
        (5..3, AccessError::Reversed { start: 5, end: 3 }),
    ];
    for (range, why) in rows {
        for error in [region.read_from(&reader, range.clone()), region.write_to(&writer, range.clone())] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{range:?}");
            assert_eq!(error.to_string(), why.to_string());
        }
    }
    assert_eq!(region.to_vec().unwrap(), [0; 16]);
    drop(writer);
    let mut left = Vec::new();
    reader.read_to_end(&mut left).unwrap();
    assert_eq!(left, b"untouched");
}

#[test]
fn a_range_in_too_many_buffers_for_one_call_is_refused() {
    let domain = domain();
    let region = region(&domain, std::iter::repeat_n(1, MAX_VECTORS + 1));
    let sent = pattern(4, MAX_VECTORS + 1);
    region.write(0, &sent).unwrap();
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    far.send(&pattern(5, MAX_VECTORS)).unwrap();
    for error in [region.write_to(&near, ..), region.read_from(&near, ..)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with("range in 1025 separate parts of memory exceeds"), "{error}");
    }
    let mut received = vec![0; MAX_VECTORS + 1];
    assert_eq!(far.recv(&mut received).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(region.to_vec().unwrap(), sent);

    assert_eq!(region.write_to(&near, 1..).unwrap(), MAX_VECTORS);
    assert_eq!(far.recv(&mut received).unwrap(), MAX_VECTORS);
    assert_eq!(received[..MAX_VECTORS], sent[1..]);
    assert_eq!(region.read_from(&near, 1..).unwrap(), MAX_VECTORS);
    assert_eq!(region.to_vec().unwrap(), [&sent[..1], &pattern(5, MAX_VECTORS)].concat());
}

#[test]
fn errors_of_the_descriptor_are_passed_on() {
    let domain = domain();
    let region = region(&domain, [8]);
    let (reader, writer) = io::pipe().unwrap();
    let error = region.read_from(&writer, ..).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF), "the end that writes cannot be read");
    let error = region.write_to(&reader, ..).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    drop(reader);
    assert_eq!(region.write_to(&writer, ..).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}
