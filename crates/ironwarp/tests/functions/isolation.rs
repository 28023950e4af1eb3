//! A function's peers and program reach nothing of another function.

use super::{adapter, assert_works, function, peer_of};
use ironwarp::completion::Status;
use ironwarp::function::Quotas;
use ironwarp::memory::{
    Access, Buffer, Check, FastRegion, MemoryRegion, RegionChange, RemoteAddr, Tag, Window,
};
use ironwarp::queue::{CreateError, QpError, WorkRequest};
use ironwarp_testkit::native::{ALL, Completions, End, SOON};

/// The memory of a function, which peers of another one try to reach: by each kind of tag that there is.
struct Treasure {
    region: MemoryRegion,
    filled: FastRegion,
    window: Window,
}

impl Treasure {
    /// Creates memory of `owner` that allows its own peers everything.
    fn of(owner: &End) -> Self {
        let region = owner.region(&[0x5a; 64], ALL);
        let buffer = Buffer::copy_of(&[0x5a; 64]).unwrap();
        let filled = owner.domain.allocate_region([buffer]).unwrap();
        owner.qp.post_send(WorkRequest::register(1, &filled, ALL)).unwrap();
        assert_eq!(owner.next().success().unwrap().wr_id, 1);
        let window = owner.domain.window().unwrap();
        owner.qp.post_send(WorkRequest::bind(2, &window, &region, .., Access::REMOTE_READ).unwrap()).unwrap();
        assert_eq!(owner.next().success().unwrap().wr_id, 2);
        Self { region, filled, window }
    }

    fn addresses(&self) -> [RemoteAddr; 3] {
        let filled = self.filled.remote_addr(0).unwrap();
        [self.region.remote_addr(0).unwrap(), filled, self.window.remote_addr(0)]
    }

    fn assert_untouched(&self) {
        assert_eq!(self.region.to_vec().unwrap(), [0x5a; 64]);
    }
}

/// An attack by a peer: a request that names memory at this address.
type Attack = fn(&MemoryRegion, RemoteAddr) -> WorkRequest;

/// Write, Read, atomic operation and Send with Invalidate, each with each kind of tag, and with other instances of it.
#[test]
fn a_peer_that_sends_every_tag_of_another_function_is_terminated() {
    let attacks: [(&str, Attack); 4] = [
        ("Write", |mine, at| WorkRequest::write(9, &[mine.slice(..8).unwrap()], at)),
        ("Read", |mine, at| WorkRequest::read(9, &[mine.slice(..8).unwrap()], at)),
        ("atomic", |mine, at| WorkRequest::fetch_add(9, mine.slice(..8).unwrap(), at, 1)),
        ("Send with Invalidate", |_, at| WorkRequest::send(9, &[]).invalidate(at.tag).into()),
    ];
    let adapter = adapter();
    let victim = function(&adapter, Quotas::default());
    let victims_peer = peer_of(&victim);
    let treasure = Treasure::of(&victim);
    for (name, attack) in attacks {
        for at in treasure.addresses() {
            for instance in [0, 1, 0xff] {
                let attacked = function(&adapter, Quotas::default());
                let attacker = peer_of(&attacked);
                attacked.qp.post_receive(1, &[]).unwrap();
                let mine = attacker.region(&[0xee; 8], ALL);
                let tag = Tag(at.tag.0 & !0xff | (at.tag.0 + instance) & 0xff);
                attacker.qp.post_send(attack(&mine, RemoteAddr { tag, ..at })).unwrap();
                let failed = attacker.next();
                let terminated = matches!(failed.cause.as_deref(), Some(QpError::Terminated(_)));
                assert!(terminated, "{name} {tag}: {failed:?}");
                assert!(attacked.qp.wait_closed(SOON));
                let error = attacked.qp.error().unwrap();
                let denied = matches!(&error, QpError::Remote(denied) if denied.check == Check::Valid);
                assert!(denied, "{name} {tag}: {error}");
                assert_eq!(mine.to_vec().unwrap(), [0xee; 8], "nothing was read");
            }
        }
    }
    treasure.assert_untouched();
    // Its own peer reaches all of it.
    let sink = victims_peer.region(&[0; 64], ALL);
    for at in treasure.addresses() {
        victims_peer.qp.post_send(WorkRequest::read(3, &[sink.slice(..).unwrap()], at)).unwrap();
        assert_eq!(victims_peer.next().success().unwrap().wr_id, 3);
        assert_eq!(sink.to_vec().unwrap(), [0x5a; 64]);
    }
    assert_works(&victims_peer, &victim);
}

