//! [`Scope`], the addresses of the host that belong to one GID table.

use super::parse::{Address, NetworkState};
use std::net::IpAddr;

/// The addresses that belong to a GID table: the port of a logical device has those of its interface, or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All addresses of the host.
    #[default]
    Host,
    /// The addresses of an interface.
    Interface(String),
    /// One address.
    Address(IpAddr),
}

impl Scope {
    /// Returns the part of the host's state that belongs to the table.
    ///
    /// All of 127.0.0.0/8 belongs to loopback, though the kernel lists only 127.0.0.1.
    pub(super) fn restrict(&self, found: &NetworkState) -> NetworkState {
        let mut found = found.clone();
        match self {
            Self::Host => {}
            Self::Interface(name) => {
                found.interfaces.retain(|one| one.name == *name);
                let index = found.interfaces.first().map(|one| one.index);
                found.addresses.retain(|address| Some(address.interface) == index);
            }
            Self::Address(ip) => {
                found.addresses.retain(|address| address.ip == *ip);
                if found.addresses.is_empty()
                    && matches!(ip, IpAddr::V4(ip) if ip.is_loopback())
                    && let Some(loopback) = found.interfaces.iter().find(|one| one.loopback)
                {
                    found.addresses.push(Address { interface: loopback.index, ip: *ip });
                }
            }
        }
        found
    }
}
