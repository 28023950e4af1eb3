//! Checks the versions of libibverbs and librdmacm that a program or its libraries require. The loader ends a program that requires
//! a missing one, without saying what to do about it.
//!
//! Libraries that a program loads with `dlopen` are not checked.

use super::elf::{HEADER, MAX_PROGRAM_HEADERS, PROGRAM_HEADER, Pages, Source, u16_at, u32_at, u64_at};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The names under which our library is loaded.
const OURS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Libraries of the C library and the compiler, which do not use ours.
const OF_THE_COMPILER: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The loader's default directories. It may know others; libraries that are not found here are not checked.
const PLACES: [&str; 6] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"];
/// Debian's multiarch directory.
const TRIPLET: &str = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };

/// Limits for one program.
const MAX_FILES: usize = 1000;
const MAX_ENTRIES: usize = 4096;
const MAX_NAME: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERNEED: u64 = 0x6fff_fffe;
/// The loader continues without such a version.
const WEAK: u16 = 2;

/// A missing version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// The file that requires it.
    file: PathBuf,
    library: OsString,
    version: OsString,
    /// The newest available version of the same kind.
    newest: Option<String>,
}

impl Missing {
    /// Describes the problem of a program.
    pub(super) fn of(&self, program: &OsStr, path: &Path) -> String {
        let Self { file, library, version, newest } = self;
        let (library, version) = (library.to_string_lossy(), version.to_string_lossy());
        let program = program.to_string_lossy();
        let through =
            if file == path { String::new() } else { format!("is linked with {}, which ", file.display()) };
        let newest = newest.as_ref().map_or(String::new(), |newest| format!("; its newest is {newest}"));
        format!(
            "`{program}` {through}requires version {version} of {library}, which this Ironwarp does not have{newest}: \
             use a newer Ironwarp, or a build for an older rdma-core"
        )
    }
}

/// Checks whether the library has all versions that a program and its libraries require. A library without versions satisfies
/// all. `search` is LD_LIBRARY_PATH.
pub(super) fn check(program: &Path, library: &Path, search: Option<&OsStr>) -> Result<(), Missing> {
    // Read only on demand, because most programs require nothing of it.
    let mut has = None;
    let mut seen = BTreeSet::new();
    let mut files = VecDeque::from([program.to_owned()]);
    let search: Vec<PathBuf> = search.map(|list| std::env::split_paths(list).collect()).unwrap_or_default();
    let triplets = ["/lib", "/usr/lib"].map(|place| Path::new(place).join(TRIPLET));
    let mut of_program = Vec::new();
    while let Some(file) = files.pop_front() {
        let Some(dynamic) = Dynamic::open(&file) else { continue };
        if !dynamic.wants.is_empty() {
            let has = has
                .get_or_insert_with(|| Dynamic::open(library).map(|library| library.has).unwrap_or_default());
            if has.is_empty() {
                return Ok(());
            }
            if let Some((library, version)) = dynamic.wants.iter().find(|(_, version)| !has.contains(version))
            {
                let (library, version) = (library.clone(), version.clone());
                return Err(Missing { newest: newest(has, &version), file, library, version });
            }
        }
        let paths = expanded(&dynamic.paths, &file);
        if of_program.is_empty() {
            of_program.clone_from(&paths);
        }
        let places = paths.iter().chain(&of_program).chain(&search).chain(&triplets);
        let places: Vec<PathBuf> = places.cloned().chain(PLACES.map(PathBuf::from)).collect();
        let known = |name: &&OsString| !OURS.iter().chain(&OF_THE_COMPILER).any(|known| *name == known);
        for name in dynamic.needed.iter().filter(known) {
            if seen.len() < MAX_FILES && seen.insert(name.clone()) {
                files.extend(places.iter().map(|place| place.join(name)).find(|path| path.is_file()));
            }
        }
    }
    Ok(())
}

/// Returns the search directories of a file, with `$ORIGIN` replaced by its own directory.
fn expanded(paths: &[OsString], file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let origin = real.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let expand = |path: PathBuf| {
        let path = path.to_string_lossy().into_owned();
        PathBuf::from(path.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin))
    };
    paths.iter().flat_map(std::env::split_paths).map(expand).collect()
}

/// Returns the newest version whose name differs only in the number at its end.
fn newest(has: &BTreeSet<OsString>, version: &OsStr) -> Option<String> {
    let split = |text: &str| {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        Some((text[..digits].to_owned(), text[digits..].parse::<u32>().ok()?))
    };
    let (kind, _) = split(&version.to_string_lossy())?;
    let known = has.iter().filter_map(|known| split(&known.to_string_lossy()));
    let number = known.filter(|(other, _)| *other == kind).map(|(_, number)| number).max()?;
    Some(format!("{kind}{number}"))
}