/// The program of a function names memory and windows of another one in its own requests.
#[test]
fn requests_with_tags_of_another_function_fail() {
    let adapter = adapter();
    let victim = function(&adapter, Quotas::default());
    let victims_peer = peer_of(&victim);
    let treasure = Treasure::of(&victim);
    let region = &treasure.region;
    let requests: [fn(&Treasure) -> WorkRequest; 6] = [
        |it| WorkRequest::send(9, &[it.region.slice(..).unwrap()]).into(),
        |it| WorkRequest::write(9, &[it.filled.slice(..).unwrap()], RemoteAddr::default()),
        |it| WorkRequest::local_invalidate(9, it.filled.tag()),
        |it| WorkRequest::local_invalidate(9, it.window.tag()),
        |it| WorkRequest::bind(9, &it.window, &it.region, .., Access::REMOTE_READ).unwrap(),
        |it| WorkRequest::register(9, &it.filled, ALL),
    ];
    for (number, request) in requests.iter().enumerate() {
        let attacker = function(&adapter, Quotas::default());
        let _peer = peer_of(&attacker);
        let posted = attacker.qp.post_send(request(&treasure));
        if posted.is_ok() {
            let failed = attacker.next();
            assert!(failed.status != Status::Success, "request {number}: {failed:?}");
        }
    }
    // A window of the attacker's own, and the victim's region.
    let attacker = function(&adapter, Quotas::default());
    let _peer = peer_of(&attacker);
    let window = attacker.domain.window().unwrap();
    attacker.qp.post_send(WorkRequest::bind(9, &window, region, .., Access::REMOTE_READ).unwrap()).unwrap();
    assert_ne!(attacker.next().status, Status::Success);
    // A receive into the victim's memory.
    let attacker = function(&adapter, Quotas::default());
    let peer = peer_of(&attacker);
    attacker.qp.post_receive(1, &[region.slice(..).unwrap()]).unwrap();
    peer.qp.post_send(WorkRequest::send_inline(2, b"overwritten")).unwrap();
    assert_ne!(attacker.next().status, Status::Success);
    treasure.assert_untouched();
    assert_works(&victims_peer, &victim);
}

/// Objects of two functions, and those of a function and its adapter, cannot be combined.
#[test]
fn objects_of_two_functions_cannot_be_combined() {
    let adapter = adapter();
    let functions =
        [adapter.function(Quotas::default()).unwrap(), adapter.function(Quotas::default()).unwrap()];
    for (own, other) in [(&functions[0], &functions[1]), (&functions[0], &adapter), (&adapter, &functions[1])]
    {
        let (cq, domain) = (own.completion_queue(8).unwrap(), own.protection_domain());
        let (foreign_cq, foreign_domain) = (other.completion_queue(8).unwrap(), other.protection_domain());
        let refused = |result: Result<_, CreateError>| matches!(result, Err(CreateError::OtherAdapter));

        assert!(refused(domain.queue_pair(&foreign_cq).create().map(drop)));
        assert!(refused(domain.queue_pair(&cq).receive_cq(&foreign_cq).create().map(drop)));
        assert!(refused(
            domain.queue_pair(&cq).srq(&foreign_domain.shared_receive_queue(8)).create().map(drop)
        ));
        assert!(refused(domain.queue_pair(&cq).xrc_target(&other.xrc_domain()).create().map(drop)));
        assert!(refused(domain.datagram_queue_pair(&foreign_cq).create().map(drop)));
        let srq = foreign_domain.shared_receive_queue(8);
        assert!(refused(domain.datagram_queue_pair(&cq).srq(&srq).create().map(drop)));
        assert!(refused(domain.try_xrc_receive_queue(&other.xrc_domain(), &cq, 8).map(drop)));
        assert!(refused(domain.try_xrc_receive_queue(&own.xrc_domain(), &foreign_cq, 8).map(drop)));
        assert!(refused(own.control_queue(&foreign_cq, 8).map(drop)));
        let ssq = foreign_domain.shared_send_queue(&foreign_cq, 8);
        assert!(domain.queue_pair(&cq).shared_send_queue(&ssq).create().is_err());

        let control = own.control_queue(&cq, 8).unwrap();
        let buffer = || Buffer::new(64).unwrap();
        assert!(control.register(1, &foreign_domain, buffer(), ALL).is_err());
        let mut region = domain.register(buffer(), ALL).unwrap();
        assert!(region.reregister(RegionChange::new().domain(&foreign_domain)).is_err());
        region.deregister().unwrap();
        let handler = other.completion_handler().unwrap();
        assert!(own.completion_queue_builder(8).handler(&handler).create().is_err());

        // A connection request at another function's listener.
        let listener = other.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (caller, answerer) =
            (domain.queue_pair(&cq).create().unwrap(), domain.queue_pair(&cq).create().unwrap());
        caller.start_connect(listener.local_addr().unwrap(), &Default::default()).unwrap();
        let refusal = listener.accept(SOON).unwrap().accept(&answerer, &Default::default()).unwrap_err();
        assert!(refusal.to_string().contains("different adapters"), "{refusal}");
    }
}

/// A function can neither create functions nor exceed what it was given by closing and creating others.
#[test]
fn only_the_adapter_creates_functions() {
    let adapter = adapter();
    let function = adapter.function(Quotas::default().queue_pairs(1)).unwrap();
    let error = function.function(Quotas::default()).unwrap_err();
    assert_eq!(error.to_string(), "function 1 cannot create functions: create them with the adapter");
}
