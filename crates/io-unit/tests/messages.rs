//! The codec: round trips of every message, and decoding of bytes from a hostile peer (P6 to P8).

use ironwarp_io_unit::message::{
    Admitted, Attach, HostName, Immediate, Indication, Join, MAX_MESSAGE, Mac, Malformed, Message, Mode,
    Nonce, PoolEntry, Proof, Reply, Request, Statistics, Status, UpdateEntry, send_data_header,
};

const CONTEXT: u64 = 0x0102_0304_0506_0708;
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn requests() -> Vec<Request> {
    let attach = Attach {
        mode: Mode::Rdma,
        offloads: 0x1f,
        nonce: Nonce([7; 16]),
        name: HostName::new("left.example-1").expect("a name"),
        macs: vec![MAC, Mac([0x52, 0x54, 0, 1, 2, 3])],
        proof: Proof([9; 32]),
    };
    vec![
        Request::Challenge,
        Request::Attach(Box::new(attach)),
        Request::Join(Join { session: 3, generation: 4, proof: Proof([5; 32]) }),
        Request::SetMac(MAC),
        Request::Mtu(1500),
        Request::Statistics,
        Request::Detach,
        Request::Unknown { operation: 99, data: vec![1, 2, 3] },
    ]
}

fn replies() -> Vec<Reply> {
    let admitted = Admitted { session: 1, generation: 2, offloads: 3, mtu: 1500, proof: Proof([6; 32]) };
    let statistics =
        Statistics { frames_sent: 1, bytes_sent: 2, stalls: 3, elements_free: 4, ..Statistics::default() };
    vec![
        Reply::Challenge(Nonce([8; 16])),
        Reply::Attach(admitted),
        Reply::Join,
        Reply::SetMac,
        Reply::Mtu(9000),
        Reply::Statistics(statistics),
        Reply::Detach,
        Reply::Failed { operation: 99, status: Status::Unsupported },
    ]
}

fn all_messages() -> Vec<Message<'static>> {
    let pool =
        PoolEntry { index: 1, count: 2, element_size: 2048, tag: 0x1234_5600, offset: 4096, context: 7 };
    let mut update = UpdateEntry::new(300, 511);
    assert!(update.add(256) && !update.add(512) && !update.add(255));
    let mut all: Vec<_> = requests().into_iter().map(Message::Request).collect();
    all.extend(replies().into_iter().map(Message::Reply));
    all.extend([
        Message::Pools(vec![pool, PoolEntry { index: 2, ..pool }]),
        Message::PoolGet { element_size: 65_561, count: 32 },
        Message::Update(vec![UpdateEntry::new(0, 0), update]),
        Message::FlushRequest(vec![0, 1, u32::MAX]),
        Message::FlushReply,
        Message::SendData(b"frame"),
        Message::SendData(b""),
        Message::Indicate(Indication { pool: 256, element: 257, len: 65_561 }),
    ]);
    all
}

#[test]
fn every_message_survives_a_round_trip() {
    for message in all_messages() {
        let bytes = message.encode(CONTEXT);
        assert_eq!(Message::decode(&bytes), Ok((CONTEXT, message)));
    }
}

/// The bytes follow from the tables of docs/io-unit.md.
#[test]
fn messages_are_what_the_document_says() {
    let hex = |message: Message<'_>| {
        message.encode(CONTEXT).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(
        hex(Message::FlushRequest(vec![1, 258])),
        "000600010102030405060708".to_owned() + "00000001" + "00000102"
    );
    assert_eq!(hex(Message::FlushReply), "000700010102030405060708");
    assert_eq!(
        hex(Message::Update(vec![UpdateEntry::new(2, 257)])),
        "000500010102030405060708".to_owned() + "00000002" + "00000100" + "40" + &"00".repeat(31)
    );
    assert_eq!(hex(Message::SendData(b"\xaa")), "000800010102030405060708".to_owned() + "00000001" + "aa");
    assert_eq!(
        hex(Message::Request(Request::SetMac(MAC))),
        "000100010102030405060708".to_owned() + "0004" + "0000" + "00000006" + "020000000001"
    );
    assert_eq!(
        hex(Message::Reply(Reply::Failed { operation: 4, status: Status::NotAllowed })),
        "000200010102030405060708".to_owned() + "0004" + "0003" + "00000000"
    );
    assert_eq!(send_data_header(5)[..], Message::SendData(b"frame").encode(0)[..16]);
    let indication = Indication { pool: 7, element: 5, len: 256 };
    assert_eq!(Immediate::new(indication), Some(Immediate(0x0705_0100)));
}

