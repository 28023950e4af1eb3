//! The example `iscsi_copy`: a file is written to the logical unit and read back, and libiscsi reads the same.

use super::common::enable_digests;
use ironwarp_testkit::long_form;
use ironwarp_testkit::pattern::pattern;
use ironwarp_testkit::tgtd::{NAME, Tgtd};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the example, which cargo has built beside the tests.
fn iscsi_copy(arguments: &[&str]) -> Output {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    let example = folder.join("examples/iscsi_copy");
    assert!(example.exists(), "{} is missing: build it with `cargo build --examples`", example.display());
    Command::new(example).args(arguments).output().unwrap()
}

#[track_caller]
fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Panics unless two files have the same bytes.
#[track_caller]
fn assert_equal(one: &Path, other: &Path) {
    let open = |path: &Path| BufReader::with_capacity(1 << 20, File::open(path).unwrap());
    let (mut one, mut other) = (open(one), open(other));
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let len = one.read(&mut left).unwrap();
        other.read_exact(&mut right[..len]).unwrap();
        assert!(left[..len] == right[..len], "the files differ");
        if len == 0 {
            assert_eq!(other.read(&mut right).unwrap(), 0, "one file is longer");
            return;
        }
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy_and_compare(size: u64, digests: bool) {
    let folder = Folder(std::env::temp_dir().join(format!("ironwarp-copy-{}-{digests}", std::process::id())));
    fs::create_dir(&folder.0).unwrap();
    let (source, back, foreign) = (folder.0.join("source"), folder.0.join("back"), folder.0.join("foreign"));
    let file = File::create(&source).unwrap();
    for piece in 0..size >> 20 {
        file.write_all_at(&pattern(piece, 1 << 20), piece << 20).unwrap();
    }
    let mut target = Tgtd::start(size);
    if digests {
        enable_digests(&mut target);
    }
    let url = format!("iscsi://{}/{NAME}/1", target.addr());
    let option = if digests { &["--digests"][..] } else { &[] };
    assert_success(&iscsi_copy(&[&[source.to_str().unwrap(), &url], option].concat()));
    assert_equal(&source, &target.disk());
    assert_success(&iscsi_copy(&[&[&url, back.to_str().unwrap()], option].concat()));
    assert_equal(&source, &back);
    fs::remove_file(&back).unwrap();
    // qemu-img uses libiscsi.
    let libiscsi =
        Command::new("qemu-img").args(["convert", "-O", "raw", &url]).arg(&foreign).output().unwrap();
    assert_success(&libiscsi);
    assert_equal(&source, &foreign);
}

fn size() -> u64 {
    if long_form::is_requested() { 4 << 30 } else { 64 << 20 }
}

#[test]
fn a_file_is_copied_to_a_logical_unit_and_back() {
    copy_and_compare(size(), false);
}

#[test]
fn a_file_is_copied_with_digests() {
    copy_and_compare(size(), true);
}

#[test]
fn mistakes_are_explained() {
    for (arguments, expected) in [
        (&["one", "two"][..], "exactly one of the two must be iscsi://HOST:PORT/TARGET/LUN"),
        (&["iscsi://localhost/target", "file"], "expected iscsi://HOST:PORT/TARGET/LUN"),
    ] {
        let output = iscsi_copy(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{text}");
    }
}
