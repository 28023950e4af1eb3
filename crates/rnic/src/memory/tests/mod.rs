//! Unit tests of the memory table, and helpers that they share.

mod access;
mod commands;
mod guessing;
mod registration;
mod reregister;
mod retirement;
mod slices;
mod threads;
mod touch;
mod translation;
mod windows;

use super::{Check, Denied, Domain, Limits, Memory, Rights, Spans, Stream, Table, TagCipher, Touch};
use crate::host::{Host, Span, Unmapped};
use ironwarp_wire::{RemoteAddr, Tag};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// The domain of the memory that most tests use.
const HOME: Domain = Domain(1);
/// Another domain.
const AWAY: Domain = Domain(2);
/// The stream that most tests use.
const STREAM: Stream = Stream { domain: HOME, qp: 7 };
/// Another stream of the same domain.
const NEIGHBOUR: Stream = Stream { domain: HOME, qp: 8 };
/// A stream of another domain.
const STRANGER: Stream = Stream { domain: AWAY, qp: 7 };

/// Address of the memory that most tests use.
const ADDR: u64 = 0x10_0000;
const LEN: u64 = 0x1000;

/// A host with this address range mapped. Copying panics, because the table must not copy.
#[derive(Debug)]
struct Mapped(Range<u64>);

const ALL: Mapped = Mapped(0..u64::MAX);

impl Host for Mapped {
    fn gather(&self, _: &[Span], _: &mut [u8]) -> Result<(), Unmapped> {
        panic!("the table copies")
    }

    fn scatter(&self, _: &[u8], _: &[Span]) -> Result<(), Unmapped> {
        panic!("the table copies")
    }

    fn is_mapped(&self, span: Span) -> bool {
        self.0.start <= span.addr && span.addr + span.len as u64 <= self.0.end
    }
}

fn table() -> Table {
    table_of(100)
}

/// Creates a table with this maximum number of entries.
fn table_of(entries: usize) -> Table {
    Table::new(Limits::new(entries), cipher())
}

/// Returns a cipher that is the same in every test and every run.
fn cipher() -> Arc<TagCipher> {
    static CIPHER: LazyLock<Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));
    Arc::clone(&CIPHER)
}

/// Describes `LEN` bytes at `ADDR` with these rights.
fn memory(rights: Rights) -> Memory {
    Memory::direct(ADDR, LEN, rights).unwrap()
}

/// Registers `LEN` bytes at `ADDR` with these rights in `HOME`.
fn register(table: &Table, rights: Rights) -> Tag {
    table.register(&ALL, HOME, memory(rights)).unwrap()
}

fn addr(tag: Tag, offset: u64) -> RemoteAddr {
    RemoteAddr { tag, offset }
}

/// Returns the check that `access` fails, and asserts that the access appended no span.
fn failed_check(access: impl FnOnce(&mut Spans) -> Result<(), Denied>) -> Check {
    let before = Span::new(1, 1);
    let mut spans = Spans::new();
    spans.push(before);
    let denied = access(&mut spans).unwrap_err();
    assert_eq!(*spans, [before], "{denied}");
    denied.check
}

/// Returns the check that an access of a work request fails.
fn local_denied(table: &Table, domain: Domain, tag: Tag, at: u64, len: usize, need: Rights) -> Check {
    failed_check(|spans| table.admit_local(domain, tag, at, len, need, spans).map(drop))
}

/// Returns the check that an access of a remote message fails.
fn remote_denied(table: &Table, stream: Stream, addr: RemoteAddr, len: usize, need: Rights) -> Check {
    failed_check(|spans| {
        table.admit_remote(stream, addr, len, need, spans, &mut Touch::for_request()).map(drop)
    })
}

/// Returns the address ranges of a work request's access, which must succeed.
fn local_spans(table: &Table, tag: Tag, at: u64, len: usize, need: Rights) -> Vec<Span> {
    let mut spans = Spans::new();
    drop(table.admit_local(HOME, tag, at, len, need, &mut spans).unwrap());
    spans.to_vec()
}

/// Returns the address ranges of a remote message's access, which must succeed.
fn remote_spans(table: &Table, stream: Stream, addr: RemoteAddr, len: usize, need: Rights) -> Vec<Span> {
    let mut spans = Spans::new();
    drop(table.admit_remote(stream, addr, len, need, &mut spans, &mut Touch::for_request()).unwrap());
    spans.to_vec()
}

/// Returns a tag with another instance of the same entry.
fn other_instance(tag: Tag) -> Tag {
    Tag(tag.0 ^ 0x80)
}
