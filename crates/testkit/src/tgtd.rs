//! Runs tgtd, an iSCSI target in user space (Debian package tgt).
//!
//! Root is not needed: the control socket is in a temporary folder, not in /var/run/tgtd. Each target has a folder and a
//! port of its own, so that tests can run at once.

use crate::net::listens;
use crate::process::Process;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Name of the target.
pub const NAME: &str = "iqn.2026-01.example.ironwarp:disk";
/// The control number. Targets differ in the folder of the control socket instead.
const CONTROL: &str = "1";

/// A running tgtd with one target, whose logical unit 1 is a file. When dropped, kills it and removes the file.
#[derive(Debug)]
pub struct Tgtd {
    process: Option<Process>,
    folder: PathBuf,
    addr: SocketAddrV4,
    /// Keeps the port from other programs.
    _reserved: OwnedFd,
    /// Arguments of each tgtadm(8) that has configured the target.
    configured: Vec<Vec<String>>,
}

impl Tgtd {
    /// Starts a target with a logical unit of `size` bytes, which are zeros.
    pub fn start(size: u64) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ironwarp-tgtd-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (reserved, addr) = reserve_port();
        let mut target = Self { process: None, folder, addr, _reserved: reserved, configured: Vec::new() };
        File::create(target.disk()).unwrap().set_len(size).unwrap();
        target.run();
        target.configure(&["--op", "new", "--mode", "target", "-T", NAME]);
        let disk = target.disk();
        target.configure(&[
            "--op",
            "new",
            "--mode",
            "logicalunit",
            "--lun",
            "1",
            "-b",
            disk.to_str().unwrap(),
        ]);
        target.configure(&["--op", "bind", "--mode", "target", "-I", "ALL"]);
        target
    }

    /// Returns the address at which the target listens.
    pub fn addr(&self) -> SocketAddrV4 {
        self.addr
    }

    /// Returns the file with the contents of the logical unit.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Returns what tgtd has printed since it was started.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::output).unwrap_or_default()
    }

    /// Sets a parameter for sessions that begin later, for example `HeaderDigest` to `CRC32C`.
    pub fn set(&mut self, parameter: &str, value: &str) {
        self.configure(&["--op", "update", "--mode", "target", "--name", parameter, "--value", value]);
    }

    /// Requires that initiators authenticate themselves with this name and secret.
    pub fn require_chap(&mut self, name: &str, secret: &str) {
        self.add_account(name, secret, &[]);
    }

    /// Sets the name and the secret with which the target authenticates itself.
    pub fn authenticate_as(&mut self, name: &str, secret: &str) {
        self.add_account(name, secret, &["--outgoing"]);
    }

    fn add_account(&mut self, name: &str, secret: &str, direction: &[&str]) {
        self.tgtadm(&["--op", "new", "--mode", "account", "--user", name, "--password", secret]);
        let bind = ["--op", "bind", "--mode", "account", "--tid", "1", "--user", name];
        self.tgtadm(&[&bind, direction].concat());
    }

    /// Kills tgtd with SIGKILL. Its connections are closed.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills tgtd if it runs, and starts it again with the same address, configuration and contents.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
        for arguments in std::mem::take(&mut self.configured) {
            self.tgtadm(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    fn run(&mut self) {
        let socket = self.folder.join(format!("control.{CONTROL}"));
        let _ = fs::remove_file(&socket); // of a tgtd that was killed
        let mut tgtd = self.command("tgtd");
        tgtd.args(["-f", "-C", CONTROL, "--iscsi", &format!("portal={}", self.addr)]);
        let mut process =
            Process::start(tgtd, "tgtd (Debian package tgt)", &self.folder.join("log")).unwrap();
        let port = self.addr.port();
        let ready = |it: &Process| listens(it.id(), port) && accepts_control(it.id(), &socket);
        process.wait_until("it listens", ready).unwrap();
        self.process = Some(process);
    }

    /// Configures the target with tgtadm(8).
    fn configure(&mut self, arguments: &[&str]) {
        self.tgtadm(&[arguments, &["--tid", "1"]].concat());
    }

    /// Runs tgtadm(8), and remembers the arguments for a restart.
    fn tgtadm(&mut self, arguments: &[&str]) {
        let mut tgtadm = self.command("tgtadm");
        let output = tgtadm.args(["-C", CONTROL, "--lld", "iscsi"]).args(arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tgtadm {}: {printed}\n{}", arguments.join(" "), self.log());
        self.configured.push(arguments.iter().map(|&word| word.to_owned()).collect());
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin")); // which users other than root do not search
        command.env("TGT_IPC_SOCKET", self.folder.join("control"));
        command
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Reserves a port on loopback: a socket is bound to it but does not listen. tgtd can still listen there, because both set
/// SO_REUSEADDR.
fn reserve_port() -> (OwnedFd, SocketAddrV4) {
    let reserved = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&reserved, true).unwrap();
    bind(&reserved, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = getsockname(&reserved).unwrap().try_into().unwrap();
    (reserved, addr)
}

/// Returns whether a UNIX socket listens at a path, in the network namespace of a process.
fn accepts_control(process: u32, path: &Path) -> bool {
    let table = fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap_or_default();
    let path = path.to_str().unwrap();
    // The fourth column has the flags: a listening socket has __SO_ACCEPTCON.
    table.lines().any(|line| line.ends_with(path) && line.split(' ').nth(3) == Some("00010000"))
}
