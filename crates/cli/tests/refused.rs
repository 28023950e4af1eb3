//! Programs that `ironwarp run` rejects: it prints one line that says what to do, and exits with the code of a shell.

mod common;

use common::{Place, command, is_root, stderr, stdout};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Returns the exit code and the error, which is one line.
fn refused(ironwarp: &Path, program: impl AsRef<OsStr>) -> (i32, String) {
    let output = command(ironwarp).arg("run").arg(program).output().expect("runs");
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(stdout(&output), "");
    let said = said.strip_prefix("ironwarp: ").expect("a prefix").trim_end().to_owned();
    (output.status.code().expect("no signal"), said)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn programs_that_do_not_exist_or_are_not_executable() {
    let place = Place::new("refused-missing");
    let ironwarp = place.installed();
    let said = "`no-such-program` not found in PATH: install it, or did you mean `./no-such-program`?";
    assert_eq!(refused(&ironwarp, "no-such-program"), (127, said.to_owned()));
    assert_eq!(refused(&ironwarp, "./no/such"), (127, "`./no/such` does not exist".to_owned()));
    let directory = text(&place.path("bin"));
    assert_eq!(refused(&ironwarp, &directory), (126, format!("`{directory}` is a directory, not a program")));
    let plain = text(&place.write("plain", "#!/bin/sh\n"));
    let said = format!("`{plain}` is not executable: run `chmod +x` on it");
    assert_eq!(refused(&ironwarp, &plain), (126, said));
    let mut command = command(&ironwarp);
    command.args(["run", "plain"]).env("PATH", place.path(""));
    assert_eq!(command.output().expect("runs").status.code(), Some(126), "in PATH, but not executable");
    let noise = text(&place.script("noise", [0, 159, 146, 150]));
    assert_eq!(
        refused(&ironwarp, &noise),
        (126, format!("`{noise}` is neither an ELF program nor a script"))
    );
}

#[test]
fn static_programs() {
    let place = Place::new("refused-static");
    let ironwarp = place.installed();
    for options in [&["-static"][..], &["-static-pie"]] {
        let program = text(&place.compile("start.c", "program", options));
        let (code, said) = refused(&ironwarp, &program);
        assert_eq!(code, 126);
        assert!(said.starts_with(&format!("`{program}` is statically linked, so its libraries")), "{said}");
        assert!(said.contains("link it dynamically"), "{said}");
    }
}

/// The loader of glibc is a static program, but runs others with our library.
#[test]
fn the_loader_itself_is_not_a_static_program() {
    let place = Place::new("refused-loader");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let mut command = command(&ironwarp);
    let output = command.args(["run", "/lib64/ld-linux-x86-64.so.2"]).arg(show).output().expect("runs");
    assert!(stdout(&output).starts_with("library here\n"), "{output:?}");
}

#[test]
fn programs_for_another_c_library_or_machine() {
    let place = Place::new("refused-foreign");
    let ironwarp = place.installed();
    let musl = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let program = text(&place.compile("start.c", "musl", &[musl]));
    let said = format!(
        "`{program}` is built for another C library (its loader is /lib/ld-musl-x86_64.so.1), but Ironwarp requires glibc: \
         use a build for glibc"
    );
    assert_eq!(refused(&ironwarp, &program), (126, said));
    let nowhere =
        place.compile("start.c", "nowhere", &["-Wl,--dynamic-linker=/nowhere/ld-linux-x86-64.so.2"]);
    let said =
        format!("`{}` needs the loader /nowhere/ld-linux-x86-64.so.2, which does not exist", text(&nowhere));
    assert_eq!(refused(&ironwarp, &nowhere), (127, said));
    let native = fs::read(place.compile("start.c", "native", &[])).expect("a program");
    for (at, bytes, why) in [
        (18, [183, 0], "is for aarch64, but this Ironwarp is for x86_64: use a build for x86_64"),
        (4, [1, 1], "is a 32-bit program, but Ironwarp is 64-bit: use a build for x86_64"),
    ] {
        let mut changed = native.clone();
        changed[at..at + 2].copy_from_slice(&bytes);
        let program = text(&place.script("changed", changed));
        assert_eq!(refused(&ironwarp, &program), (126, format!("`{program}` {why}")));
    }
}

/// Linux ignores LD_PRELOAD for programs with other rights than their user.
#[test]
fn programs_with_other_rights_than_their_user() {
    let place = Place::new("refused-privileged");
    let ironwarp = place.installed();
    // Only root can change the owner of a program; other users test one of the system's.
    let setuid = if is_root() {
        let program = place.compile("start.c", "setuid", &[]);
        chown(&program, Some(1), None).expect("its owner");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("its mode");
        program
    } else {
        "/usr/bin/passwd".into()
    };
    let (code, said) = refused(&ironwarp, &setuid);
    assert_eq!(code, 126);
    assert!(
        said.starts_with(&format!("`{}` is setuid, and Linux ignores LD_PRELOAD for", text(&setuid))),
        "{said}"
    );
    assert!(said.contains("run a copy without that"), "{said}");
    if is_root() {
        capabilities(&place, &ironwarp);
    }
}

/// File capabilities matter only for users other than root.
fn capabilities(place: &Place, ironwarp: &Path) {
    let show = place.compile("show.c", "capable", &["-ldl"]);
    // Version 2, effective: CAP_NET_RAW, as `ping` has it.
    let value: Vec<u8> =
        [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&show, c"security.capability", &value, flags).expect("root may");
    let run = |uid| command(ironwarp).arg("run").arg(&show).uid(uid).output().expect("runs");
    let output = run(65534);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(
        stderr(&output).contains("is given file capabilities, and Linux ignores LD_PRELOAD"),
        "{output:?}"
    );
    assert!(stdout(&run(0)).starts_with("library here\n"));
}

#[test]
fn scripts_are_followed_to_their_interpreters() {
    let place = Place::new("refused-scripts");
    let (ironwarp, show) = (place.installed(), place.compile("show.c", "show", &["-ldl"]));
    let stuck = text(&place.compile("start.c", "stuck", &["-static"]));
    let first = text(&place.script("first", format!("#!{stuck}\n")));
    let second = text(&place.script("second", format!("#! {first} -x\n")));
    let (code, said) = refused(&ironwarp, &first);
    assert_eq!(code, 126);
    assert!(
        said.starts_with(&format!("`{first}` is a script for `{stuck}`, which is statically linked, ")),
        "{said}"
    );
    let (_, said) = refused(&ironwarp, &second);
    let begin =
        format!("`{second}` is a script for `{first}`, which is a script for `{stuck}`, which is statically");
    assert!(said.starts_with(&begin), "{said}");

    let search = format!("{}:/usr/bin:/bin", text(&place.path("")));
    let through_env = place.script("through-env", "#!/usr/bin/env -S A=1 stuck -x\n");
    let output = command(&ironwarp).arg("run").arg(through_env).env("PATH", &search).output().expect("runs");
    assert!(
        stderr(&output).contains("is a script for `") && stderr(&output).contains("statically"),
        "{output:?}"
    );

    let good = place.script("good", format!("#!/usr/bin/env {}\n", text(&show)));
    let output = command(&ironwarp).arg("run").arg(&good).output().expect("runs");
    assert!(stdout(&output).starts_with("library here\n"), "{output:?}");
    // Without a first line, it is a shell script.
    let bare = place.script("bare", format!("{}\n", text(&show)));
    let output = command(&ironwarp).arg("run").arg(&bare).output().expect("runs");
    assert!(stdout(&output).starts_with("library here\n"), "{output:?}");
}

#[test]
fn scripts_with_missing_interpreters() {
    let place = Place::new("refused-nowhere");
    let ironwarp = place.installed();
    for (line, code, why) in [
        ("#!/nowhere/sh\n", 127, "is a script for `/nowhere/sh`, which does not exist"),
        (
            "#!/bin/sh\r\n",
            127,
            "is a script for `/bin/sh`, which does not exist (it has Windows line endings)",
        ),
        ("#!/usr/bin/env no-such\n", 127, "is a script for `no-such`, which does not exist"),
        (
            "#!/usr/bin/env -S -i sh\n",
            126,
            "is a script that begins with `env -i`, which removes the variables that load the library: change its first line",
        ),
    ] {
        let script = text(&place.script("script", line));
        assert_eq!(refused(&ironwarp, &script), (code, format!("`{script}` {why}")), "{line:?}");
    }
    let circle = text(&place.path("circle"));
    place.script("circle", format!("#!{circle}\n"));
    let (code, said) = refused(&ironwarp, &circle);
    assert_eq!(
        (code, &*said),
        (126, &*format!("`{circle}` is a script for a script for a script: Linux allows 4 levels"))
    );
}

/// Programs and libraries that were linked with newer versions of our libraries require these.
#[test]
fn programs_that_require_a_missing_version() {
    let place = Place::new("refused-versions");
    let ironwarp = place.installed();
    let map = |name: &str, nodes: &str| format!("-Wl,--version-script={}", text(&place.write(name, nodes)));
    let known = "IBVERBS_1.1 { global: stand_in; local: *; };\nIBVERBS_1.9 { };\nIBVERBS_1.18 { };\n";
    let soname = "-Wl,-soname,libibverbs.so.1";
    let shared = ["-shared", "-fPIC", soname];
    place.compile(
        "library.c",
        "lib/ironwarp/libibverbs.so.1",
        &[&shared[..], &[&map("ours", known)]].concat(),
    );
    // A later release has the same function in a newer version.
    let later = "IBVERBS_1.1 { local: *; };\nIBVERBS_1.19 { global: stand_in; };\n";
    let real =
        text(&place.compile("library.c", "real/new.so", &[&shared[..], &[&map("later", later)]].concat()));
    let new = text(&place.compile("uses.c", "new", &["-DMAIN", &real]));
    let said = "requires version IBVERBS_1.19 of libibverbs.so.1, which this Ironwarp does not have; its newest is \
                IBVERBS_1.18: use a newer Ironwarp, or a build for an older rdma-core";
    assert_eq!(refused(&ironwarp, &new), (126, format!("`{new}` {said}")));
    // A library that the program is linked with requires it; it is found by rpath, or by LD_LIBRARY_PATH.
    let driver = text(&place.compile("uses.c", "drivers/libdriver.so", &["-shared", "-fPIC", &real]));
    let drivers = text(&place.path("drivers"));
    let through = format!("is linked with {driver}, which {said}");
    for by_path in [true, false] {
        let path = if by_path { "-Wl,-rpath,$ORIGIN/drivers" } else { "-g" };
        let linked = ["-L", &drivers, "-ldriver", path, "-Wl,--allow-shlib-undefined"];
        let program = text(&place.compile("calls.c", &format!("by-path-{by_path}"), &linked));
        let mut command = command(&ironwarp);
        command.arg("run").arg(&program);
        if !by_path {
            command.env("LD_LIBRARY_PATH", &drivers);
        }
        let output = command.output().expect("runs");
        assert_eq!(stderr(&output), format!("ironwarp: `{program}` {through}\n"));
        assert_eq!(output.status.code(), Some(126));
    }
    // A version that the library has is accepted.
    let old = "IBVERBS_1.1 { global: stand_in; local: *; };\n";
    let real = text(&place.compile("library.c", "real/old.so", &[&shared[..], &[&map("old", old)]].concat()));
    let good = place.compile("uses.c", "good", &["-DMAIN", &real]);
    let output = command(&ironwarp).arg("run").arg(good).output().expect("runs");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "here\n".to_owned()), "{output:?}");
}
