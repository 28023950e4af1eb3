//! Logins at a scripted target: what the initiator sends, and which answers it refuses.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod chap;
mod hostile;
mod peer;
mod values;

use ironwarp_iscsi::{LoginError, Negotiated, Options, login};
use ironwarp_wire::iscsi::{Digests, Stage};
use peer::{OPERATIONAL, Peer, accept_security, options, run};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

#[test]
fn a_login_sends_its_offers_and_returns_the_results() {
    let result = run(&options().isid([0x80, 1, 2, 3, 4, 5]), |peer| {
        let (request, text) = peer.request();
        assert_eq!((request.stage, request.next), (Stage::Security, Some(Stage::Operational)));
        assert_eq!((request.isid, request.tsih, request.exp_stat_sn), ([0x80, 1, 2, 3, 4, 5], 0, 0));
        let expected = "InitiatorName=iqn.2026-01.example:host\0TargetName=iqn.2026-01.example:disk\0\
                        SessionType=Normal\0AuthMethod=None\0";
        assert_eq!(text, expected);
        peer.respond("AuthMethod=None\0TargetPortalGroupTag=1\0");
        let (request, text) = peer.request();
        assert_eq!((request.stage, request.next), (Stage::Operational, Some(Stage::FullFeature)));
        assert_eq!(request.exp_stat_sn, 0, "StatSN began at 2^32 - 1");
        let expected = "HeaderDigest=CRC32C,None\0DataDigest=CRC32C,None\0MaxRecvDataSegmentLength=262144\0\
                        InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=262144\0\
                        MaxConnections=1\0MaxOutstandingR2T=1\0ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0\
                        DefaultTime2Retain=0\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0";
        assert_eq!(text, expected);
        peer.respond(OPERATIONAL);
    });
    let session = result.unwrap();
    assert_eq!(session.digests, Digests { header: true, data: false });
    assert_eq!((session.max_recv_data_segment, session.target_max_recv_data_segment), (262_144, 65_536));
    assert_eq!((session.max_burst, session.first_burst), (131_072, 4096));
    assert!(!session.initial_r2t && session.immediate_data);
    assert_eq!((session.isid, session.tsih), ([0x80, 1, 2, 3, 4, 5], 77));
    assert_eq!((session.cmd_sn, session.exp_stat_sn, session.max_cmd_sn), (1, 1, 32));
}

#[test]
fn nothing_is_read_beyond_the_last_response() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let script = thread::spawn(move || {
        let mut peer = Peer::new(far);
        accept_security(&mut peer);
        peer.request();
        let mut bytes = peer.encode(OPERATIONAL);
        bytes.extend_from_slice(b"the first PDU of the session");
        peer.stream.write_all(&bytes).unwrap();
    });
    login(&mut near, &options()).unwrap();
    script.join().unwrap();
    let mut rest = String::new();
    near.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "the first PDU of the session");
    assert_eq!((near.read_timeout().unwrap(), near.write_timeout().unwrap()), (None, None));
}

#[test]
fn answers_can_have_several_parts() {
    let result = run(&options(), |peer| {
        accept_security(peer);
        peer.request();
        for part in OPERATIONAL.as_bytes().chunks(50) {
            peer.adjust(|response| (response.next, response.continues) = (None, true));
            peer.respond(str::from_utf8(part).unwrap());
            let (request, text) = peer.request();
            assert_eq!((request.stage, request.continues, text.as_str()), (Stage::Operational, false, ""));
        }
        peer.respond("");
    });
    assert_eq!(result.unwrap().max_burst, 131_072);
}

#[test]
fn answers_can_take_several_exchanges() {
    let (first, second) = OPERATIONAL.split_at(OPERATIONAL.find("MaxBurst").unwrap());
    let result = run(&options(), |peer| {
        peer.request();
        peer.adjust(|response| response.next = None);
        peer.respond("AuthMethod=None\0");
        let (request, text) = peer.request();
        assert_eq!(
            (request.stage, request.next, text.as_str()),
            (Stage::Security, Some(Stage::Operational), "")
        );
        peer.respond("");
        peer.request();
        peer.adjust(|response| response.next = None);
        peer.respond(first);
        assert_eq!(peer.request().1, "");
        peer.respond(second);
    });
    assert_eq!(result.unwrap().max_burst, 131_072);
}

#[test]
fn unknown_keys_of_the_target_are_answered() {
    let result = run(&options(), |peer| {
        peer.request();
        peer.adjust(|response| response.next = None);
        peer.respond("AuthMethod=None\0X-com.example.a=1\0TargetAlias=disk\0");
        assert_eq!(peer.request().1, "X-com.example.a=NotUnderstood\0");
        peer.respond("");
        peer.request();
        peer.adjust(|response| response.next = None);
        peer.respond("IFMarker=Yes\0TaskReporting=FastAbort\0OFMarkInt=1~2\0");
        assert_eq!(peer.request().1, "IFMarker=Reject\0TaskReporting=NotUnderstood\0OFMarkInt=Reject\0");
        peer.respond(OPERATIONAL);
    });
    assert_eq!(result.unwrap().tsih, 77);
}

#[test]
fn unusable_options_are_refused() {
    let iqn = "iqn.2026-01.example:a";
    let cases: [(&str, Options); 8] = [
        ("initiator_name", Options::new("host", iqn)),
        ("target_name", Options::new(iqn, "iqn.a\0TargetName=iqn.b")),
        ("target_name", Options::new(iqn, format!("iqn.{}", "a".repeat(220)))),
        ("max_recv_data_segment", options().max_recv_data_segment(511)),
        ("max_burst", options().max_burst(1 << 24)),
        ("first_burst", options().max_burst(4096).first_burst(8192)),
        ("timeout", options().timeout(Duration::ZERO)),
        ("timeout", options().timeout(Duration::MAX)),
    ];
    for (expected, options) in cases {
        let (mut near, _far) = UnixStream::pair().unwrap();
        let result: Result<Negotiated, _> = login(&mut near, &options);
        assert!(matches!(result, Err(LoginError::Option { option, .. }) if option == expected), "{expected}");
    }
}
