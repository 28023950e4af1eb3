//! Why a capture could not be read.
//!
//! Only what makes the whole file unreadable; what is wrong with one connection is a [`Problem`](crate::Problem) of that
//! connection, and the others are shown all the same.

use crate::packet::LinkType;
use std::path::PathBuf;

/// A capture that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system said no.
    #[error("cannot read the capture {}: {source}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the file system said.
        source: std::io::Error,
    },
    /// Neither of the two formats.
    #[error("this is no packet capture: it begins neither like a pcap nor like a pcapng file")]
    Format,
    /// A record makes no sense.
    #[error("record {record} of the capture, at byte {offset}, is damaged")]
    Damaged {
        /// Which record (in pcapng: block), from 1.
        record: usize,
        /// Where it begins.
        offset: usize,
    },
    /// A pcapng packet of an interface that was not described.
    #[error("packet {packet} is of interface {interface}, which the capture does not describe")]
    Interface {
        /// Which packet, from 1.
        packet: usize,
        /// Which interface, from 0.
        interface: u32,
    },
    /// Packets of a kind of network that is not known here.
    #[error(
        "packet {packet} has link type {}, which is not read here; record on an Ethernet, loopback, raw IP or \
         \"any\" interface", .link.0
    )]
    LinkType {
        /// Which packet, from 1.
        packet: usize,
        /// Its link type.
        link: LinkType,
    },
}
