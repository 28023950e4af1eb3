//! Values that an offer does not allow.

use crate::peer::{OPERATIONAL, accept_security, options, run};
use ironwarp_iscsi::{DigestPolicy, LoginError, Negotiated, Options};

/// Logs in at a target that answers with these keys instead of its own. A key without a value is left out.
fn with(options: &Options, changed: &str) -> Result<Negotiated, LoginError> {
    let key = |pair: &str| pair.split('=').next().unwrap().to_owned();
    let changed_keys: Vec<_> = changed.split('\0').map(key).collect();
    let kept = OPERATIONAL.split_terminator('\0').filter(|pair| !changed_keys.contains(&key(pair)));
    let added = changed.split('\0').filter(|pair| pair.contains('='));
    let text: String = kept.chain(added).map(|pair| format!("{pair}\0")).collect();
    run(options, |peer| {
        accept_security(peer);
        peer.request();
        peer.respond(&text);
    })
}

#[test]
fn answers_that_the_offer_does_not_allow_are_errors() {
    let none = options().header_digest(DigestPolicy::None).data_digest(DigestPolicy::None);
    let required = options().header_digest(DigestPolicy::Require).data_digest(DigestPolicy::Require);
    let cases = [
        (options().initial_r2t(true), "InitialR2T=No"),
        (options(), "InitialR2T=Maybe"),
        (options().immediate_data(false), "ImmediateData=Yes"),
        (options(), "MaxBurstLength=262145"),
        (options(), "MaxBurstLength=511"),
        (options(), "MaxBurstLength=large"),
        (options(), "MaxBurstLength=Irrelevant"),
        (options(), "FirstBurstLength=262145"),
        (options(), "FirstBurstLength=0"),
        (options(), "MaxRecvDataSegmentLength=511"),
        (options(), "MaxRecvDataSegmentLength=16777216"),
        (options(), "MaxConnections=2"),
        (options(), "MaxConnections=0"),
        (options(), "MaxOutstandingR2T=2"),
        (options(), "ErrorRecoveryLevel=1"),
        (options(), "DefaultTime2Wait=1"),
        (options(), "DefaultTime2Wait=3601"),
        (options(), "DefaultTime2Retain=20"),
        (options(), "DataPDUInOrder=No"),
        (options(), "DataSequenceInOrder=No"),
        (options(), "HeaderDigest=MD5"),
        (options(), "HeaderDigest=CRC32C,None"),
        (options(), "DataDigest=Reject"),
        (none.clone(), "HeaderDigest=CRC32C\0DataDigest=None"),
        (none, "HeaderDigest=None\0DataDigest=CRC32C"),
        (required.clone(), "HeaderDigest=None\0DataDigest=CRC32C"),
        (required, "HeaderDigest=CRC32C\0DataDigest=None"),
    ];
    for (options, changed) in cases {
        match with(&options, changed).unwrap_err() {
            LoginError::Answer { key, value, .. } => {
                assert!(changed.contains(&format!("{key}={value}")), "{changed}");
            }
            other => panic!("{changed}: {other}"),
        }
    }
}

#[test]
fn every_offer_that_needs_an_answer_must_have_one() {
    for key in OPERATIONAL.split_terminator('\0').map(|pair| pair.split('=').next().unwrap()) {
        let result = with(&options(), key);
        // RFC 7143 §6.2.2: the first two are decided by the offer. The target need not declare a length.
        if ["DataPDUInOrder", "DataSequenceInOrder", "MaxRecvDataSegmentLength"].contains(&key) {
            let declared = key != "MaxRecvDataSegmentLength";
            assert_eq!(
                result.unwrap().target_max_recv_data_segment,
                if declared { 65_536 } else { 8192 },
                "{key}"
            );
        } else {
            let error = result.unwrap_err();
            assert!(
                matches!(error, LoginError::Unanswered(unanswered) if unanswered == key),
                "{key}: {error}"
            );
        }
    }
    let decided = options().initial_r2t(true).immediate_data(false);
    let session = with(&decided, "InitialR2T\0ImmediateData").unwrap();
    assert!(session.initial_r2t && !session.immediate_data);
}

#[test]
fn the_first_burst_is_irrelevant_only_without_unsolicited_data() {
    let irrelevant = "FirstBurstLength=Irrelevant\0InitialR2T=Yes\0ImmediateData=No";
    assert_eq!(with(&options(), irrelevant).unwrap().first_burst, 0);
    let error = with(&options(), "FirstBurstLength=Irrelevant").unwrap_err();
    assert!(matches!(error, LoginError::Protocol(_)), "{error}");
}

#[test]
fn the_first_burst_cannot_exceed_the_maximum() {
    let error = with(&options(), "FirstBurstLength=65536\0MaxBurstLength=4096").unwrap_err();
    assert!(error.to_string().contains("FirstBurstLength exceeds MaxBurstLength"), "{error}");
}

#[test]
fn keys_that_were_not_offered_are_errors() {
    for key in ["AuthMethod", "CHAP_A", "CHAP_C"] {
        let error = with(&options(), &format!("{key}=None")).unwrap_err();
        assert!(matches!(&error, LoginError::NotOffered(found) if found == key), "{error}");
    }
    for key in ["CHAP_A=5", "MaxBurstLength=4096"] {
        let result = run(&options(), |peer| {
            peer.request();
            peer.respond(&format!("AuthMethod=None\0{key}\0"));
        });
        assert!(matches!(result, Err(LoginError::NotOffered(_))), "{key}");
    }
}

#[test]
fn a_parameter_cannot_be_negotiated_twice() {
    let error = run(&options(), |peer| {
        accept_security(peer);
        peer.request();
        peer.adjust(|response| response.next = None);
        peer.respond("MaxBurstLength=4096\0");
        peer.request();
        peer.respond(OPERATIONAL);
    });
    assert!(matches!(&error, Err(LoginError::NotOffered(key)) if key == "MaxBurstLength"), "{error:?}");
}
