//! Changed registrations, registrations for a single message, and failed registrations.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{
    Access, Buffer, ChangeError, Check, MemoryRegion, RegionChange, RegisterError, RemoteAddr,
    ReregisterError,
};
use ironwarp::queue::{Completes, QpError, RegistrationFailure, State, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, connect, pair, pattern};

const LOCAL: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);

fn read(end: &End, sink: &MemoryRegion, from: RemoteAddr) -> Vec<u8> {
    let slice = sink.slice(..sink.len()).expect("all of it");
    end.qp.post_send(WorkRequest::read(1, &[slice], from)).expect("room");
    end.done(Opcode::Read, 1);
    sink.to_vec().expect("its own")
}

/// Each change alone, and all together, verified by a peer.
#[test]
fn a_region_can_change_rights_domain_and_memory() {
    for case in CASES {
        let (client, server) = pair(case);
        let sink = client.region(&[0; 8], ALL);
        let mut region = server.region(b"original", LOCAL);
        let mut tags = vec![region.tag()];

        region.reregister(RegionChange::new().access(Access::LOCAL_READ | Access::REMOTE_READ)).unwrap();
        tags.push(region.tag());
        assert_eq!(region.access(), Access::LOCAL_READ | Access::REMOTE_READ);
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"original");

        let buffers = [&b"repl"[..], b"aced", b"!"].map(|part| Buffer::copy_of(part).unwrap());
        region.reregister(RegionChange::new().buffers(buffers)).unwrap();
        tags.push(region.tag());
        assert_eq!((region.len(), &region.to_vec().unwrap()[..]), (9, &b"replaced!"[..]));
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"replaced");

        let away = server.adapter.protection_domain();
        region.reregister(RegionChange::new().domain(&away)).unwrap();
        tags.push(region.tag());
        let home = RegionChange::new().domain(&server.domain).access(ALL);
        region.reregister(home.buffers(vec![Buffer::copy_of(b"and back").unwrap()])).unwrap();
        tags.push(region.tag());
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"and back");
        client.qp.post_send(WorkRequest::write_inline(2, b"AND", region.remote_addr(0).unwrap())).unwrap();
        client.done(Opcode::Write, 2);
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"AND back");
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 5, "each change assigns a new tag");
    }
}

/// The old tag is invalid, although memory and rights are the same.
#[test]
fn the_old_tag_of_a_changed_region_is_invalid() {
    let (client, server) = pair(CASES[1]);
    let mut region = server.region(&[1; 8], ALL);
    let addr = region.remote_addr(0).unwrap();
    region.reregister(RegionChange::new()).unwrap();
    client.qp.post_send(WorkRequest::write_inline(1, b"too late", addr)).unwrap();
    client.failed(Opcode::Write, 1, Status::RemoteAccess);
    assert_eq!(region.to_vec().unwrap(), [1; 8]);

    // Slices from before are invalid as well.
    let (_client, server) = pair(CASES[1]);
    let mut region = server.region(&[1; 8], ALL);
    let slice = region.slice(..8).unwrap();
    region.reregister(RegionChange::new()).unwrap();
    server.qp.post_send(WorkRequest::send(2, &[slice])).unwrap();
    server.failed(Opcode::Send, 2, Status::LocalProtection);
}

#[test]
fn a_refused_change_changes_nothing() {
    let (client, server) = pair(CASES[1]);
    let mut region = server.region(b"as it is", ALL);
    let (tag, addr) = (region.tag(), region.remote_addr(0).unwrap());
    let mut refused = |change| match region.reregister(change).unwrap_err() {
        ChangeError::Refused(error) => Some(error),
        _ => None,
    };
    let other = End::new(Config::default(), Completes::WhenSent);
    assert_eq!(refused(RegionChange::new().domain(&other.domain)), None);
    let rights = Access::REMOTE_WRITE;
    let error = ReregisterError::Register(RegisterError::Rights(rights));
    assert_eq!(refused(RegionChange::new().access(rights)), Some(error));
    for buffers in [vec![], vec![Buffer::new(0).unwrap()]] {
        let error = refused(RegionChange::new().buffers(buffers));
        assert!(matches!(error, Some(ReregisterError::Register(_))), "{error:?}");
    }
    let window = server.domain.window().unwrap();
    server.qp.post_send(WorkRequest::bind(1, &window, &region, ..8, Access::REMOTE_READ).unwrap()).unwrap();
    server.done(Opcode::Bind, 1);
    let busy = ChangeError::Refused(ReregisterError::Busy { tag, windows: 1 });
    assert_eq!(region.reregister(RegionChange::new().access(LOCAL)), Err(busy));

    assert_eq!((region.tag(), region.access()), (tag, ALL));
    let sink = client.region(&[0; 8], ALL);
    assert_eq!(read(&client, &sink, addr), b"as it is");
    assert_eq!(read(&client, &sink, window.remote_addr(0)), b"as it is");
    drop(window);
    region.reregister(RegionChange::new().access(LOCAL)).unwrap();
}