/// The dynamic section of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dynamic {
    needed: Vec<OsString>,
    paths: Vec<OsString>,
    /// Required versions of our libraries: file and version.
    wants: Vec<(OsString, OsString)>,
    has: BTreeSet<OsString>,
}

/// A loaded segment: address, file offset and length.
type Segment = (u64, u64, u64);

/// A file and its segments. Offsets come from the file and are untrusted: [`Source`] checks bounds, and all loops are limited.
struct Reader<'s, S> {
    source: &'s S,
    segments: Vec<Segment>,
    strings: u64,
}

impl Dynamic {
    /// Returns `None` for a file that cannot be read or is not ELF: the loader reports it.
    fn open(path: &Path) -> Option<Self> {
        Self::parse(&Pages::new(File::open(path).ok()?)).ok()?
    }

    fn parse(source: &impl Source) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        source.read(0, &mut header)?;
        let (table, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        if header[..6] != *b"\x7fELF\x02\x01"
            || usize::from(size) != PROGRAM_HEADER
            || count > MAX_PROGRAM_HEADERS
        {
            return Ok(None);
        }
        let (mut segments, mut dynamic) = (Vec::new(), None);
        for index in 0..u64::from(count) {
            let mut entry = [0; PROGRAM_HEADER];
            source.read(table.saturating_add(index * PROGRAM_HEADER as u64), &mut entry)?;
            let (offset, address, len) = (u64_at(&entry, 8), u64_at(&entry, 16), u64_at(&entry, 32));
            match u32_at(&entry, 0) {
                PT_LOAD => segments.push((address, offset, len)),
                PT_DYNAMIC => dynamic = Some((offset, len)),
                _ => {}
            }
        }
        let Some((offset, len)) = dynamic else { return Ok(None) };
        let mut tags = Vec::new();
        for index in 0..(len / 16).min(MAX_ENTRIES as u64) {
            let mut entry = [0; 16];
            source.read(offset.saturating_add(index * 16), &mut entry)?;
            match (u64_at(&entry, 0), u64_at(&entry, 8)) {
                (0, _) => break,
                tag => tags.push(tag),
            }
        }
        let value = |tag: u64| tags.iter().find(|(known, _)| *known == tag).map(|(_, value)| *value);
        let Some(strings) = value(DT_STRTAB) else { return Ok(None) };
        let reader = Reader { source, segments, strings };
        let mut found = Self::default();
        for (tag, value) in &tags {
            match *tag {
                DT_NEEDED => found.needed.push(reader.string(*value)?),
                DT_RPATH | DT_RUNPATH => found.paths.push(reader.string(*value)?),
                _ => {}
            }
        }
        if let Some(at) = value(DT_VERNEED) {
            found.wants = reader.wants(at)?;
        }
        if let Some(at) = value(DT_VERDEF) {
            found.has = reader.has(at)?;
        }
        Ok(Some(found))
    }
}

