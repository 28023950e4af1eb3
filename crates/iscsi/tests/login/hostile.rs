//! Targets that refuse, that violate the protocol, or that never end.

use crate::peer::{OPERATIONAL, Peer, accept_security, options, run};
use ironwarp_iscsi::{BadText, LoginError, Status};
use ironwarp_wire::iscsi::{LoginResponse, Reject, SequenceNumbers, Stage, TargetPdu};
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// What a target changes in a response.
type Change = fn(&mut LoginResponse);

/// Returns the error of a login at a target that sends this as its first response.
fn first_response(change: impl FnOnce(&mut LoginResponse) + Send, text: &str) -> LoginError {
    let result = run(&options(), |peer| {
        peer.request();
        peer.adjust(change);
        peer.respond(text);
    });
    result.unwrap_err()
}

/// Returns the error of a login at a target that sends these bytes as its first response.
fn first_bytes(bytes: &[u8]) -> LoginError {
    let result = run(&options(), |peer| {
        peer.request();
        peer.send(bytes);
    });
    result.unwrap_err()
}

#[test]
fn a_redirection_names_the_address() {
    let address = "TargetAddress=192.0.2.7:3260,1\0";
    for (detail, how, permanently) in [(1, "temporarily", false), (2, "permanently", true)] {
        let error = first_response(|response| response.status = [1, detail], address);
        assert_eq!(error.to_string(), format!("the target has moved {how}: log in at 192.0.2.7:3260,1"));
        assert!(matches!(error, LoginError::Redirected { permanent, .. } if permanent == permanently));
    }
    let error = first_response(|response| response.status = [1, 1], "");
    assert!(error.to_string().contains("without a TargetAddress"), "{error}");
}

#[test]
fn each_status_is_explained() {
    for (class, details) in [(2, 0..=12), (3, 0..=3), (9, 0..=0)] {
        for detail in details {
            let error = first_response(|response| response.status = [class, detail], "");
            assert!(
                matches!(error, LoginError::Refused(found) if found == Status { class, detail }),
                "{error}"
            );
            let code = format!("(status 0x{class:02x}{detail:02x})");
            assert!(error.to_string().ends_with(&code), "{error}");
        }
    }
}

