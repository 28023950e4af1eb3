//! Interoperability with Linux siw, an independent implementation: the session of guest/README.md, in both directions
//! and with both completion modes. Then the packets are checked.
//!
//! ```text
//!  Ironwarp ◀── TCP ──▶ relay ◀── TCP ──▶ QEMU ◀── Ethernet, recorded ──▶ Linux TCP and siw in the guest
//! ```

#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod capture;
mod end;
mod endings;
mod guest;
mod killed_peer;
mod moving;
mod operations;
mod pattern;
mod relay;
mod session;
mod shape;
mod tshark;
mod violations;

use guest::{Guest, free_address};
use ironwarp::Adapter;
use ironwarp::connection::ConnectOptions;
use session::{Bench, Session, Variant};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn linux_siw_and_ironwarp_understand_each_other() {
    boot(Variant::Plain);
}

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn a_siw_that_asks_for_crcs() {
    boot(Variant::Crc);
}

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn a_siw_that_asks_for_peer_to_peer_setup() {
    boot(Variant::P2p);
}

#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn a_siw_that_connects_with_mpa_revision_1() {
    boot(Variant::V1);
}

/// One boot serves all sessions, because booting takes long. `IRONWARP_SESSION` selects sessions whose name contains
/// it.
fn boot(variant: Variant) {
    let wanted = std::env::var("IRONWARP_SESSION").unwrap_or_default();
    let sessions = [operations::all(variant), moving::all(), violations::all(variant), endings::all(variant)];
    let sessions: Vec<Session> =
        sessions.into_iter().flatten().filter(|session| session.name.contains(&wanted)).collect();
    let forwarded = free_address();
    let bench = Bench::new(variant, forwarded);
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("siw-{}.pcap", variant.name()));
    let guest = Guest::boot(variant.name(), &bench.commands(&sessions), forwarded, &capture);
    bench.run(&sessions, &guest);
    guest.ends_well();
    capture::check(&capture, variant, &sessions);
}

/// siw processes data that arrives between its Reply and the registration of its socket callback only when the next
/// message arrives. That is not rare if it is preempted in between.
#[test]
fn a_siw_that_missed_the_first_message_is_nudged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let adapter = Adapter::new().unwrap();
    let cq = adapter.completion_queue(16).unwrap();
    let qp = adapter.protection_domain().queue_pair(&cq).create().unwrap();
    let private = pattern::SAID.bytes(0, 19, 0);
    let options = ConnectOptions::new().private_data(&private).ird(4).ord(4);
    qp.start_connect(listener.local_addr().unwrap(), &options).unwrap();

    let (mut siw, _) = listener.accept().unwrap();
    siw.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut request = [0; 43];
    siw.read_exact(&mut request).unwrap();
    assert_eq!(request[..], frame(b"Req", [0x50, 2, 0, 23, 0x80, 4, 0xc0, 4], &private));
    siw.write_all(&frame(b"Rep", [0x50, 2, 0, 18, 0x80, 4, 0x80, 4], b"hello-from-siw")).unwrap();
    let (mut missed, mut nudge) = ([0; 20], [0; 20]);
    siw.read_exact(&mut missed).unwrap();
    assert_eq!(missed[..4], [0, 14, 0xc1, 0x40], "an empty Write is the RTR");
    siw.read_exact(&mut nudge).expect("Ironwarp repeats the RTR");
    assert_eq!(nudge, missed);
}

/// Returns a startup frame. Byte for byte: flags (C and S), revision, length, IRD (and A), ORD (and C, D), private
/// data.
fn frame(kind: &[u8; 3], fields: [u8; 8], private_data: &[u8]) -> Vec<u8> {
    [b"MPA ID ", &kind[..], b" Frame", &fields, private_data].concat()
}