#[test]
fn a_message_that_is_cut_anywhere_is_an_error() {
    for message in all_messages() {
        let bytes = message.encode(CONTEXT);
        for len in 0..bytes.len() {
            // A list that is cut between two entries is a shorter list, and a valid one.
            if let Ok((_, shorter)) = Message::decode(&bytes[..len]) {
                let is_list =
                    matches!(shorter, Message::Pools(_) | Message::Update(_) | Message::FlushRequest(_));
                assert!(is_list, "{message:?} cut to {len} bytes is {shorter:?}");
                assert_eq!(shorter.encode(CONTEXT), bytes[..len]);
            }
        }
    }
}

#[test]
fn a_list_that_is_cut_inside_an_entry_names_the_entry() {
    let bytes = Message::FlushRequest(vec![1, 2]).encode(0);
    let error = Message::decode(&bytes[..bytes.len() - 1]).unwrap_err();
    assert_eq!(error.to_string(), "message ends inside pool to flush: 3 bytes left, need 4");
}

#[test]
fn a_flipped_bit_yields_an_error_or_another_message_of_the_same_bytes() {
    for message in all_messages() {
        let bytes = message.encode(CONTEXT);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok((context, other)) = Message::decode(&flipped) {
                assert!((context, &other) != (CONTEXT, &message), "bit {bit} of {message:?} has no meaning");
                assert_eq!(other.encode(context), flipped);
            }
        }
    }
}

#[test]
fn bytes_after_a_message_are_an_error() {
    for message in all_messages() {
        let mut bytes = message.encode(CONTEXT);
        bytes.push(0);
        assert!(Message::decode(&bytes).is_err(), "{message:?}");
    }
}

#[test]
fn a_message_beyond_the_maximum_length_is_an_error() {
    let pools = |count| Message::FlushRequest(vec![0; count]).encode(0);
    assert_eq!(pools(1021).len(), MAX_MESSAGE);
    assert!(Message::decode(&pools(1021)).is_ok());
    let error = Message::decode(&pools(1022)).unwrap_err();
    assert_eq!(error.to_string(), "message of 4100 bytes exceeds the maximum of 4096");
    assert!(Message::decode(&Message::SendData(&[0; 70_000]).encode(0)).is_ok(), "frames may be longer");
}

#[test]
fn a_size_that_exceeds_the_message_allocates_nothing() {
    let mut bytes = Message::SendData(b"frame").encode(0);
    bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(Message::decode(&bytes), Err(Malformed::Short { field: "frame", have: 5, need: 0xffff_ffff }));
    let mut bytes = Message::Request(Request::Challenge).encode(0);
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = Message::decode(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "message ends inside data of a request or reply: 0 bytes left, need 4294967295"
    );
}

#[test]
fn immediate_data_holds_what_fits_in_8_8_and_16_bits() {
    let largest = Indication { pool: 255, element: 255, len: 65_535 };
    let immediate = Immediate::new(largest).unwrap();
    assert_eq!(immediate.indication(), largest);
    for too_large in [
        Indication { pool: 256, ..largest },
        Indication { element: 256, ..largest },
        Indication { len: 65_536, ..largest },
    ] {
        assert_eq!(Immediate::new(too_large), None, "{too_large:?}");
    }
    for value in (0..=u32::MAX).step_by(65_521) {
        assert_eq!(Immediate::new(Immediate(value).indication()), Some(Immediate(value)));
    }
}

#[test]
fn names_of_hosts_are_short_and_plain() {
    for name in ["a", "node-1.example_x", &"n".repeat(63)] {
        assert!(HostName::new(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "a/b", "é", "a\n", &"n".repeat(64)] {
        assert!(HostName::new(name).is_err(), "{name:?}");
    }
}
