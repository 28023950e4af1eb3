//! The list of virtual files and directories, from `tree.txt`.

use crate::support::persona::name;
use ironwarp_engine::gid::MAX_GIDS;

/// One line for each file and directory: `path = content`, `path -> target` for a link, `path/` for a directory, or
/// only the path of a file whose content depends on this host. A file named `#` stands for one file for each GID
/// index.
const TREE: &str = include_str!("../../tree.txt");
/// Placeholder for the name of the device, in the list and in the directory beside the library. The name depends on the
/// persona.
const DEVICE: &str = "DEVICE";
/// Parent of the device's directory.
const CLASS: &str = "/sys/class/infiniband/";

/// The directory of the device, which all links lead to.
pub(super) const DEVICE_DIR: &str = "/sys/devices/platform/ironwarp";

/// A virtual file, directory or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file whose content is this constant line.
    Line(&'static str),
    /// A file whose content depends on this host.
    File,
    /// A link with this target, relative to its directory.
    Link(&'static str),
}

/// Finds the node at a virtual path. `None` if there is none.
pub(super) fn node(path: &str) -> Option<Node> {
    let listed = listed_path(path)?;
    rows().find(|(row, _)| *row == listed).map(|(_, node)| node).or_else(|| {
        let (directory, index) = listed.rsplit_once('/')?;
        let indexed = format!("{directory}/#");
        let is_listed = is_index(index) && rows().any(|(row, _)| row == indexed);
        is_listed.then_some(Node::File)
    })
}

/// Returns the names and nodes in a virtual directory.
pub(super) fn entries(directory: &str) -> Vec<(String, Node)> {
    let Some(directory) = listed_path(directory) else { return Vec::new() };
    let name_in_directory = |row: &'static str| {
        row.strip_prefix(&directory)?.strip_prefix('/').filter(|rest| !rest.contains('/'))
    };
    let in_directory = |(row, node)| Some((name_in_directory(row)?, node));
    let mut entries = Vec::new();
    for (entry, node) in rows().filter_map(in_directory) {
        match entry {
            "#" => entries.extend((0..MAX_GIDS).map(|index| (index.to_string(), node))),
            DEVICE => entries.push((name().to_owned(), node)),
            _ => entries.push((entry.to_owned(), node)),
        }
    }
    entries
}

/// Returns the absolute target of a path that is a link: always the directory of the device. `None` if the path is
/// not a link.
pub(super) fn follow(path: &str) -> Option<&'static str> {
    // All links have this name. The check excludes most paths without searching the list.
    let is_link = path.ends_with("/device") && matches!(node(path), Some(Node::Link(_)));
    is_link.then_some(DEVICE_DIR)
}

/// Converts a virtual path to the one in the list and in the directory beside the library, which have a placeholder for
/// the name of the device. `None` if the path names another device.
pub(super) fn listed_path(path: &str) -> Option<String> {
    let Some(rest) = path.strip_prefix(CLASS) else { return Some(path.to_owned()) };
    let (device, rest) = rest.split_once('/').map_or((rest, None), |(device, rest)| (device, Some(rest)));
    (device == name()).then(|| match rest {
        Some(rest) => format!("{CLASS}{DEVICE}/{rest}"),
        None => format!("{CLASS}{DEVICE}"),
    })
}

/// Converts a path of the list to a virtual one. This is the inverse of [`listed_path`].
pub(super) fn program_path(listed: &str) -> String {
    match listed.strip_prefix(CLASS).and_then(|rest| rest.strip_prefix(DEVICE)) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{CLASS}{}{rest}", name()),
        _ => listed.to_owned(),
    }
}

/// Whether the text is a decimal index of the GID table, without sign and leading zeros.
fn is_index(text: &str) -> bool {
    text.parse::<usize>().is_ok_and(|index| index < MAX_GIDS && index.to_string() == text)
}

/// Parses the list: the path and node of each line.
fn rows() -> impl Iterator<Item = (&'static str, Node)> {
    let parse = |line: &'static str| {
        let constant = line.split_once(" = ").map(|(path, text)| (path, Node::Line(text)));
        let link = || line.split_once(" -> ").map(|(path, to)| (path, Node::Link(to)));
        let directory = || line.strip_suffix('/').map(|path| (path, Node::Directory));
        constant.or_else(link).or_else(directory).unwrap_or((line, Node::File))
    };
    // Other lines are comments.
    TREE.lines().filter(|line| line.starts_with('/')).map(parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_entry_is_found() {
        let roots = ["/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband", DEVICE_DIR];
        let mut directories = roots.map(str::to_owned).to_vec();
        let mut seen = 0;
        while let Some(directory) = directories.pop() {
            assert_eq!(node(&directory), Some(Node::Directory), "{directory}");
            for (entry, what) in entries(&directory) {
                let path = format!("{directory}/{entry}");
                assert_eq!(node(&path), Some(what), "{path}");
                assert_eq!(program_path(&listed_path(&path).unwrap()), path);
                seen += 1;
                assert_eq!(follow(&path).is_some(), matches!(what, Node::Link(_)), "{path}");
                if what == Node::Directory {
                    directories.push(path);
                }
            }
        }
        let listed = rows().filter(|(row, _)| !row.ends_with('#')).count();
        assert_eq!(seen + roots.len(), listed + 3 * MAX_GIDS, "each line is in a directory");
    }

    #[test]
    fn links_lead_to_the_device() {
        for (row, node) in rows() {
            if let Node::Link(to) = node {
                let directory = std::path::Path::new(row).parent().unwrap().components().count();
                assert_eq!(to, format!("{}devices/platform/ironwarp", "../".repeat(directory - 2)), "{row}");
            }
        }
        assert_eq!(follow("/sys/class/infiniband/ironwarp0/device"), Some(DEVICE_DIR));
        assert_eq!(follow("/sys/devices/platform/ironwarp/device"), None);
    }

    #[test]
    fn unlisted_paths_do_not_exist() {
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
