//! Tests of the limits on handshakes: which ones are evicted, and when.

use super::*;

fn host(number: u8) -> Party {
    Party::Host([198, 51, 100, number].into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Admits a handshake of a party, and evicts those that exceed a limit. Returns the evicted ones.
fn admit(admission: &mut Admission, token: u64, party: Party, limits: &Limits) -> Vec<u64> {
    admission.admit(token, 0, party, Stage::Greeting, soon());
    evict_excess(admission, token, limits, usize::MAX)
}

/// Evicts handshakes that exceed a limit after `token` has reached its stage. Returns them.
fn evict_excess(admission: &mut Admission, token: u64, limits: &Limits, backlog: usize) -> Vec<u64> {
    let mut evicted = Vec::new();
    while let Some(victim) = admission.find_excess(token, limits, backlog) {
        admission.remove(victim);
        evicted.push(victim);
    }
    evicted
}

const FEW: Limits = Limits { greeting: 4, per_party: 3, deciding: 4, first_reserved: 0 };

#[test]
fn a_party_evicts_its_own_oldest() {
    let mut admission = Admission::default();
    for token in 1..=3 {
        assert_eq!(admit(&mut admission, token, host(1), &FEW), []);
    }
    assert_eq!(admit(&mut admission, 4, host(1), &FEW), [1]);
    assert_eq!(admit(&mut admission, 5, host(1), &FEW), [2]);
    assert_eq!(admission.len(), 3);
}

#[test]
fn a_newcomer_evicts_the_oldest_of_the_largest_party() {
    let mut admission = Admission::default();
    admit(&mut admission, 1, host(2), &FEW);
    for token in 2..=4 {
        admit(&mut admission, token, host(1), &FEW);
    }
    assert_eq!(admit(&mut admission, 5, host(3), &FEW), [2], "not 1, which is older");
    assert_eq!(admit(&mut admission, 6, host(4), &FEW), [3]);
    // All have one now: the oldest of all goes.
    assert_eq!(admit(&mut admission, 7, host(5), &FEW), [1]);
}

#[test]
fn who_waits_for_the_program_has_a_limit_of_its_own() {
    let mut admission = Admission::default();
    for token in 1..=6 {
        admit(&mut admission, token, host(1), &FEW);
        assert!(admission.update(token, Stage::Deciding, soon()));
        let evicted = evict_excess(&mut admission, token, &FEW, 3);
        assert_eq!(evicted, if token > 3 { vec![token - 3] } else { vec![] });
    }
    admit(&mut admission, 7, host(2), &FEW);
    assert!(admission.update(7, Stage::Deciding, soon()));
    assert_eq!(evict_excess(&mut admission, 7, &FEW, 3), [4], "the party with the most");
    // Another listener has its own backlog.
    admission.admit(8, 1, host(1), Stage::Greeting, soon());
    assert!(admission.update(8, Stage::Deciding, soon()));
    assert_eq!(evict_excess(&mut admission, 8, &FEW, 1), []);
}

#[test]
fn a_descriptor_is_taken_from_those_who_said_least() {
    let mut admission = Admission::default();
    assert_eq!(admission.find_for_descriptor(), None);
    for (token, party) in [(1, host(1)), (2, host(2)), (3, host(2)), (4, host(3))] {
        admission.admit(token, token, party, Stage::Greeting, soon());
        if token <= 3 {
            admission.update(token, Stage::Deciding, soon());
        }
    }
    let mut order = Vec::new();
    while let Some(victim) = admission.find_for_descriptor() {
        admission.remove(victim);
        order.push(victim);
    }
    assert_eq!(order, [4, 1, 2, 3]);
    assert_eq!(admission.time_to_next_deadline(Instant::now()), None, "nothing is left");
    assert!(admission.deciding.is_empty() && admission.greeting.parties.is_empty());
}

#[test]
fn deadlines_in_order() {
    let (mut admission, now) = (Admission::default(), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    admission.admit(1, 0, host(1), Stage::Greeting, later(10));
    admission.admit(2, 0, host(1), Stage::Greeting, later(11));
    assert!(admission.update(1, Stage::Deciding, later(60)));
    assert!(!admission.update(1, Stage::Deciding, later(60)), "nothing new");
    assert_eq!(admission.find_overdue(later(10)), None);
    assert_eq!(admission.time_to_next_deadline(now), Some(Duration::from_secs(11)));
    assert_eq!(admission.find_overdue(later(11)), Some(2));
    admission.remove(2);
    assert_eq!(admission.find_overdue(later(59)), None);
    assert_eq!(admission.find_overdue(later(60)), Some(1));
}

/// Compares the bookkeeping with a plain list, after random operations.
#[test]
fn random_sequences_keep_the_books() {
    let mut admission = Admission::default();
    let mut plain: Vec<(u64, Party, Stage)> = Vec::new();
    let (mut random, mut next) = (1_u64, 0);
    for _ in 0..2_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = usize::try_from(random >> 40).unwrap();
        match dice % 4 {
            0 | 1 if plain.len() < 20 => {
                let party = host(u8::try_from(dice / 4 % 5).unwrap());
                admission.admit(next, 0, party, Stage::Greeting, soon());
                plain.push((next, party, Stage::Greeting));
                next += 1;
            }
            2 if !plain.is_empty() => {
                let at = dice / 4 % plain.len();
                admission.update(plain[at].0, Stage::Deciding, soon());
                plain[at].2 = Stage::Deciding;
            }
            _ if !plain.is_empty() => {
                let (token, ..) = plain.remove(dice / 4 % plain.len());
                admission.remove(token);
            }
            _ => {}
        }
        let of = |stage| plain.iter().filter(move |entry| entry.2 == stage);
        let largest = |stage| {
            let count = |party| of(stage).filter(|entry| entry.1 == party).count();
            of(stage).max_by_key(|entry| (count(entry.1), Reverse(entry.0))).map(|entry| entry.0)
        };
        assert_eq!(
            admission.find_for_descriptor(),
            largest(Stage::Greeting).or_else(|| largest(Stage::Deciding))
        );
        assert_eq!((admission.len(), admission.deadlines.len()), (plain.len(), plain.len()));
    }
}

#[test]
fn limits_follow_the_number_of_descriptors() {
    let of = |descriptors| {
        let limits = Limits::new(descriptors);
        (limits.greeting, limits.per_party, limits.deciding, limits.first_reserved)
    };
    assert_eq!(of(0), (8, 8, 8, 0));
    assert_eq!(of(64), (16, 8, 32, 56));
    assert_eq!(of(256), (64, 32, 128, 248));
    assert_eq!(of(1024), (256, 128, 512, 992));
    assert_eq!(of(1 << 20), (1024, 512, 1024, (1 << 20) - 32));
    assert_eq!(of(u64::MAX), (1024, 512, 1024, u64::MAX - 32));
    let limits = Limits::new(256);
    assert!(!limits.is_reserved(247) && limits.is_reserved(248));
}

#[test]
fn parties() {
    let local: SocketAddr = "198.51.100.9:1".parse().unwrap();
    let of = |peer: &str| Party::new(peer.parse().unwrap(), local, false);
    assert_eq!(of("198.51.100.1:1"), of("198.51.100.1:2"));
    assert_ne!(of("198.51.100.1:1"), of("198.51.100.2:1"));
    assert_eq!(of("198.51.100.1:1"), of("[::ffff:198.51.100.1]:2"));
    assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:1]:1"), "one host has all of these");
    assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
    // A user may connect from any of 16 million addresses.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (local, peer) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
    let me = rustix::process::geteuid().as_raw();
    assert_eq!(Party::new(peer, local, true), Party::User(Some(me)));
}
