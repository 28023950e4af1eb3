//! Runs `ironwarp show --events` on recordings that nobody has recorded.

mod common;

use common::Place;
use ironwarp_recorder::{FILE_LEN, RECORDS, RINGS};
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output};

/// Length of the header of a file.
const HEADER_LEN: usize = 4096;
/// PID namespace of this process.
const PID_NAMESPACE: &str = "/proc/self/ns/pid";

/// Creates the recording of a process, whose rings are full. A user can write anything into his own files.
fn forge(path: &Path, process: u32, started: u64, namespace: u64) {
    let file = File::create(path).expect("a file");
    file.set_len(FILE_LEN as u64).expect("its length");
    let number = |number: usize| u32::try_from(number).expect("a small constant").to_le_bytes();
    let mut header = b"ironevts".to_vec();
    [1, RINGS, RECORDS].iter().for_each(|value| header.extend(number(*value)));
    header.extend(process.to_le_bytes());
    [started, namespace, 0, 0].iter().for_each(|value| header.extend(value.to_le_bytes()));
    header.extend([0; 16]);
    header.extend(b"forged\0\0\0\0\0\0\0\0\0\0");
    file.write_all_at(&header, 0).expect("written");
    for at in (HEADER_LEN..FILE_LEN).step_by((FILE_LEN - HEADER_LEN) / RINGS) {
        file.write_all_at(&(1_u64 << 40).to_le_bytes(), at as u64).expect("written");
    }
}

/// Runs a script, in which `$ironwarp` is the command and `$here` the directory of the test.
fn run(shell: &[&str], script: &str, place: &Place) -> Output {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", script]).env("ironwarp", env!("CARGO_BIN_EXE_ironwarp"));
    command.env("here", place.path(".")).env("XDG_RUNTIME_DIR", place.path(".")).output().expect("runs")
}

/// A recording takes megabytes of memory, and a user can leave hundreds: root should be able to read them.
#[test]
fn recordings_are_read_one_by_one() {
    let place = Place::new("recordings-many");
    fs::DirBuilder::new().mode(0o700).create(place.path("ironwarp")).expect("a directory");
    for process in 1..=16 {
        forge(&place.path(&format!("ironwarp/{process}-00000000.events")), process, 0, 0); // of another PID namespace
    }
    let namespace = fs::metadata(PID_NAMESPACE).expect("a namespace").ino();
    for process in [4_000_001, 4_000_002] {
        forge(&place.path(&format!("ironwarp/{process}-00000000.events")), process, 0, namespace);
    }
    // 64 MiB, while the events of all files take more than 100.
    let shown = run(&["sh"], "ulimit -d 65536; exec $ironwarp show --events", &place);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let page = String::from_utf8_lossy(&shown.stdout);
    for process in 1..=16 {
        assert!(page.contains(&format!("forged (process {process}, in another PID namespace)")), "{page}");
    }
    let notice = String::from_utf8_lossy(&shown.stderr);
    assert!(
        notice.contains(" programs were killed or have crashed; specify a process to show its events: "),
        "{notice}"
    );
    assert!(notice.contains("4000001 (forged), 4000002 (forged)"), "{notice}");
}

/// Root is not told that a process of somebody else has recorded what a user has written.
#[test]
fn recordings_of_processes_of_others_are_not_believed() {
    let place = Place::new("recordings-others");
    let process = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").expect("its state");
    let started = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(19));
    let started = started.and_then(|started| started.parse().ok()).expect("a start time");
    let namespace = fs::metadata(PID_NAMESPACE).expect("a namespace").ino();
    forge(&place.path(&format!("{process}-00000000.events")), process, started, namespace);
    let script = "
        set -e
        mount -t tmpfs none /dev/shm
        mkdir -m 700 /dev/shm/ironwarp-4711
        cp $here/*.events /dev/shm/ironwarp-4711
        chown -R 4711 /dev/shm/ironwarp-4711
        exec $ironwarp show --events $(basename $here/*.events -00000000.events)";
    let shell: &[&str] = match rustix::process::getuid().is_root() {
        true => &["unshare", "--mount", "sh"],
        // By newuidmap, of the package uidmap.
        false => &["unshare", "--mount", "--user", "--map-root-user", "--map-auto", "sh"],
    };
    let shown = run(shell, script, &place);
    let page = String::from_utf8_lossy(&shown.stdout);
    let expected = format!("forged (process {process} of user 4711, has died)\n");
    assert!(page.starts_with(&expected), "{page}\n{}", String::from_utf8_lossy(&shown.stderr));
}
