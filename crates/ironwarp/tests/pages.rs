//! Registration of pages by work requests (requirement M3): in any order, of every size, through page tables of the
//! first and the second order.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{
    Access, AccessError, Buffer, FastRegion, MemoryRegion, PageList, PageListError, PageSize,
    TranslationError,
};
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, pair, pair_with, pattern};

/// Rights of the peer and of the program.
const OPEN: Access = Access::LOCAL_READ
    .union(Access::LOCAL_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Bytes in a transfer at a place, before and after a page boundary.
const HALF: usize = 1000;

/// Allocates a region of `count` pages of this size, in two buffers.
fn region_of(end: &End, size: PageSize, count: usize) -> FastRegion {
    let page = usize::try_from(size.bytes()).unwrap();
    let buffer = |pages| Buffer::builder().page_size(size).allocate(pages * page).unwrap();
    end.domain.allocate_region([buffer(count / 2), buffer(count - count / 2)]).unwrap()
}

/// Registers pages, and waits until they are.
fn register(end: &End, pages: &PageList) {
    end.qp.post_send(WorkRequest::register_pages(1, pages, OPEN)).unwrap();
    end.done(Opcode::Register, 1);
}

/// Invalidates the region, so that it can be registered again.
fn invalidate(end: &End, region: &FastRegion) {
    end.qp.post_send(WorkRequest::invalidate_region(2, region)).unwrap();
    end.done(Opcode::Invalidate, 2);
}

/// Reads the bytes at `at` of the pages as the peer.
fn read(client: &End, sink: &MemoryRegion, pages: &PageList, at: usize, len: usize) -> Vec<u8> {
    let read = WorkRequest::read(3, &[sink.slice(..len).unwrap()], pages.remote_addr(at).unwrap());
    client.qp.post_send(read).unwrap();
    client.done(Opcode::Read, 3);
    let mut bytes = vec![0; len];
    sink.read(0, &mut bytes).unwrap();
    bytes
}

/// Writes to the pages at `at` as the peer. A Read after it returns when the bytes are there.
fn write(client: &End, source: &MemoryRegion, pages: &PageList, at: usize, bytes: &[u8]) {
    source.write(0, bytes).unwrap();
    let to = pages.remote_addr(at).unwrap();
    client.qp.post_send(WorkRequest::write(4, &[source.slice(..bytes.len()).unwrap()], to)).unwrap();
    client.done(Opcode::Write, 4);
    assert!(read(client, source, pages, at, bytes.len()) == bytes);
}

/// A table lists 512 pages: lists of 8 and 512 need one table, and those of 513 and 701 a table of tables. Every byte of the region is compared,
/// also those of pages that are not in the list.
#[test]
fn pages_in_any_order_are_read_and_written_across_their_boundaries() {
    const PAGE: usize = 4096;
    // Without CRC, large payloads go between socket and pages without a copy.
    let in_place = Config::default().crc(false).shm(false);
    let cases = [(7, Config::default()), (511, in_place.clone()), (512, Config::default()), (700, in_place)];
    for (count, config) in cases {
        let (client, server) = pair_with(CASES[1], config.clone(), config);
        let region = region_of(&server, PageSize::KIB_4, count + 1);
        let mut expected = pattern(5, region.len());
        region.write(0, &expected).unwrap();
        // All pages but the last, in an order without neighbours, and the first of the list once more.
        let mut order: Vec<usize> = (0..count).map(|n| n * 3 % count).collect();
        order.push(order[0]);
        let (first, cut) = (123, 77);
        let pages = region.pages(PageSize::KIB_4, order.iter().map(|page| page * PAGE)).unwrap();
        let pages = pages.range(first..pages.len() - cut).unwrap();
        assert_eq!(pages.len(), (count + 1) * PAGE - first - cut);
        register(&server, &pages);

        // Where the byte at an offset of the list is in the region.
        let place = |at: usize| order[(first + at) / PAGE] * PAGE + (first + at) % PAGE;
        let sink = client.region(&vec![0; pages.len()], ALL);
        let read_back = read(&client, &sink, &pages, 0, pages.len());
        let wrong = (0..pages.len()).find(|&at| read_back[at] != expected[place(at)]);
        assert_eq!(wrong, None, "the byte at this offset is wrong");

        // In one piece over all pages but those that are listed twice, and in short ones over each boundary.
        let len = (count - 2) * PAGE;
        let bytes = pattern(6, len);
        write(&client, &sink, &pages, PAGE, &bytes);
        (0..len).for_each(|n| expected[place(PAGE + n)] = bytes[n]);
        for boundary in (1..=count).step_by(1 + count / 50) {
            let (at, bytes) =
                (boundary * PAGE - first - HALF, pattern(u8::try_from(boundary % 251).unwrap(), 2 * HALF));
            write(&client, &sink, &pages, at, &bytes);
            bytes.iter().enumerate().for_each(|(n, &byte)| expected[place(at + n)] = byte);
        }
        let found = region.to_vec().unwrap();
        assert_eq!(
            (0..found.len()).find(|&at| found[at] != expected[at]),
            None,
            "the byte at this offset is wrong"
        );
        // One byte after the last.
        let beyond = WorkRequest::write_inline(5, &[1], pages.remote_addr(pages.len()).unwrap());
        client.qp.post_send(beyond).unwrap();
        client.failed(Opcode::Write, 5, Status::RemoteAccess);
        assert!(region.to_vec().unwrap() == found);
    }
}

/// Memory is touched only around the boundaries, so that large pages take none.
#[test]
fn pages_of_every_size_lead_to_their_own_memory() {
    let (client, server) = pair(CASES[1]);
    let sink = client.region(&[0; 2 * HALF], ALL);
    for order in 12..=28 {
        let size = PageSize::new(1 << order).unwrap();
        let page = 1 << order;
        let region = region_of(&server, size, 4);
        let order = [3, 0, 2];
        let first = page / 2 + 5;
        let pages = region.pages(size, order.map(|n| n * page)).unwrap().range(first..3 * page - 9).unwrap();
        register(&server, &pages);
        for (boundary, seed) in [(1, 1), (2, 2)] {
            let at = boundary * page - first - HALF;
            let (before, after) = (order[boundary - 1] * page + page - HALF, order[boundary] * page);
            let bytes = pattern(seed, 2 * HALF);
            region.write(before, &bytes[..HALF]).unwrap();
            region.write(after, &bytes[HALF..]).unwrap();
            assert!(read(&client, &sink, &pages, at, 2 * HALF) == bytes, "{size}, boundary {boundary}");
            let bytes = pattern(10 + seed, 2 * HALF);
            write(&client, &sink, &pages, at, &bytes);
            let mut found = vec![0; 2 * HALF];
            region.read(before, &mut found[..HALF]).unwrap();
            region.read(after, &mut found[HALF..]).unwrap();
            assert!(found == bytes, "{size}, boundary {boundary}");
        }
        // The page that is not in the list, and what precedes and follows the boundaries.
        for at in [page, page + HALF, 2 * page - 2 * HALF, 3 * page, 4 * page - 2 * HALF, HALF] {
            let mut zeros = vec![1; HALF.min(page / 8)];
            region.read(at, &mut zeros).unwrap();
            assert!(zeros.iter().all(|&byte| byte == 0), "{size}: bytes at {at:#x} were written");
        }
        invalidate(&server, &region);
    }
}

/// The same region is registered with one list after another, and as a whole. Requests of this program use the tag, too.
#[test]
fn a_region_is_registered_by_one_list_after_another() {
    let (client, server) = pair(CASES[1]);
    let region = region_of(&server, PageSize::KIB_4, 4);
    let bytes = pattern(7, region.len());
    region.write(0, &bytes).unwrap();
    let inbox = client.region(&[0; 9000], ALL);
    for (n, order) in [[0, 1], [3, 1], [1, 3]].into_iter().enumerate() {
        let pages = region.pages(PageSize::KIB_4, order.map(|page| page * 4096)).unwrap();
        register(&server, &pages);
        client.qp.post_receive(5, &[inbox.slice(..).unwrap()]).unwrap();
        server.qp.post_send(WorkRequest::send(6, &[pages.slice(100..8000).unwrap()])).unwrap();
        server.done(Opcode::Send, 6);
        assert_eq!(client.done(Opcode::Receive, 5).byte_len, 7900);
        let listed = order.map(|page| &bytes[page * 4096..][..4096]).concat();
        assert!(inbox.to_vec().unwrap()[..7900] == listed[100..8000], "list {n}");
        invalidate(&server, &region);
    }
    server.qp.post_send(WorkRequest::register(7, &region, OPEN)).unwrap();
    server.done(Opcode::Register, 7);
    let whole = WorkRequest::read(8, &[inbox.slice(..9000).unwrap()], region.remote_addr(0).unwrap());
    client.qp.post_send(whole).unwrap();
    client.done(Opcode::Read, 8);
    assert!(inbox.to_vec().unwrap() == bytes[..9000]);
}

/// Requirement M10, and the memory stays while the request that registers it has not been executed.
#[test]
fn pages_serve_a_single_message_and_outlive_their_region() {
    let (client, server) = pair(CASES[1]);
    let region = region_of(&server, PageSize::KIB_4, 3);
    let pages = region.pages(PageSize::KIB_4, [0x2000, 0]).unwrap();
    server.qp.post_send(WorkRequest::register_pages_once(1, &pages, OPEN)).unwrap();
    server.done(Opcode::Register, 1);
    let addr = pages.remote_addr(4094).unwrap();
    client.qp.post_send(WorkRequest::write_inline(2, b"once", addr)).unwrap();
    client.done(Opcode::Write, 2);
    let mut found = [0; 4];
    region.read(0x2ffe, &mut found[..2]).unwrap();
    region.read(0, &mut found[2..]).unwrap();
    assert_eq!(&found, b"once");
    drop(region);
    assert_eq!(pages.len(), 8192);
    client.qp.post_send(WorkRequest::write_inline(3, b"more", addr)).unwrap();
    client.failed(Opcode::Write, 3, Status::RemoteAccess);
}

#[test]
fn what_is_no_list_of_pages() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let size = PageSize::KIB_4;
    let buffers = [8192, 5000, 8192].map(|len| Buffer::new(len).unwrap());
    let region = end.domain.allocate_region(buffers).unwrap();
    let len = region.len();
    let refuse = |size, offsets: &[usize]| region.pages(size, offsets.iter().copied()).unwrap_err();
    assert_eq!(refuse(size, &[]), PageListError::Translation(TranslationError::Empty));
    for at in [1, 8192 + 8, 4095] {
        let error = refuse(size, &[0, at]);
        assert!(matches!(error, PageListError::Unaligned { at: found, .. } if found == at), "{error}");
    }
    // The second page of the second buffer is shorter, and so is the last page of the region.
    for at in [8192 + 4096, len - 4095, len, usize::MAX] {
        let error = refuse(size, &[at]);
        assert!(matches!(error, PageListError::OutOfBounds { at: found, .. } if found == at), "{error}");
    }
    assert_eq!(
        refuse(PageSize::MIB_2, &[0]).to_string(),
        "page of 2 MiB at offset 0x0 is not inside one buffer of the region, which has 21384 bytes"
    );
    let too_many =
        PageListError::Translation(TranslationError::TooManyPages { pages: 262_145, max: 262_144 });
    assert_eq!(refuse(size, &vec![0; 262_145]), too_many);

    // The second buffer starts at offset 8192 of the region, and at the start of a page.
    let pages = region.pages(size, [4096, 8192, 8192 + 5000]).unwrap();
    let first = PageListError::Translation(TranslationError::FirstByte { first: 4096, size });
    assert_eq!(pages.range(4096..).unwrap_err(), first);
    assert_eq!(pages.range(10..10).unwrap_err(), PageListError::Translation(TranslationError::Empty));
    let outside = AccessError::OutOfBounds { at: 1, len: 12288, size: 12288 };
    assert_eq!(pages.range(1..12289).unwrap_err(), PageListError::Range(outside));
    let short = pages.range(4095..4097).unwrap();
    assert_eq!((short.len(), short.page_size()), (2, size));
    assert_eq!(short.slice(1..3).unwrap_err(), AccessError::OutOfBounds { at: 1, len: 2, size: 2 });
    assert!(short.remote_addr(2).is_ok() && short.remote_addr(3).is_err());
    assert_eq!(short.range(..).unwrap().len(), 12288, "a range is one of all pages");
}
