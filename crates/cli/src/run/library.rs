//! Finds the drop-in library, and makes the loader use it before the system's.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The library. Symbolic links with its other names are in the same directory.
pub(super) const FILE: &str = "libibverbs.so.1";

/// Where to search, relative to the directory of this executable: as installed; in the same directory; as built by `cargo xtask
/// dropin`, for an executable that cargo built.
const PLACES: [&str; 3] = ["../lib/ironwarp", "", "../dropin/lib/ironwarp"];

/// A directory with the library.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Library {
    directory: PathBuf,
}

impl Library {
    /// Finds the library near an executable.
    pub(super) fn find(executable: &Path) -> Result<Self, String> {
        let home = executable.parent().unwrap_or(Path::new("/"));
        let places = PLACES.map(|place| normal(&home.join(place)));
        let Some(directory) = places.iter().find(|place| place.join(FILE).is_file()) else {
            let looked = places.map(|place| place.display().to_string()).join(", ");
            return Err(format!(
                "{FILE} of Ironwarp not found in {looked}: unpack the complete release, or build it with `cargo xtask dropin`"
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

    pub(super) fn file(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Returns the new value of LD_PRELOAD, with our library first.
    pub(super) fn preload(&self, now: Option<&OsStr>) -> OsString {
        let path = self.file();
        // Spaces separate paths here. The name alone is searched in LD_LIBRARY_PATH.
        let blank = path.as_os_str().as_bytes().contains(&b' ');
        in_front(if blank { FILE.as_ref() } else { path.as_os_str() }, now, b": ")
    }

    /// Returns the new value of LD_LIBRARY_PATH, with our directory first.
    pub(super) fn search_path(&self, now: Option<&OsStr>) -> OsString {
        in_front(self.directory.as_os_str(), now, b":;")
    }
}

/// Prepends an element to a list unless it is already there, because programs that we run may run this command.
fn in_front(first: &OsStr, list: Option<&OsStr>, separators: &[u8]) -> OsString {
    let list = list.filter(|list| !list.is_empty());
    let Some(list) = list else { return first.to_owned() };
    if list.as_bytes().split(|byte| separators.contains(byte)).next() == Some(first.as_bytes()) {
        return list.to_owned();
    }
    let mut longer = first.to_owned();
    longer.push(":");
    longer.push(list);
    longer
}

/// Resolves `x/..`. Correct only for a path without symbolic links, such as that of an executable.
fn normal(path: &Path) -> PathBuf {
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
        for (now, preload) in [
            (None, file.to_owned()),
            (Some(""), file.to_owned()),
            (Some("a.so b.so"), format!("{file}:a.so b.so")),
        ] {
            assert_eq!(library.preload(now.map(OsStr::new)), *preload);
        }
        assert_eq!(library.search_path(None), "/opt/lib/ironwarp");
        assert_eq!(library.search_path(Some("/a:/b".as_ref())), "/opt/lib/ironwarp:/a:/b");
    }

    #[test]
    fn it_is_not_duplicated() {
        let library = library("/opt/lib/ironwarp");
        for now in [None, Some("a.so"), Some("/opt/lib/ironwarp")] {
            let now = now.map(OsStr::new);
            let (preload, search) = (library.preload(now), library.search_path(now));
            assert_eq!(library.preload(Some(&preload)), preload);
            assert_eq!(library.search_path(Some(&search)), search);
        }
    }

    #[test]
    fn a_path_with_a_space_is_searched_by_name() {
        assert_eq!(library("/my files/ironwarp").preload(Some("a.so".as_ref())), "libibverbs.so.1:a.so");
        assert_eq!(library("/my files/ironwarp").search_path(None), "/my files/ironwarp");
    }

    #[test]
    fn paths_are_normalised() {
        for (long, short) in [("/opt/bin/../lib/ironwarp", "/opt/lib/ironwarp"), ("/bin/", "/bin")] {
            assert_eq!(normal(Path::new(long)), Path::new(short));
        }
    }
}
