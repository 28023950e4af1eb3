//! Authentication at targets that do not play by the rules.

use crate::peer::{OPERATIONAL, Peer, options, run};
use ironwarp_iscsi::{ChapError, Credentials, LoginError, Negotiated};
use ironwarp_wire::iscsi::Stage;
use md5::{Digest, Md5};

const SECRET: &[u8] = b"initiator-secret";
const TARGET_SECRET: &[u8] = b"secret-of-target";

fn one_way() -> Credentials {
    Credentials::new("host", SECRET).unwrap()
}

fn mutual() -> Credentials {
    one_way().mutual("storage", TARGET_SECRET).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02X}"))
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn response(id: u8, secret: &[u8], challenge: &[u8]) -> String {
    hex(&Md5::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize())
}

fn value<'t>(text: &'t str, key: &str) -> &'t str {
    let found = text.split('\0').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {key} in {text:?}"))
}

/// Receives the first request, and answers the second with these keys. Returns the text of the third.
fn challenge(peer: &mut Peer, keys: &str) -> Option<String> {
    let (request, text) = peer.request();
    assert_eq!((request.stage, request.next, value(&text, "AuthMethod")), (Stage::Security, None, "CHAP"));
    peer.respond("AuthMethod=CHAP\0TargetPortalGroupTag=1\0");
    let (request, text) = peer.request();
    assert_eq!((request.next, text.as_str()), (None, "CHAP_A=5\0"));
    peer.respond(keys);
    let (request, text) = peer.try_request()?;
    assert_eq!((request.stage, request.next), (Stage::Security, Some(Stage::Operational)));
    Some(text)
}

const CHALLENGE: &str = "CHAP_A=5\0CHAP_I=165\0CHAP_C=0bZm9vYmFy\0"; // "foobar"

/// Logs in with mutual authentication at a target that answers the challenge, which it gets as id and bytes, with these
/// keys.
fn answered(keys: impl FnOnce(u8, &[u8], &str) -> String + Send) -> Result<Negotiated, LoginError> {
    run(&options().chap(mutual()), |peer| {
        let text = challenge(peer, CHALLENGE).unwrap();
        let keys = keys(value(&text, "CHAP_I").parse().unwrap(), &from_hex(value(&text, "CHAP_C")), &text);
        peer.respond(&keys);
        if peer.try_request().is_some() {
            peer.respond(OPERATIONAL);
        }
    })
}

#[test]
fn a_challenge_is_answered() {
    let result = run(&options().chap(one_way()), |peer| {
        let text = challenge(peer, CHALLENGE).unwrap();
        let expected = response(165, SECRET, b"foobar").to_lowercase();
        assert_eq!(text, format!("CHAP_N=host\0CHAP_R={expected}\0"));
        peer.respond("");
        peer.request();
        peer.respond(OPERATIONAL);
    });
    assert_eq!(result.unwrap().tsih, 77);
}

#[test]
fn a_target_that_authenticates_itself_is_accepted() {
    let result = answered(|id, challenge, text| {
        assert_eq!(challenge.len(), 16);
        assert_eq!(value(text, "CHAP_R"), response(165, SECRET, b"foobar").to_lowercase());
        format!("CHAP_N=storage\0CHAP_R={}\0", response(id, TARGET_SECRET, challenge))
    });
    assert_eq!(result.unwrap().tsih, 77);
}

#[test]
fn a_target_that_does_not_authenticate_itself_is_refused() {
    let error = answered(|_, _, _| String::new()).unwrap_err();
    assert!(matches!(error, LoginError::Unanswered("CHAP_N")), "{error}");
    let error = answered(|_, _, _| "CHAP_N=storage\0".to_owned()).unwrap_err();
    assert!(matches!(error, LoginError::Unanswered("CHAP_R")), "{error}");
    let error = answered(|id, challenge, _| {
        format!("CHAP_N=storage\0CHAP_R={}\0", response(id, b"guess", challenge))
    });
    assert!(matches!(error, Err(LoginError::Chap(ChapError::WrongSecret))), "{error:?}");
}

#[test]
fn a_target_that_reflects_what_it_has_got_is_refused() {
    // The response that the initiator gave to the challenge of the target.
    let error = answered(|_, _, text| format!("CHAP_N=storage\0CHAP_R={}\0", value(text, "CHAP_R")));
    assert!(matches!(error, Err(LoginError::Chap(ChapError::WrongSecret))), "{error:?}");
    // A response with the initiator's secret, which the target must not have as its own.
    let error =
        answered(|id, challenge, _| format!("CHAP_N=storage\0CHAP_R={}\0", response(id, SECRET, challenge)));
    assert!(matches!(error, Err(LoginError::Chap(ChapError::OwnSecret))), "{error:?}");
    // The initiator's challenge, as another one of the target.
    let error = answered(|id, challenge, _| format!("CHAP_I={id}\0CHAP_C={}\0", hex(challenge)));
    assert!(matches!(error, Err(LoginError::NotOffered(_))), "{error:?}");
}

#[test]
fn a_challenge_of_one_login_is_not_answered_by_another() {
    let result = answered(|id, bytes, _| {
        let reflected = format!("CHAP_A=5\0CHAP_I={id}\0CHAP_C={}\0", hex(bytes));
        for credentials in [one_way(), mutual()] {
            let other =
                run(&options().chap(credentials), |peer| assert_eq!(challenge(peer, &reflected), None));
            assert!(matches!(other, Err(LoginError::Chap(ChapError::Reflected))), "{other:?}");
        }
        format!("CHAP_N=storage\0CHAP_R={}\0", response(id, TARGET_SECRET, bytes))
    });
    assert_eq!(result.unwrap().tsih, 77);
}

#[test]
fn a_target_cannot_talk_the_initiator_out_of_chap() {
    for answer in ["None", "KRB5", "Reject"] {
        let result = run(&options().chap(one_way()), |peer| {
            peer.request();
            peer.respond(&format!("AuthMethod={answer}\0"));
        });
        let error = result.unwrap_err();
        assert!(error.to_string().contains("enable CHAP there"), "{error}");
    }
    let result = run(&options(), |peer| {
        peer.request();
        peer.respond("AuthMethod=CHAP\0");
    });
    assert!(result.unwrap_err().to_string().contains("set CHAP credentials"));
}

#[test]
fn malformed_challenges_are_not_answered() {
    let long = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C={}\0", hex(&[1; 1025]));
    for (keys, expected) in [
        ("CHAP_A=7\0CHAP_I=1\0CHAP_C=0x01\0", "CHAP_A=5"),
        ("CHAP_A=5\0CHAP_I=256\0CHAP_C=0x01\0", "CHAP_I"),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x\0", "CHAP_C"),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=secret\0", "CHAP_C"),
        (&long, "CHAP_C"),
    ] {
        let error =
            run(&options().chap(mutual()), |peer| assert_eq!(challenge(peer, keys), None)).unwrap_err();
        assert!(error.to_string().contains(expected), "{keys:?}: {error}");
    }
}
