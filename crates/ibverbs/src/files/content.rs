//! The content of the virtual files.

use super::tree::{self, Node};
use crate::objects::device;
use crate::objects::gids;
use crate::objects::link_speed::LinkSpeed;
use crate::support::errno::Errno;
use crate::support::persona;
use ironwarp_engine::gid::{GidEntry, GidTable};
use ironwarp_engine::sys::traffic::{Traffic, of_process};
use std::fmt::Write;
use std::fs;

/// Returns the content of a virtual file, or the errno with which the kernel would fail to read it.
pub(super) fn read(path: &str) -> Result<String, Errno> {
    match tree::node(path) {
        Some(Node::Line(line)) => Ok(format!("{line}\n")),
        _ => generate_line(path).map(|line| line + "\n"),
    }
}

/// Generates the line of a file whose content depends on this host. ENOENT if there is no such file.
fn generate_line(path: &str) -> Result<String, Errno> {
    let (directory, file) = path.rsplit_once('/').unwrap_or_default();
    let directory = directory.rsplit('/').next().unwrap_or_default();
    Ok(match (directory, file) {
        (_, "node_type") => if persona::is_iwarp() { "4: RNIC" } else { "1: CA" }.into(),
        (_, "node_guid" | "sys_image_guid") => to_hex_groups(&device::logical_devices()[0].guid()),
        (_, "node_desc" | "ibdev") => persona::name().into(),
        (_, "uevent") => format!("NAME={}", persona::name()),
        (_, "fw_ver") => env!("CARGO_PKG_VERSION").into(),
        (_, "state") => if is_active() { "4: ACTIVE" } else { "1: DOWN" }.into(),
        (_, "phys_state") => if is_active() { "5: LinkUp" } else { "3: Disabled" }.into(),
        (_, "rate") => LinkSpeed::nearest(device::logical_devices()[0].speed()).rate(),
        (_, "lid") => format!("{:#x}", gids::lid(GidTable::of_process())?),
        (_, "local_cpulist") => processors().trim().into(),
        (_, "local_cpus") => to_cpu_mask(&processors()),
        ("counters" | "hw_counters", counter) => counter_value(counter, of_process()).to_string(),
        // As in the kernel, unused entries of this table are zero.
        ("gids", index) => to_hex_groups(&find_gid(index).map_or([0; 16], |entry| entry.gid.to_bytes())),
        // As in the kernel, unused entries of these tables can be opened, but not read. Programs detect the end of the
        // table by this error.
        ("types", index) => find_gid(index).map(|_| "RoCE v2".into()).ok_or(Errno::INVALID)?,
        ("ndevs", index) => find_gid(index).map(|entry| entry.interface).ok_or(Errno::INVALID)?,
        _ => return Err(Errno(libc::ENOENT)),
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

/// Whether the port of the device is active.
fn is_active() -> bool {
    GidTable::of_process().port_is_active().unwrap_or(false)
}

/// The entry of the GID table with an index in decimal. `None` if it is unused.
fn find_gid(index: &str) -> Option<GidEntry> {
    GidTable::of_process().get(index.parse().ok()?).ok().flatten()
}

/// The processors that are local to the device: all of them, as a list such as `0-3,6`.
fn processors() -> String {
    fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".to_owned())
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
    use super::*;

    #[test]
    fn every_file_except_unused_indices_can_be_read() {
        let roots = ["/sys/class/infiniband", "/sys/class/infiniband_verbs", tree::DEVICE_DIR];
        let mut directories = roots.map(str::to_owned).to_vec();
        while let Some(directory) = directories.pop() {
            for (entry, node) in tree::entries(&directory) {
                let path = format!("{directory}/{entry}");
                match read(&path) {
                    _ if node == Node::Directory => directories.push(path),
                    _ if matches!(node, Node::Link(_)) => {}
                    Ok(text) => assert!(text.len() > 1 && text.ends_with('\n'), "{path}: {text:?}"),
                    Err(errno) => {
                        assert!(errno == Errno::INVALID && directory.contains("gid_attrs"), "{path}");
                    }
                }
            }
        }
    }

    #[test]
    fn unused_gid_indices_cannot_be_read() {
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        assert_eq!(read(&format!("{port}/gid_attrs/types/0")), Ok("RoCE v2\n".into()));
        assert_eq!(read(&format!("{port}/gid_attrs/types/255")), Err(Errno::INVALID));
        assert_eq!(read(&format!("{port}/gid_attrs/ndevs/255")), Err(Errno::INVALID));
        assert_eq!(read(&format!("{port}/gids/255")), Ok("0000:0000:0000:0000:0000:0000:0000:0000\n".into()));
    }

    #[test]
    fn processors_as_a_mask() {
        assert_eq!(to_cpu_mask("0\n"), "00000001");
        assert_eq!(to_cpu_mask("0-3,6"), "0000004f");
        assert_eq!(to_cpu_mask("0-31,33"), "00000002,ffffffff");
        assert_eq!(to_cpu_mask("nonsense"), "00000000");
    }
}
