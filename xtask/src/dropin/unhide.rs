//! Names without a version, so that they stand in front of names with one.
//!
//! compat.S can give a name no version only together with the mark "hidden", which is for old versions that no new program
//! shall be linked with. But a loader takes a hidden name for those that ask for exactly its version, and whoever calls
//! the C library's functions asks for theirs. So the mark is taken off again, in the table of versions (`.gnu.version`).

use crate::shell::{Result, at};
use std::fs;
use std::path::Path;

/// The type of the section that has a version for each symbol.
const VERSYM: u32 = 0x6fff_ffff;
/// No version, and hidden.
const HIDDEN: [u8; 2] = 0x8001_u16.to_le_bytes();
/// No version.
const BASE: [u8; 2] = 0x0001_u16.to_le_bytes();

pub(super) fn unhide(file: &Path) -> Result {
    let mut bytes = fs::read(file).map_err(at(file))?;
    let (start, len) = versions(&bytes).ok_or_else(|| format!("{}: no table of versions", file.display()))?;
    let table = bytes.get_mut(start..start + len).ok_or("a table of versions beyond the end of the file")?;
    for entry in table.chunks_exact_mut(2).filter(|entry| **entry == HIDDEN) {
        entry.copy_from_slice(&BASE);
    }
    fs::write(file, bytes).map_err(at(file))
}

/// Where the table is, in a 64-bit little-endian file.
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
