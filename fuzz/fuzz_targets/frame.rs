//! Frames with their virtio headers, from another host (docs/io-unit.md). Whatever the bytes are, checking and segmenting them
//! does not panic; what is segmented was accepted by the check, and the frames that come out are bounded in length and number.
#![no_main]

use ironwarp_io_unit::frame::{HEAD, MAX_FRAME, MAX_SEGMENTS, VNET_HEADER, check, segments};
use libfuzzer_sys::fuzz_target;

/// Longest header of a frame besides the MTU: Ethernet and two VLAN tags.
const HEADERS: usize = 14 + 8;

// The first two bytes are the MTU. The next says how often the end of the frame is repeated, so that short inputs make
// super-packets.
fuzz_target!(|input: &[u8]| {
    let [high, low, repeat, bytes @ ..] = input else { return };
    let mtu = u32::from(u16::from_be_bytes([*high, *low]));
    let mut bytes = bytes.to_vec();
    let end: Vec<u8> = bytes.iter().rev().take(64).copied().collect();
    for _ in 0..usize::from(*repeat) * 5 {
        bytes.extend(&end);
    }
    let checked = check(&bytes[..bytes.len().min(HEAD)], bytes.len(), mtu);
    assert_eq!(checked, check(&bytes, bytes.len(), mtu), "the head decides");
    let (mut count, mut total) = (0, 0);
    let result = segments(&bytes, mtu, |frame| {
        assert!(frame.len() <= mtu as usize + HEADERS, "{} bytes", frame.len());
        // Destination and source are those that were checked.
        assert_eq!(frame[..12], bytes[VNET_HEADER..VNET_HEADER + 12]);
        count += 1;
        total += frame.len();
    });
    assert!(count <= MAX_SEGMENTS, "{count} frames");
    match result {
        Ok(()) => {
            assert!(checked.is_ok() && count > 0);
            assert!(bytes.len() <= MAX_FRAME.max(mtu as usize + HEADERS + VNET_HEADER));
            assert!(total >= bytes.len() - VNET_HEADER, "bytes are lost: {total} of {}", bytes.len());
        }
        Err(error) => {
            assert_eq!(count, 0);
            assert!(!error.to_string().is_empty());
        }
    }
});
