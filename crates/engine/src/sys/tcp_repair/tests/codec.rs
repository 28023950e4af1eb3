//! The encoding of images, and bytes that are none.

use super::*;
use crate::sys::testing::Random;

/// Returns an image in which all fields differ.
fn image(local: &str, peer: &str) -> TcpImage {
    TcpImage {
        local: local.parse().unwrap(),
        peer: peer.parse().unwrap(),
        finished: true,
        peer_finished: false,
        send_seq: 1,
        receive_seq: 2,
        agreed: Agreed { mss: 3, window_scale: Some((4, 5)), sack: false, timestamp: Some(6) },
        window: Window { send_update: 7, send: 8, largest: 9, receive: 10, receive_update: 11 },
        options: SocketOptions {
            no_delay: true,
            keepalive: false,
            reuse_addr: true,
            reuse_port: false,
            fixed_send_buffer: true,
            fixed_receive_buffer: false,
            keepalive_idle: 12,
            keepalive_interval: 13,
            keepalive_probes: 14,
            user_timeout: 15,
            traffic_class: 16,
            send_buffer: 17,
            receive_buffer: 18,
        },
        sent: b"sent".to_vec(),
        unsent: b"not yet sent".to_vec(),
        received: Vec::new(),
    }
}

fn images() -> [TcpImage; 4] {
    let mut other = image("10.0.0.1:80", "10.0.0.2:65535");
    (other.finished, other.peer_finished) = (false, true);
    (other.agreed.window_scale, other.agreed.sack, other.agreed.timestamp) = (None, true, None);
    (other.options.keepalive, other.options.reuse_port, other.options.fixed_receive_buffer) =
        (true, true, true);
    (other.options.no_delay, other.options.reuse_addr, other.options.fixed_send_buffer) =
        (false, false, false);
    other.received = b"received".to_vec();
    [
        image("10.0.0.1:80", "10.0.0.2:65535"),
        other,
        image("[2001:db8::1]:1", "[2001:db8::2]:2"),
        image("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2"),
    ]
}

#[test]
fn an_image_survives_its_encoding() {
    for image in images() {
        assert_eq!(TcpImage::decode(&image.encode()), Ok(image));
    }
}

#[test]
fn an_image_that_is_cut_or_extended_is_refused() {
    for image in images() {
        let mut bytes = image.encode();
        for len in 0..bytes.len() {
            assert!(
                matches!(TcpImage::decode(&bytes[..len]), Err(ImageError::TooShort { .. })),
                "{len} bytes"
            );
        }
        bytes.push(0);
        assert_eq!(TcpImage::decode(&bytes), Err(ImageError::TooLong(1)));
    }
}

/// A length is compared with the bytes that are there, so that no memory is allocated for others.
#[test]
fn a_length_beyond_the_end_is_refused() {
    let whole = images()[1].encode();
    for (queue, contents) in [(&b"sent"[..], 4_u64), (b"not yet sent", 12), (b"received", 8)] {
        let at = whole.windows(queue.len()).position(|window| window == queue).unwrap();
        assert_eq!(whole[at - 8..at], contents.to_le_bytes());
        for len in [whole.len() as u64, 1 << 31, 1 << 40, 1 << 62, u64::MAX] {
            let mut bytes = whole.clone();
            bytes[at - 8..at].copy_from_slice(&len.to_le_bytes());
            let (have, need) = (whole.len() - at, usize::try_from(len).unwrap());
            assert_eq!(TcpImage::decode(&bytes), Err(ImageError::TooShort { have, need }));
        }
    }
}

#[test]
fn values_that_a_field_cannot_have_are_refused() {
    let whole = images()[0].encode();
    // Offsets: two addresses of 19 bytes, two bytes of flags, two shifts.
    for (at, value, field) in [
        (0, 5, "IP version"),
        (0, 6, "IPv6 peer of an IPv4 address"),
        (1, 1, "IP version"),
        (39, 0x80, "flags"),
        (40, 15, "window scale"),
        (41, 255, "window scale"),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        match TcpImage::decode(&bytes) {
            Err(ImageError::Invalid { field: found, .. }) => assert_eq!(found, field),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let mut bytes = whole.clone();
    bytes[17..19].fill(0);
    assert_eq!(TcpImage::decode(&bytes), Err(ImageError::Invalid { field: "port", value: 0 }));
}

#[test]
fn no_bytes_are_fatal() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for image in images() {
        let whole = image.encode();
        for _ in 0..5000 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = u8::try_from(random.below(256)).unwrap();
            }
            if let Ok(image) = TcpImage::decode(&bytes) {
                assert_eq!(image.encode().len(), bytes.len());
            }
        }
    }
}