/// Entries and memory are released: a table of two entries never fills up.
#[test]
fn a_region_can_change_any_number_of_times() {
    let end = End::new(Config::default().tags(2), Completes::WhenSent);
    let mut region = end.region(&[0; 8], LOCAL);
    for round in 0..2000 {
        region.reregister(RegionChange::new().buffers(vec![Buffer::new(1 << 20).unwrap()])).unwrap();
        region.write(round, &[1]).unwrap();
    }
    drop(region);
    assert!(end.domain.register(Buffer::new(1).unwrap(), ALL).is_ok());
}

/// Registrations for a single message, with every kind of tagged message.
struct Once<'a> {
    client: &'a End,
    server: &'a End,
    bytes: Vec<u8>,
}

impl Once<'_> {
    /// Sends the message and a second one. Returns the error of the second at the server.
    fn touch(&self, opcode: Opcode, addr: RemoteAddr) -> Check {
        let len = self.bytes.len();
        let mine = self.client.region(&self.bytes, ALL);
        let slice = mine.slice(..len).expect("inside");
        let request = |id| match opcode {
            Opcode::Write => WorkRequest::write(id, &[slice], addr),
            Opcode::Read => WorkRequest::read(id, &[slice], addr),
            _ => WorkRequest::fetch_add(id, mine.slice(..8).expect("inside"), addr, 5),
        };
        self.client.qp.post_send(request(1)).expect("room");
        self.client.done(opcode, 1);
        if opcode == Opcode::Read {
            assert!(mine.to_vec().expect("inside") == vec![7; len], "the response is complete");
        }
        self.client.qp.post_send(request(2)).expect("room");
        self.client.failed(opcode, 2, Status::RemoteAccess);
        assert!(self.server.qp.wait_closed(ironwarp_testkit::native::SOON));
        match &self.server.qp.error().expect("the stream ended") {
            QpError::Remote(denied) => denied.check,
            error => panic!("{error}"),
        }
    }
}

#[test]
fn one_touch_memory_of_any_kind_serves_one_message_of_any_kind() {
    let lengths = [(Opcode::Write, 8), (Opcode::Write, 3 << 20), (Opcode::Read, 8), (Opcode::Read, 3 << 20)];
    let atomic = [(Opcode::FetchAdd, 8)];
    for (opcode, len) in lengths.into_iter().chain(atomic) {
        for kind in ["a region", "a region of a request", "a window"] {
            let (client, server) = pair(CASES[1]);
            let once = Once { client: &client, server: &server, bytes: pattern(1, len) };
            let before = vec![7; len];
            let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let buffer = Buffer::copy_of(&before).unwrap();
            let (check, after) = match kind {
                "a region" => {
                    let region = server.domain.register_once(buffer, LOCAL | remote).unwrap();
                    let check = once.touch(opcode, region.remote_addr(0).unwrap());
                    let after = region.to_vec().unwrap();
                    region.deregister().unwrap();
                    (check, after)
                }
                "a region of a request" => {
                    let region = server.domain.allocate_region(vec![buffer]).unwrap();
                    server.qp.post_send(WorkRequest::register_once(9, &region, LOCAL | remote)).unwrap();
                    server.done(Opcode::Register, 9);
                    let check = once.touch(opcode, region.remote_addr(0).unwrap());
                    (check, region.to_vec().unwrap())
                }
                _ => {
                    let region = server.domain.register(buffer, LOCAL | Access::BIND).unwrap();
                    let window = server.domain.window().unwrap();
                    let bind = WorkRequest::bind_once(9, &window, &region, ..len, remote).unwrap();
                    server.qp.post_send(bind).unwrap();
                    server.done(Opcode::Bind, 9);
                    let check = once.touch(opcode, window.remote_addr(0));
                    let after = region.to_vec().unwrap();
                    region.deregister().unwrap();
                    (check, after)
                }
            };
            assert!(matches!(check, Check::Valid | Check::Touched), "{kind}, {opcode:?}: {check:?}");
            let expected = match opcode {
                Opcode::Write => once.bytes,
                Opcode::Read => before,
                _ => (u64::from_ne_bytes([7; 8]) + 5).to_ne_bytes().to_vec(),
            };
            assert!(after == expected, "{kind}, {opcode:?} of {len}: once and no more");
        }
    }
}

/// A region that work requests register for a single message is registered again for the next.
#[test]
fn a_one_touch_region_is_registered_again_for_each_message() {
    let (client, server) = pair(CASES[1]);
    let region = server.domain.allocate_region(vec![Buffer::new(8).unwrap()]).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for round in 0..20_u64 {
        server.qp.post_send(WorkRequest::register_once(1, &region, access)).unwrap();
        server.done(Opcode::Register, 1);
        server.qp.post_receive(2, &[]).unwrap();
        let write = WorkRequest::write_inline(3, &round.to_be_bytes(), region.remote_addr(0).unwrap());
        client.qp.post_send_all(vec![write, WorkRequest::send(4, &[]).into()]).unwrap();
        server.done(Opcode::Receive, 2);
        client.done(Opcode::Write, 3);
        client.done(Opcode::Send, 4);
        assert_eq!(region.to_vec().unwrap(), round.to_be_bytes());
    }
}

