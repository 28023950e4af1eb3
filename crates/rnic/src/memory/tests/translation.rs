//! Tests of translations, by comparison with a list of the address of every byte.

use super::super::pages::{MAX_PAGES, PageTable};
use super::super::{PageSize, Spans, Translation, TranslationError};
use crate::host::{Held, HeldPages, Span};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = 4096;

fn page_size() -> PageSize {
    PageSize::new(PAGE).unwrap()
}

/// Checks that a part of `translation` translates to the right addresses, in as few spans as possible. `bytes` are the
/// addresses of all bytes. `from` and `to` may be any numbers: the part is derived from them.
fn assert_maps(translation: &Translation, bytes: &[u64], from: usize, to: usize) {
    assert_eq!(translation.len(), bytes.len() as u64);
    let (from, to) = (from.min(to) % (bytes.len() + 1), from.max(to) % (bytes.len() + 1));
    let (from, to) = (from.min(to), from.max(to));
    let mut spans = Spans::new();
    translation.append_spans(from as u64, to - from, &mut spans);
    let found: Vec<u64> = spans.iter().flat_map(|span| span.addr..span.addr + span.len as u64).collect();
    assert_eq!(found, bytes[from..to]);
    let breaks = bytes[from..to].windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    assert_eq!(spans.len(), if from == to { 0 } else { breaks + 1 });
}

/// Returns the address of every byte of these pages, from byte `first` of the first page on.
fn bytes_of_pages(pages: &[u64], first: u64) -> Vec<u64> {
    let first = usize::try_from(first).unwrap();
    pages.iter().flat_map(|&page| page..page + PAGE).skip(first).collect()
}

/// Generates page addresses, some of them next to each other.
fn pages(count: Range<usize>) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((1_u64..8).prop_map(|page| page * PAGE), count)
}

/// Creates a translation to pages of memory of which nothing is copied.
fn paged(size: PageSize, first: u64, pages: &[u64]) -> Result<Translation, TranslationError> {
    Translation::pages(size, first, pages, Arc::new(Kept))
}

proptest! {
    #[test]
    fn direct(addr in 0..u64::MAX - 5000, len in 1_u64..5000, from: usize, to: usize) {
        let translation = Translation::direct(addr, len).unwrap();
        assert_maps(&translation, &(addr..addr + len).collect::<Vec<_>>(), from, to);
    }

    #[test]
    fn one_table(pages in pages(1..6), first in 0..PAGE, from: usize, to: usize) {
        let bytes = bytes_of_pages(&pages, first);
        assert_maps(&paged(page_size(), first, &pages).unwrap(), &bytes, from, to);
    }

    #[test]
    fn buffers(list in prop::collection::vec((0_u64..64, 1_usize..32), 1..12), from: usize, to: usize) {
        let list: Vec<_> = list.into_iter().map(|(addr, len)| Span::new(addr, len)).collect();
        let bytes: Vec<_> = list.iter().flat_map(|span| span.addr..span.addr + span.len as u64).collect();
        assert_maps(&Translation::buffers(&list).unwrap(), &bytes, from, to);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))] // each has a list of two million addresses

    #[test]
    fn two_orders(pages in pages(513..530), first in 0..PAGE, from: usize, to: usize) {
        let bytes = bytes_of_pages(&pages, first);
        assert_maps(&paged(page_size(), first, &pages).unwrap(), &bytes, from, to);
    }
}

/// The last page of the first table, the first page of the second, and the last page of a list of maximum length.
#[test]
fn tables_follow_each_other() {
    let pages: Vec<_> = (0..MAX_PAGES as u64).map(|page| page * 2 * PAGE).collect();
    for len in [512, 513, 1024, 1025, MAX_PAGES] {
        let translation = paged(page_size(), 0, &pages[..len]).unwrap();
        assert_eq!(translation.len(), len as u64 * PAGE);
        for page in [0, 511, 512, 1023, 1024, len - 1].into_iter().filter(|page| *page < len) {
            let mut spans = Spans::new();
            translation.append_spans(page as u64 * PAGE + 1, 1, &mut spans);
            assert_eq!(
                *spans,
                [Span { held: true, ..Span::new(pages[page] + 1, 1) }],
                "page {page} of {len}"
            );
        }
    }
}

#[test]
fn a_list_that_fits_one_table_is_of_the_first_order() {
    let order = |pages: usize| {
        let (table, _) = PageTable::new(page_size(), 0, &vec![0; pages]).unwrap();
        format!("{table:?}").rsplit_once("order: ").unwrap().1.to_owned()
    };
    assert_eq!([order(1), order(512)], ["First(1 pages) }", "First(512 pages) }"]);
    assert_eq!([order(513), order(MAX_PAGES)], ["Second(2 tables) }", "Second(512 tables) }"]);
}

