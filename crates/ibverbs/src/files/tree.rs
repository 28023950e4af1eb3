//! The tree of virtual files: the list, with the devices of this process in place of the placeholders.

use super::list::{self, Listed, Node};
use super::place::{Naming, PLACE, Place, is_on_pci};
use crate::objects::device;
use ironwarp_engine::logical::LogicalDevice;
use std::sync::Arc;

/// The directory of the device that has the addresses of all interfaces.
pub(super) const PLATFORM: &str = "/sys/devices/platform/ironwarp";
/// The directory of the PCI bus that the other devices are on.
pub(super) const PCI: &str = "/sys/devices/pci4957:00";
/// At the end of a link beside the library that leads to [`PLATFORM`]. The link without it leads to the PCI bus.
const PLATFORM_LINK: &str = ".platform";
/// The directory of a device in the class of devices.
const IN_CLASS: &str = "/sys/class/infiniband/DEVICE";
/// The same, in the directory of the device.
const IN_PLACE: &str = "/sys/devices/PLACE/infiniband/DEVICE";
/// The directory of the network interfaces of the host, which are links in it.
const INTERFACES: &str = "/sys/class/net";

/// The virtual files of some devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree<'a> {
    devices: &'a [Arc<LogicalDevice>],
}

/// A virtual file, directory or link.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    listed: &'static Listed,
    node: Node,
    /// What the placeholders of the list stand for.
    place: Place<'a>,
    /// The rest of the path, below a path that is the same as another.
    rest: String,
}

impl Tree<'static> {
    /// Returns the tree of the devices of this process.
    pub(super) fn of_process() -> Self {
        Self::of(device::logical_devices())
    }
}

impl<'a> Tree<'a> {
    pub(super) fn of(devices: &'a [Arc<LogicalDevice>]) -> Self {
        Self { devices }
    }

    /// Returns whether any device is on the PCI bus.
    pub(super) fn has_pci(self) -> bool {
        self.devices.iter().any(|device| is_on_pci(device))
    }

    /// Finds what is at a path. `None` if there is nothing.
    pub(super) fn find(self, path: &str) -> Option<Entry<'a>> {
        self.parse(path, Naming::Program)
    }

    /// Returns the names and nodes in a directory.
    pub(super) fn list(self, directory: &str) -> Vec<(String, Node)> {
        let Some(Entry { listed, place, .. }) = self.find(directory) else { return Vec::new() };
        let mut list = Vec::new();
        for child in &listed.children {
            let Some(node) = child.node else { continue };
            let places = place.expanded(child.name(), self.devices).into_iter();
            list.extend(places.map(|place| (place.fill(child.name(), Naming::Program), node)));
        }
        list
    }

    /// Returns the absolute target of a path that is a link. `None` if it is none.
    pub(super) fn follow(self, path: &str) -> Option<String> {
        let Entry { node: Node::Link(target), place, .. } = self.find(path)? else { return None };
        let mut absolute = path[..path.rfind('/')?].to_owned();
        place.fill(target, Naming::Program).split('/').for_each(|part| push(&mut absolute, part));
        Some(absolute)
    }

    /// Returns the path that realpath(3) returns for a path, which may be a link. For a kernel, the directories in the
    /// class of devices are links to the directories of the devices. Here they are directories, but programs take the PCI
    /// address of a device from their real path, as UCX does.
    pub(super) fn real_path(self, path: &str) -> String {
        let path = self.follow(path).unwrap_or_else(|| path.to_owned());
        let Some(Entry { listed, place, .. }) = self.find(&path) else { return path };
        if !listed.path.starts_with(IN_CLASS) || !place.device.is_some_and(is_on_pci) {
            return path;
        }
        let class = place.fill(IN_CLASS, Naming::Program);
        place.fill(IN_PLACE, Naming::Program) + &path[class.len()..]
    }

    /// Converts a path in the directory beside the library to the one that programs know. Returns it unchanged if it is
    /// not that of a virtual directory.
    pub(super) fn program_path(self, on_disk: &str) -> String {
        let found = self.parse(on_disk, Naming::Disk);
        found.map_or_else(|| on_disk.to_owned(), |entry| entry.place.fill(entry.listed.path, Naming::Program))
    }

    /// Parses a path into an entry of the list, and what its placeholders stand for.
    fn parse(self, path: &str, naming: Naming) -> Option<Entry<'a>> {
        let mut listed = list::root();
        let mut place = Place::default();
        let mut rest = path;
        while !rest.is_empty() && !matches!(listed.node, Some(Node::SameAs(_))) {
            rest = rest.strip_prefix('/')?;
            let (name, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (listed, place) = listed
                .children
                .iter()
                .find_map(|child| Some((child, place.matched(child.name(), name, naming, self.devices)?)))?;
            rest = after;
            match listed.path {
                PLATFORM => place.device = Some(self.devices.iter().find(|device| !is_on_pci(device))?),
                PCI if !self.has_pci() => return None,
                _ => {}
            }
        }
        Some(Entry { listed, node: listed.node?, place, rest: rest.to_owned() })
    }
}

