//! Datagrams of rtnetlink: any bytes. They come from the kernel, but their lengths are not trusted.
#![no_main]

use ironwarp_engine::fuzzing::netlink;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    // The shortest messages that are kept: a header of 16 bytes, and attributes.
    assert!(netlink(datagram) <= datagram.len() / 16);
});
