//! What stands for a path below the two prefixes.

use super::text;
use crate::device::{DEVICE_FILE, NAME};

const DEVICES: &str = "/dev/infiniband";
/// Also the beginning of `/sys/class/infiniband_verbs`.
const CLASS: &str = "/sys/class/infiniband";

/// What stands for a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The path itself: it is none of ours.
    Itself,
    /// Another path.
    Path(String),
    /// A path below the folder that came with the library.
    Tree(String),
    /// A file with this in it.
    Text(String),
}

/// Whether it is worth while to look closer. Called for every path that the program opens.
pub(super) fn is_ours(path: &[u8]) -> bool {
    path.starts_with(CLASS.as_bytes()) || path.starts_with(DEVICES.as_bytes())
}

/// What stands for a path, if [`is_ours`].
pub(super) fn target(path: &str) -> Target {
    let path = path.trim_end_matches('/');
    if let Some(rest) = path.strip_prefix(DEVICES) {
        return match rest.strip_prefix('/') {
            // A character device that everybody may open. What can be done with it stays undone.
            Some(file) if file == DEVICE_FILE => Target::Path("/dev/null".into()),
            _ if rest.is_empty() || rest.starts_with('/') => Target::Tree(path.into()),
            _ => Target::Itself,
        };
    }
    let Some(rest) = path.strip_prefix(CLASS) else { return Target::Itself };
    if !(rest.is_empty() || rest.starts_with('/') || rest.starts_with("_verbs")) {
        return Target::Itself;
    }
    let device = rest.strip_prefix('/').and_then(|rest| rest.strip_prefix(NAME));
    let Some(file) = device.and_then(|rest| rest.strip_prefix('/')) else {
        return Target::Tree(path.into());
    };
    if let Some(interface) = file.strip_prefix("device/net")
        && (interface.is_empty() || interface.starts_with('/'))
    {
        return Target::Path(format!("/sys/class/net{interface}"));
    }
    text::of(file).map_or_else(|| Target::Tree(path.into()), Target::Text)
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
        assert_eq!(target("/dev/infiniband/"), Target::Tree("/dev/infiniband".into()));
    }

    #[test]
    fn interfaces_are_those_of_the_host() {
        let net = "/sys/class/infiniband/ironwarp0/device/net";
        assert_eq!(target(net), Target::Path("/sys/class/net".into()));
        assert_eq!(target(&format!("{net}/lo/mtu")), Target::Path("/sys/class/net/lo/mtu".into()));
    }

    #[test]
    fn what_depends_on_the_host_is_a_text() {
        let port = "/sys/class/infiniband/ironwarp0/ports/1";
        assert_eq!(target(&format!("{port}/gid_attrs/types/0")), Target::Text("RoCE v2\n".into()));
        assert!(matches!(target(&format!("{port}/gids/0")), Target::Text(_)));
        let empty = format!("{port}/gid_attrs/types/255");
        assert_eq!(target(&empty), Target::Tree(empty.clone()));
    }
}
