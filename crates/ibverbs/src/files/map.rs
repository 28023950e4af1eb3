//! Maps a virtual path to its target: another path, a directory beside the library, or generated content.

use super::list::Node;
use super::tree::{Entry, PLATFORM, Tree};

/// The folder of device files.
const DEVICES: &str = "/dev/infiniband";
/// The folder of the device class. Also a prefix of `/sys/class/infiniband_verbs`.
const CLASS: &str = "/sys/class/infiniband";
/// Prefixes of the files for InfiniBand's management datagrams, which the devices do not have.
const MANAGEMENT: [&str; 3] = ["/dev/infiniband/umad", "/dev/infiniband/issm", "/sys/class/infiniband_mad"];
/// Directories in which nothing exists except virtual files.
const VIRTUAL_ONLY: [&str; 4] = [DEVICES, CLASS, "/sys/class/infiniband_verbs", PLATFORM];
/// Prefixes of the files of our PCI bus. Other files with these prefixes may exist, if the machine has the same bus.
const PCI: [&str; 3] = ["/sys/devices/pci4957:", "/sys/bus/pci/devices/4957:", "/sys/class/pci_bus/4957:"];

/// The target of a path.
#[derive(Debug)]
pub(super) enum Target<'a> {
    /// The path itself, which is not virtual.
    Itself,
    /// Another path, of a file that exists.
    Path(String),
    /// A virtual directory, or a link to one.
    Directory(Entry<'a>),
    /// A virtual file, whose content is generated when it is opened.
    File(Entry<'a>),
    /// Nothing: the file would exist if the device had management datagrams.
    Management,
    /// Nothing: the file does not exist.
    Nothing,
}

/// Whether a path may be virtual, by its prefix. This is fast, because it is called for every path that the program
/// uses.
pub(super) fn may_be_virtual(path: &[u8]) -> bool {
    (path.starts_with(b"/sys/") || path.starts_with(b"/dev/"))
        && ([CLASS, DEVICES, PLATFORM].iter().any(|prefix| path.starts_with(prefix.as_bytes()))
            || is_like_pci(path) && Tree::of_process().has_pci())
}

/// Whether a path has a prefix of our PCI bus.
fn is_like_pci(path: &[u8]) -> bool {
    PCI.iter().any(|prefix| path.starts_with(prefix.as_bytes()))
}

/// Returns the target of a path that [`may_be_virtual`]. The path must not contain `.`, `..` or doubled slashes.
pub(super) fn target<'a>(tree: Tree<'a>, path: &str) -> Target<'a> {
    let below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if MANAGEMENT.iter().any(|prefix| path.starts_with(prefix)) {
        return Target::Management;
    }
    let is_virtual = VIRTUAL_ONLY.into_iter().any(below);
    if !is_virtual && !is_like_pci(path.as_bytes()) {
        return Target::Itself;
    }
    match tree.find(path) {
        Some(entry) => match entry.node() {
            Node::Directory | Node::Link(_) => Target::Directory(entry),
            Node::Line(_) | Node::File => Target::File(entry),
            Node::SameAs(target) => Target::Path(entry.same_as(target)),
        },
        None if is_virtual => Target::Nothing,
        None => Target::Itself,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::described;
    use super::*;

    /// Returns the target of a path with the devices of a setting, as text.
    fn target_of(setting: &str, path: &str) -> String {
        match target(Tree::of(&described(setting)), path) {
            Target::Path(path) => path,
            Target::Directory(entry) | Target::File(entry) => entry.on_disk(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn other_paths_are_unchanged() {
        for path in [
            "/etc/passwd",
            "/sys/class/net",
            "/dev/infinibandwagon",
            "/sys/class/infinibands/x",
            "/sys/devices/platform/ironwarps",
            "/sys/devices/pci0000:00",
            "/sys/bus/pci/devices",
            "/sys/bus/pci/devices/4957:05:00.0",
            "/sys/class/pci_bus",
            "/sys/class/pci_bus/4957:05",
            "",
            "dev",
        ] {
            assert!(!may_be_virtual(path.as_bytes()) || target_of("all", path) == "Itself", "{path}");
            assert_eq!(target_of("4", path), "Itself", "{path}");
        }
    }

    #[test]
    fn the_device_is_a_character_device() {
        assert_eq!(target_of("all", "/dev/infiniband/uverbs0"), "/dev/null");
        assert_eq!(target_of("all", "/dev/infiniband"), "dev/infiniband");
        assert_eq!(target_of("all", "/dev/infiniband/uverbs1"), "Nothing");
        assert_eq!(target_of("2", "/dev/infiniband/uverbs1"), "/dev/null");
        assert_eq!(target_of("2", "/dev/infiniband/umad0"), "Management");
    }

    #[test]
    fn interfaces_are_those_of_the_host() {
        let net = "/sys/devices/platform/ironwarp/net";
        assert_eq!(target_of("all", net), "/sys/class/net");
        assert_eq!(target_of("all", &format!("{net}/lo/mtu")), "/sys/class/net/lo/mtu");
        assert_eq!(target_of("all", &format!("{net}s")), "Nothing");
        assert_eq!(target_of("all", "/sys/class/infiniband/mlx5_7/device/net"), "Nothing");
    }

    #[test]
    fn interfaces_of_a_device_are_those_of_its_ports() {
        let net = "/sys/devices/pci4957:00/4957:00:02.0/4957:02:00.0/net";
        assert_eq!(target_of("2 ports=2", net), net[1..]);
        assert_eq!(target_of("2 ports=2", &format!("{net}/lo/mtu")), "/sys/class/net/lo/mtu");
        assert_eq!(target_of("2 ports=2", &format!("{net}/eth0/mtu")), "Itself");
        let devices = described("1; nothing+127.0.2.2");
        assert_eq!(
            Tree::of(&devices).list(net),
            [("lo".to_owned(), Node::SameAs("/sys/class/net/INTERFACE"))]
        );
    }

    #[test]
    fn every_index_of_the_gid_table_is_a_file() {
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        let found = |file: &str| {
            matches!(target(Tree::of(&described("all")), &format!("{port}/{file}")), Target::File(_))
        };
        assert!(found("gid_attrs/types/0") && found("gid_attrs/types/255"));
        assert_eq!(target_of("all", &format!("{port}/gids/256")), "Nothing");
    }
}
