//! The files and directories that `tree.txt` lists.

use crate::support::persona::name;
use ironwarp_engine::gid::MAX_GIDS;

/// One line for each file and directory.
const TREE: &str = include_str!("../../tree.txt");
/// Placeholder for the name of the device, in the list and in the directory beside the library.
const DEVICE: &str = "DEVICE";
/// Parent of the device's directory.
const CLASS: &str = "/sys/class/infiniband/";

/// The directory of the device itself, to which the links lead.
pub(super) const DEVICE_DIR: &str = "/sys/devices/platform/ironwarp";

/// What a path refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file with a constant line.
    Line(&'static str),
    /// A file whose content depends on this host.
    File,
    /// A link, and its target.
    Link(&'static str),
}

/// What a path of a program refers to.
pub(super) fn node(path: &str) -> Option<Node> {
    let listed = listed_path(path)?;
    rows().find(|(row, _)| *row == listed).map(|(_, node)| node).or_else(|| {
        let (directory, index) = listed.rsplit_once('/')?;
        let indexed = format!("{directory}/#");
        let there = is_index(index) && rows().any(|(row, _)| row == indexed);
        there.then_some(Node::File)
    })
}

/// The entries of a directory.
pub(super) fn entries(directory: &str) -> Vec<(String, Node)> {
    let Some(directory) = listed_path(directory) else { return Vec::new() };
    let inside = |row: &'static str| {
        row.strip_prefix(&directory)?.strip_prefix('/').filter(|rest| !rest.contains('/'))
    };
    let named = |(row, node)| Some((inside(row)?, node));
    let mut entries = Vec::new();
    for (entry, node) in rows().filter_map(named) {
        match entry {
            "#" => entries.extend((0..MAX_GIDS).map(|index| (index.to_string(), node))),
            DEVICE => entries.push((name().to_owned(), node)),
            _ => entries.push((entry.to_owned(), node)),
        }
    }
    entries
}

/// The target of a path that is a link. All links lead to the directory of the device.
pub(super) fn follow(path: &str) -> Option<&'static str> {
    // All links have this name, which rules out most paths.
    let link = path.ends_with("/device") && matches!(node(path), Some(Node::Link(_)));
    link.then_some(DEVICE_DIR)
}

/// Converts a path of a program to that of the list and of the directory beside the library. `None` if it
/// belongs to another device.
pub(super) fn listed_path(path: &str) -> Option<String> {
    let Some(rest) = path.strip_prefix(CLASS) else { return Some(path.to_owned()) };
    let (device, rest) = rest.split_once('/').map_or((rest, None), |(device, rest)| (device, Some(rest)));
    (device == name()).then(|| match rest {
        Some(rest) => format!("{CLASS}{DEVICE}/{rest}"),
        None => format!("{CLASS}{DEVICE}"),
    })
}

/// Converts a path of the list to that of a program.
pub(super) fn program_path(listed: &str) -> String {
    match listed.strip_prefix(CLASS).and_then(|rest| rest.strip_prefix(DEVICE)) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{CLASS}{}{rest}", name()),
        _ => listed.to_owned(),
    }
}

/// Whether the text is an index of the table, as the kernel writes it.
fn is_index(text: &str) -> bool {
    text.parse::<usize>().is_ok_and(|index| index < MAX_GIDS && index.to_string() == text)
}

fn rows() -> impl Iterator<Item = (&'static str, Node)> {
    let row = |line: &'static str| {
        let line_in_it = line.split_once(" = ").map(|(path, text)| (path, Node::Line(text)));
        let link = || line.split_once(" -> ").map(|(path, to)| (path, Node::Link(to)));
        let directory = || line.strip_suffix('/').map(|path| (path, Node::Directory));
        line_in_it.or_else(link).or_else(directory).unwrap_or((line, Node::File))
    };
    TREE.lines().filter(|line| line.starts_with('/')).map(row)
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
