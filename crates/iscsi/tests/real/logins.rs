//! Logins at tgtd, a target that others wrote.

use ironwarp_iscsi::{ChapError, Credentials, DigestPolicy, LoginError, Negotiated, Options, Status, login};
use ironwarp_testkit::tgtd::{NAME, Tgtd};
use ironwarp_wire::iscsi::{Digests, HEADER_LEN, InitiatorPdu, NO_TASK, NopOut, TargetPdu};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const INITIATOR: &str = "iqn.2026-01.example.ironwarp:initiator";
const DISK: u64 = 1 << 20;
const SECRET: &str = "initiator-secret";
const TARGET_SECRET: &str = "secret-of-target";

fn options() -> Options {
    Options::new(INITIATOR, NAME)
}

/// Logs in. After a success, nothing must be left to read.
fn attempt(target: &Tgtd, options: &Options) -> Result<(TcpStream, Negotiated), LoginError> {
    let mut stream = TcpStream::connect(target.addr()).unwrap();
    let session = login(&mut stream, options)?;
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    Ok((stream, session))
}

fn credentials(secret: &str) -> Credentials {
    Credentials::new("host", secret.as_bytes()).unwrap()
}

#[test]
fn login_without_authentication() {
    let target = Tgtd::start(DISK);
    let (stream, session) = attempt(&target, &options()).unwrap();
    assert_ne!(session.tsih, 0);
    assert_eq!(session.isid[0], 0x80);
    assert_eq!((stream.read_timeout().unwrap(), stream.write_timeout().unwrap()), (None, None));
    let (_other, another) = attempt(&target, &options()).unwrap();
    assert_ne!(another.isid, session.isid);
    assert_ne!(another.tsih, session.tsih);
}

#[test]
fn login_with_chap() {
    let mut target = Tgtd::start(DISK);
    target.require_chap("host", SECRET);
    attempt(&target, &options().chap(credentials(SECRET))).unwrap();
    let refused = |options: &Options| match attempt(&target, options).unwrap_err() {
        LoginError::Refused(status) => (status, status.to_string()),
        other => panic!("{other}"),
    };
    let (status, text) = refused(&options().chap(credentials("not-this-secret")));
    assert_eq!(status, Status::AUTHENTICATION_FAILURE);
    assert!(text.contains("check the CHAP name and secret"), "{text}");
    let (status, _) = refused(&options().chap(Credentials::new("other", SECRET.as_bytes()).unwrap()));
    assert_eq!(status, Status::AUTHENTICATION_FAILURE);
    let text = attempt(&target, &options()).unwrap_err().to_string();
    assert!(text.contains("CHAP"), "{text}");
}

#[test]
fn login_with_mutual_chap() {
    let mut target = Tgtd::start(DISK);
    target.require_chap("host", SECRET);
    target.authenticate_as("storage", TARGET_SECRET);
    let mutual = |name: &str, secret: &str| {
        attempt(&target, &options().chap(credentials(SECRET).mutual(name, secret.as_bytes()).unwrap()))
    };
    mutual("storage", TARGET_SECRET).unwrap();
    let error = mutual("storage", "another-secret").unwrap_err();
    assert!(matches!(error, LoginError::Chap(ChapError::WrongSecret)), "{error}");
    let error = mutual("other", TARGET_SECRET).unwrap_err();
    assert!(matches!(error, LoginError::Chap(ChapError::Name { .. })), "{error}");
    // The initiator need not ask for it.
    attempt(&target, &options().chap(credentials(SECRET))).unwrap();
}

#[test]
fn a_target_without_an_account_of_its_own_does_not_pass_mutual_chap() {
    let mut target = Tgtd::start(DISK);
    target.require_chap("host", SECRET);
    let mutual = credentials(SECRET).mutual("storage", TARGET_SECRET.as_bytes()).unwrap();
    let error = attempt(&target, &options().chap(mutual)).unwrap_err();
    assert!(matches!(error, LoginError::Refused(_) | LoginError::Unanswered(_)), "{error}");
}

#[test]
fn chap_is_not_skipped_at_a_target_that_does_not_require_it() {
    let target = Tgtd::start(DISK);
    let LoginError::Refused(status) = attempt(&target, &options().chap(credentials(SECRET))).unwrap_err()
    else {
        panic!()
    };
    assert_eq!(status, Status::AUTHENTICATION_FAILURE);
}

#[test]
fn an_unknown_target_is_not_found() {
    let target = Tgtd::start(DISK);
    let unknown = Options::new(INITIATOR, "iqn.2026-01.example.ironwarp:unknown");
    let LoginError::Refused(status) = attempt(&target, &unknown).unwrap_err() else { panic!() };
    assert_eq!(status, Status::NOT_FOUND);
    assert!(status.to_string().contains("check the target name"), "{status}");
}

