//! The content of the virtual files.

use super::list::Node;
use super::place::Naming;
use super::tree::Entry;
use crate::objects::gids;
use crate::objects::link_speed::LinkSpeed;
use crate::support::errno::Errno;
use crate::support::persona;
use ironwarp_engine::gid::GidEntry;
use ironwarp_engine::logical::{LogicalDevice, RdmaPort};
use ironwarp_engine::sys::traffic::{Traffic, of_process};
use std::fmt::Write;
use std::fs;

/// Returns the content of a virtual file, or the errno with which the kernel would fail to read it.
pub(super) fn read(file: &Entry<'_>) -> Result<String, Errno> {
    match file.node() {
        Node::Line(line) => Ok(format!("{line}\n")),
        _ => generate_line(file).map(|line| line + "\n"),
    }
}

/// Generates the line of a file whose content depends on this host. ENOENT if there is no such file.
fn generate_line(file: &Entry<'_>) -> Result<String, Errno> {
    let missing = Errno(libc::ENOENT);
    let (directory, name) = file.listed().rsplit_once('/').ok_or(missing)?;
    let directory = directory.rsplit('/').next().unwrap_or_default();
    let place = file.place();
    // All generated files belong to a device.
    let device = place.device.ok_or(missing)?;
    let port = || place.port.ok_or(missing);
    let gid = || Ok::<_, Errno>(find_gid(port()?, place.gid_index.ok_or(missing)?));
    Ok(match (directory, name) {
        (_, "node_type") => if persona::is_iwarp() { "4: RNIC" } else { "1: CA" }.into(),
        (_, "node_guid" | "sys_image_guid") => to_hex_groups(&device.guid()),
        (_, "node_desc" | "ibdev") => device.name().into(),
        ("DEVICE", "uevent") => format!("NAME={}", device.name()),
        (address, "uevent") => {
            format!("PCI_CLASS=20000\nPCI_SLOT_NAME={}", place.fill(address, Naming::Program))
        }
        (_, "fw_ver") => env!("CARGO_PKG_VERSION").into(),
        (_, "state") => if is_active(port()?) { "4: ACTIVE" } else { "1: DOWN" }.into(),
        (_, "phys_state") => if is_active(port()?) { "5: LinkUp" } else { "3: Disabled" }.into(),
        (_, "rate") => LinkSpeed::nearest(device.speed()).rate(),
        (_, "lid") => format!("{:#x}", gids::lid(port()?.gids())?),
        (_, "numa_node") => device.numa_node().map_or_else(|| "-1".into(), |node| node.to_string()),
        (_, "local_cpulist") => processors(device).trim().into(),
        (_, "local_cpus") => to_cpu_mask(&processors(device)),
        (_, "current_link_speed" | "max_link_speed") => pci_speed(device).into(),
        // The counters of all devices and ports are those of the process: traffic is not counted by device.
        ("counters" | "hw_counters", counter) => counter_value(counter, of_process()).to_string(),
        // As in the kernel, unused entries of this table are zero.
        ("gids", _) => to_hex_groups(&gid()?.map_or([0; 16], |entry| entry.gid.to_bytes())),
        // As in the kernel, unused entries of these tables can be opened, but not read. Programs detect the end of the
        // table by this error.
        ("types", _) => gid()?.map(|_| "RoCE v2".into()).ok_or(Errno::INVALID)?,
        ("ndevs", _) => gid()?.map(|entry| entry.interface).ok_or(Errno::INVALID)?,
        _ => return Err(missing),
    })
}

/// The value of a counter, summed over all past and present connections of this process. Data is counted in 32-bit
/// words, as on InfiniBand.
fn counter_value(counter: &str, traffic: Traffic) -> u64 {
    match counter {
        "port_xmit_data" => traffic.sent / 4,
        "port_rcv_data" => traffic.received / 4,
        "port_xmit_packets" | "unicast_xmit_packets" | "tcpOutSegs" => traffic.segments_sent,
        "port_rcv_packets" | "unicast_rcv_packets" | "tcpInSegs" => traffic.segments_received,
        "tcpRetransSegs" => traffic.retransmissions,
        _ => 0,
    }
}

/// Whether a port is active.
fn is_active(port: &RdmaPort) -> bool {
    port.is_active().unwrap_or(false)
}

/// The entry of the GID table of a port. `None` if it is unused.
fn find_gid(port: &RdmaPort, index: usize) -> Option<GidEntry> {
    port.gids().get(index).ok().flatten()
}

/// The processors that are local to a device, as a list such as `0-3,6`: those of its NUMA node, or all if it has none
/// or this machine does not have that node.
fn processors(device: &LogicalDevice) -> String {
    let of_node = |node| fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok();
    let all = || fs::read_to_string("/sys/devices/system/cpu/online").ok();
    device.numa_node().and_then(of_node).or_else(all).unwrap_or_else(|| "0".to_owned())
}

/// The speed of a lane of the PCI link: that of the oldest PCI Express generation since the fourth whose 16 lanes are
/// faster than the device.
fn pci_speed(device: &LogicalDevice) -> &'static str {
    match device.speed() {
        ..=200_000_000_000 => "16.0 GT/s PCIe",
        200_000_000_001..=400_000_000_000 => "32.0 GT/s PCIe",
        _ => "64.0 GT/s PCIe",
    }
}

