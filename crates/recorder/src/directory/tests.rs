//! Directories and files that are trusted, and those that are refused.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

/// A directory of its own for each test.
struct Parent(PathBuf);

impl Parent {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("recorder-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn place(&self) -> Place {
        Place::private(&self.0, rustix::process::geteuid().as_raw())
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_the_user_may_enter_the_directory_and_read_a_file() {
    let parent = Parent::new("modes");
    let directory = parent.place().open(true).unwrap();
    assert_eq!(mode(&parent.0.join("ironwarp")), 0o700);
    let (_, path) = directory.create(7).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(directory.names().unwrap().len(), 1);
    remove_path(&path).unwrap();
    assert!(directory.names().unwrap().is_empty());
}

#[test]
fn directories_of_others_and_links_are_refused() {
    let parent = Parent::new("refused");
    let path = parent.0.join("ironwarp");
    assert!(parent.place().open(false).is_err(), "not created");
    symlink("/tmp", &path).unwrap();
    parent.place().open(true).unwrap_err();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    for open in [0o710, 0o701, 0o755] {
        fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
        assert!(parent.place().open(true).unwrap_err().to_string().contains("may enter"));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    parent.place().open(true).unwrap();
    let other = Place { user: 4711, ..parent.place() };
    assert!(other.open(true).unwrap_err().to_string().contains("parent belongs to another"));
    let other = Place { private: false, ..other };
    assert!(other.open(true).unwrap_err().to_string().contains("it belongs to another"));
}

#[test]
fn files_that_are_no_recordings_are_refused() {
    let parent = Parent::new("files");
    let directory = parent.place().open(true).unwrap();
    let inside = parent.0.join("ironwarp");
    let name = "7-0123abcd.events";
    let open = || directory.open_file(name, 3).map(drop);
    fs::write(inside.join(name), "abc").unwrap();
    open().unwrap();
    fs::write(inside.join(name), "abcd").unwrap();
    open().unwrap_err();
    let other = Directory { user: 4711, ..parent.place().open(false).unwrap() };
    fs::write(inside.join(name), "abc").unwrap();
    other.open_file(name, 3).unwrap_err();
    fs::rename(inside.join(name), inside.join("target")).unwrap();
    symlink("target", inside.join(name)).unwrap();
    open().unwrap_err();
    fs::remove_file(inside.join(name)).unwrap();
    rustix::fs::mknodat(&directory.fd, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    open().unwrap_err(); // and does not wait for a writer
}

#[test]
fn the_number_of_files_is_bounded() {
    let parent = Parent::new("bounded");
    let directory = parent.place().open(true).unwrap();
    for process in (0..).take(MAX_FILES) {
        directory.create(process).unwrap();
    }
    assert_eq!(directory.create(1).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn names_are_of_processes() {
    assert_eq!(process_of("12-0123abcd.events"), Some(12));
    for other in ["12.events", "12-0123abcd", "x-0123abcd.events", "12-0123abc.events", "12-0123abcg.events"]
    {
        assert_eq!(process_of(other), None, "{other}");
    }
}

#[test]
fn places_are_preferred_in_order() {
    let parents = |runtime: Option<&str>| -> Vec<PathBuf> {
        Place::of(7, runtime.map(OsStr::new)).into_iter().map(|place| place.parent.join(place.name)).collect()
    };
    assert_eq!(parents(None), ["/dev/shm/ironwarp-7", "/tmp/ironwarp-7"].map(PathBuf::from));
    assert_eq!(parents(Some("/run/user/7"))[0], Path::new("/run/user/7/ironwarp"));
    assert_eq!(parents(Some("relative")).len(), 2);
}

#[test]
fn only_users_who_own_an_entry_with_their_number_are_searched() {
    let parent = Parent::new("users");
    let own = rustix::process::geteuid().as_raw();
    let forged = (own + 1..).take(MAX_FILES + 1).map(|user| user.to_string());
    let again = ["+", "0", "00"].map(|sign| format!("{sign}{own}"));
    for name in forged.chain(again).chain([own.to_string()]) {
        fs::create_dir(parent.0.join(format!("ironwarp-{name}"))).unwrap();
    }
    assert_eq!(users_in(parent.0.to_str().unwrap(), "ironwarp-"), [own]);
}
