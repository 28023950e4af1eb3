//! Errors of reading a capture.
//!
//! These make the whole file unreadable. A [`Problem`](crate::Problem) concerns a single connection and does not affect
//! the others.

use crate::link::LinkType;
use std::path::PathBuf;

/// Why a capture could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("failed to read {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file has neither of the two formats.
    #[error("not a packet capture: neither a pcap nor a pcapng header")]
    Format,
    /// A record is invalid.
    #[error("invalid record {record} at byte {offset}")]
    Damaged {
        /// Number of the record (in pcapng: block), counting from 1.
        record: usize,
        /// Its position in the file.
        offset: usize,
    },
    /// A pcapng packet refers to an undescribed interface.
    #[error("packet {packet} refers to interface {interface}, which the capture does not describe")]
    Interface {
        /// Number of the packet, counting from 1.
        packet: usize,
        /// Number of the interface, counting from 0.
        interface: u32,
    },
    /// The link type of a packet is not supported.
    #[error(
        "packet {packet} has unsupported link type {}: record on an Ethernet, loopback, raw IP or \
         \"any\" interface", .link.0
    )]
    LinkType {
        /// Number of the packet, counting from 1.
        packet: usize,
        /// Its link type.
        link: LinkType,
    },
}
