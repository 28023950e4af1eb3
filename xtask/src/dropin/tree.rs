//! Creates the directories and links of a kernel driver, which programs can open and enter (crates/ibverbs/src/files).
//! They are those of as many devices and ports as there can be: which exist in a process, the library decides.

use crate::shell::{Result, at};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Maximum number of devices, and of ports of each: `MAX_DEVICES` and `MAX_PORTS` of the engine.
const DEVICES: usize = 16;
const PORTS: usize = 4;

/// The directory of a device, in place of `PLACE`, and what is appended to the name of a link that leads to it. Both
/// links exist, because the settings decide which the device has.
const PLACES: [(&str, &str); 2] =
    [("pci4957:00/4957:00:SLOT.0/4957:SLOT:00.0", ""), ("platform/ironwarp", ".platform")];

/// Creates the directories and links of a list.
pub(super) fn lay_out(list: &Path, tree: &Path) -> Result {
    if tree.exists() {
        fs::remove_dir_all(tree).map_err(at(tree))?;
    }
    let list = fs::read_to_string(list).map_err(at(list))?;
    for line in expand(&list) {
        if let Some(directory) = line.strip_suffix('/') {
            create(&tree.join(directory))?;
        } else if let Some((link, target)) = line.split_once(" -> ") {
            let link = tree.join(link);
            create(link.parent().unwrap_or(tree))?;
            symlink(target, &link).map_err(at(&link))?;
        }
    }
    // The apparent size of files in sysfs.
    let text = tree.join("text");
    fs::write(&text, [0; 4096]).map_err(at(&text))
}

fn create(directory: &Path) -> Result {
    fs::create_dir_all(directory).map_err(at(directory))
}

/// Returns the lines of the list without the slash at their beginning, one for each value of their placeholders.
fn expand(list: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for line in list.lines().filter_map(|line| line.strip_prefix('/')) {
        for (place, suffix) in PLACES {
            let line = match line.split_once(" -> ") {
                Some((link, target)) if target.contains("PLACE") => {
                    format!("{link}{suffix} -> {}", target.replace("PLACE", place))
                }
                _ => line.to_owned(),
            };
            for device in 0..DEVICES {
                let slot = format!("{:02x}", device + 1);
                let device = device.to_string();
                let line = line.replace("DEVICE", &device).replace("INDEX", &device).replace("SLOT", &slot);
                lines.extend((1..=PORTS).map(|port| line.replace("PORT", &port.to_string())));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_expanded() {
        let lines = expand("# DEVICE\n/a/DEVICE/PORT/\n/a/DEVICE/device -> ../PLACE\n/b/\n");
        assert_eq!(lines.len(), DEVICES * PORTS + 2 * DEVICES + 1);
        for line in [
            "a/15/4/",
            "a/9/device -> ../pci4957:00/4957:00:0a.0/4957:0a:00.0",
            "a/9/device.platform -> ../platform/ironwarp",
            "b/",
        ] {
            assert!(lines.contains(line), "{line}");
        }
    }
}
