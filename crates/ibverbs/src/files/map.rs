//! Maps a virtual path to its target: another path, a directory beside the library, or generated content.

use super::tree::{self, DEVICE_DIR, Node};
/// Name of the device file.
const DEVICE_FILE: &str = "uverbs0";

/// The folder of device files.
const DEVICES: &str = "/dev/infiniband";
/// The folder of the device class. Also a prefix of `/sys/class/infiniband_verbs`.
const CLASS: &str = "/sys/class/infiniband";
/// Prefixes of the files for InfiniBand's management datagrams, which the device does not have.
const MANAGEMENT: [&str; 3] = ["/dev/infiniband/umad", "/dev/infiniband/issm", "/sys/class/infiniband_mad"];
/// The network interfaces of the host.
const INTERFACES: &str = "/sys/class/net";

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The path itself, which is not virtual.
    Itself,
    /// Another path, of a file that exists.
    Path(String),
    /// A virtual directory, or a link to one.
    Directory,
    /// A virtual file, whose content is generated when it is opened.
    File,
    /// Nothing: the file would exist if the device had management datagrams.
    Management,
    /// Nothing: the file does not exist.
    Nothing,
}

/// Whether a path may be virtual, by its prefix. This is fast, because it is called for every path that the program
/// uses.
pub(super) fn may_be_virtual(path: &[u8]) -> bool {
    [CLASS, DEVICES, DEVICE_DIR].iter().any(|prefix| path.starts_with(prefix.as_bytes()))
}

/// Returns the target of a path that [`may_be_virtual`]. The path must not contain `.`, `..` or doubled slashes.
pub(super) fn target(path: &str) -> Target {
    let below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if MANAGEMENT.iter().any(|prefix| path.starts_with(prefix)) {
        return Target::Management;
    }
    if ![DEVICES, CLASS, "/sys/class/infiniband_verbs", DEVICE_DIR].into_iter().any(below) {
        return Target::Itself;
    }
    // /dev/null stands for the device file: a character device that everyone may open.
    if path.strip_prefix(DEVICES).and_then(|rest| rest.strip_prefix('/')) == Some(DEVICE_FILE) {
        return Target::Path("/dev/null".into());
    }
    // All network interfaces of the host belong to the device.
    if let Some(rest) = path.strip_prefix(DEVICE_DIR).and_then(|file| file.strip_prefix("/net"))
        && (rest.is_empty() || rest.starts_with('/'))
    {
        return Target::Path(format!("{INTERFACES}{rest}"));
    }
    match tree::node(path) {
        Some(Node::Directory | Node::Link(_)) => Target::Directory,
        Some(Node::Line(_) | Node::File) => Target::File,
        None => Target::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_paths_are_unchanged() {
        for path in
            ["/etc/passwd", "/sys/class/net", "/dev/infinibandwagon", "/sys/class/infinibands/x", "", "dev"]
        {
            assert!(!may_be_virtual(path.as_bytes()) || target(path) == Target::Itself, "{path}");
        }
    }

    #[test]
    fn the_device_is_a_character_device() {
        assert_eq!(target("/dev/infiniband/uverbs0"), Target::Path("/dev/null".into()));
        assert_eq!(target("/dev/infiniband"), Target::Directory);
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
