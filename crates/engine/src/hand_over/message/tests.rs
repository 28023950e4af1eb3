//! Messages to bytes and back, and bytes that are no message.

use super::*;

fn hello() -> Hello {
    Hello { role: Role::Target, snapshots: 2..=5, descriptors: 70_000, state: 1 << 33 }
}

fn offer(state: Option<Vec<u8>>) -> Offer {
    let len = state.as_ref().map_or(1 << 20, Vec::len) as u64;
    Offer { epoch: 9, version: 3, snapshot: len - 2, program: 2, state }
}

/// One message of each form.
fn messages() -> Vec<Message> {
    vec![
        Message::Hello(hello()),
        Message::Hello(Hello { role: Role::Source, ..hello() }),
        Message::Copy(vec![b"socket 1".to_vec(), Vec::new(), vec![0xff; MAX_NAME]]),
        Message::Copy(vec![vec![7; MAX_NAME]; MAX_BATCH]),
        Message::Copied(4_000),
        Message::Prepare(0),
        Message::Ready,
        Message::Refused(String::new()),
        Message::Refused("no port 4711: it is in use".to_owned()),
        Message::Offer(offer(Some(vec![1; 100]))),
        Message::Offer(offer(Some(vec![2; MAX_INLINE]))),
        Message::Offer(offer(None)),
        Message::Taken,
    ]
}

/// Puts the length into the header.
fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap();
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// A message of this kind.
fn message(kind: u8, fields: &[u8]) -> Vec<u8> {
    with_length([&[0, 0, 0, 0, VERSION, kind, 0, 0], fields].concat())
}

fn tlv(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap();
    [&kind.to_be_bytes()[..], &len.to_be_bytes(), value].concat()
}

#[test]
fn every_message_survives_encoding_and_decoding() {
    for message in messages() {
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_MESSAGE, "{}", message.name());
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn the_bytes_of_messages_are_these() {
    let bytes = |hex: &str| -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    };
    let expected = [
        (
            Message::Hello(hello()),
            "00000029 01010000 0001 0001 02 0002 0004 00020005 0003 0004 00011170 0004 0008 0000000200000000",
        ),
        (Message::Copy(vec![b"ab".to_vec(), b"c".to_vec()]), "0000000e 01020000 02 02 6162 01 63"),
        (Message::Copied(258), "0000000c 01030000 00000102"),
        (Message::Prepare(1), "0000000c 01040000 00000001"),
        (Message::Ready, "00000008 01050000"),
        (Message::Refused("no".to_owned()), "0000000a 01060000 6e6f"),
        (
            Message::Offer(offer(Some(b"xyz".to_vec()))),
            "00000026 01070000 0000000000000009 0003 00 0000000000000001 0000000000000002 78797a",
        ),
        (Message::Taken, "00000008 01080000"),
    ];
    for (message, hex) in expected {
        assert_eq!(message.encode(), bytes(hex), "{message:?}");
    }
}

