//! Tests of queue pair numbers: their ranges, and the order in which they are assigned again.

use super::*;
use crate::config::PortRange;
use crate::sys::reserve::{Kind, Reservation};
use std::collections::HashSet;

/// A reserved port that ignores its queue pairs.
#[derive(Debug)]
struct Reserved(Reservation);

impl QpPort for Reserved {
    fn number(&self) -> u16 {
        self.0.port()
    }

    fn assign_number(&self, _qpn: u32) {}

    fn release_number(&self, _qpn: u32) {}

    fn stop_expecting(&self, _qpn: u32) {}

    fn keep_secret(&self, _qpn: u32, _secret: Secret) {}
}

fn new_port() -> io::Result<Arc<dyn QpPort>> {
    Ok(Arc::new(Reserved(Reservation::new(Kind::Stream, PortRange::default())?)))
}

#[test]
fn a_number_is_port_and_slot() {
    let numbers = Numbers::new();
    let first = numbers.assign_with_port(new_port).unwrap();
    let second = numbers.assign_with_port(new_port).unwrap();
    let port = first.port().unwrap().number();
    assert_eq!((first.value() >> 8, second.value() >> 8), (port.into(), port.into()));
    assert!(first.value() & 0xff < SLOTS && first.value() != second.value());
    assert_eq!(port_of(second.value()), Some(port));
    assert_eq!(port_of(u32::from(port) << 8 | 240), None);
    assert_eq!(port_of(ironwarp_rnic::datagram::qpn_of_port(port)), None, "it cannot be dialled");
    assert_eq!(port_of(0x03_ffff), None);
    assert_eq!(port_of(0x100_0000), None);
}

#[test]
fn a_slot_that_was_given_back_comes_back_last() {
    let numbers = Numbers::new();
    let mut held: Vec<_> = (0..SLOTS).map(|_| numbers.assign_with_port(new_port).unwrap()).collect();
    let port = held[0].port().unwrap().number();
    let gone: Vec<u32> = [200, 7, 100].map(|slot| held[slot].value()).into();
    for value in &gone {
        held.retain(|number| number.value() != *value);
    }
    let again: Vec<_> = (0..3).map(|_| numbers.assign_with_port(new_port).unwrap()).collect();
    let values: Vec<u32> = again.iter().map(Number::value).collect();
    assert_eq!(values, gone, "in the order in which they were given back");
    // All slots of the first port are in use: this number has another port.
    let other = numbers.assign_with_port(new_port).unwrap();
    assert_ne!(other.port().unwrap().number(), port);

    // A program that creates and destroys one queue pair at a time gets the numbers of all slots in turn.
    drop((held, again, other));
    let seen: HashSet<u32> = (0..2 * SLOTS)
        .map(|_| numbers.assign_with_port(|| unreachable!("slots are free")).unwrap().value())
        .collect();
    assert_eq!(seen.len(), 480);
}

#[test]
fn plain_numbers_are_below_those_with_a_port_and_come_back_last() {
    let numbers = Numbers::new();
    let first = numbers.assign_plain().unwrap();
    assert_eq!(first.value(), 2);
    drop(first);
    let mut seen = vec![false; 0x04_0000];
    seen[2] = true;
    for _ in 3..0x04_0000 {
        let number = numbers.assign_plain().unwrap().value();
        assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came back early");
    }
    let again: Vec<_> = (0..3).map(|_| numbers.assign_plain().unwrap()).collect();
    assert_eq!(again.iter().map(Number::value).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn numbers_in_use_are_not_handed_out_and_running_out_is_an_error() {
    let numbers = Numbers::new();
    let held: Vec<_> = (2..0x04_0000).map(|_| numbers.assign_plain().unwrap()).collect();
    assert_eq!(held.iter().map(Number::value).collect::<HashSet<_>>().len(), held.len());
    let error = numbers.assign_plain().unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

/// A queue pair that moves keeps its number (requirement X2).
#[test]
fn a_number_that_was_claimed_is_not_assigned_again_and_those_before_it_are() {
    let numbers = Numbers::new();
    let claimed = numbers.claim_plain(5).unwrap();
    assert_eq!((claimed.value(), claimed.port().is_none()), (5, true));
    assert_eq!(numbers.claim_plain(5).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let skipped = numbers.claim_plain(3).unwrap();
    assert_eq!(numbers.assign_plain().unwrap().value(), 6);
    let all: Vec<_> = (7..0x04_0000).map(|_| numbers.assign_plain().unwrap()).collect();
    let rest: Vec<_> = (0..3).map(|_| numbers.assign_plain().unwrap()).collect();
    assert_eq!(rest.iter().map(Number::value).collect::<Vec<_>>(), [2, 4, 6]);
    assert!(numbers.assign_plain().is_err(), "3 and 5 are in use");
    drop((skipped, claimed, all));
    assert_eq!([3, 5].map(|_| numbers.assign_plain().unwrap().value()), [3, 5]);
    for invalid in [0x04_0000, u32::MAX] {
        assert!(numbers.claim_plain(invalid).is_err(), "{invalid:#x} contains a port");
    }
}
