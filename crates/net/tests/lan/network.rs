//! A unit in the namespace of the test, hosts, and containers: user and network namespaces without an interface.

use ironwarp_testkit::child::{Partner, in_front};
use ironwarp_testkit::hosts::{Host, Keeper, PEER, two_hosts};
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ironwarp-net");
/// Names of the hosts, with their keys. The number of a host is part of the addresses of its container.
pub(crate) const KEYS: [(&str, &str); 3] =
    [("left", "key of the left one"), ("right", "key of the right one"), ("middle", "key of the middle")];

/// A container. Ends when dropped.
pub(crate) struct Container {
    process: Keeper,
    number: usize,
}

impl Container {
    fn start(number: usize) -> Self {
        let process = Keeper::start(&["--user", "--map-root-user", "--net"]);
        Self { process, number }
    }

    fn enter(&self) -> Vec<String> {
        let target = self.process.id().to_string();
        ["nsenter", "--user", "--net", "--preserve-credentials", "--target", &target]
            .map(str::to_owned)
            .into()
    }

    /// Runs ip(8) in the container, and returns its output.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let [first, rest @ ..] = &self.enter()[..] else { unreachable!("a command") };
        let output = Command::new(first).args(rest).arg("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Gives addresses to the interface that a host has created.
    pub(crate) fn configure(&self) {
        let [v4, v6] = self.addresses();
        self.ip(&format!("addr add {v4}/24 dev iw0"));
        self.ip(&format!("addr add {v6}/64 dev iw0 nodad"));
        self.ip("link set iw0 up");
    }

    pub(crate) fn addresses(&self) -> [String; 2] {
        [format!("10.5.0.{}", self.number), format!("fd05::{}", self.number)]
    }

    /// Starts an agent of `test` in the container.
    pub(crate) fn agent(&self, test: &str) -> Partner {
        let starter = self.enter();
        let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
        Partner::start(in_front(&starter, test, crate::agent::ROLE))
    }
}

/// Everything of a test. Programs come first, so that they end before the namespaces that they use.
pub(crate) struct Network {
    pub(crate) unit: Option<Partner>,
    pub(crate) address: String,
    pub(crate) containers: Vec<Container>,
    pub(crate) hosts: [Host; 2],
    pub(crate) directory: Directory,
}

/// A directory that is removed in the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Network {
    /// Starts a unit, two hosts, and `containers` containers, which are not attached yet.
    pub(crate) fn start(containers: usize) -> Self {
        let hosts = two_hosts();
        let directory = Directory(std::env::temp_dir().join(format!("ironwarp-net-{}", std::process::id())));
        fs::create_dir(&directory.0).unwrap();
        let lines: String =
            KEYS.iter().map(|(name, key)| format!("{name} auto {}\n", key.replace(' ', "-"))).collect();
        write_private(&directory.path("keys"), &lines);
        for (name, key) in KEYS {
            write_private(&directory.path(name), &key.replace(' ', "-"));
        }
        let containers = (1..=containers).map(Container::start).collect();
        let mut network = Self { unit: None, address: format!("{PEER}:0"), containers, hosts, directory };
        network.start_unit();
        network
    }

    /// Starts the unit, again at the same address.
    pub(crate) fn start_unit(&mut self) {
        let mut command = Command::new(PROGRAM);
        command.args(["unit", "--lan", "switch", "--listen", &self.address]);
        command
            .arg("--keys")
            .arg(self.directory.path("keys"))
            .arg("--status")
            .arg(self.directory.path("status"));
        let mut unit = Partner::start(command);
        self.address = unit.wait_for("listening on ");
        self.unit = Some(unit);
    }

    /// Returns the command that attaches a container: on the first host, or the second for every second container. It runs
    /// without capabilities, as a user who is not root.
    pub(crate) fn host_command(&self, number: usize, arguments: &[&str]) -> Command {
        let (name, _) = KEYS[number - 1];
        let mut command = self.hosts[(number - 1) % 2].command("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM]);
        command.args(["host", &self.address, "--name", name, "--key-file"]).arg(self.directory.path(name));
        command.arg("--netns").arg(self.containers[number - 1].process.id().to_string()).args(arguments);
        command
    }

    /// Attaches a container, and configures its interface.
    pub(crate) fn attach(&self, number: usize, arguments: &[&str]) -> Partner {
        let mut host = Partner::start(self.host_command(number, arguments));
        host.wait_for("attached to ");
        self.containers[number - 1].configure();
        host
    }

    /// Attaches a TAP device in the namespace of a host.
    pub(crate) fn attach_host(&self, host: &Host, name: &str, tap: &str) -> Partner {
        let mut command = host.command(PROGRAM);
        command.args(["host", &self.address, "--name", name, "--tap", tap, "--key-file"]);
        command.arg(self.directory.path(name));
        let mut host = Partner::start(command);
        host.wait_for("attached to ");
        host
    }

    /// Returns the line about a host, if it is attached.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        let mut lines = String::new();
        let mut stream = UnixStream::connect(self.directory.path("status")).unwrap();
        stream.read_to_string(&mut lines).unwrap();
        lines.lines().find(|line| line.split(' ').next() == Some(name)).map(str::to_owned)
    }

    /// Returns a field of the line about a host.
    pub(crate) fn field(&self, name: &str, field: &str) -> u64 {
        let line = self.status(name).unwrap();
        let value = line.split(' ').find_map(|word| word.strip_prefix(&format!("{field}="))).unwrap();
        value.parse().unwrap()
    }
}

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}