/// Converts a list of processors to the mask of `local_cpus`: 32-bit words in hexadecimal, the most significant first.
fn to_cpu_mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
        for processor in first..=last {
            let word = usize::from(processor / 32);
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (processor % 32);
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// Formats a GID or GUID as sysfs does: in groups of four hexadecimal digits.
fn to_hex_groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, pair) in bytes.chunks(2).enumerate() {
        let colon = if at == 0 { "" } else { ":" };
        let word = u16::from_be_bytes([pair[0], pair[1]]);
        let _ = write!(text, "{colon}{word:04x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tree::{PCI, PLATFORM, Tree, described};
    use super::*;

    #[test]
    fn every_file_except_unused_indices_can_be_read() {
        for setting in ["all", "2 ports=2 numa=0,7"] {
            let devices = described(setting);
            let tree = Tree::of(&devices);
            let roots = ["/sys/class/infiniband", "/sys/class/infiniband_verbs", PLATFORM, PCI];
            let mut directories = roots.map(str::to_owned).to_vec();
            while let Some(directory) = directories.pop() {
                for (name, node) in tree.list(&directory) {
                    let path = format!("{directory}/{name}");
                    match node {
                        Node::Directory => directories.push(path),
                        Node::Link(_) | Node::SameAs(_) => {}
                        Node::Line(_) | Node::File => match read(&tree.find(&path).unwrap()) {
                            Ok(text) => assert!(text.len() > 1 && text.ends_with('\n'), "{path}: {text:?}"),
                            Err(errno) => {
                                assert!(errno == Errno::INVALID && directory.contains("gid_attrs"), "{path}");
                            }
                        },
                    }
                }
            }
        }
    }

    #[test]
    fn unused_gid_indices_cannot_be_read() {
        let devices = described("all");
        let read = |path: &str| read(&Tree::of(&devices).find(path).unwrap());
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        assert_eq!(read(&format!("{port}/gid_attrs/types/0")), Ok("RoCE v2\n".into()));
        assert_eq!(read(&format!("{port}/gid_attrs/types/255")), Err(Errno::INVALID));
        assert_eq!(read(&format!("{port}/gid_attrs/ndevs/255")), Err(Errno::INVALID));
        assert_eq!(read(&format!("{port}/gids/255")), Ok("0000:0000:0000:0000:0000:0000:0000:0000\n".into()));
    }

    #[test]
    fn files_are_those_of_their_device_and_port() {
        let devices = described("2 ports=2 speed=400g numa=0,6543; 1 name=slow speed=10g");
        let read = |path: &str| read(&Tree::of(&devices).find(path).unwrap()).unwrap();
        let class = |file: &str| read(&format!("/sys/class/infiniband/{file}"));
        assert_eq!(class("ironwarp0/ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0201\n");
        assert_eq!(class("ironwarp1/ports/2/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0204\n");
        assert_eq!(class("slow/ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0205\n");
        assert_eq!(class("ironwarp1/ports/2/gid_attrs/ndevs/0"), "lo\n");
        assert_eq!(class("ironwarp1/ports/2/lid"), "0x204\n");
        assert_eq!(class("ironwarp1/node_guid"), "0249:57ff:fe00:0203\n");
        assert_eq!(
            (class("ironwarp1/node_desc"), class("slow/uevent")),
            ("ironwarp1\n".into(), "NAME=slow\n".into())
        );
        assert_eq!(class("ironwarp1/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
        assert_eq!(class("slow/ports/1/rate"), "10 Gb/sec (1X QDR)\n");
        assert_eq!(read("/sys/class/infiniband_verbs/uverbs2/ibdev"), "slow\n");
        let pci = |index: usize, file: &str| {
            let slot = index + 1;
            let bridge = format!("{PCI}/4957:00:{slot:02x}.0");
            let of_bridge = read(&format!("{bridge}/{file}"));
            let of_device = read(&format!("{bridge}/4957:{slot:02x}:00.0/{file}"));
            assert_eq!(of_bridge, of_device, "{file}");
            of_device
        };
        assert_eq!([0, 1, 2].map(|index| pci(index, "numa_node")), ["0\n", "6543\n", "-1\n"]);
        let all = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        assert_eq!([1, 2].map(|index| pci(index, "local_cpulist")), [all.clone(), all]);
        assert_eq!(
            [0, 2].map(|index| pci(index, "max_link_speed")),
            ["32.0 GT/s PCIe\n", "16.0 GT/s PCIe\n"]
        );
        let uevent = read(&format!("{PCI}/4957:00:02.0/4957:02:00.0/uevent"));
        assert_eq!(uevent, "PCI_CLASS=20000\nPCI_SLOT_NAME=4957:02:00.0\n");
    }

    #[test]
    fn processors_as_a_mask() {
        assert_eq!(to_cpu_mask("0\n"), "00000001");
        assert_eq!(to_cpu_mask("0-3,6"), "0000004f");
        assert_eq!(to_cpu_mask("0-31,33"), "00000002,ffffffff");
        assert_eq!(to_cpu_mask("nonsense"), "00000000");
    }
}