#[test]
fn page_sizes_from_4_kib_to_256_mib() {
    for order in 0..64 {
        let size = PageSize::new(1 << order);
        assert_eq!(size.map(PageSize::bytes), (12..=28).contains(&order).then_some(1 << order));
    }
    assert_eq!(PageSize::new(0), None);
    assert_eq!(PageSize::new(4097), None);
    let large = PageSize::new(1 << 28).unwrap();
    let translation = paged(large, 5, &[3 << 28, 1 << 28]).unwrap();
    let mut spans = Spans::new();
    translation.append_spans((1 << 28) - 6, 2, &mut spans);
    let held = |addr| Span { held: true, ..Span::new(addr, 1) };
    assert_eq!(*spans, [held((4 << 28) - 1), held(1 << 28)]);
    assert_eq!(PageSize::KIB_4.to_string() + ", " + &large.to_string(), "4 KiB, 256 MiB");
}

#[test]
fn what_is_no_translation() {
    use TranslationError::{Empty, FirstByte, TooLong, TooManyPages, Unaligned, Wrap};
    let last = u64::MAX - PAGE + 1;
    assert_eq!(Translation::direct(1, 0).unwrap_err(), Empty);
    assert_eq!(Translation::direct(2, u64::MAX - 1).unwrap_err(), Wrap { addr: 2 });
    Translation::direct(1, u64::MAX - 1).unwrap();

    let size = page_size();
    let pages = |first, pages: &[u64]| paged(size, first, pages).unwrap_err();
    assert_eq!(pages(0, &[]), Empty);
    assert_eq!(pages(0, &[PAGE, PAGE + 8]), Unaligned { addr: PAGE + 8, size });
    assert_eq!(pages(PAGE, &[PAGE]), FirstByte { first: PAGE, size });
    assert_eq!(pages(0, &[PAGE, last]), Wrap { addr: last });
    let too_many = vec![PAGE; MAX_PAGES + 1];
    let error = TooManyPages { pages: MAX_PAGES + 1, max: MAX_PAGES };
    assert_eq!(pages(0, &too_many), error);
    assert_eq!(error.to_string(), "a list of 262145 pages exceeds the maximum of 262144: use larger pages");

    let span = |addr, len| Span::new(addr, len);
    let buffers = |list: &[Span]| Translation::buffers(list).unwrap_err();
    assert_eq!(buffers(&[]), Empty);
    assert_eq!(buffers(&[span(1, 1), span(1, 0)]), Empty);
    assert_eq!(buffers(&[span(1, 1), span(u64::MAX, 1)]), Wrap { addr: u64::MAX });
    assert_eq!(buffers(&[span(0, usize::MAX), span(0, 1)]), TooLong);
}

/// Memory that the translation keeps alive, of which nothing is copied here.
#[derive(Debug)]
struct Kept;

impl Held for Kept {
    fn read(&self, _: u64, _: &mut [u8]) {}
    fn write(&self, _: u64, _: &[u8]) {}
}

impl HeldPages for Kept {
    fn read_page(&self, _: u64, _: &mut [u8]) {}
    fn write_page(&self, _: u64, _: &[u8]) {}
}

#[test]
fn spans_of_held_memory_are_held() {
    let forms = || {
        [
            Translation::direct(PAGE, 4 * PAGE),
            Translation::buffers(&[Span::new(1, 5000), Span::new(9000, 5000)]),
        ]
    };
    for (plain, held) in forms().into_iter().zip(forms()) {
        let (plain, held) = (plain.unwrap(), held.unwrap().hold(Arc::new(Kept)));
        let mut spans = Spans::new();
        plain.append_spans(0, 5000, &mut spans);
        let unheld = spans.len();
        held.append_spans(0, 5000, &mut spans);
        assert!(spans[..unheld].iter().all(|span| !span.held) && unheld > 0, "{spans:?}");
        assert!(spans[unheld..].iter().all(|span| span.held) && spans.len() == 2 * unheld, "{spans:?}");
    }
}

#[test]
fn held_and_other_spans_are_not_merged() {
    let mut spans = Spans::new();
    let (first, second) = (Span::new(100, 10), Span { held: true, ..Span::new(110, 10) });
    spans.push(first);
    spans.push(second);
    spans.push(Span { held: true, ..Span::new(120, 10) });
    assert_eq!(*spans, [first, Span { len: 20, ..second }]);
}

#[test]
#[should_panic(expected = "range outside of the translation: it was not checked")]
fn a_range_that_was_not_checked_is_caught() {
    Translation::direct(0, 8).unwrap().append_spans(8, 1, &mut Spans::new());
}