impl<'a> Entry<'a> {
    pub(super) fn node(&self) -> Node {
        self.node
    }

    /// The path in the list, with placeholders.
    pub(super) fn listed(&self) -> &'static str {
        self.listed.path
    }

    pub(super) fn place(&self) -> &Place<'a> {
        &self.place
    }

    /// Returns the path that this one is the same as. `target` is the one in the list.
    pub(super) fn same_as(&self, target: &str) -> String {
        self.place.fill(target, Naming::Program) + &self.rest
    }

    /// Returns the text of a link, as readlink(2) does. `None` if this is no link. The text beside the library has the
    /// indices of devices. That of a network interface is relative to the directory of interfaces.
    pub(super) fn link_text(&self) -> Option<String> {
        match self.node {
            Node::Link(target) => Some(self.place.fill(target, Naming::Program)),
            Node::SameAs(target) => {
                let path = self.same_as(target);
                let interface = path.strip_prefix(INTERFACES)?.strip_prefix('/')?;
                (!interface.contains('/')).then_some(path)
            }
            _ => None,
        }
    }

    /// Returns the path in the directory beside the library, relative to it.
    pub(super) fn on_disk(&self) -> String {
        let mut path = self.place.fill(self.listed.path.trim_start_matches('/'), Naming::Disk);
        if let Node::Link(target) = self.node
            && target.contains(PLACE)
            && self.place.device.is_some_and(|device| !is_on_pci(device))
        {
            path.push_str(PLATFORM_LINK);
        }
        path
    }
}

/// Appends a component to a path without `.`, `..` and doubled slashes, so that the result has none either.
pub(super) fn push(path: &mut String, component: &str) {
    match component {
        "" | "." => {}
        ".." => path.truncate(path.rfind('/').unwrap_or(0)),
        component => path.extend(["/", component]),
    }
}

