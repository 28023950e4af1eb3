//! Checks that the drop-in library has all symbol versions of libibverbs and librdmacm that a program and its libraries
//! require. If a version is missing, the loader would end the program without a hint what to do.
//!
//! Libraries that a program loads with `dlopen` are not checked.

use super::elf::{HEADER, MAX_PROGRAM_HEADERS, PROGRAM_HEADER, Pages, Source, u16_at, u32_at, u64_at};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The names under which programs load the drop-in library.
const OURS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Libraries of the C library and the compiler, which are not checked: they do not use libibverbs or librdmacm.
const SYSTEM_LIBRARIES: [&str; 9] = [
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

/// Default directories in which to search libraries. The loader may know others; libraries that are not found here are
/// not checked.
const DEFAULT_DIRECTORIES: [&str; 6] =
    ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"];
/// Debian's multiarch directory.
const TRIPLET: &str = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };

/// Maximum number of libraries of a program.
const MAX_FILES: usize = 1000;
/// Maximum number of entries of a table.
const MAX_ENTRIES: usize = 4096;
/// Maximum length of a string, in bytes.
const MAX_NAME: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERNEED: u64 = 0x6fff_fffe;
/// Flag of a required version without which the loader continues (VER_FLG_WEAK).
const WEAK: u16 = 2;

/// A symbol version that the drop-in library does not have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// The file that requires the version.
    file: PathBuf,
    /// The library that the version belongs to.
    library: OsString,
    version: OsString,
    /// The newest available version whose name differs only in the number.
    newest: Option<String>,
}

impl Missing {
    /// Returns an error message for the program `program`, whose file is `path`.
    pub(super) fn describe(&self, program: &OsStr, path: &Path) -> String {
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

/// Checks that the drop-in library `library` has all versions that a program and its libraries require. A library
/// without versions satisfies all. `search` is the value of LD_LIBRARY_PATH.
pub(super) fn check(program: &Path, library: &Path, search: Option<&OsStr>) -> Result<(), Missing> {
    // The versions that `library` provides. Read only on demand, because many programs require none.
    let mut provided = None;
    let mut seen = BTreeSet::new();
    let mut files = VecDeque::from([program.to_owned()]);
    let search: Vec<PathBuf> = search.map(|list| std::env::split_paths(list).collect()).unwrap_or_default();
    let triplets = ["/lib", "/usr/lib"].map(|place| Path::new(place).join(TRIPLET));
    let mut of_program = Vec::new();
    while let Some(file) = files.pop_front() {
        let Some(dynamic) = Dynamic::open(&file) else { continue };
        if !dynamic.required.is_empty() {
            let provided = provided.get_or_insert_with(|| {
                Dynamic::open(library).map(|library| library.provided).unwrap_or_default()
            });
            if provided.is_empty() {
                return Ok(());
            }
            if let Some((library, version)) =
                dynamic.required.iter().find(|(_, version)| !provided.contains(version))
            {
                let (library, version) = (library.clone(), version.clone());
                return Err(Missing { newest: find_newest(provided, &version), file, library, version });
            }
        }
        let paths = expand_paths(&dynamic.paths, &file);
        if of_program.is_empty() {
            of_program.clone_from(&paths);
        }
        let places = paths.iter().chain(&of_program).chain(&search).chain(&triplets);
        let places: Vec<PathBuf> = places.cloned().chain(DEFAULT_DIRECTORIES.map(PathBuf::from)).collect();
        let is_checked = |name: &&OsString| !OURS.iter().chain(&SYSTEM_LIBRARIES).any(|known| *name == known);
        for name in dynamic.needed.iter().filter(is_checked) {
            if seen.len() < MAX_FILES && seen.insert(name.clone()) {
                files.extend(places.iter().map(|place| place.join(name)).find(|path| path.is_file()));
            }
        }
    }
    Ok(())
}

/// Returns the search directories of a file, with `$ORIGIN` replaced by its own directory.
fn expand_paths(paths: &[OsString], file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let origin = real.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let expand = |path: PathBuf| {
        let path = path.to_string_lossy().into_owned();
        PathBuf::from(path.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin))
    };
    paths.iter().flat_map(std::env::split_paths).map(expand).collect()
}

/// Returns the newest version whose name differs only in the number at its end.
fn find_newest(provided: &BTreeSet<OsString>, version: &OsStr) -> Option<String> {
    let split = |text: &str| {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        Some((text[..digits].to_owned(), text[digits..].parse::<u32>().ok()?))
    };
    let (kind, _) = split(&version.to_string_lossy())?;
    let known = provided.iter().filter_map(|known| split(&known.to_string_lossy()));
    let number = known.filter(|(other, _)| *other == kind).map(|(_, number)| number).max()?;
    Some(format!("{kind}{number}"))
}

/// The relevant entries of a file's dynamic section.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dynamic {
    /// Libraries that the file needs.
    needed: Vec<OsString>,
    /// Lists of directories in which to search them (RPATH and RUNPATH).
    paths: Vec<OsString>,
    /// Required versions of libibverbs and librdmacm: library and version.
    required: Vec<(OsString, OsString)>,
    /// Versions that the file itself provides.
    provided: BTreeSet<OsString>,
}

