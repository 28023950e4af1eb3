//! libiscsi's tools and QEMU use the target.

use super::super::{NAME, Settings, Target};
use super::{honest, pattern};
use crate::process::Process;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A file for one test, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("ironwarp-iscsi-{}-{name}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs a program for `test`, and returns its output. The error contains output, too.
fn run(test: &str, program: &str, arguments: &[&str]) -> Result<String, String> {
    let log = File::new(&format!("{test}.log"));
    let mut command = Command::new(program);
    command.args(arguments);
    Process::start(command, program, &log.0)?.finish()
}

/// Returns combinations of parameters that make all ways to transfer data necessary: immediate, unsolicited and solicited
/// data, PDUs and bursts of one block, several R2Ts at once, and the status in a PDU of its own.
fn variants() -> [Settings; 5] {
    let all = Settings { size: 4 << 20, ..Settings::default() };
    let (initial_r2t, immediate_data, status_in_data) = (true, false, false);
    [
        all.clone(),
        Settings { initial_r2t, immediate_data, ..all.clone() },
        Settings {
            initial_r2t,
            immediate_data,
            max_burst: 512,
            max_recv: 512,
            first_burst: 512,
            ..all.clone()
        },
        Settings { initial_r2t, max_burst: 4096, max_recv: 1024, max_outstanding_r2t: 4, ..all.clone() },
        Settings { immediate_data, first_burst: 2048, max_burst: 2560, status_in_data, ..all },
    ]
}

#[test]
fn libiscsi_sees_the_disk() {
    let target = honest(Settings { size: 3 << 20, ..Settings::default() });
    let tool = |program, arguments: &[&str]| run("sees", program, arguments);
    let text = tool("iscsi-inq", &[&target.url()]).unwrap();
    for line in ["Device Type:DIRECT_ACCESS", "Vendor:IRONWARP", "Product:Test target", "Revision:0001"] {
        assert!(text.contains(line), "{text}");
    }
    let text = tool("iscsi-inq", &["-e", "1", "-c", "131", &target.url()]).unwrap();
    assert!(text.contains("Designator:[IRONWARPTest target     0001]"), "{text}");
    let text = tool("iscsi-readcapacity16", &[&target.url()]).unwrap();
    for line in
        ["RETURNED LOGICAL BLOCK ADDRESS:6143", "LOGICAL BLOCK LENGTH IN BYTES:512", "Total size:3145728"]
    {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(target.violations(), [""; 0]);
}

#[test]
fn libiscsi_finds_the_target_by_discovery() {
    let target = honest(Settings::default());
    let text = run("finds", "iscsi-ls", &["-s", &format!("iscsi://{}", target.addr())]).unwrap();
    assert!(text.contains(&format!("Target:{NAME} Portal:{},1", target.addr())), "{text}");
    assert!(text.contains("Lun:0    Type:DIRECT_ACCESS"), "{text}");
    assert_eq!(target.violations(), [""; 0]);
}

#[test]
fn libiscsi_gets_sense_data_and_refused_logins() {
    let target = honest(Settings::default());
    let error = run("sense", "iscsi-inq", &["-e", "1", "-c", "177", &target.url()]).unwrap_err();
    assert!(error.contains("ILLEGAL_REQUEST(5) ASCQ:INVALID_FIELD_IN_CDB(0x2400)"), "{error}");
    let other = target.url().replace(NAME, "iqn.2026-01.test.ironwarp:other");
    let error = run("sense", "iscsi-inq", &[&other]).unwrap_err();
    assert!(error.contains("Target not found(515)"), "{error}");
    assert_eq!(target.violations(), [""; 0]);
}

/// Runs those parts of libiscsi's conformance tests that concern commands of the target.
#[test]
fn libiscsi_finds_no_fault_with_any_parameters() {
    let mut tests =
        vec!["SCSI.Read10", "SCSI.Read16", "SCSI.Write10", "SCSI.Write16", "iSCSI.iSCSIResiduals"];
    for settings in variants() {
        check_conformance(&tests, settings);
    }
    // These do not transfer much.
    tests = vec!["SCSI.Inquiry", "SCSI.Mandatory", "SCSI.ReadCapacity10", "SCSI.ReadCapacity16"];
    tests.extend(["SCSI.TestUnitReady", "iSCSI.iSCSITMF"]);
    check_conformance(&tests, Settings::default());
}

fn check_conformance(tests: &[&str], settings: Settings) {
    let target = honest(settings.clone());
    for test in tests {
        let arguments = ["--dataloss", "--fail", "--test", test, &target.url()];
        let text = run("conformance", "iscsi-test-cu", &arguments);
        let text = text.unwrap_or_else(|error| panic!("{test} with {settings:?}: {error}"));
        assert!(text.contains("Tests completed with return value: 0"), "{test} with {settings:?}: {text}");
    }
    assert_eq!(target.violations(), [""; 0], "{settings:?}");
}

/// Returns the disk in QEMU's form.
fn image(target: &Target, header_digest: &str) -> String {
    let portal = target.addr();
    format!("driver=iscsi,transport=tcp,portal={portal},target={NAME},lun=0,header-digest={header_digest}")
}

#[test]
fn qemu_reads_and_writes_the_whole_disk_with_any_parameters() {
    let (source, copy) = (File::new("source"), File::new("copy"));
    for (seed, settings) in variants().into_iter().enumerate() {
        let contents: Vec<u8> = pattern(seed).take(settings.size).collect();
        fs::write(&source.0, &contents).unwrap();
        for digest in ["none", "crc32c"] {
            let target = honest(settings.clone());
            let disk = image(&target, digest);
            let convert = |arguments: &[&str]| {
                run("whole", "qemu-img", &[&["convert"], arguments].concat()).unwrap();
            };
            convert(&["--image-opts", &disk, "-O", "raw", copy.path()]);
            assert!(fs::read(&copy.0).unwrap() == *target.disk().bytes(), "{digest}, {settings:?}");
            convert(&["-n", "-f", "raw", source.path(), "--target-image-opts", &disk]);
            assert!(contents == *target.disk().bytes(), "{digest}, {settings:?}");
            assert_eq!(target.violations(), [""; 0], "{digest}, {settings:?}");
        }
    }
}

#[test]
fn qemu_writes_only_the_blocks_that_it_means() {
    let target = honest(Settings::default());
    let mut expected: Vec<u8> = target.disk().bytes().clone();
    let commands = [
        "write -P 0x5a 1536 100k",
        "aio_write -P 0xa5 512k 256k",
        "aio_flush",
        "flush",
        "read -P 0x5a 2048 512",
    ];
    let arguments: Vec<&str> = commands.iter().flat_map(|it| ["-c", *it]).collect();
    let text =
        run("blocks", "qemu-io", &[&["-f", "raw"], &arguments[..], &[&target.url()]].concat()).unwrap();
    assert!(!text.contains("fail") && !text.contains("Pattern"), "{text}");
    expected[1536..1536 + (100 << 10)].fill(0x5a);
    expected[512 << 10..768 << 10].fill(0xa5);
    assert!(expected == *target.disk().bytes());
    assert_eq!(target.violations(), [""; 0]);
}
