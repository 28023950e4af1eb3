//! Test helpers: an installation of the command with a stub of the drop-in library, and C programs to run with it.
#![allow(dead_code, reason = "not every test binary uses everything")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The directory of a test, initially empty.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory for the test");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and creates its directory.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is inside")).expect("its directory");
        fs::write(&path, content).expect("a file");
        path
    }

    /// Writes an executable file.
    pub(crate) fn script(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.write(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path
    }

    /// Compiles a file of `tests/c`.
    pub(crate) fn compile(&self, source: &str, name: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is inside")).expect("its directory");
        let mut cc = Command::new("cc");
        let output = cc.arg("-o").arg(&path).arg(source).args(options).output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }

    /// Installs the command in `bin` and the stub of the drop-in library in `lib`.
    pub(crate) fn install(&self, bin: &str, lib: &str) -> PathBuf {
        use std::os::unix::fs::symlink;
        let ironwarp = self.path(bin).join("ironwarp");
        fs::create_dir_all(self.path(bin)).expect("its directory");
        fs::copy(env!("CARGO_BIN_EXE_ironwarp"), &ironwarp).expect("a copy");
        self.compile("library.c", &format!("{lib}/libibverbs.so.1"), &["-shared", "-fPIC"]);
        symlink("libibverbs.so.1", self.path(lib).join("librdmacm.so.1")).expect("a link");
        ironwarp
    }

    /// Installs both in the default layout.
    pub(crate) fn installed(&self) -> PathBuf {
        self.install("bin", "lib/ironwarp")
    }
}

/// Returns a command without the developer's settings in its environment.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    let foreign = |name: &str| name.starts_with("IRONWARP_") || name.starts_with("LD_");
    let settings = std::env::vars().filter(|(name, _)| foreign(name));
    settings.for_each(|(name, _)| _ = command.env_remove(name));
    command
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Whether the test runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
