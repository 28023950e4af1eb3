//! Authentication: proofs, keys bound to names and addresses, and replacement of sessions (P1).

use ironwarp_io_unit::auth::{InvalidKey, Key, Purpose, Registry};
use ironwarp_io_unit::message::{Admitted, Attach, HostName, Join, Mac, Mode, Nonce, Proof, Status};

const LEFT: Mac = Mac([2, 0, 0, 0, 0, 1]);
const LEFT_TOO: Mac = Mac([2, 0, 0, 0, 0, 2]);
const RIGHT: Mac = Mac([2, 0, 0, 0, 0, 3]);
const UNIT: Nonce = Nonce([0x22; 16]);

fn key(byte: u8) -> Key {
    Key::new(&[byte; 32]).expect("long enough")
}

fn name(name: &str) -> HostName {
    HostName::new(name).expect("valid")
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.add(name("left"), key(1), [LEFT, LEFT_TOO]).expect("valid");
    registry.add(name("right"), key(2), [RIGHT]).expect("valid");
    registry
}

fn attach(host: &str, mac: Mac, key: &Key) -> Attach {
    let mut attach = Attach {
        mode: Mode::Rdma,
        offloads: 3,
        nonce: Nonce([0x11; 16]),
        name: name(host),
        macs: vec![mac],
        proof: Proof([0; 32]),
    };
    attach.proof = key.proof(Purpose::Attach, UNIT, &attach);
    attach
}

/// Computed with Python's hmac module from the table in docs/io-unit.md.
#[test]
fn proofs_are_what_the_document_says() {
    let attach = attach("left", LEFT, &key(1));
    let hex = |proof: Proof| proof.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let admitted = Admitted { session: 5, generation: 6, offloads: 3, mtu: 1500, proof: Proof([0; 32]) };
    let join = Join { session: 5, generation: 6, proof: Proof([0; 32]) };
    assert_eq!(hex(attach.proof), "242d8956933117cbfa499722e92dbc7400e8cc9f735c203f7bb7f1e2024f52e5");
    assert_eq!(
        hex(key(1).proof(Purpose::Admit(&admitted), UNIT, &attach)),
        "2aa1f01667dd1f27702d57fd45549199c6af9792159553e5b82592a3f89c961d"
    );
    assert_eq!(
        hex(key(1).proof(Purpose::Join(&join), UNIT, &attach)),
        "dff10c0c15906c8203eef326f7fd05b24b936395fe49c443b561286d727655fd"
    );
}

#[test]
fn a_host_attaches_with_its_own_key_name_and_addresses_only() {
    let mut registry = registry();
    assert_eq!(registry.attach(&attach("left", LEFT_TOO, &key(1)), UNIT).unwrap().generation, 1);
    let refused = |attach: Attach| self::registry().attach(&attach, UNIT).unwrap_err();
    assert_eq!(refused(attach("left", LEFT, &key(2))), Status::AuthenticationFailed, "another key");
    assert_eq!(refused(attach("right", RIGHT, &key(1))), Status::AuthenticationFailed, "another name");
    assert_eq!(refused(attach("nobody", LEFT, &key(1))), Status::AuthenticationFailed, "an unknown name");
    let zero = Key::new(&[0; 16]).unwrap();
    assert_eq!(
        refused(attach("nobody", LEFT, &zero)),
        Status::AuthenticationFailed,
        "the key that stands in"
    );
    assert_eq!(refused(attach("left", RIGHT, &key(1))), Status::NotAllowed, "an address of another host");
}

#[test]
fn a_proof_covers_every_field_and_both_nonces() {
    let good = attach("left", LEFT, &key(1));
    let valid = |attach: &Attach, unit| key(1).verify(&good.proof, Purpose::Attach, unit, attach);
    assert!(valid(&good, UNIT));
    assert!(!valid(&good, Nonce([0x23; 16])), "an Attach is replayed to another nonce");
    assert!(!valid(&Attach { nonce: Nonce([0x12; 16]), ..good.clone() }, UNIT));
    assert!(!valid(&Attach { mode: Mode::Send, ..good.clone() }, UNIT));
    assert!(!valid(&Attach { offloads: 1, ..good.clone() }, UNIT));
    assert!(!valid(&Attach { name: name("right"), ..good.clone() }, UNIT));
    assert!(!valid(&Attach { macs: vec![LEFT_TOO], ..good.clone() }, UNIT));
    assert!(!valid(&Attach { macs: vec![LEFT, LEFT_TOO], ..good.clone() }, UNIT));
    for bit in 0..256 {
        let mut wrong = good.proof;
        wrong.0[bit / 8] ^= 1 << (bit % 8);
        assert!(!key(1).verify(&wrong, Purpose::Attach, UNIT, &good), "bit {bit}");
    }
    let admitted = Admitted { session: 0, generation: 0, offloads: 0, mtu: 0, proof: good.proof };
    assert!(!key(1).verify(&good.proof, Purpose::Admit(&admitted), UNIT, &good), "sent back");
}

#[test]
fn the_newest_attach_replaces_only_a_session_of_the_same_name() {
    let mut registry = registry();
    let left = registry.attach(&attach("left", LEFT, &key(1)), UNIT).unwrap();
    let right = registry.attach(&attach("right", RIGHT, &key(2)), UNIT).unwrap();
    assert_eq!((left.replaced, right.replaced), (None, None));
    let again = registry.attach(&attach("left", LEFT, &key(1)), UNIT).unwrap();
    assert_eq!(again.replaced, Some(left.session));
    assert!(again.generation > right.generation && right.generation > left.generation);
    registry.detach(&name("left"), left.session);
    assert_eq!(
        registry.current(&name("left")),
        Some(again.session),
        "the end of the old one changes nothing"
    );
    registry.attach(&attach("left", LEFT, &key(2)), UNIT).unwrap_err();
    assert_eq!(registry.current(&name("left")), Some(again.session), "nor does a refused Attach");
    registry.detach(&name("left"), again.session);
    assert_eq!(registry.current(&name("left")), None);
    assert_eq!(registry.current(&name("right")), Some(right.session));
}

#[test]
fn no_two_names_share_an_address() {
    let mut registry = registry();
    let error = registry.add(name("third"), key(3), [Mac([2, 0, 0, 0, 0, 9]), RIGHT]).unwrap_err();
    assert_eq!(error.to_string(), "MAC address 02:00:00:00:00:03 is already bound to host right");
    assert!(matches!(registry.add(name("left"), key(3), []), Err(InvalidKey::DuplicateName { .. })));
    assert!(matches!(registry.add(name("x"), key(3), [Mac([1; 6])]), Err(InvalidKey::InvalidMac { .. })));
    assert_eq!(Key::new(&[1; 15]).unwrap_err(), InvalidKey::Short { len: 15 });
    assert_eq!(format!("{:?}", key(1)), "Key(..)", "keys do not reach logs");
}
