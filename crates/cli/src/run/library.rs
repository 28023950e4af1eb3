//! Finds the drop-in library, and the environment variables that make the loader use it instead of the system's
//! libraries.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the library. Symbolic links with its other names are in the same directory.
pub(super) const FILE: &str = "libibverbs.so.1";

/// File name of the library that tells the checker when memory is freed.
const WATCH: &str = "libironwarp-watch.so";

/// Where to search, relative to the directory of this executable: as installed; in the same directory; as built by
/// `cargo xtask dropin`, for an executable that cargo built.
const DIRECTORIES: [&str; 3] = ["../lib/ironwarp", "", "../dropin/lib/ironwarp"];

/// A directory with the library.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Library {
    directory: PathBuf,
}

impl Library {
    /// Finds the library near an executable.
    pub(super) fn find(executable: &Path) -> Result<Self, String> {
        let home = executable.parent().unwrap_or(Path::new("/"));
        let directories = DIRECTORIES.map(|directory| normalise(&home.join(directory)));
        let Some(directory) = directories.iter().find(|directory| directory.join(FILE).is_file()) else {
            let searched = directories.map(|directory| directory.display().to_string()).join(", ");
            return Err(format!(
                "{FILE} of Ironwarp not found in {searched}: unpack the complete release, or build it with `cargo xtask dropin`"
            ));
        };
        let found = Self { directory: directory.clone() };
        match directory.as_os_str().as_bytes().iter().find(|byte| matches!(byte, b':' | b';')) {
            None => Ok(found),
            Some(sign) => Err(format!(
                "the dynamic loader does not support `{}` in directory names: move {} elsewhere",
                char::from(*sign),
                directory.display()
            )),
        }
    }

    /// Returns the path of the library.
    pub(super) fn file(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Returns the new value of LD_PRELOAD, with our library first. `watches` adds the one that watches memory, before it.
    pub(super) fn preload(&self, current: Option<&OsStr>, watches: bool) -> OsString {
        let preload = self.preload_file(FILE, current);
        if watches { self.preload_file(WATCH, Some(&preload)) } else { preload }
    }

    /// Returns the value of LD_PRELOAD with one of our files first.
    fn preload_file(&self, file: &str, current: Option<&OsStr>) -> OsString {
        let path = self.directory.join(file);
        // LD_PRELOAD cannot contain a path with a space. The loader searches a name without a slash in LD_LIBRARY_PATH.
        let blank = path.as_os_str().as_bytes().contains(&b' ');
        prepend(if blank { file.as_ref() } else { path.as_os_str() }, current, b": ")
    }

    /// Returns the new value of LD_LIBRARY_PATH, with our directory first.
    pub(super) fn search_path(&self, current: Option<&OsStr>) -> OsString {
        prepend(self.directory.as_os_str(), current, b":;")
    }
}

/// Moves an element to the front of a list, or adds it there: a program that `ironwarp run` executes may call `ironwarp
/// run` itself.
fn prepend(first: &OsStr, list: Option<&OsStr>, separators: &[u8]) -> OsString {
    let list = list.filter(|list| !list.is_empty());
    let Some(list) = list else { return first.to_owned() };
    let mut longer = first.to_owned();
    for element in list.as_bytes().split(|byte| separators.contains(byte)) {
        if element != first.as_bytes() {
            longer.push(":");
            longer.push(OsStr::from_bytes(element));
        }
    }
    longer
}

/// Returns the path with each `x/..` removed. This is correct only for a path without symbolic links, such as that of
/// this executable.
fn normalise(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => _ = short.pop(),
            part => short.push(part),
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(directory: &str) -> Library {
        Library { directory: directory.into() }
    }

    #[test]
    fn it_is_prepended_to_the_current_value() {
        let library = library("/opt/lib/ironwarp");
        let file = "/opt/lib/ironwarp/libibverbs.so.1";
        for (current, preload) in [
            (None, file.to_owned()),
            (Some(""), file.to_owned()),
            (Some("a.so b.so"), format!("{file}:a.so:b.so")),
        ] {
            assert_eq!(library.preload(current.map(OsStr::new), false), *preload);
        }
        let watched = format!("/opt/lib/ironwarp/libironwarp-watch.so:{file}:a.so");
        assert_eq!(library.preload(Some(OsStr::new("a.so")), true), *watched);
        assert_eq!(library.search_path(None), "/opt/lib/ironwarp");
        assert_eq!(library.search_path(Some("/a:/b".as_ref())), "/opt/lib/ironwarp:/a:/b");
    }

    #[test]
    fn it_is_not_duplicated() {
        let library = library("/opt/lib/ironwarp");
        for current in [None, Some("a.so"), Some("/opt/lib/ironwarp")] {
            let current = current.map(OsStr::new);
            let (preload, search) = (library.preload(current, true), library.search_path(current));
            assert_eq!(library.preload(Some(&preload), true), preload);
            assert_eq!(library.search_path(Some(&search)), search);
        }
    }

    #[test]
    fn a_path_with_a_space_is_searched_by_name() {
        assert_eq!(
            library("/my files/ironwarp").preload(Some("a.so".as_ref()), false),
            "libibverbs.so.1:a.so"
        );
        assert_eq!(library("/my files/ironwarp").search_path(None), "/my files/ironwarp");
    }

    #[test]
    fn paths_are_normalised() {
        for (long, short) in [("/opt/bin/../lib/ironwarp", "/opt/lib/ironwarp"), ("/bin/", "/bin")] {
            assert_eq!(normalise(Path::new(long)), Path::new(short));
        }
    }
}
