//! The ways to connect containers of two machines that `bench-net` compares.

use super::network::{LEFT, MACHINES, Machines, Namespace, RIGHT};
use crate::shell::{Result, at, output};
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interface of a container that leads to the other one.
const DEVICE: &str = "iw0";
/// The addresses of the containers.
const CONTAINERS: [&str; 2] = ["10.5.0.1", "10.5.0.2"];
/// The interface and the address that slirp4netns gives a container.
const SLIRP_DEVICE: &str = "tap0";
const SLIRP_ADDRESS: &str = "10.0.2.100";
/// The port of VXLAN (RFC 7348), and the one of the connection between the VDE switches. The machines are ours alone.
const VXLAN_PORT: u16 = 4789;
const VDE_PORT: u16 = 7000;
/// vde_switch ends at the end of its standard input, so that is a pipe that this process itself could write to.
const VDE_SWITCH: &str = r#"mkfifo "$1.input" && exec vde_switch -sock "$1" -tap "$2" <>"$1.input""#;
/// Names and keys of the hosts of a unit.
const HOSTS: [(&str, &str); 2] = [("left", "key-of-the-left-host"), ("right", "key-of-the-right-host")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tunnel {
    Bare,
    Ironwarp,
    IronwarpSwitch,
    SlirpVxlan,
    Vde,
    Slirp,
}

/// What the tunnels are made of.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) forwarder: PathBuf,
    pub(super) ironwarp_net: PathBuf,
}

/// An open tunnel. The forwarding processes end first.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) forwarders: Vec<Process>,
    pub(super) containers: [Namespace; 2],
    /// The address of the listening end.
    pub(super) address: &'static str,
    /// The listening end is the right machine itself, not its container.
    pub(super) to_machine: bool,
    /// Everything also crosses the loopback interface of the right machine.
    pub(super) loopback: bool,
}

impl Tunnel {
    pub(super) const ALL: [Self; 6] =
        [Self::Bare, Self::Ironwarp, Self::IronwarpSwitch, Self::SlirpVxlan, Self::Vde, Self::Slirp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Ironwarp => "ironwarp",
            Self::IronwarpSwitch => "ironwarp-switch",
            Self::SlirpVxlan => "slirp4netns-vxlan",
            Self::Vde => "vde",
            Self::Slirp => "slirp4netns",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Bare => "TAP over one TCP connection, with TSO and USO: two processes",
            Self::Ironwarp => "host, unit with a TAP: two processes",
            Self::IronwarpSwitch => "host, unit with a switch, host: three processes, and a second hop",
            Self::SlirpVxlan => "VXLAN over UDP through slirp4netns at both ends",
            Self::Vde => "vde_switch at both ends, joined by dpipe, vde_plug and socat over TCP",
            Self::Slirp => {
                "slirp4netns with an MTU of 65520, from a container to the other machine: no layer 2"
            }
        }
    }

    /// Returns why this system cannot have the tunnel.
    pub(super) fn unavailable(self, machines: &Machines) -> Option<String> {
        if self != Self::SlirpVxlan {
            return None;
        }
        let machine = &machines.0[LEFT];
        let probe =
            format!("link add {DEVICE} type vxlan id 1 dstport {VXLAN_PORT} remote {}", MACHINES[RIGHT]);
        match machine.ip(&probe).and_then(|()| machine.ip(&format!("link del {DEVICE}"))) {
            Ok(()) => None,
            Err(error) => Some(error.lines().last().unwrap_or_default().to_owned()),
        }
    }

    /// Creates the containers and opens the tunnel. Its processes write to `folder`.
    pub(super) fn open(self, machines: &Machines, programs: &Programs, folder: &Path) -> Result<Open> {
        let containers =
            [Namespace::new("left-container", folder)?, Namespace::new("right-container", folder)?];
        let mut opening = Opening { machines, programs, folder, containers, forwarders: Vec::new() };
        match self {
            Self::Bare => opening.bare()?,
            Self::Ironwarp => opening.ironwarp_tap()?,
            Self::IronwarpSwitch => opening.ironwarp_switch()?,
            Self::SlirpVxlan => opening.vxlan()?,
            Self::Vde => opening.vde()?,
            Self::Slirp => drop(opening.slirp(LEFT)?),
        }
        let to_machine = self == Self::Slirp;
        if !to_machine {
            opening.addresses()?;
        }
        let Opening { containers, forwarders, .. } = opening;
        Ok(Open {
            forwarders,
            containers,
            address: if to_machine { MACHINES[RIGHT] } else { CONTAINERS[RIGHT] },
            to_machine,
            loopback: self == Self::IronwarpSwitch,
        })
    }
}

