//! What stands for a path below the prefixes.

use super::tree::{self, ITSELF, Node};
use crate::device::DEVICE_FILE;

const DEVICES: &str = "/dev/infiniband";
/// Also the beginning of `/sys/class/infiniband_verbs`.
const CLASS: &str = "/sys/class/infiniband";
/// Where the management datagrams of InfiniBand would be: the device has none.
const MANAGEMENT: [&str; 3] = ["/dev/infiniband/umad", "/dev/infiniband/issm", "/sys/class/infiniband_mad"];
/// The interfaces of the host.
const INTERFACES: &str = "/sys/class/net";

/// What stands for a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The path itself: it is none of ours.
    Itself,
    /// Another path.
    Path(String),
    /// A folder, or a link to one.
    Folder,
    /// A file whose text is made when it is read.
    File,
    /// Nothing: the file would be there if the device had management datagrams.
    Management,
    Nothing,
}

/// Whether it is worth while to look closer. Called for every path that the program opens.
pub(super) fn is_ours(path: &[u8]) -> bool {
    [CLASS, DEVICES, ITSELF].iter().any(|prefix| path.starts_with(prefix.as_bytes()))
}

/// What stands for a path, if [`is_ours`]. The path has no `.`, `..` or doubled slashes.
pub(super) fn target(path: &str) -> Target {
    let below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if MANAGEMENT.iter().any(|prefix| path.starts_with(prefix)) {
        return Target::Management;
    }
    if ![DEVICES, CLASS, "/sys/class/infiniband_verbs", ITSELF].into_iter().any(below) {
        return Target::Itself;
    }
    // A character device that everybody may open. What can be done with it stays undone.
    if path.strip_prefix(DEVICES).and_then(|rest| rest.strip_prefix('/')) == Some(DEVICE_FILE) {
        return Target::Path("/dev/null".into());
    }
    // The interfaces of the device are all that the host has.
    if let Some(rest) = path.strip_prefix(ITSELF).and_then(|file| file.strip_prefix("/net"))
        && (rest.is_empty() || rest.starts_with('/'))
    {
        return Target::Path(format!("{INTERFACES}{rest}"));
    }
    match tree::node(path) {
        Some(Node::Folder | Node::Link(_)) => Target::Folder,
        Some(Node::Line(_) | Node::File) => Target::File,
        None => Target::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_paths_stay_as_they_are() {
        for path in
            ["/etc/passwd", "/sys/class/net", "/dev/infinibandwagon", "/sys/class/infinibands/x", "", "dev"]
        {
            assert!(!is_ours(path.as_bytes()) || target(path) == Target::Itself, "{path}");
        }
    }

    #[test]
    fn the_device_is_a_character_device() {
        assert_eq!(target("/dev/infiniband/uverbs0"), Target::Path("/dev/null".into()));
        assert_eq!(target("/dev/infiniband"), Target::Folder);
        assert_eq!(target("/dev/infiniband/uverbs1"), Target::Nothing);
        assert_eq!(target("/dev/infiniband/umad0"), Target::Management);
    }

    #[test]
    fn interfaces_are_those_of_the_host() {
        let net = "/sys/devices/platform/ironwarp/net";
        assert_eq!(target(net), Target::Path("/sys/class/net".into()));
        assert_eq!(target(&format!("{net}/lo/mtu")), Target::Path("/sys/class/net/lo/mtu".into()));
        assert_eq!(target(&format!("{net}s")), Target::Nothing);
        assert_eq!(target("/sys/class/infiniband/mlx5_7/device/net"), Target::Nothing);
        assert_eq!(target("/sys/devices/platform/ironwarps"), Target::Itself);
    }

    #[test]
    fn every_index_of_the_gid_table_is_a_file() {
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        assert_eq!(target(&format!("{port}/gid_attrs/types/0")), Target::File);
        assert_eq!(target(&format!("{port}/gid_attrs/types/255")), Target::File);
        assert_eq!(target(&format!("{port}/gids/256")), Target::Nothing);
    }
}
