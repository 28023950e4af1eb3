//! Ironwarp and Linux siw, an implementation that shares no line with ours: the session of guest/README.md, in both
//! directions and with both meanings of completion. Then the packets are looked at.
//!
//! ```text
//!  Ironwarp ◀── TCP ──▶ relay ◀── TCP ──▶ QEMU ◀── Ethernet, recorded ──▶ Linux TCP and siw in the guest
//! ```

#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod capture;
mod guest;
mod relay;
mod session;

use capture::Session;
use guest::{Guest, PORT, free_address};
use ironwarp::{Adapter, Completes, ConnectOptions};
use relay::relay;
use session::{End, HELLO};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

/// One boot serves all sessions: booting is what takes the time.
#[test]
#[ignore = "boots a guest: cargo xtask interop"]
fn linux_siw_and_ironwarp_understand_each_other() {
    let sessions = [false, true].map(|connects| {
        [Completes::WhenSent, Completes::WhenAcknowledged].map(|completes| Session { connects, completes })
    });
    let adapter = Adapter::new().unwrap();
    let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let inward = relay(listener.local_addr().unwrap());
    let forwarded = free_address();
    let outward = relay(forwarded);

    let commands = sessions.as_flattened().iter().map(|session| match session.connects {
        false => format!("peer client 10.0.2.2 {}", inward.port()),
        true => format!("peer server 10.0.2.15 {PORT}"),
    });
    let commands: Vec<String> = commands.collect();
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("siw.pcap");
    let guest = Guest::boot(&commands.join(" && "), forwarded, &capture);
    for session in sessions.as_flattened() {
        println!("{session:?}");
        let end = End::new(&adapter, session.completes);
        if session.connects {
            guest.says("PEER ok listen");
            end.connect(outward);
        } else {
            guest.says("PEER ok prepare");
            end.serve(&listener);
        }
        guest.says("PEER PASS");
    }
    guest.ends_well();
    capture::check(&capture, sessions.as_flattened());
}

/// What arrives after siw's Reply is out, and before siw has told its socket who reads from now on, siw finds only when the
/// next message comes. Where the processor is taken away from it in between, that is not rare.
#[test]
fn a_siw_that_missed_the_first_message_is_nudged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let adapter = Adapter::new().unwrap();
    let cq = adapter.completion_queue(16).unwrap();
    let qp = adapter.protection_domain().queue_pair(&cq).create().unwrap();
    let options = ConnectOptions::new().private_data(HELLO).ird(4).ord(4);
    qp.connect_start(listener.local_addr().unwrap(), &options).unwrap();

    let (mut siw, _) = listener.accept().unwrap();
    siw.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut request = [0; 43];
    siw.read_exact(&mut request).unwrap();
    assert_eq!(request[..], capture::request());
    siw.write_all(&capture::reply_of_siw()).unwrap();
    let (mut missed, mut nudge) = ([0; 20], [0; 20]);
    siw.read_exact(&mut missed).unwrap();
    assert_eq!(missed[..4], [0, 14, 0xc1, 0x40], "an empty Write is the RTR");
    siw.read_exact(&mut nudge).expect("Ironwarp does not leave it at that");
    assert_eq!(nudge, missed);
}
