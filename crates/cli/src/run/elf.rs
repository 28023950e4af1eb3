//! Reads the machine and the loader from the headers of an ELF file. Offsets come from the file and are untrusted, so
//! all reads go through [`Source`], which checks bounds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

/// A file, or bytes in memory, from which headers are read.
pub(super) trait Source {
    /// Reads the bytes at `offset` into `into`. Fails if there are fewer.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// The relevant fields of an ELF file's headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// Whether the file is 64-bit and little-endian. The loader is read only from such files.
    pub(super) wide: bool,
    /// The processor that the file is for.
    pub(super) machine: Machine,
    /// The path of the loader (PT_INTERP). `None` if the program is statically linked.
    pub(super) loader: Option<OsString>,
}

/// The kind of processor (e_machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine(u16);

const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const PT_INTERP: u32 = 3;

/// Size of the file header, in bytes.
pub(super) const HEADER: usize = 64;
/// Size of a program header, in bytes.
pub(super) const PROGRAM_HEADER: usize = 56;
/// Maximum length of the loader's path, as in the kernel (PATH_MAX).
const MAX_LOADER: u64 = 4096;
/// Maximum number of program headers: the kernel reads 64 KiB.
pub(super) const MAX_PROGRAM_HEADERS: u16 = 1170;

impl Machine {
    /// The processor that this program was built for.
    pub(super) const OURS: Self = Self(if cfg!(target_arch = "aarch64") { 183 } else { 62 });

    /// Returns the common name.
    pub(super) fn name(self) -> String {
        let known = match self.0 {
            2 | 18 | 43 => "sparc",
            3 => "i386",
            8 => "mips",
            20 | 21 => "powerpc",
            22 => "s390x",
            40 => "arm",
            62 => "x86_64",
            183 => "aarch64",
            243 => "riscv",
            258 => "loongarch",
            other => return format!("machine number {other}"),
        };
        known.to_owned()
    }
}

impl Elf {
    /// Parses a file. Returns `None` if it is not ELF, or truncated or invalid in a way that the kernel rejects.
    pub(super) fn parse(source: &impl Source) -> io::Result<Option<Self>> {
        match Self::parse_whole(source) {
            // The headers are truncated.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            parsed => parsed,
        }
    }

    /// Parses a file like [`parse`](Self::parse), but fails with `UnexpectedEof` if the headers are truncated.
    fn parse_whole(source: &impl Source) -> io::Result<Option<Self>> {
        let mut ident = [0; 20];
        source.read(0, &mut ident)?;
        if ident[..4] != MAGIC {
            return Ok(None);
        }
        let little = ident[5] == LITTLE_ENDIAN;
        let machine = [ident[18], ident[19]];
        let machine = if little { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
        let (wide, machine) = (little && ident[4] == CLASS_64, Machine(machine));
        if !wide {
            return Ok(Some(Self { wide, machine, loader: None }));
        }
        let mut header = [0; HEADER];
        source.read(0, &mut header)?;
        let table = u64_at(&header, 32);
        let (size, count) = (u16_at(&header, 54), u16_at(&header, 56));
        if usize::from(size) != PROGRAM_HEADER || count > MAX_PROGRAM_HEADERS {
            return Ok(None);
        }
        for index in 0..u64::from(count) {
            let mut entry = [0; PROGRAM_HEADER];
            source.read(table.saturating_add(index * PROGRAM_HEADER as u64), &mut entry)?;
            if u32_at(&entry, 0) == PT_INTERP {
                let loader = read_name(source, u64_at(&entry, 8), u64_at(&entry, 32))?;
                return Ok(loader.map(|loader| Self { wide, machine, loader: Some(loader) }));
            }
        }
        Ok(Some(Self { wide, machine, loader: None }))
    }
}

/// Reads a name of `len` bytes, including its terminating NUL. Returns `None` if the length is invalid or the NUL is
/// missing.
fn read_name(source: &impl Source, offset: u64, len: u64) -> io::Result<Option<OsString>> {
    if !(2..=MAX_LOADER).contains(&len) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    source.read(offset, &mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == 0);
    Ok(end.map(|end| OsString::from_vec(bytes[..end].to_vec())))
}

/// Returns the 16-bit little-endian number at an offset inside `bytes`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// Returns the 32-bit little-endian number at an offset inside `bytes`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Returns the 64-bit little-endian number at an offset inside `bytes`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Returns the `N` bytes at offset `at`, which must be inside `bytes`: callers pass constants within a complete header.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

impl Source for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset > i64::MAX.cast_unsigned() {
            return Err(ErrorKind::UnexpectedEof.into()); // the kernel would return EINVAL
        }
        self.read_exact_at(into, offset)
    }
}

/// A file that is read in pages, which are kept: many small reads would otherwise take a system call each.
#[derive(Debug)]
pub(super) struct Pages {
    file: File,
    /// Pages that were read, by number.
    read: RefCell<BTreeMap<u64, Vec<u8>>>,
}

/// Size of a page, in bytes.
const PAGE: usize = 8192;

impl Pages {
    pub(super) fn new(file: File) -> Self {
        Self { file, read: RefCell::default() }
    }