/// Returns the devices that a setting describes.
#[cfg(test)]
pub(super) fn described(setting: &str) -> Vec<Arc<LogicalDevice>> {
    let config = ironwarp_engine::config::Config::default().devices(setting.parse().unwrap());
    ironwarp_engine::logical::devices(&config).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_engine::gid::MAX_GIDS;

    /// Roots of the tree, with and without devices on the PCI bus.
    const ROOTS: [&str; 5] =
        ["/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband", PLATFORM, PCI];

    /// Returns the paths of the list, with placeholders, and what is there.
    fn lines() -> Vec<(&'static str, Node)> {
        let mut lines = Vec::new();
        let mut remaining = vec![list::root()];
        while let Some(listed) = remaining.pop() {
            lines.extend(listed.node.map(|node| (listed.path, node)));
            remaining.extend(&listed.children);
        }
        lines
    }

    /// Walks the whole tree. Checks that each entry is found, and returns their paths.
    fn walk(tree: Tree<'_>) -> Vec<String> {
        let mut directories: Vec<String> =
            ROOTS.into_iter().filter(|root| tree.find(root).is_some()).map(str::to_owned).collect();
        let mut seen = directories.clone();
        while let Some(directory) = directories.pop() {
            for (name, node) in tree.list(&directory) {
                let path = format!("{directory}/{name}");
                let found = tree.find(&path).unwrap_or_else(|| panic!("{path}"));
                assert_eq!(found.node(), node, "{path}");
                assert_eq!(tree.follow(&path).is_some(), matches!(node, Node::Link(_)), "{path}");
                if node == Node::Directory {
                    assert_eq!(tree.program_path(&format!("/{}", found.on_disk())), path);
                    directories.push(path.clone());
                }
                seen.push(path);
            }
        }
        seen
    }

    #[test]
    fn every_directory_entry_is_found() {
        // Number of lines of the list that contain one text, and do not contain another.
        let count = |part: &str, without: &str| {
            let is_counted = |path: &&&str| {
                path.contains(part)
                    && (without.is_empty() || !path.contains(without))
                    && ROOTS.iter().any(|root| path.starts_with(root))
                    && !path.ends_with('#')
            };
            lines().iter().map(|(path, _)| path).filter(is_counted).count()
        };
        for (setting, devices, ports) in
            [("all", 1, 1), ("8", 8, 1), ("2 ports=2", 2, 2), ("16 ports=4", 16, 4)]
        {
            let list = described(setting);
            let seen = walk(Tree::of(&list));
            let of_ports = devices * ports * (count("PORT", "") + 3 * MAX_GIDS);
            let of_devices = devices * (count(IN_CLASS, "PORT") + count("INDEX", ""));
            let once = ["/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"].len()
                + ["/sys/class/infiniband_verbs/abi_version"].len();
            let places = if setting == "all" {
                count(PLATFORM, "")
            } else {
                devices * count("SLOT", "") + [PCI, "pci_bus", "pci_bus/4957:00"].len()
            };
            assert_eq!(seen.len(), of_ports + of_devices + once + places, "{setting}");
            let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
            assert_eq!(distinct.len(), seen.len(), "{setting}");
        }
    }

    #[test]
    fn links_lead_to_the_device() {
        let devices = described("1; all; 1");
        let tree = Tree::of(&devices);
        let link = |index: usize| tree.follow(&format!("/sys/class/infiniband/ironwarp{index}/device"));
        assert_eq!(link(0).as_deref(), Some("/sys/devices/pci4957:00/4957:00:01.0/4957:01:00.0"));
        assert_eq!(link(1).as_deref(), Some(PLATFORM));
        assert_eq!(link(2).as_deref(), Some("/sys/devices/pci4957:00/4957:00:03.0/4957:03:00.0"));
        for (path, target) in [
            ("/sys/class/infiniband_verbs/uverbs2/device", link(2)),
            ("/sys/bus/pci/devices/4957:03:00.0", link(2)),
            ("/sys/bus/pci/devices/4957:02:00.0", None),
            (
                "/sys/class/pci_bus/4957:01",
                Some("/sys/devices/pci4957:00/4957:00:01.0/pci_bus/4957:01".into()),
            ),
            ("/sys/class/pci_bus/4957:02", None),
            ("/sys/devices/platform/ironwarp/device", None),
        ] {
            assert_eq!(tree.follow(path), target, "{path}");
        }
        let on_disk = |index: usize| {
            tree.find(&format!("/sys/class/infiniband/ironwarp{index}/device")).unwrap().on_disk()
        };
        assert_eq!(on_disk(1), "sys/class/infiniband/1/device.platform");
        assert_eq!(on_disk(2), "sys/class/infiniband/2/device");
        for (path, node) in lines() {
            if let Node::Link(target) = node {
                let mut absolute = path[..path.rfind('/').unwrap()].to_owned();
                target.split('/').for_each(|part| push(&mut absolute, part));
                assert!(
                    ["/sys/devices/", IN_CLASS].iter().any(|start| absolute.starts_with(start)),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn the_real_path_of_a_device_contains_its_pci_address() {
        let devices = described("1; all");
        let tree = Tree::of(&devices);
        let (class, place) =
            ("/sys/class/infiniband/ironwarp", "/sys/devices/pci4957:00/4957:00:01.0/4957:01:00.0");
        assert_eq!(tree.real_path(&format!("{class}0")), format!("{place}/infiniband/ironwarp0"));
        assert_eq!(
            tree.real_path(&format!("{class}0/ports/1")),
            format!("{place}/infiniband/ironwarp0/ports/1")
        );
        assert_eq!(tree.real_path(&format!("{class}0/device")), place);
        assert_eq!(tree.real_path(&format!("{class}1")), format!("{class}1"));
        assert_eq!(tree.real_path(&format!("{class}1/device")), PLATFORM);
        let link = format!("{place}/infiniband/ironwarp0");
        assert_eq!(tree.follow(&link), Some(format!("{class}0")));
        assert_eq!(tree.real_path(&link), link);
        assert!(tree.find(&format!("{place}/infiniband/ironwarp1")).is_none());
    }

    #[test]
    fn links_have_the_names_of_devices_and_interfaces() {
        let devices = described("1; all");
        let text = |path: &str| Tree::of(&devices).find(path).unwrap().link_text();
        let place = "/sys/devices/pci4957:00/4957:00:01.0/4957:01:00.0";
        assert_eq!(
            text(&format!("{place}/infiniband/ironwarp0")).as_deref(),
            Some("../../../../../class/infiniband/ironwarp0")
        );
        let device = text("/sys/class/infiniband/ironwarp1/device");
        assert_eq!(device.as_deref(), Some("../../../devices/platform/ironwarp"));
        for net in [format!("{place}/net"), format!("{PLATFORM}/net")] {
            assert_eq!(text(&net), None);
            assert_eq!(text(&format!("{net}/lo")).as_deref(), Some("/sys/class/net/lo"));
            assert_eq!(text(&format!("{net}/lo/mtu")), None);
        }
        assert_eq!(text("/dev/infiniband/uverbs0"), None);
    }

    #[test]
    fn unlisted_paths_do_not_exist() {
        let devices = described("2 ports=2");
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        for path in [
            "/sys/class/infiniband/mlx5_7",
            "/sys/class/infiniband/DEVICE",
            "/sys/class/infiniband/0",
            "/sys/class/infiniband/ironwarp2",
            "/sys/class/infiniband/ironwarp0/ports/0",
            "/sys/class/infiniband/ironwarp0/ports/3",
            "/sys/class/infiniband/ironwarp0/ports/01",
            "/dev/infiniband/uverbs2",
            "/dev/infiniband/uverbs",
            PLATFORM,
            "/sys/devices/pci4957:00/4957:00:03.0",
            "/sys/devices/pci4957:00/4957:00:01.0/4957:02:00.0",
            &format!("{port}/gids/256"),
            &format!("{port}/gids/01"),
            &format!("{port}/gids/+1"),
            &format!("{port}/gids/#1"),
            &format!("{port}/pkeys/1"),
        ] {
            assert!(Tree::of(&devices).find(path).is_none(), "{path}");
        }
        assert!(Tree::of(&described("all")).find(PCI).is_none());
    }
}