// --- Failed registrations by work request (requirement M7) ---

/// A server that registers memory and sends the tag to its client in one list (requirement M12), while the tag is
/// already valid.
fn refused(failure: RegistrationFailure) -> (End, End, ironwarp::memory::FastRegion) {
    let (client, mut server) = (
        End::new(Config::default(), Completes::WhenAcknowledged),
        End::new(Config::default(), Completes::WhenAcknowledged),
    );
    server.qp = server.domain.queue_pair(&server.cq).registration_failure(failure).create().unwrap();
    connect(&client, &server, "127.0.0.1:0".parse().unwrap());
    let region = server.domain.allocate_region(vec![Buffer::copy_of(b"register and send").unwrap()]).unwrap();
    client.qp.post_receive(1, &[]).unwrap();
    server.qp.post_send_all(register_and_send(10, &region)).unwrap();
    server.done(Opcode::Register, 10);
    server.done(Opcode::Send, 11);
    client.done(Opcode::Receive, 1);
    server.qp.post_send_all(register_and_send(20, &region)).unwrap();
    let failed = server.failed(Opcode::Register, 20, Status::WindowBind);
    let cause = failed.cause.unwrap();
    let QpError::Register { error: RegisterError::Denied(denied), .. } = &*cause else { panic!("{cause}") };
    assert_eq!(denied.check, Check::Idle);
    server.failed(Opcode::Send, 21, Status::Flushed);
    (client, server, region)
}

/// The Send carries the tag that the registration before it assigns.
fn register_and_send(id: u64, region: &ironwarp::memory::FastRegion) -> Vec<WorkRequest> {
    let tag = region.next_tag();
    vec![
        WorkRequest::register(id, region, ALL - Access::BIND),
        WorkRequest::send(id + 1, &[]).immediate(tag.0).into(),
    ]
}

/// The reactive option: only the server notices, and tries again after it has corrected the error. The peer invalidates
/// each registration with a Send with Invalidate.
#[test]
fn a_failed_registration_can_be_retried() {
    let (client, server, region) = refused(RegistrationFailure::Reactive);
    let sink = client.region(&[0; 17], LOCAL);
    assert_eq!((server.qp.state(), server.qp.error()), (State::Drained, None));
    // Posted before the failure is known.
    server.qp.post_send_all(register_and_send(30, &region)).unwrap();
    server.failed(Opcode::Register, 30, Status::Flushed);
    server.failed(Opcode::Send, 31, Status::Flushed);

    for round in 0..3 {
        let id = 100 * round;
        server.qp.set_state(State::ReadyToSend).unwrap();
        // The registration is still valid, with the same tag.
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"register and send");
        server.qp.post_receive(id, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(id + 1, &[]).invalidate(region.tag())).unwrap();
        client.done(Opcode::Send, id + 1);
        assert_eq!(server.done(Opcode::Receive, id).invalidated, Some(region.tag()));

        client.qp.post_receive(id + 2, &[]).unwrap();
        server.qp.post_send_all(register_and_send(id + 3, &region)).unwrap();
        server.done(Opcode::Register, id + 3);
        server.done(Opcode::Send, id + 4);
        assert_eq!(client.done(Opcode::Receive, id + 2).immediate, Some(region.tag().0));
        assert_eq!(read(&client, &sink, region.remote_addr(0).unwrap()), b"register and send");
        // Fail again.
        server.qp.post_send_all(register_and_send(id + 5, &region)).unwrap();
        server.failed(Opcode::Register, id + 5, Status::WindowBind);
        server.failed(Opcode::Send, id + 6, Status::Flushed);
    }
}

/// The anticipatory option, the default: the connection ends, the peer receives a Terminate, and all requests are
/// flushed.
#[test]
fn a_failed_registration_ends_the_connection() {
    assert_eq!(RegistrationFailure::default(), RegistrationFailure::Anticipatory);
    let (client, server, region) = refused(RegistrationFailure::Anticipatory);
    assert_eq!(server.qp.state(), State::Error);
    assert!(server.qp.set_state(State::ReadyToSend).is_err());
    server.qp.post_send_all(register_and_send(30, &region)).unwrap();
    server.failed(Opcode::Register, 30, Status::Flushed);
    server.failed(Opcode::Send, 31, Status::Flushed);
    client.qp.post_receive(2, &[]).unwrap();
    let flushed = client.failed(Opcode::Receive, 2, Status::Flushed);
    assert!(matches!(&*flushed.cause.unwrap(), QpError::Terminated(_)));
}
