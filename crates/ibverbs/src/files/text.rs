//! Files of the device whose contents depend on this host.

use crate::device::guid;
use crate::persona;
use ironwarp_engine::gid::{GidEntry, GidTable, MOST_GIDS};
use std::fmt::Write;

/// What a file has in it, by its path below the device's folder; `None` if that is always the same, or there is none.
pub(super) fn of(file: &str) -> Option<String> {
    match file {
        "node_type" => Some(if persona::is_iwarp() { "4: RNIC\n" } else { "1: CA\n" }.into()),
        "node_guid" | "sys_image_guid" => Some(groups(&guid().to_ne_bytes())),
        "node_desc" => Some(format!("{}\n", crate::device::NAME)),
        "fw_ver" => Some(format!("{}\n", env!("CARGO_PKG_VERSION"))),
        "ports/1/state" => Some(if active() { "4: ACTIVE\n" } else { "1: DOWN\n" }.into()),
        "ports/1/phys_state" => Some(if active() { "5: LinkUp\n" } else { "3: Disabled\n" }.into()),
        _ => {
            let (folder, index) = file.strip_prefix("ports/1/")?.rsplit_once('/')?;
            let index: usize = index.parse().ok()?;
            match (folder, gid(index)) {
                ("gids", Some(entry)) => Some(groups(&entry.gid.to_bytes())),
                // Every index of the table is there, used or not.
                ("gids", None) if index < MOST_GIDS => Some(groups(&[0; 16])),
                ("gid_attrs/types", Some(_)) => Some("RoCE v2\n".into()),
                ("gid_attrs/ndevs", Some(entry)) => Some(format!("{}\n", entry.interface)),
                _ => None,
            }
        }
    }
}

fn active() -> bool {
    GidTable::of_process().port_is_active().unwrap_or(false)
}

fn gid(index: usize) -> Option<GidEntry> {
    GidTable::of_process().get(index).ok().flatten()
}

/// As sysfs writes GIDs and GUIDs: groups of four digits.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, pair) in bytes.chunks(2).enumerate() {
        let colon = if at == 0 { "" } else { ":" };
        let word = u16::from_be_bytes([pair[0], pair[1]]);
        let _ = write!(text, "{colon}{word:04x}");
    }
    text + "\n"
}
