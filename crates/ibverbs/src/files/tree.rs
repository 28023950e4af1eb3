//! Which files and folders there are: those that `tree.txt` lists.

use crate::persona::name;
use ironwarp_engine::gid::MOST_GIDS;

/// A line for each file and folder.
const TREE: &str = include_str!("../../tree.txt");
/// Stands for the name of the device, in the list and in the folder beside the library.
const DEVICE: &str = "DEVICE";
/// Where the folder of the device is.
const CLASS: &str = "/sys/class/infiniband/";

/// The folder of the device itself, to which those of its classes lead.
pub(super) const ITSELF: &str = "/sys/devices/platform/ironwarp";

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Folder,
    /// Always the same line.
    Line(&'static str),
    /// A file whose text depends on this host.
    File,
    /// A link, and where it leads.
    Link(&'static str),
}

/// What is at this path, as programs call it.
pub(super) fn node(path: &str) -> Option<Node> {
    let listed = in_list(path)?;
    rows().find(|(row, _)| *row == listed).map(|(_, node)| node).or_else(|| {
        let (folder, index) = listed.rsplit_once('/')?;
        let indexed = format!("{folder}/#");
        let there = is_index(index) && rows().any(|(row, _)| row == indexed);
        there.then_some(Node::File)
    })
}

/// The names in a folder, and what they are.
pub(super) fn entries(folder: &str) -> Vec<(String, Node)> {
    let Some(folder) = in_list(folder) else { return Vec::new() };
    let inside =
        |row: &'static str| row.strip_prefix(&folder)?.strip_prefix('/').filter(|rest| !rest.contains('/'));
    let named = |(row, node)| Some((inside(row)?, node));
    let mut entries = Vec::new();
    for (entry, node) in rows().filter_map(named) {
        match entry {
            "#" => entries.extend((0..MOST_GIDS).map(|index| (index.to_string(), node))),
            DEVICE => entries.push((name().to_owned(), node)),
            _ => entries.push((entry.to_owned(), node)),
        }
    }
    entries
}

/// Where a path leads, if it is a link: each is to the folder that the device itself has.
pub(super) fn follow(path: &str) -> Option<&'static str> {
    // All links have this name. Most paths are told by it.
    let link = path.ends_with("/device") && matches!(node(path), Some(Node::Link(_)));
    link.then_some(ITSELF)
}

/// A path as the list and the folder beside the library have it; `None` if it is of another device.
pub(super) fn in_list(path: &str) -> Option<String> {
    let Some(rest) = path.strip_prefix(CLASS) else { return Some(path.to_owned()) };
    let (device, rest) = rest.split_once('/').map_or((rest, None), |(device, rest)| (device, Some(rest)));
    (device == name()).then(|| match rest {
        Some(rest) => format!("{CLASS}{DEVICE}/{rest}"),
        None => format!("{CLASS}{DEVICE}"),
    })
}

/// The way back: as programs call what is at a path of the list.
pub(super) fn as_called(listed: &str) -> String {
    match listed.strip_prefix(CLASS).and_then(|rest| rest.strip_prefix(DEVICE)) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{CLASS}{}{rest}", name()),
        _ => listed.to_owned(),
    }
}

/// As the kernel writes an index, and one that there is.
fn is_index(text: &str) -> bool {
    text.parse::<usize>().is_ok_and(|index| index < MOST_GIDS && index.to_string() == text)
}

fn rows() -> impl Iterator<Item = (&'static str, Node)> {
    let row = |line: &'static str| {
        let line_in_it = line.split_once(" = ").map(|(path, text)| (path, Node::Line(text)));
        let link = || line.split_once(" -> ").map(|(path, to)| (path, Node::Link(to)));
        let folder = || line.strip_suffix('/').map(|path| (path, Node::Folder));
        line_in_it.or_else(link).or_else(folder).unwrap_or((line, Node::File))
    };
    TREE.lines().filter(|line| line.starts_with('/')).map(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_every_folder_is_found() {
        let roots = ["/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband", ITSELF];
        let mut folders = roots.map(str::to_owned).to_vec();
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            assert_eq!(node(&folder), Some(Node::Folder), "{folder}");
            for (entry, what) in entries(&folder) {
                let path = format!("{folder}/{entry}");
                assert_eq!(node(&path), Some(what), "{path}");
                assert_eq!(as_called(&in_list(&path).unwrap()), path);
                seen += 1;
                assert_eq!(follow(&path).is_some(), matches!(what, Node::Link(_)), "{path}");
                if what == Node::Folder {
                    folders.push(path);
                }
            }
        }
        let listed = rows().filter(|(row, _)| !row.ends_with('#')).count();
        assert_eq!(seen + roots.len(), listed + 3 * MOST_GIDS, "each line is in a folder");
    }

    #[test]
    fn links_lead_to_the_device() {
        for (row, node) in rows() {
            if let Node::Link(to) = node {
                let folder = std::path::Path::new(row).parent().unwrap().components().count();
                assert_eq!(to, format!("{}devices/platform/ironwarp", "../".repeat(folder - 2)), "{row}");
            }
        }
        assert_eq!(follow("/sys/class/infiniband/ironwarp0/device"), Some(ITSELF));
        assert_eq!(follow("/sys/devices/platform/ironwarp/device"), None);
    }

    #[test]
    fn what_is_not_listed_is_not_there() {
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        for path in [
            "/sys/class/infiniband/mlx5_7",
            "/sys/class/infiniband/DEVICE",
            &format!("{port}/gids/256"),
            &format!("{port}/gids/01"),
            &format!("{port}/gids/+1"),
            &format!("{port}/gids/#1"),
            &format!("{port}/pkeys/1"),
        ] {
            assert_eq!(node(path), None, "{path}");
        }
    }
}
