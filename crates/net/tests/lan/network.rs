//! A unit in the namespace of the test, hosts, and containers: user and network namespaces without an interface.

use ironwarp_testkit::child::{Partner, in_front};
use ironwarp_testkit::hosts::{Host, Keeper, PEER, two_hosts};
use ironwarp_testkit::net::ip;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ironwarp-net");
/// Names of the hosts, with their keys. The number of a host is part of the addresses of its container.
pub(crate) const KEYS: [(&str, &str); 8] = [
    ("left", "key of the left one"),
    ("right", "key of the right one"),
    ("middle", "key of the middle"),
    ("fourth", "key of the fourth"),
    ("fifth", "key of the fifth one"),
    ("sixth", "key of the sixth one"),
    ("seventh", "key of the seventh"),
    ("eighth", "key of the eighth"),
];

/// Clients that tests implement, with their addresses and keys.
pub(crate) const CLIENTS: [(&str, &str, &str); 2] = [
    ("hostile", "02:00:00:00:00:66", "key-of-the-hostile-one"),
    ("victim", "02:00:00:00:00:67", "key-of-the-victim"),
];

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

    /// Returns the words of a command that enters the container.
    pub(crate) fn enter(&self) -> Vec<String> {
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
        self.start_in_role(test, crate::agent::ROLE)
    }

    /// Runs `test` in a role, in the container.
    pub(crate) fn start_in_role(&self, test: &str, role: &str) -> Partner {
        let starter = self.enter();
        let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
        let mut program = in_front(&starter, test, role);
        program.arg("--include-ignored");
        Partner::start(program)
    }
}

/// Everything of a test. Programs come first, so that they end before the namespaces that they use.
pub(crate) struct Network {
    pub(crate) unit: Option<Partner>,
    pub(crate) address: String,
    pub(crate) containers: Vec<Container>,
    pub(crate) hosts: [Host; 2],
    pub(crate) directory: Directory,
    setup: Setup,
}

/// How the unit of a network is started.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// The LAN beyond the hosts: with `tap=lan0`, [`Network::configure_lan`] gives the namespace of the test its addresses.
    pub(crate) lan: &'static str,
    pub(crate) mtu: &'static str,
    /// Whether the unit captures its packets in the file `unit.pcap`.
    pub(crate) captures: bool,
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

impl Default for Setup {
    fn default() -> Self {
        Self { lan: "switch", mtu: "9000", captures: false, environment: &[] }
    }
}

/// A directory that is removed in the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// A test that was killed may have left a directory of the same process ID.
    fn create() -> Self {
        let name = |number: u32| format!("ironwarp-net-{}-{number}", std::process::id());
        let mut paths = (0..).map(|number| std::env::temp_dir().join(name(number)));
        let created = paths.find(|path| match fs::create_dir(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            created => created.is_ok() || panic!("{}: {created:?}", path.display()),
        });
        Self(created.unwrap())
    }

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
        Self::start_with(containers, Setup::default())
    }

    /// Like [`Self::start`], with another unit.
    pub(crate) fn start_with(containers: usize, setup: Setup) -> Self {
        let hosts = two_hosts();
        let directory = Directory::create();
        let mut lines: String =
            KEYS.iter().map(|(name, key)| format!("{name} auto {}\n", key.replace(' ', "-"))).collect();
        lines.extend(CLIENTS.map(|(name, mac, key)| format!("{name} {mac} {key}\n")));
        write_private(&directory.path("keys"), &lines);
        for (name, key) in KEYS {
            write_private(&directory.path(name), &key.replace(' ', "-"));
        }
        let containers = (1..=containers).map(Container::start).collect();
        let mut network =
            Self { unit: None, address: format!("{PEER}:0"), containers, hosts, directory, setup };
        network.start_unit();
        network
    }

    /// Gives addresses to the interface of the unit's LAN, in the namespace of the test, and returns them.
    pub(crate) fn configure_lan(&self) -> [String; 2] {
        let [v4, v6] = ["10.5.0.9", "fd05::9"];
        ip(&format!("addr add {v4}/24 dev lan0"));
        ip(&format!("addr add {v6}/64 dev lan0 nodad"));
        ip("link set lan0 up");
        [v4.to_owned(), v6.to_owned()]
    }

    /// Starts the unit, again at the same address.
    pub(crate) fn start_unit(&mut self) {
        let mut command = self.unit_command();
        command.arg("--status").arg(self.directory.path("status"));
        let mut unit = Partner::start(command);
        self.address = unit.wait_for("listening on ");
        self.unit = Some(unit);
    }

    /// Returns the command that starts the unit, without a status socket.
    pub(crate) fn unit_command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        let Setup { lan, mtu, captures, environment } = self.setup;
        command.args(["unit", "--lan", lan, "--mtu", mtu, "--listen", &self.address, "--keys"]);
        command.arg(self.directory.path("keys")).envs(environment.iter().copied());
        command.current_dir(&self.directory.0); // of the socket of `--lan stream=lan`
        if captures {
            command.env("IRONWARP_PCAP", self.directory.path("unit.pcap"));
        }
        command
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
        self.attach_with(number, arguments, &[])
    }

    /// Like [`Self::attach`], with environment variables of the host.
    pub(crate) fn attach_with(
        &self,
        number: usize,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Partner {
        let mut command = self.host_command(number, arguments);
        command.envs(environment.iter().copied());
        let mut host = Partner::start(command);
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

    /// Returns the command that shows the hosts of the unit whose status socket has this name: `status`.
    pub(crate) fn status_command(&self, socket: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("status").arg(self.directory.path(socket));
        command
    }

    /// Attaches a stream for a virtual machine at the first host, and returns the MAC address that the machine must have.
    pub(crate) fn attach_stream(&self, name: &str) -> (Partner, String) {
        let mut command = self.hosts[0].command(PROGRAM);
        command.args(["host", &self.address, "--name", name, "--key-file"]).arg(self.directory.path(name));
        command.arg("--stream").arg(self.directory.path("stream"));
        let mut host = Partner::start(command);
        let attached = host.wait_for("attached to ");
        let (_, mac) = attached.split_once(" with ").unwrap();
        (host, mac.to_owned())
    }

    /// Returns the line about a host, if it is attached.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        self.status_line(&format!("host name={name} "))
    }

    /// Returns the line about the unit: its hosts, pools and tags, and connections that are not those of a host.
    pub(crate) fn unit_line(&self) -> String {
        self.status_line("unit ").unwrap()
    }

    /// Returns a field of the line about a host.
    pub(crate) fn field(&self, name: &str, field: &str) -> u64 {
        self.field_if_attached(name, field).unwrap()
    }

    /// Returns a field of the line about a host, if it is attached.
    pub(crate) fn field_if_attached(&self, name: &str, field: &str) -> Option<u64> {
        Some(value(&self.status(name)?, field))
    }

    /// Returns fields of the line about the unit.
    pub(crate) fn unit_fields<const N: usize>(&self, fields: [&str; N]) -> [u64; N] {
        let line = self.status_line("unit ").unwrap();
        fields.map(|field| value(&line, field))
    }

    fn status_line(&self, start: &str) -> Option<String> {
        let mut lines = String::new();
        let mut stream = UnixStream::connect(self.directory.path("status")).unwrap();
        stream.read_to_string(&mut lines).unwrap();
        lines.lines().find(|line| line.starts_with(start)).map(str::to_owned)
    }
}

fn value(line: &str, field: &str) -> u64 {
    let value = line.split(' ').find_map(|word| word.strip_prefix(&format!("{field}=")));
    value.unwrap().parse().unwrap()
}

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}
