//! The list of virtual files and directories, `tree.txt`, as a tree.

use std::sync::OnceLock;

/// The list; its first lines describe the format.
const TREE: &str = include_str!("../../tree.txt");

/// A file or directory of the list, or a directory above one.
#[derive(Debug)]
pub(super) struct Listed {
    /// The path, which may contain placeholders.
    pub(super) path: &'static str,
    /// What is there. `None` for a directory that is not listed itself, such as `/sys`.
    pub(super) node: Option<Node>,
    /// The content of the directory.
    pub(super) children: Vec<Self>,
}

/// What is at a path of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file whose content is this constant line.
    Line(&'static str),
    /// A file whose content is generated.
    File,
    /// A link with this target, relative to its directory. The target may contain placeholders.
    Link(&'static str),
    /// The same as this path, which exists. It may contain placeholders.
    SameAs(&'static str),
}

/// Returns the root of the list, `/`.
pub(super) fn root() -> &'static Listed {
    static ROOT: OnceLock<Listed> = OnceLock::new();
    ROOT.get_or_init(|| {
        let mut root = Listed::unlisted("");
        // Other lines are comments.
        for (path, node) in TREE.lines().filter(|line| line.starts_with('/')).map(parse) {
            root.insert(path, node);
        }
        root
    })
}

/// Parses a line of the list.
fn parse(line: &'static str) -> (&'static str, Node) {
    if let Some((path, text)) = line.split_once(" = ") {
        (path, Node::Line(text))
    } else if let Some((path, target)) = line.split_once(" -> ") {
        (path, Node::Link(target))
    } else if let Some((path, target)) = line.split_once(" => ") {
        (path, Node::SameAs(target))
    } else if let Some(path) = line.strip_suffix('/') {
        (path, Node::Directory)
    } else {
        (line, Node::File)
    }
}

impl Listed {
    fn unlisted(path: &'static str) -> Self {
        Self { path, node: None, children: Vec::new() }
    }

    /// Returns the last component of the path.
    pub(super) fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Inserts a line of the list, and the directories above it.
    fn insert(&mut self, path: &'static str, node: Node) {
        let mut at = self;
        while at.path != path {
            let rest = &path[at.path.len() + 1..];
            let end = path.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
            let child = &path[..end];
            let known = at.children.iter().position(|known| known.path == child);
            let index = known.unwrap_or_else(|| {
                at.children.push(Self::unlisted(child));
                at.children.len() - 1
            });
            at = &mut at.children[index];
        }
        at.node = Some(node);
    }
}
