//! Which host gets a frame, or whether the LAN beyond the unit does.

use ironwarp_io_unit::message::Mac;
use std::collections::HashMap;

/// Maximum number of addresses of the LAN that are known. Frames to others go to every host as well.
const MAX_LAN: usize = 4096;

/// Where frames come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A host that is attached.
    Host(u64),
    /// The TAP device or stream of the unit.
    Lan,
}

/// A table of the addresses that frames have come from, and of their places.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    places: HashMap<Mac, Place>,
    /// Number of addresses of the LAN.
    lan: usize,
}

/// The receivers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    One(Place),
    /// Every place but the one that has sent it: a group address, or one that is not known.
    Others,
    /// Nobody: the address is at the place of the sender itself, or the LAN uses the address of a host.
    Nobody,
}

impl Switch {
    /// Learns where the source of a frame is, and finds its destination. The caller has checked that the source address of a
    /// host belongs to it, so that no host can take the frames of another. Nor can the LAN.
    pub(crate) fn forward(&mut self, at: Place, from: Mac, to: Mac) -> Target {
        match (at, self.places.get(&from)) {
            (Place::Lan, Some(Place::Host(_))) => return Target::Nobody,
            (Place::Lan, Some(Place::Lan)) => {}
            (Place::Lan, None) => self.learn_from_lan(from),
            (Place::Host(_), known) => {
                self.lan -= usize::from(known == Some(&Place::Lan));
                self.places.insert(from, at);
            }
        }
        match self.places.get(&to) {
            Some(found) if *found == at => Target::Nobody,
            Some(found) => Target::One(*found),
            None => Target::Others,
        }
    }

    /// Forgets a host that is gone.
    pub(crate) fn forget(&mut self, host: u64) {
        self.places.retain(|_, place| *place != Place::Host(host));
    }

    /// Addresses of hosts are bounded by the key file, those of the LAN are not: when there are too many, all of them are
    /// learned anew.
    fn learn_from_lan(&mut self, from: Mac) {
        if self.lan >= MAX_LAN {
            self.places.retain(|_, place| *place != Place::Lan);
            self.lan = 0;
        }
        self.places.insert(from, Place::Lan);
        self.lan += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const RIGHT: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const OUTSIDE: Mac = Mac([2, 0, 0, 0, 0, 3]);
    const ALL: Mac = Mac([0xff; 6]);

    #[test]
    fn frames_go_to_the_host_that_an_address_was_learned_from() {
        let mut switch = Switch::default();
        let [one, two, three] = [1, 2, 3].map(Place::Host);
        assert_eq!(switch.forward(one, LEFT, RIGHT), Target::Others);
        assert_eq!(switch.forward(two, RIGHT, LEFT), Target::One(one));
        assert_eq!(switch.forward(one, LEFT, RIGHT), Target::One(two));
        assert_eq!(switch.forward(one, LEFT, LEFT), Target::Nobody);
        assert_eq!(switch.forward(one, LEFT, ALL), Target::Others);
        switch.forget(2);
        assert_eq!(switch.forward(one, LEFT, RIGHT), Target::Others);
        assert_eq!(switch.forward(three, RIGHT, LEFT), Target::One(one), "attached again");
        assert_eq!(switch.forward(one, LEFT, RIGHT), Target::One(three));
    }

    #[test]
    fn the_lan_has_addresses_of_its_own_and_none_of_a_host() {
        let mut switch = Switch::default();
        let (host, lan) = (Place::Host(1), Place::Lan);
        assert_eq!(switch.forward(host, LEFT, OUTSIDE), Target::Others);
        assert_eq!(switch.forward(lan, OUTSIDE, LEFT), Target::One(host));
        assert_eq!(switch.forward(host, LEFT, OUTSIDE), Target::One(lan));
        assert_eq!(switch.forward(lan, LEFT, OUTSIDE), Target::Nobody, "the address of a host");
        assert_eq!(switch.forward(lan, OUTSIDE, RIGHT), Target::Others);
        assert_eq!(switch.forward(host, OUTSIDE, LEFT), Target::Nobody, "a host whose address it is");
        assert_eq!(switch.forward(host, LEFT, OUTSIDE), Target::Nobody);
    }

    #[test]
    fn addresses_of_the_lan_are_bounded() {
        let mut switch = Switch::default();
        switch.forward(Place::Host(1), LEFT, ALL);
        for number in 0..3 * u16::try_from(MAX_LAN).unwrap() {
            let [high, low] = number.to_be_bytes();
            switch.forward(Place::Lan, Mac([6, 0, 0, 0, high, low]), ALL);
            assert!(switch.places.len() <= MAX_LAN + 1);
        }
        assert_eq!(switch.forward(Place::Lan, OUTSIDE, LEFT), Target::One(Place::Host(1)));
    }
}
