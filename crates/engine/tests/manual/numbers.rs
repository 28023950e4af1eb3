//! QPNs of manually connected queue pairs: each consists of a port, from the configured range, and a slot.

use super::common::{Host, TIMEOUT, port};
use ironwarp_engine::config::{Config, PortRange};
use ironwarp_engine::sys::reserve::{Kind, Reservation};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;

#[test]
fn a_qpn_is_reused_as_late_as_possible() {
    let host = Host::new(Config::default());
    let mut pairs: Vec<_> = (0..240).map(|_| host.pair()).collect();
    let numbers: Vec<u32> = pairs.iter().map(|pair| pair.id()).collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    let first = sorted[0];
    assert_eq!(sorted, (first..first + 240).collect::<Vec<_>>(), "all slots of one port are used");
    assert_ne!(sorted, numbers, "the order is not predictable");
    pairs.remove(17);
    pairs.remove(3);
    let again = [host.pair(), host.pair()].map(|pair| pair.id());
    assert_eq!(again, [numbers[17], numbers[3]], "the slot that was freed first is reused first");
}

#[test]
fn five_hundred_queue_pairs_share_three_ports_and_all_talk() {
    let (mut one, other) = (Host::new(Config::default()), Host::new(Config::default()));
    let near: Vec<_> = (0..500).map(|_| one.pair()).collect();
    let far: Vec<_> = (0..500).map(|_| other.pair()).collect();
    for pairs in [&near, &far] {
        let numbers: HashSet<u32> = pairs.iter().map(|pair| pair.id()).collect();
        let ports: HashSet<u16> = numbers.iter().map(|&number| port(number)).collect();
        assert_eq!((numbers.len(), ports.len()), (500, 3));
        assert!(numbers.iter().all(|number| number & 0xff < 240));
    }
    // Half of them are connected in the other order, so that some hellos arrive early.
    for (index, (a, b)) in near.iter().zip(&far).enumerate() {
        let tell = |here: bool| match here {
            true => one.bring_up(a, "127.0.0.2", ("127.0.0.3", b.id())),
            false => other.bring_up(b, "127.0.0.3", ("127.0.0.2", a.id())),
        };
        tell(index % 2 == 0);
        tell(index % 2 != 0);
    }
    for (index, (a, b)) in near.iter().zip(&far).enumerate() {
        a.wait_connected(TIMEOUT).unwrap();
        b.wait_connected(TIMEOUT).unwrap();
        other.receive(b, 8 * index, 8);
    }
    for (index, a) in near.iter().enumerate() {
        one.send(a, 8 * index, &u64::from(a.id()).to_be_bytes());
    }
    let by_number: HashMap<u32, usize> =
        far.iter().enumerate().map(|(index, pair)| (pair.id(), index)).collect();
    for _ in 0..500 {
        one.one();
        let received = other.one();
        let index = by_number[&received.qp];
        assert_eq!(received.wr_id, 8 * index as u64);
        assert_eq!(other.bytes(8 * index, 8), u64::from(near[index].id()).to_be_bytes());
    }
}

#[test]
fn ports_are_taken_out_of_the_range_that_the_setting_allows() {
    // Two ports that are free now. If another process takes one of them meanwhile, there are fewer, but no
    // others.
    let free = |first: u16| {
        let range = PortRange::new(first, first + 1).unwrap();
        let held = [(); 2].map(|()| Reservation::new(Kind::Stream, range));
        held.iter().all(Result::is_ok).then_some(range)
    };
    let range = (22_000..32_000).step_by(2).find_map(free).unwrap();
    let host = Host::new(Config::default().ports(range));
    let mut pairs = Vec::new();
    let error = loop {
        match host.engine.create_qp(host.attributes()) {
            Ok(pair) => pairs.push(pair),
            Err(error) => break error,
        }
    };
    assert!(pairs.len() <= 480 && pairs.len().is_multiple_of(240), "{}", pairs.len());
    assert!(pairs.iter().all(|pair| range.ports().unwrap().contains(&port(pair.id()))));
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    // After one is destroyed, there is room again.
    pairs.pop();
    host.engine.create_qp(host.attributes()).unwrap();
}