/// A tunnel that is not complete yet.
struct Opening<'a> {
    machines: &'a Machines,
    programs: &'a Programs,
    folder: &'a Path,
    containers: [Namespace; 2],
    forwarders: Vec<Process>,
}

impl Opening<'_> {
    /// Starts a forwarding process, and waits until it is ready.
    fn start(
        &mut self,
        name: &str,
        command: Command,
        until: &str,
        ready: impl Fn(&Process) -> bool,
    ) -> Result<()> {
        let mut process = Process::start(command, name, &self.folder.join(format!("{name}.log")))?;
        process.wait_until(until, ready)?;
        self.forwarders.push(process);
        Ok(())
    }

    /// Returns what the process that was started last has printed.
    fn printed(&self) -> String {
        self.forwarders.last().map(Process::output).unwrap_or_default().trim().to_owned()
    }

    /// Gives the containers their addresses, once they have their devices.
    fn addresses(&mut self) -> Result {
        let Self { containers, forwarders, .. } = self;
        for (container, address) in containers.iter().zip(CONTAINERS) {
            let last = forwarders.last_mut().ok_or("a tunnel without processes")?;
            last.wait_until("the container has its device", |_| container.has_device(DEVICE))?;
            container.ip(&format!("link set {DEVICE} mtu 1500"))?;
            container.ip(&format!("addr add {address}/24 dev {DEVICE}"))?;
            container.ip(&format!("link set {DEVICE} up"))?;
        }
        Ok(())
    }

    fn bare(&mut self) -> Result {
        let listen = self.forwarder(RIGHT, "listen", "0");
        self.start("forwarder-right", listen, "it listens", |one| one.output().ends_with('\n'))?;
        let connect = self.forwarder(LEFT, "connect", &self.printed());
        self.start("forwarder-left", connect, "it starts", |_| true)
    }

    fn forwarder(&self, side: usize, role: &str, port: &str) -> Command {
        let program = self.programs.forwarder.to_string_lossy();
        let network = self.containers[side].path();
        self.machines.0[side].command(&[&program, role, MACHINES[RIGHT], port, &network, DEVICE])
    }

    /// The unit creates the device in its own namespace, from which it moves to the container.
    fn ironwarp_tap(&mut self) -> Result {
        let unit = self.unit(&format!("tap={DEVICE}"))?;
        let machine = &self.machines.0[RIGHT];
        let last = self.forwarders.last_mut().ok_or("a tunnel without processes")?;
        last.wait_until("the unit has its device", |_| machine.has_device(DEVICE))?;
        machine.ip(&format!("link set {DEVICE} netns {}", self.containers[RIGHT].process()))?;
        self.host(LEFT, &unit)
    }

    fn ironwarp_switch(&mut self) -> Result {
        let unit = self.unit("switch")?;
        self.host(LEFT, &unit)?;
        self.host(RIGHT, &unit)
    }

    /// Starts a unit on the right machine, and returns its address.
    fn unit(&mut self, lan: &str) -> Result<String> {
        let line = |(name, key): (&str, &str)| format!("{name} auto {key}\n");
        let keys = private_file(self.folder, "keys", &HOSTS.map(line).concat())?;
        let listen = format!("{}:0", MACHINES[RIGHT]);
        let words = ["unit", "--listen", &listen, "--lan", lan, "--keys", &keys, "--mtu", "1500"];
        const LISTENING: &str = "listening on ";
        let unit = self.ironwarp_net(RIGHT, &words);
        self.start("unit", unit, "it listens", |unit| unit.output().contains(LISTENING))?;
        let address = self.printed().lines().find_map(|line| line.strip_prefix(LISTENING).map(str::to_owned));
        address.ok_or_else(|| "the unit printed no address".to_owned())
    }

    /// Attaches the container of a machine to a unit.
    fn host(&mut self, side: usize, unit: &str) -> Result {
        let (name, key) = HOSTS[side];
        let key = private_file(self.folder, &format!("key-{name}"), key)?;
        let container = self.containers[side].process().to_string();
        let words =
            ["host", unit, "--name", name, "--key-file", &key, "--netns", &container, "--tap", DEVICE];
        let host = self.ironwarp_net(side, &words);
        self.start(&format!("host-{name}"), host, "it starts", |_| true)
    }

    /// Without shared memory: processes of one machine would otherwise not use TCP.
    fn ironwarp_net(&self, side: usize, words: &[&str]) -> Command {
        let program = self.programs.ironwarp_net.to_string_lossy();
        let mut command = self.machines.0[side].command(&[&[&*program], words].concat());
        command.env("IRONWARP_SHM", "off");
        command
    }

    /// Connects a container to the network of its machine, and returns the path of the socket for requests.
    fn slirp(&mut self, side: usize) -> Result<PathBuf> {
        // slirp4netns answers pings with sockets that this group may open.
        let allow = ["sh", "-c", "echo 0 0 >/proc/sys/net/ipv4/ping_group_range"];
        output(&mut self.machines.0[side].command(&allow))?;
        let name = format!("slirp4netns-{side}");
        let socket = self.folder.join(format!("{name}.socket"));
        let (api, network) = (format!("--api-socket={}", socket.display()), self.containers[side].path());
        let words = [
            "slirp4netns",
            "--configure",
            "--mtu=65520",
            "--disable-dns",
            &api,
            "--netns-type=path",
            &network,
            SLIRP_DEVICE,
        ];
        let slirp = self.machines.0[side].command(&words);
        self.start(&name, slirp, "it takes requests", |_| UnixStream::connect(&socket).is_ok())?;
        Ok(socket)
    }

    fn vxlan(&mut self) -> Result {
        for side in [LEFT, RIGHT] {
            let socket = self.slirp(side)?;
            forward_port(&socket, VXLAN_PORT)?;
            // A device that learns would send replies to the address of its own slirp4netns.
            let other = MACHINES[1 - side];
            self.containers[side].ip(&format!(
                "link add {DEVICE} type vxlan id 1 dstport {VXLAN_PORT} remote {other} nolearning"
            ))?;
        }
        Ok(())
    }

    fn vde(&mut self) -> Result {
        let sides = [
            ("right", RIGHT, format!("TCP-LISTEN:{VDE_PORT},reuseaddr,nodelay")),
            ("left", LEFT, format!("TCP:{}:{VDE_PORT},nodelay", MACHINES[RIGHT])),
        ];
        for (name, side, tcp) in sides {
            let folder = self.folder.join(format!("vde-{name}"));
            let socket = folder.to_string_lossy();
            let switch = self.containers[side].command(&["sh", "-c", VDE_SWITCH, "sh", &socket, DEVICE]);
            self.start(&format!("vde_switch-{name}"), switch, "it takes connections", |_| {
                folder.join("ctl").exists()
            })?;
            let machine = &self.machines.0[side];
            let (joined, process) = (
                machine.command(&["dpipe", "vde_plug", &socket, "=", "socat", "-b", "262144", "STDIO", &tcp]),
                machine.process(),
            );
            self.start(&format!("dpipe-{name}"), joined, "it listens", |_| {
                side == LEFT || listens(process, VDE_PORT)
            })?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner can read.
fn private_file(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(at(&path))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Asks slirp4netns to forward a UDP port of the machine to the container.
fn forward_port(socket: &Path, port: u16) -> Result {
    let arguments = format!(
        r#"{{"proto": "udp", "host_addr": "0.0.0.0", "host_port": {port}, "guest_addr": "{SLIRP_ADDRESS}", "guest_port": {port}}}"#
    );
    let request = format!(r#"{{"execute": "add_hostfwd", "arguments": {arguments}}}"#);
    let mut answer = String::new();
    let mut stream = UnixStream::connect(socket).map_err(at(socket))?;
    stream.write_all(request.as_bytes()).map_err(at(socket))?;
    stream.shutdown(Shutdown::Write).map_err(at(socket))?;
    stream.read_to_string(&mut answer).map_err(at(socket))?;
    match answer.contains("\"return\"") {
        true => Ok(()),
        false => Err(format!("slirp4netns did not forward UDP port {port}: {answer}")),
    }
}
