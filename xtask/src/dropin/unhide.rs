//! Makes symbols without a version that take precedence over symbols with one.
//!
//! compat.S can only make a symbol without a version that is marked "hidden", which is meant for old versions
//! that new programs must not be linked with. But the loader resolves a reference to a hidden symbol only if
//! it asks for exactly its version, and callers of the C library ask for that of the C library. So this
//! removes the mark again, in the table of versions (`.gnu.version`).

use crate::shell::{Result, at};
use std::fs;
use std::path::Path;

/// The type of the section with a version for each symbol.
const VERSYM: u32 = 0x6fff_ffff;
/// No version, and hidden.
const HIDDEN: [u8; 2] = 0x8001_u16.to_le_bytes();
/// No version.
const BASE: [u8; 2] = 0x0001_u16.to_le_bytes();

pub(super) fn unhide(file: &Path) -> Result {
    let mut bytes = fs::read(file).map_err(at(file))?;
    let (start, len) = versions(&bytes).ok_or_else(|| format!("{}: no version table", file.display()))?;
    let table = bytes.get_mut(start..start + len).ok_or("version table beyond the end of the file")?;
    for entry in table.chunks_exact_mut(2).filter(|entry| **entry == HIDDEN) {
        entry.copy_from_slice(&BASE);
    }
    fs::write(file, bytes).map_err(at(file))
}

/// Finds the table in a 64-bit little-endian file.
fn versions(elf: &[u8]) -> Option<(usize, usize)> {
    let word = |at: usize| Some(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?)));
    let headers = usize::try_from(word(0x28)?).ok()?;
    let (size, count) = (half(0x3a)?, half(0x3c)?);
    (0..count).map(|index| headers + index * size).find_map(|header| {
        let kind = u32::from_le_bytes(elf.get(header + 4..header + 8)?.try_into().ok()?);
        let place = usize::try_from(word(header + 0x18)?).ok()?;
        let len = usize::try_from(word(header + 0x20)?).ok()?;
        (kind == VERSYM).then_some((place, len))
    })
}
