//! The traffic class of sockets, which selects how networks and interfaces treat their packets (requirement M16).

use super::socket::set_option;
use rustix::fd::AsFd;
use std::ffi::c_int;
use std::io;

/// Sets the traffic class of the packets that a socket sends (IP_TOS, IPV6_TCLASS), and the priority in the queues of the
/// interface that belongs to it (SO_PRIORITY, socket(7)).
pub(crate) fn set_traffic_class(fd: &impl AsFd, class: u8) -> io::Result<()> {
    // Sockets of IPv6 have both options, because they may send IPv4.
    set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, class.into())?;
    match set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class.into()) {
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
        _ => {} // sockets of IPv4 do not know it
    }
    set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, priority_of(class))
}

/// Returns the priority of a traffic class. The kernel derives it in the same way from IP_TOS, but not from IPV6_TCLASS.
const fn priority_of(class: u8) -> c_int {
    match class >> 1 & 0xf {
        8..=11 => 6,  // low delay: TC_PRIO_INTERACTIVE
        12..=15 => 4, // low delay and high throughput: TC_PRIO_INTERACTIVE_BULK
        4..=7 => 2,   // high throughput: TC_PRIO_BULK
        _ => 0,       // TC_PRIO_BESTEFFORT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::option;
    use rustix::net::{AddressFamily, SocketType, socket};

    /// For IPv4, the kernel sets the priority itself when the class is set: it must be the same.
    #[test]
    fn the_priority_is_that_of_the_kernel() {
        let fd = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        for class in 0..=u8::MAX {
            set_option(&fd, libc::IPPROTO_IP, libc::IP_TOS, class.into()).unwrap();
            let priority = option(&fd, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap();
            assert_eq!(priority, priority_of(class), "class {class}");
        }
    }
}