/// The digest that tgtd and an initiator agree on, if they can.
fn agreed(configured: bool, policy: DigestPolicy) -> Option<bool> {
    match policy {
        DigestPolicy::None => Some(false),
        DigestPolicy::Prefer => Some(configured),
        DigestPolicy::Require => configured.then_some(true),
    }
}

#[test]
fn digests_are_negotiated_in_all_combinations() {
    const POLICIES: [DigestPolicy; 3] = [DigestPolicy::None, DigestPolicy::Prefer, DigestPolicy::Require];
    let mut target = Tgtd::start(DISK);
    let name = |on| if on { "CRC32C" } else { "None" };
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        target.set("HeaderDigest", name(header));
        target.set("DataDigest", name(data));
        for (of_header, of_data) in POLICIES.iter().flat_map(|a| POLICIES.map(|b| (*a, b))) {
            let result = attempt(&target, &options().header_digest(of_header).data_digest(of_data));
            let expected = agreed(header, of_header).zip(agreed(data, of_data));
            let expected = expected.map(|(header, data)| Digests { header, data });
            let case = format!("target {header} {data}, initiator {of_header:?} {of_data:?}");
            match (result, expected) {
                (Ok((_, session)), Some(expected)) => assert_eq!(session.digests, expected, "{case}"),
                (Err(error), None) => {
                    assert!(error.to_string().contains("do not require it"), "{case}: {error}");
                }
                (result, _) => panic!("{case}: {result:?}"),
            }
        }
    }
}

#[test]
fn parameters_are_those_of_the_target() {
    let mut target = Tgtd::start(DISK);
    let (_stream, session) = attempt(&target, &options()).unwrap();
    assert_eq!((session.max_recv_data_segment, session.target_max_recv_data_segment), (262_144, 8192));
    assert_eq!((session.max_burst, session.first_burst), (262_144, 65_536));
    assert!(session.initial_r2t && session.immediate_data);
    target.set("MaxRecvDataSegmentLength", "131072");
    target.set("FirstBurstLength", "32768");
    target.set("MaxBurstLength", "65536");
    target.set("InitialR2T", "No");
    target.set("ImmediateData", "No");
    let (_stream, session) = attempt(&target, &options().max_recv_data_segment(4096)).unwrap();
    assert_eq!((session.max_recv_data_segment, session.target_max_recv_data_segment), (4096, 131_072));
    assert_eq!((session.max_burst, session.first_burst), (65_536, 32_768));
    assert!(!session.initial_r2t && !session.immediate_data);
    // The smaller value of the two ends counts.
    let (_stream, session) = attempt(&target, &options().max_burst(16_384).first_burst(8192)).unwrap();
    assert_eq!((session.max_burst, session.first_burst), (16_384, 8192));
    let (_stream, session) = attempt(&target, &options().initial_r2t(true)).unwrap();
    assert!(session.initial_r2t);
}

#[test]
fn a_restarted_target_keeps_its_configuration() {
    let mut target = Tgtd::start(DISK);
    target.require_chap("host", SECRET);
    target.set("FirstBurstLength", "32768");
    let chap = options().chap(credentials(SECRET));
    let (mut stream, _) = attempt(&target, &chap).unwrap();
    target.kill();
    let ended = stream.read(&mut [0]);
    assert!(matches!(&ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(TcpStream::connect(target.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    target.restart();
    let (_stream, session) = attempt(&target, &chap.timeout(Duration::from_secs(5))).unwrap();
    assert_eq!(session.first_burst, 32768);
}

#[test]
fn a_session_continues_the_sequence_numbers_of_the_login() {
    let target = Tgtd::start(DISK);
    let (mut stream, session) = attempt(&target, &options()).unwrap();
    let Negotiated { cmd_sn, exp_stat_sn, .. } = session;
    let ping = NopOut { immediate: false, lun: 0, task: 5, target_task: NO_TASK, cmd_sn, exp_stat_sn };
    stream.write_all(&InitiatorPdu::NopOut(ping).emit(0)).unwrap();
    let mut header = [0; HEADER_LEN];
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_exact(&mut header).unwrap();
    let TargetPdu::NopIn(answer) = TargetPdu::parse(&header).unwrap() else { panic!("{header:?}") };
    assert_eq!((answer.task, answer.numbers.stat_sn), (5, exp_stat_sn));
    assert_eq!(answer.numbers.exp_cmd_sn, cmd_sn + 1);
}

#[test]
fn a_login_with_the_same_identifier_replaces_the_session() {
    let target = Tgtd::start(DISK);
    let same = options().isid([0x80, 0, 0, 0, 0, 1]);
    let (mut first, _) = attempt(&target, &same).unwrap();
    let (_second, _) = attempt(&target, &same).unwrap();
    first.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the target closes the first connection");
}
