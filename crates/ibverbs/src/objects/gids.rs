//! The GID table of the port, and the LIDs that stand for its addresses.

use crate::support::errno::Errno;
use ironwarp_engine::gid::{Gid, GidEntry, GidTable, MAX_GIDS};
use std::net::{IpAddr, Ipv4Addr};

/// The first IPv4 address of the table.
fn first_ipv4() -> Result<Option<Ipv4Addr>, Errno> {
    let ipv4 = |entry: &GidEntry| match entry.gid.ip() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    };
    Ok(GidTable::of_process().entries()?.iter().find_map(ipv4))
}

fn no_ipv4() -> Errno {
    Errno::INVALID.because("the port has no IPv4 address, so it has no LID: address the peer by GID")
}

/// The LID of the port: the lower half of its first IPv4 address. Ethernet has no LIDs, but some programs
/// know no other address.
pub(crate) fn lid() -> Result<u16, Errno> {
    Ok(first_ipv4()?.map_or(0, |address| u16::from_be_bytes([address.octets()[2], address.octets()[3]])))
}

/// The GID of the port with this LID, which must be in the /16 network of this port.
pub(crate) fn gid_of_lid(lid: u16) -> Result<Gid, Errno> {
    let [a, b, ..] = first_ipv4()?.ok_or_else(no_ipv4)?.octets();
    let [c, d] = lid.to_be_bytes();
    Ok(IpAddr::V4(Ipv4Addr::new(a, b, c, d)).into())
}

/// Index of the GID that belongs to the LID of this port.
pub(crate) fn gid_index_of_lid() -> Result<usize, Errno> {
    let own = first_ipv4()?.ok_or_else(no_ipv4)?;
    let entry = GidTable::of_process().find(IpAddr::V4(own).into())?;
    Ok(entry.map_or(0, |entry| entry.index))
}

/// The GID at an index of the table. An unused entry is zero, as in every such table.
pub(crate) fn gid_at(index: usize) -> Result<Gid, Errno> {
    if index >= MAX_GIDS {
        return Err(Errno::INVALID
            .because(format_args!("GID index {index} is out of range: the table has {MAX_GIDS} entries")));
    }
    Ok(GidTable::of_process().get(index)?.map_or(Gid::ZERO, |entry| entry.gid))
}
