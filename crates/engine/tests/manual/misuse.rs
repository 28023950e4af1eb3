//! Invalid arguments are refused at once, after which the call can be repeated.

use super::common::{Host, TIMEOUT, UNUSED_QPN, gid, talk};
use ironwarp_engine::config::Config;
use ironwarp_engine::gid::{Gid, GidTable, MAX_GIDS};
use ironwarp_engine::{BringUpError, BringUpOptions, Local, QueuePairAttributes, Remote};
use ironwarp_rnic::qp::{Retries, State};
use ironwarp_rnic::queue::Status;
use std::io::ErrorKind;

fn options(local: Gid) -> BringUpOptions {
    BringUpOptions { local: Local::Gid(local), ..BringUpOptions::default() }
}

#[test]
fn invalid_arguments_are_refused_at_once() {
    let host = Host::new(Config::default());
    let pair = host.pair();
    let own = gid("127.0.0.1");
    let refused = |remote: Gid, qpn: u32, options: BringUpOptions| {
        host.engine.bring_up(&pair, Remote { gid: remote, qpn }, &options).unwrap_err()
    };
    let index =
        BringUpOptions { local: Local::Index { port: 1, index: MAX_GIDS }, ..BringUpOptions::default() };
    assert!(matches!(refused(own, UNUSED_QPN, index), BringUpError::NoGid(MAX_GIDS)));
    assert!(matches!(refused(gid("::1"), UNUSED_QPN, options(own)), BringUpError::OtherVersion { .. }));
    assert!(matches!(refused(Gid::ZERO, UNUSED_QPN, options(own)), BringUpError::OtherVersion { .. }));
    assert!(matches!(refused(own, 0x0100_0000, options(own)), BringUpError::InvalidQpn(0x0100_0000)));
    let deep = BringUpOptions { ord: Some(u16::MAX), ..options(own) };
    assert!(matches!(refused(own, UNUSED_QPN, deep), BringUpError::InvalidArgument(_)));
    // Not an address of this host, for the end that dials and for the end that listens.
    for local in ["1.2.3.4", "203.0.113.9"] {
        match refused(own, UNUSED_QPN, options(gid(local))) {
            BringUpError::System(error) => assert_eq!(error.kind(), ErrorKind::AddrNotAvailable),
            other => panic!("{other}"),
        }
    }

    let plain = QueuePairAttributes { manual: false, ..host.attributes() };
    let plain = host.engine.create_qp(plain).unwrap();
    let error =
        host.engine.bring_up(&plain, Remote { gid: own, qpn: UNUSED_QPN }, &options(own)).unwrap_err();
    assert!(matches!(error, BringUpError::NoPort));
    assert!(plain.id() < 0x04_0000);

    // After these errors, connecting still works.
    let (mut one, mut other) = (host, Host::new(Config::default()));
    let far = other.pair();
    one.bring_up(&pair, "127.0.0.1", ("127.0.0.1", far.id()));
    other.bring_up(&far, "127.0.0.1", ("127.0.0.1", pair.id()));
    talk(&mut one, &pair, &mut other, &far);
    let again = one.engine.bring_up(&pair, Remote { gid: own, qpn: UNUSED_QPN }, &options(own));
    let error = again.unwrap_err().to_string();
    assert!(error.contains("from state \"ready to send\" to \"ready to receive\""), "{error}");
    let new = one.engine.create_qp(one.attributes()).unwrap();
    let early = one.engine.bring_up(&new, Remote { gid: own, qpn: UNUSED_QPN }, &options(own));
    assert!(matches!(early, Err(BringUpError::State(_))), "the queue pair is not initialised");
}

/// As with hardware, the QPN is not checked against the peer's queue pairs: requests sent to it are never
/// answered.
#[test]
fn a_request_to_an_unknown_qpn_times_out() {
    let mut host = Host::new(Config::default());
    let numbers = [0, 1, 0x03_ffff, UNUSED_QPN, UNUSED_QPN | 0xf0, UNUSED_QPN | 0xff, 0xff_ffff];
    let pairs: Vec<_> = numbers.iter().map(|number| (host.pair(), *number)).collect();
    for (pair, number) in &pairs {
        host.bring_up(pair, "127.0.0.1", ("127.0.0.1", *number));
        pair.set_retries(Retries::default().timeout(1));
        host.send(pair, 0, b"for nobody");
    }
    for _ in &pairs {
        assert_eq!(host.next().status, Status::RetryExceeded);
    }
    for (pair, number) in pairs {
        assert_eq!(pair.qp().state(), State::Error, "{number:#x}");
    }
}

#[test]
fn the_index_of_a_gid_is_its_address() {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b) = (one.pair(), other.pair());
    let loopback = GidTable::of_process().find(gid("127.0.0.1")).unwrap().unwrap();
    let options = BringUpOptions {
        local: Local::Index { port: 1, index: loopback.index },
        ..BringUpOptions::default()
    };
    one.bring_up_with(&a, ("127.0.0.1", b.id()), &options);
    other.bring_up_with(&b, ("127.0.0.1", a.id()), &options);
    talk(&mut one, &a, &mut other, &b);
    assert!(a.wait_connected(TIMEOUT).unwrap().local.ip().is_loopback());
}
