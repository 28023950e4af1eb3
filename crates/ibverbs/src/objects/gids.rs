//! The GID table of a port. Also maps LIDs to GIDs, for programs that address peers by LID.

use crate::support::errno::Errno;
use ironwarp_engine::gid::{Gid, GidEntry, GidTable, MAX_GIDS};
use std::net::{IpAddr, Ipv4Addr};

/// Returns the first IPv4 address in a GID table, or `None` if there is none.
fn first_ipv4(table: GidTable) -> Result<Option<Ipv4Addr>, Errno> {
    let ipv4 = |entry: &GidEntry| match entry.gid.ip() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    };
    Ok(table.entries()?.iter().find_map(ipv4))
}

/// Returns the error for a port that has no IPv4 address, and therefore no LID.
fn no_ipv4() -> Errno {
    Errno::INVALID.because("the port has no IPv4 address, so it has no LID: address the peer by GID")
}

/// Returns the LID of the port: the lower half of its first IPv4 address, or 0 if there is none. Ethernet has no LIDs,
/// but some programs address peers only by LID.
pub(crate) fn lid(table: GidTable) -> Result<u16, Errno> {
    Ok(first_ipv4(table)?.map_or(0, |address| u16::from_be_bytes([address.octets()[2], address.octets()[3]])))
}

/// Returns the GID of the remote port that has this LID. The remote port must be in the same /16 network as this one.
pub(crate) fn gid_of_lid(table: GidTable, lid: u16) -> Result<Gid, Errno> {
    let [a, b, ..] = first_ipv4(table)?.ok_or_else(no_ipv4)?.octets();
    let [c, d] = lid.to_be_bytes();
    Ok(IpAddr::V4(Ipv4Addr::new(a, b, c, d)).into())
}

/// Returns the index of the GID that corresponds to the LID of this port.
pub(crate) fn gid_index_of_lid(table: GidTable) -> Result<usize, Errno> {
    let own = first_ipv4(table)?.ok_or_else(no_ipv4)?;
    let entry = table.find(IpAddr::V4(own).into())?;
    Ok(entry.map_or(0, |entry| entry.index))
}

/// Returns the GID at an index of the table, which is zero if the entry is unused, as on every adapter. Fails with
/// EINVAL if the index is out of range.
pub(crate) fn gid_at(table: GidTable, index: usize) -> Result<Gid, Errno> {
    if index >= MAX_GIDS {
        return Err(Errno::INVALID
            .because(format_args!("GID index {index} is out of range: the table has {MAX_GIDS} entries")));
    }
    Ok(table.get(index)?.map_or(Gid::ZERO, |entry| entry.gid))
}