#[test]
fn responses_that_do_not_belong_to_the_request_are_errors() {
    let cases: [(&str, Change); 7] = [
        ("another task tag", |response| response.task ^= 1),
        ("another task tag or ISID", |response| response.isid[5] ^= 1),
        ("in another stage", |response| response.stage = Stage::Operational),
        ("a transition", |response| response.next = Some(Stage::FullFeature)),
        ("a transition", |response| response.next = Some(Stage::Security)),
        ("a transition", |response| response.continues = true),
        ("StatSN", |response| response.numbers.stat_sn ^= 8),
    ];
    for (expected, change) in cases {
        let result = run(&options(), |peer| {
            peer.request();
            peer.adjust(|response| response.next = None);
            peer.respond("");
            peer.request();
            peer.adjust(change);
            peer.respond("AuthMethod=None\0");
        });
        let error = result.unwrap_err();
        assert!(matches!(error, LoginError::Protocol(_)) && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_last_response_without_usable_numbers_is_an_error() {
    let cases: [(&str, Change); 4] = [
        ("TSIH", |response| response.tsih = 0),
        ("ExpCmdSN", |response| response.numbers.exp_cmd_sn += 1),
        ("MaxCmdSN", |response| response.numbers.max_cmd_sn = u32::MAX),
        ("MaxCmdSN", |response| response.numbers.max_cmd_sn = 1 << 31),
    ];
    for (expected, change) in cases {
        let result = run(&options(), |peer| {
            accept_security(peer);
            peer.request();
            peer.adjust(change);
            peer.respond(OPERATIONAL);
        });
        let error = result.unwrap_err();
        assert!(matches!(error, LoginError::Protocol(_)) && error.to_string().contains(expected), "{error}");
    }
    // A target may accept no command yet.
    let result = run(&options(), |peer| {
        accept_security(peer);
        peer.request();
        peer.adjust(|response| response.numbers.max_cmd_sn = 0);
        peer.respond(OPERATIONAL);
    });
    assert_eq!(result.unwrap().max_cmd_sn, 0);
}

#[test]
fn other_pdus_are_errors() {
    let numbers = SequenceNumbers { stat_sn: 0, exp_cmd_sn: 0, max_cmd_sn: 0 };
    let reject = TargetPdu::Reject(Reject { reason: 4, numbers, data_sn: 0 }).emit(0);
    assert!(matches!(first_bytes(&reject), LoginError::Rejected(4)));
    let mut response = reject;
    response[0] = 0x21;
    assert!(matches!(first_bytes(&response), LoginError::Protocol(_)));
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n";
    assert!(matches!(first_bytes(http), LoginError::Pdu(_)));
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    for (at, value) in [(4, 1), (5, 0xff), (6, 0x21)] {
        let result = run(&options(), |peer| {
            peer.request();
            let mut header = peer.encode("");
            header[at] = value;
            peer.send(&header);
        });
        let error = result.unwrap_err();
        assert!(error.to_string().contains("8,192 bytes"), "{error}");
    }
}

#[test]
fn malformed_keys_are_errors() {
    let error = first_response(|_| (), "AuthMethod=None");
    assert!(matches!(error, LoginError::Text(BadText::Unterminated)), "{error}");
    let error = first_response(|_| (), "AuthMethod\0");
    assert!(matches!(error, LoginError::Text(BadText::Malformed(1))), "{error}");
    let error = first_response(|_| (), "");
    assert!(matches!(error, LoginError::Unanswered("AuthMethod")), "{error}");
}

/// Answers each request in the same way, until the initiator gives up. Returns the number of requests.
fn answer_forever(peer: &mut Peer, continues: bool, text: &str) -> u32 {
    let mut requests = 0;
    while peer.try_request().is_some() {
        requests += 1;
        peer.adjust(|response| (response.next, response.continues) = (None, continues));
        peer.respond(text);
    }
    requests
}

#[test]
fn a_login_that_does_not_end_is_given_up() {
    let part = "A".repeat(8192);
    for (continues, text, most) in [(false, "", 32), (true, "", 32), (true, "A", 32), (true, &part, 9)] {
        let mut requests = 0;
        let error = run(&options(), |peer| requests = answer_forever(peer, continues, text)).unwrap_err();
        assert_eq!(requests, most, "{error}");
        let too_long = matches!(error, LoginError::Text(BadText::TooLong));
        assert!(too_long || error.to_string().contains("does not end"), "{error}");
    }
}

#[test]
fn a_silent_or_slow_target_runs_into_the_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    for slow in [false, true] {
        let begin = Instant::now();
        let error = run(&options().timeout(TIMEOUT), |peer| {
            peer.request();
            let response = peer.encode("AuthMethod=None\0");
            if slow {
                // Each byte comes in time, all together do not.
                for byte in response {
                    if peer.stream.write_all(&[byte]).is_err() {
                        break;
                    }
                    thread::sleep(TIMEOUT / 8);
                }
            }
            assert!(peer.try_request().is_none());
        });
        assert!(matches!(error, Err(LoginError::Timeout(TIMEOUT))), "{error:?}");
        assert!(begin.elapsed() >= TIMEOUT);
    }
}

#[test]
fn a_target_that_closes_the_connection_is_reported() {
    let mut response = vec![0x23; 40];
    for sent in [0, 40] {
        response.truncate(sent);
        assert!(matches!(first_bytes(&response), LoginError::Closed));
        response.resize(40, 0x23);
    }
}

#[test]
fn with_a_wrong_bit_the_login_fails_or_stays_within_the_offers() {
    const LEN: usize = 48 + OPERATIONAL.len();
    let isid = [0x80, 1, 2, 3, 4, 5];
    // Two or three bits of each byte, others in each.
    for bit in (0..8 * LEN).step_by(3) {
        let result = run(&options().isid(isid), |peer| {
            accept_security(peer);
            peer.request();
            let mut response = peer.encode(OPERATIONAL);
            response[bit / 8] ^= 1 << (bit % 8);
            peer.send(&response);
        });
        if let Ok(session) = result {
            let bursts = 512 <= session.first_burst && session.first_burst <= session.max_burst;
            assert!(bursts && session.max_burst <= 262_144, "bit {bit}: {session:?}");
            assert!((512..1 << 24).contains(&session.target_max_recv_data_segment), "bit {bit}: {session:?}");
            assert!(session.tsih != 0 && session.isid == isid, "bit {bit}: {session:?}");
        }
    }
}