/// A loaded segment: address, file offset and length.
type Segment = (u64, u64, u64);

/// A file and its segments. Offsets come from the file and are untrusted: [`Source`] checks bounds, and all loops are
/// limited.
struct Reader<'s, S> {
    source: &'s S,
    segments: Vec<Segment>,
    /// Address of the string table.
    strings: u64,
}

impl Dynamic {
    /// Reads a file. Returns `None` if the file cannot be read or is not ELF, which the loader will report.
    fn open(path: &Path) -> Option<Self> {
        Self::parse(&Pages::new(File::open(path).ok()?)).ok()?
    }

    /// Parses a file. Returns `None` if it is not a 64-bit ELF file with a dynamic section.
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
            found.required = reader.required(at)?;
        }
        if let Some(at) = value(DT_VERDEF) {
            found.provided = reader.provided(at)?;
        }
        Ok(Some(found))
    }
}

impl<S: Source> Reader<'_, S> {
    /// Reads `N` bytes at an address.
    fn read<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the bytes at an address into `bytes`. Fails if no segment contains the address.
    fn read_into(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let inside = |&&(start, _, len): &&Segment| address >= start && address - start < len;
        let out_of_bounds = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (start, offset, _) = self.segments.iter().find(inside).ok_or_else(out_of_bounds)?;
        self.source.read(offset.checked_add(address - start).ok_or_else(out_of_bounds)?, bytes)
    }

    /// Reads the string at this offset of the string table.
    fn string(&self, at: u64) -> io::Result<OsString> {
        let start = self.strings.saturating_add(at);
        let mut text = Vec::new();
        while text.len() < MAX_NAME {
            // Read 64 bytes at once, or fewer if the file ends before.
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

    /// Calls `visit` with the address of each element of a list. `visit` returns the distance to the next element, or 0
    /// at the end.
    fn walk_list(&self, mut at: u64, mut visit: impl FnMut(u64) -> io::Result<u32>) -> io::Result<()> {
        for _ in 0..MAX_ENTRIES {
            match visit(at)? {
                0 => return Ok(()),
                next => at = at.saturating_add(next.into()),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Returns the required versions of libibverbs and librdmacm: reads Elf64_Verneed for each library, and
    /// Elf64_Vernaux for each version.
    fn required(&self, at: u64) -> io::Result<Vec<(OsString, OsString)>> {
        let mut required = Vec::new();
        self.walk_list(at, |at| {
            let entry: [u8; 16] = self.read(at)?;
            let library = self.string(u32_at(&entry, 4).into())?;
            if OURS.iter().any(|ours| library == *ours) {
                self.walk_list(at.saturating_add(u32_at(&entry, 8).into()), |at| {
                    let entry: [u8; 16] = self.read(at)?;
                    if u16_at(&entry, 4) & WEAK == 0 {
                        required.push((library.clone(), self.string(u32_at(&entry, 8).into())?));
                    }
                    Ok(u32_at(&entry, 12))
                })?;
            }
            Ok(u32_at(&entry, 12))
        })?;
        Ok(required)
    }

    /// Returns the provided versions: reads Elf64_Verdef for each, and its first Elf64_Verdaux, which has the name.
    fn provided(&self, at: u64) -> io::Result<BTreeSet<OsString>> {
        let mut provided = BTreeSet::new();
        self.walk_list(at, |at| {
            let entry: [u8; 20] = self.read(at)?;
            let name: [u8; 8] = self.read(at.saturating_add(u32_at(&entry, 12).into()))?;
            provided.insert(self.string(u32_at(&name, 0).into())?);
            Ok(u32_at(&entry, 16))
        })?;
        Ok(provided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_kind_is_found_by_number() {
        let provided = ["IBVERBS_1.9", "IBVERBS_1.18", "IBVERBS_PRIVATE_34", "RDMACM_1.5", "libibverbs.so.1"];
        let provided = provided.iter().map(OsString::from).collect();
        for (version, expected) in [
            ("IBVERBS_1.19", Some("IBVERBS_1.18")),
            ("IBVERBS_PRIVATE_66", Some("IBVERBS_PRIVATE_34")),
            ("OTHER_2", None),
            ("", None),
        ] {
            assert_eq!(find_newest(&provided, version.as_ref()).as_deref(), expected, "{version}");
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
        let expanded = expand_paths(&paths, Path::new("/no/such/bin/program"));
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
        let direct = missing("/usr/bin/ib_write_bw").describe("ib_write_bw".as_ref(), path);
        assert!(
            direct.starts_with("`ib_write_bw` requires version IBVERBS_1.19 of libibverbs.so.1,"),
            "{direct}"
        );
        assert!(direct.contains("its newest is IBVERBS_1.18: use a newer Ironwarp"), "{direct}");
        let through = missing("/usr/lib/libmlx5.so.1").describe("ib_write_bw".as_ref(), path);
        assert!(
            through.contains("is linked with /usr/lib/libmlx5.so.1, which requires version"),
            "{through}"
        );
    }
}
