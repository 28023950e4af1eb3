//! The Toeplitz hash of receive-side scaling, over the addresses and ports of a connection.

use super::KEY_LEN;
use std::net::{IpAddr, SocketAddr};

/// The input of the hash, in the order of a received packet: source address, destination address, source port,
/// destination port.
#[derive(Clone, Copy, Debug)]
pub struct Tuple {
    bytes: [u8; MAX_LEN],
    len: usize,
}

/// Maximum length of the input: two IPv6 addresses and two ports. The key is longer by the 32 bits of the hash.
const MAX_LEN: usize = 16 + 16 + 2 + 2;
const _: () = assert!(MAX_LEN + 4 == KEY_LEN);

impl Tuple {
    /// Creates the input for a connection between `peer` and `local`, whichever end initiated it. An IPv4-mapped IPv6
    /// address counts as IPv4.
    pub fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        let mut tuple = Self { bytes: [0; MAX_LEN], len: 0 };
        for end in [peer, local] {
            match end.ip().to_canonical() {
                IpAddr::V4(ip) => tuple.push(&ip.octets()),
                IpAddr::V6(ip) => tuple.push(&ip.octets()),
            }
        }
        tuple.push(&peer.port().to_be_bytes());
        tuple.push(&local.port().to_be_bytes());
        tuple
    }

    /// Appends bytes to the input.
    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..][..part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the Toeplitz hash of a tuple: for each bit set in the tuple, the 32 bits of the key that start at the
/// position of that bit, combined by exclusive or.
pub fn toeplitz(key: &[u8; KEY_LEN], tuple: &Tuple) -> u32 {
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut hash = 0;
    for (byte, next) in tuple.as_bytes().iter().zip(&key[4..]) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Sources, destinations and hashes with TCP ports from the same document.
    const VECTORS: [(&str, &str, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
        ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x02d1_feef),
    ];

    fn hash(peer: &str, local: &str) -> u32 {
        toeplitz(&KEY, &Tuple::new(peer.parse().unwrap(), local.parse().unwrap()))
    }

    #[test]
    fn hashes_are_those_that_microsoft_published_for_receive_side_scaling() {
        for (peer, local, expected) in VECTORS {
            assert_eq!(hash(peer, local), expected, "{peer} to {local}");
        }
    }

    #[test]
    fn an_ipv4_address_hashes_the_same_in_the_form_of_ipv6() {
        let (_, _, expected) = VECTORS[0];
        assert_eq!(hash("[::ffff:66.9.149.187]:2794", "[::ffff:161.142.100.80]:1766"), expected);
    }
}