    /// Reads a page from the file. The last page of the file may be shorter.
    fn read_page(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; PAGE];
        let offset = number * PAGE as u64;
        let mut len = 0;
        while len < PAGE {
            match self.file.read_at(&mut bytes[len..], offset + len as u64)? {
                0 => break,
                more => len += more,
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }
}

impl Source for Pages {
    fn read(&self, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        let mut pages = self.read.borrow_mut();
        while !into.is_empty() {
            if offset > i64::MAX.cast_unsigned() - PAGE as u64 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let (number, inside) = (offset / PAGE as u64, usize::try_from(offset % PAGE as u64).unwrap_or(0));
            let page = match pages.entry(number) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.read_page(number)?),
            };
            let from = page.get(inside..).filter(|from| !from.is_empty()).ok_or(ErrorKind::UnexpectedEof)?;
            let len = from.len().min(into.len());
            let (now, later) = into.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            (offset, into) = (offset + len as u64, later);
        }
        Ok(())
    }
}

impl Source for [u8] {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self[..].read(offset, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

    /// Returns a file with a PT_LOAD segment and a PT_INTERP segment.
    fn program(loader: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADER + 2 * PROGRAM_HEADER];
        file[..4].copy_from_slice(&MAGIC);
        (file[4], file[5], file[6]) = (CLASS_64, LITTLE_ENDIAN, 1);
        file[16..20].copy_from_slice(&[3, 0, 62, 0]);
        file[32] = 64;
        (file[54], file[56]) = (56, 2);
        file[HEADER] = 1;
        let entry = HEADER + PROGRAM_HEADER;
        file[entry] = 3;
        let (at, len) = (file.len() as u64, loader.len() as u64);
        file[entry + 8..entry + 16].copy_from_slice(&at.to_le_bytes());
        file[entry + 32..entry + 40].copy_from_slice(&len.to_le_bytes());
        file.extend_from_slice(loader);
        file
    }

    fn parse(file: &Vec<u8>) -> Option<Elf> {
        Elf::parse(file).unwrap()
    }

    #[test]
    fn a_program_names_its_loader() {
        let loader = Some(OsString::from("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(parse(&program(LOADER)), Some(Elf { wide: true, machine: Machine(62), loader }));
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let own = Elf::parse(&own).unwrap().unwrap();
        assert_eq!((own.wide, own.machine), (true, Machine::OURS));
        assert!(own.loader.unwrap().to_string_lossy().contains("/ld-"));
    }

    #[test]
    fn pages_have_what_the_file_has() {
        let path = std::env::current_exe().unwrap();
        let (whole, pages) = (std::fs::read(&path).unwrap(), Pages::new(File::open(&path).unwrap()));
        let end = whole.len() as u64;
        for offset in [
            0,
            1,
            PAGE as u64 - 1,
            PAGE as u64,
            3 * PAGE as u64 - 5,
            end - 1,
            end - 100,
            end,
            end + 1,
            u64::MAX,
        ] {
            for len in [0, 1, 100, 2 * PAGE + 1] {
                let (mut one, mut other) = (vec![0; len], vec![0; len]);
                let expected = whole.read(offset, &mut one).map_err(|error| error.kind());
                let found = pages.read(offset, &mut other).map_err(|error| error.kind());
                assert!(
                    len == 0 || found == expected,
                    "{len} bytes at {offset}: {found:?}, expected {expected:?}"
                );
                assert!(expected.is_err() || one == other, "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn a_static_program_names_none() {
        let mut file = program(LOADER);
        file[HEADER + PROGRAM_HEADER] = 1;
        assert_eq!(parse(&file).unwrap().loader, None);
        file[56] = 0;
        assert_eq!(parse(&file).unwrap().loader, None);
    }

    #[test]
    fn other_machines_and_widths_are_recognised() {
        let mut file = program(LOADER);
        file[18..20].copy_from_slice(&[183, 0]);
        assert_eq!(parse(&file).unwrap().machine.name(), "aarch64");
        (file[4], file[18]) = (1, 3);
        let narrow = parse(&file).unwrap();
        assert_eq!((narrow.wide, narrow.machine.name()), (false, "i386".to_owned()));
        (file[4], file[5]) = (2, 2);
        file[18..20].copy_from_slice(&[0, 22]);
        let other_order = parse(&file).unwrap();
        assert_eq!((other_order.wide, other_order.machine.name()), (false, "s390x".to_owned()));
        file[18..20].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(parse(&file).unwrap().machine.name(), "machine number 4660");
    }

    #[test]
    fn other_files_are_not_elf() {
        for file in [&b""[..], b"\x7fELG", b"#!/bin/sh\necho hello to you\n", &[0; 100]] {
            assert_eq!(parse(&file.to_vec()), None);
        }
    }

    /// Truncated and corrupted files never cause a panic.
    #[test]
    fn broken_files() {
        let whole = program(LOADER);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len].to_vec()), None, "{len} bytes of {}", whole.len());
        }
        for at in 0..whole.len() {
            for wrong in [0, 1, 0x7f, 0x80, 0xff] {
                let mut file = whole.clone();
                file[at] = wrong;
                let _ = parse(&file);
            }
        }
        for field in [32, HEADER + PROGRAM_HEADER + 8, HEADER + PROGRAM_HEADER + 32] {
            for value in [u64::MAX, i64::MAX.cast_unsigned(), 1 << 40, 4097] {
                let mut file = whole.clone();
                file[field..field + 8].copy_from_slice(&value.to_le_bytes());
                assert_eq!(parse(&file), None, "{value:#x} at {field}");
            }
        }
    }

    #[test]
    fn an_unterminated_name_is_rejected() {
        assert_eq!(parse(&program(b"/lib64/ld")), None);
        assert_eq!(parse(&program(b"\0")), None);
    }
}