#[test]
fn a_cut_message_is_rejected() {
    for message in messages() {
        let bytes = message.encode();
        for cut in 0..bytes.len() {
            assert!(Message::decode(&bytes[..cut]).is_err(), "{} of {cut} bytes", message.name());
        }
        // Also if the header has the new length: except texts, and lists that happen to end there.
        if !matches!(message, Message::Refused(_)) {
            for cut in HEADER..bytes.len() {
                let cut = with_length(bytes[..cut].to_vec());
                assert!(Message::decode(&cut).is_err(), "{} of {} bytes", message.name(), cut.len());
            }
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_rejected() {
    for message in messages().into_iter().filter(|message| !matches!(message, Message::Refused(_))) {
        let bytes = [message.encode(), vec![0]].concat();
        assert!(Message::decode(&bytes).is_err(), "{}", message.name());
        assert!(Message::decode(&with_length(bytes)).is_err(), "{}", message.name());
    }
    let long = with_length(vec![0; MAX_MESSAGE + 1]);
    assert_eq!(Message::decode(&long), Err(Malformed::Long { have: MAX_MESSAGE + 1 }));
    let reason = message(REFUSED, &[b'a'; MAX_REASON + 1]);
    assert_eq!(Message::decode(&reason), Err(Malformed::Field("length of a reason")));
}

#[test]
fn an_unknown_version_or_kind_is_named() {
    let mut bytes = Message::Hello(hello()).encode();
    bytes[4] = 2;
    assert_eq!(Message::decode(&bytes), Err(Malformed::Version(2)));
    // A later version may be longer than its length here says.
    bytes.push(0);
    assert_eq!(Message::decode(&bytes), Err(Malformed::Version(2)));
    assert_eq!(Message::decode(&message(0, &[])), Err(Malformed::Kind(0)));
    assert_eq!(Message::decode(&message(9, &[1, 2, 3])), Err(Malformed::Kind(9)));
}

#[test]
fn unknown_elements_of_a_hello_are_skipped() {
    let [role, snapshots] = [tlv(ROLE, &[2]), tlv(SNAPSHOTS, &[0, 2, 0, 5])];
    let [descriptors, state] =
        [tlv(DESCRIPTORS, &70_000_u32.to_be_bytes()), tlv(STATE, &(1_u64 << 33).to_be_bytes())];
    let unknown = tlv(0x8001, &[9; 700]);
    let all = [&unknown, &state, &role, &tlv(77, &[]), &descriptors, &snapshots, &unknown];
    let bytes = all.into_iter().flatten().copied().collect::<Vec<_>>();
    assert_eq!(Message::decode(&message(HELLO, &bytes)), Ok(Message::Hello(hello())));
    // Each known one must be there, once.
    let known = [role, snapshots, descriptors, state];
    for at in 0..known.len() {
        let mut lacks = known.to_vec();
        lacks.remove(at);
        let failed = Message::decode(&message(HELLO, &lacks.concat()));
        assert!(matches!(failed, Err(Malformed::Missing(_))), "{failed:?}");
        let twice = [known.concat(), known[at].clone()].concat();
        let failed = Message::decode(&message(HELLO, &twice));
        assert_eq!(failed, Err(Malformed::Field("element of a hello")));
        let mut longer = known[at].clone();
        longer[3] += 1;
        longer.push(0);
        let mut wrong = known.to_vec();
        wrong[at] = longer;
        let failed = Message::decode(&message(HELLO, &wrong.concat()));
        assert_eq!(failed, Err(Malformed::Field("element of a hello")));
    }
}

#[test]
fn values_that_make_no_sense_are_rejected() {
    let hello = |role: u8, low: u16, high: u16| {
        let versions = [low.to_be_bytes(), high.to_be_bytes()].concat();
        let limits = [tlv(DESCRIPTORS, &[0; 4]), tlv(STATE, &[0; 8])].concat();
        message(HELLO, &[tlv(ROLE, &[role]), tlv(SNAPSHOTS, &versions), limits].concat())
    };
    assert!(Message::decode(&hello(1, 4, 4)).is_ok());
    let hostile = [
        hello(0, 1, 1),
        hello(3, 1, 1),
        hello(1, 5, 4),
        message(COPY, &[0]),
        message(COPY, &[&[129][..], &[0; 129]].concat()),
        message(COPY, &[255]),
        message(COPY, &[&[1, 65][..], &[0; 65]].concat()),
        message(OFFER, &[&[0; 10][..], &[2], &[0; 16]].concat()),
        message(OFFER, &[&[0; 11][..], &[0xff; 16]].concat()),
        message(OFFER, &[&[0; 10][..], &[1], &[0xff; 16]].concat()),
        message(OFFER, &[&[0; 10][..], &[1], &[0; 16], &[0]].concat()),
    ];
    for bytes in hostile {
        assert!(Message::decode(&bytes).is_err(), "{bytes:x?}");
    }
}

#[test]
fn a_reason_is_bounded_and_harmless_in_a_terminal() {
    let long = Message::Refused("ä".repeat(MAX_REASON)).encode();
    assert_eq!(Message::decode(&long), Ok(Message::Refused("ä".repeat(MAX_REASON / 2))));
    let odd = Message::Refused(format!("x{}", "ä".repeat(MAX_REASON))).encode();
    assert_eq!(odd.len(), HEADER + MAX_REASON - 1);
    let nasty = message(REFUSED, b"a\x1b[2J\n\xff\xfe\xc3\xa4");
    assert_eq!(Message::decode(&nasty), Ok(Message::Refused("a?[2J???ä".to_owned())));
}
