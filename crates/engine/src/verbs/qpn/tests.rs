use super::*;
use crate::config::PortRange;
use crate::sys::reserve::{Kind, Reservation};
use std::collections::HashSet;

/// A port without queue pairs.
#[derive(Debug)]
struct Reserved(Reservation);

impl QpPort for Reserved {
    fn number(&self) -> u16 {
        self.0.port()
    }

    fn admit(&self, _qpn: u32) {}

    fn dismiss(&self, _qpn: u32) {}

    fn forget(&self, _qpn: u32) {}

    fn keep_secret(&self, _qpn: u32, _secret: Secret) {}
}

fn new_port() -> io::Result<Arc<dyn QpPort>> {
    Ok(Arc::new(Reserved(Reservation::new(Kind::Stream, PortRange::default())?)))
}

#[test]
fn a_number_is_port_and_slot() {
    let numbers = Numbers::new();
    let first = numbers.with_port(new_port).unwrap();
    let second = numbers.with_port(new_port).unwrap();
    let port = first.port().unwrap().number();
    assert_eq!((first.value() >> 8, second.value() >> 8), (port.into(), port.into()));
    assert!(first.value() & 0xff < SLOTS && first.value() != second.value());
    assert_eq!(port_of(second.value()), Some(port));
    assert_eq!(port_of(u32::from(port) << 8 | 240), None);
    assert_eq!(port_of(ironwarp_rnic::datagram::number_of(port)), None, "it cannot be dialled");
    assert_eq!(port_of(0x03_ffff), None);
    assert_eq!(port_of(0x100_0000), None);
}

#[test]
fn a_slot_that_was_given_back_comes_back_last() {
    let numbers = Numbers::new();
    let mut held: Vec<_> = (0..SLOTS).map(|_| numbers.with_port(new_port).unwrap()).collect();
    let port = held[0].port().unwrap().number();
    let gone: Vec<u32> = [200, 7, 100].map(|slot| held[slot].value()).into();
    for value in &gone {
        held.retain(|number| number.value() != *value);
    }
    let again: Vec<_> = (0..3).map(|_| numbers.with_port(new_port).unwrap()).collect();
    let values: Vec<u32> = again.iter().map(Number::value).collect();
    assert_eq!(values, gone, "in the order in which they were given back");
    // One more than a port has slots for.
    let other = numbers.with_port(new_port).unwrap();
    assert_ne!(other.port().unwrap().number(), port);

    // Alone, a program that creates and destroys goes round all slots that there are.
    drop((held, again, other));
    let seen: HashSet<u32> = (0..2 * SLOTS)
        .map(|_| numbers.with_port(|| unreachable!("slots are free")).unwrap().value())
        .collect();
    assert_eq!(seen.len(), 480);
}

#[test]
fn plain_numbers_are_below_those_with_a_port_and_come_back_last() {
    let numbers = Numbers::new();
    let first = numbers.plain().unwrap();
    assert_eq!(first.value(), 2);
    drop(first);
    let mut seen = vec![false; 0x04_0000];
    seen[2] = true;
    for _ in 3..0x04_0000 {
        let number = numbers.plain().unwrap().value();
        assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came back early");
    }
    let again: Vec<_> = (0..3).map(|_| numbers.plain().unwrap()).collect();
    assert_eq!(again.iter().map(Number::value).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn numbers_in_use_are_not_handed_out_and_running_out_is_an_error() {
    let numbers = Numbers::new();
    let held: Vec<_> = (2..0x04_0000).map(|_| numbers.plain().unwrap()).collect();
    assert_eq!(held.iter().map(Number::value).collect::<HashSet<_>>().len(), held.len());
    let error = numbers.plain().unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}
