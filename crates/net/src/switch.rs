//! The LAN of a unit: which host gets a frame.

use ironwarp_io_unit::message::Mac;
use std::collections::HashMap;

/// A table of the addresses that frames have come from, and of the hosts that sent them.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    hosts: HashMap<Mac, u64>,
}

/// The receivers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One host.
    Host(u64),
    /// All hosts but the one that has sent it: a group address, or one that is not known.
    Others,
    /// Nobody: the address is that of the sender itself.
    Nobody,
}

impl Switch {
    /// Learns where the source of a frame is, and finds its destination. The caller has checked that the source address
    /// belongs to the host, so that no host can take the frames of another, and the table stays as small as the key file.
    pub(crate) fn forward(&mut self, host: u64, from: Mac, to: Mac) -> Target {
        self.hosts.insert(from, host);
        match self.hosts.get(&to) {
            Some(found) if *found == host => Target::Nobody,
            Some(found) => Target::Host(*found),
            None => Target::Others,
        }
    }

    /// Forgets a host that is gone.
    pub(crate) fn forget(&mut self, host: u64) {
        self.hosts.retain(|_, found| *found != host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_to_the_host_that_an_address_was_learned_from() {
        let (left, right) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let mut switch = Switch::default();
        assert_eq!(switch.forward(1, left, right), Target::Others);
        assert_eq!(switch.forward(2, right, left), Target::Host(1));
        assert_eq!(switch.forward(1, left, right), Target::Host(2));
        assert_eq!(switch.forward(1, left, left), Target::Nobody);
        assert_eq!(switch.forward(1, left, Mac([0xff; 6])), Target::Others);
        switch.forget(2);
        assert_eq!(switch.forward(1, left, right), Target::Others);
        assert_eq!(switch.forward(3, right, left), Target::Host(1), "attached again");
        assert_eq!(switch.forward(1, left, right), Target::Host(3));
    }
}