impl<S: Source> Reader<'_, S> {
    /// Reads from an address.
    fn read<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(address, &mut bytes)?;
        Ok(bytes)
    }

    fn read_into(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let inside = |&&(start, _, len): &&Segment| address >= start && address - start < len;
        let nowhere = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (start, offset, _) = self.segments.iter().find(inside).ok_or_else(nowhere)?;
        self.source.read(offset.checked_add(address - start).ok_or_else(nowhere)?, bytes)
    }

    fn string(&self, at: u64) -> io::Result<OsString> {
        let start = self.strings.saturating_add(at);
        let mut text = Vec::new();
        while text.len() < MAX_NAME {
            // Reads at most to the end of the segment, where the last string may end.
            let mut bytes = [0; 64];
            let mut len = bytes.len();
            while self.read_into(start.saturating_add(text.len() as u64), &mut bytes[..len]).is_err() {
                len /= 2;
                if len == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            match bytes[..len].iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(&bytes[..end]);
                    return Ok(OsString::from_vec(text));
                }
                None => text.extend_from_slice(&bytes[..len]),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Walks a list whose elements contain the distance to the next one, or 0 at the end.
    fn walk(&self, mut at: u64, mut visit: impl FnMut(u64) -> io::Result<u32>) -> io::Result<()> {
        for _ in 0..MAX_ENTRIES {
            match visit(at)? {
                0 => return Ok(()),
                next => at = at.saturating_add(next.into()),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Reads Elf64_Verneed, and Elf64_Vernaux for each version.
    fn wants(&self, at: u64) -> io::Result<Vec<(OsString, OsString)>> {
        let mut wants = Vec::new();
        self.walk(at, |at| {
            let entry: [u8; 16] = self.read(at)?;
            let library = self.string(u32_at(&entry, 4).into())?;
            if OURS.iter().any(|ours| library == *ours) {
                self.walk(at.saturating_add(u32_at(&entry, 8).into()), |at| {
                    let entry: [u8; 16] = self.read(at)?;
                    if u16_at(&entry, 4) & WEAK == 0 {
                        wants.push((library.clone(), self.string(u32_at(&entry, 8).into())?));
                    }
                    Ok(u32_at(&entry, 12))
                })?;
            }
            Ok(u32_at(&entry, 12))
        })?;
        Ok(wants)
    }

    /// Reads Elf64_Verdef, and the first Elf64_Verdaux of each, which has its name.
    fn has(&self, at: u64) -> io::Result<BTreeSet<OsString>> {
        let mut has = BTreeSet::new();
        self.walk(at, |at| {
            let entry: [u8; 20] = self.read(at)?;
            let name: [u8; 8] = self.read(at.saturating_add(u32_at(&entry, 12).into()))?;
            has.insert(self.string(u32_at(&name, 0).into())?);
            Ok(u32_at(&entry, 16))
        })?;
        Ok(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_kind_is_found_by_number() {
        let has = ["IBVERBS_1.9", "IBVERBS_1.18", "IBVERBS_PRIVATE_34", "RDMACM_1.5", "libibverbs.so.1"];
        let has = has.iter().map(OsString::from).collect();
        for (version, wanted) in [
            ("IBVERBS_1.19", Some("IBVERBS_1.18")),
            ("IBVERBS_PRIVATE_66", Some("IBVERBS_PRIVATE_34")),
            ("OTHER_2", None),
            ("", None),
        ] {
            assert_eq!(newest(&has, version.as_ref()).as_deref(), wanted, "{version}");
        }
    }

    /// Truncating or corrupting this executable anywhere near its headers never causes a panic.
    #[test]
    fn broken_files() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let good = Dynamic::parse(&whole).unwrap().unwrap();
        assert!(good.needed.iter().any(|name| name == "libc.so.6"), "{good:?}");
        for len in (0..900).chain((900..whole.len()).step_by(whole.len() / 50)) {
            let _ = Dynamic::parse(&whole[..len].to_vec());
        }
        let mut file = whole;
        for at in 0..900 {
            let before = file[at];
            for wrong in [0, 1, 0x7f, 0xff] {
                file[at] = wrong;
                let _ = Dynamic::parse(&file);
            }
            file[at] = before;
        }
    }

    #[test]
    fn other_files_require_nothing() {
        assert!(Dynamic::parse(&b"#!/bin/sh\n".to_vec()).is_err());
        assert_eq!(Dynamic::parse(&vec![0; 100]).unwrap(), None);
        assert_eq!(Dynamic::open(Path::new("/no/such/file")), None);
    }

    #[test]
    fn origin_is_the_directory_of_the_file() {
        let paths = ["$ORIGIN/../lib:/opt".into(), "${ORIGIN}".into()];
        let expanded = expanded(&paths, Path::new("/no/such/bin/program"));
        assert_eq!(expanded, ["/no/such/bin/../lib", "/opt", "/no/such/bin"].map(PathBuf::from));
    }

    #[test]
    fn the_error_names_the_file_and_what_to_do() {
        let missing = |file: &str| Missing {
            file: file.into(),
            library: "libibverbs.so.1".into(),
            version: "IBVERBS_1.19".into(),
            newest: Some("IBVERBS_1.18".into()),
        };
        let path = Path::new("/usr/bin/ib_write_bw");
        let direct = missing("/usr/bin/ib_write_bw").of("ib_write_bw".as_ref(), path);
        assert!(
            direct.starts_with("`ib_write_bw` requires version IBVERBS_1.19 of libibverbs.so.1,"),
            "{direct}"
        );
        assert!(direct.contains("its newest is IBVERBS_1.18: use a newer Ironwarp"), "{direct}");
        let through = missing("/usr/lib/libmlx5.so.1").of("ib_write_bw".as_ref(), path);
        assert!(
            through.contains("is linked with /usr/lib/libmlx5.so.1, which requires version"),
            "{through}"
        );
    }
}
