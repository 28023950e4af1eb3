//! Requirement M8, a to g: the memory that local requests name is checked before a byte moves. The peer is
//! told of a local error (RFC 5040 §4.8: local catastrophic error), and receives no byte of the request.

use crate::common::TIMEOUT;
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{segment, send};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Binding, Check, Memory, RegisterError, Rights, Scope, next_tag};
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest};
use ironwarp_wire::{RemoteAddr, Tag, Terminate};

const LEN: u32 = 64;
const SEND: Operation = Operation::Send { invalidate: None };

/// How a request uses its memory.
#[derive(Clone, Copy, Debug)]
enum Use {
    Send,
    Write,
    /// The sink of a Read.
    Sink,
    Receive,
}

/// An invalid scatter/gather list.
type List = fn(&Victim) -> Vec<Sge>;

/// Checks that the request fails with this check as its cause, and that the peer receives nothing but the
/// Terminate.
fn refused(how: Use, list: List, check: Check) {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Default::default(), 0);
    attacked.peer.open();
    let buffers = Sges::from(&list(&victim)[..]);
    let elsewhere = RemoteAddr { tag: Tag(0x7777_7700), offset: 0 };
    match how {
        Use::Send => attacked.post(7, SEND, buffers),
        Use::Write => attacked.post(7, Operation::Write(elsewhere), buffers),
        Use::Sink => attacked.post(7, Operation::Read(elsewhere), buffers),
        Use::Receive => {
            attacked.pair.qp().post_receive(ReceiveRequest { id: 7, buffers }).unwrap();
            attacked.peer.send(&send(1), &[0xee; 2 * LEN as usize]);
        }
    }
    let completion = attacked.one();
    assert_eq!(
        (completion.wr_id, completion.status),
        (7, Status::LocalProtection),
        "{how:?}: {completion:?}"
    );
    let cause = completion.cause.expect("a cause");
    let QpError::Local(denied) = &*cause else { panic!("{how:?}: {cause:?}") };
    assert_eq!((denied.check, denied.domain), (check, victim.domain), "{how:?}: {denied}");
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE, "{how:?}");
    attacked.closed();
    assert_eq!(attacked.pair.qp().error(), Some(&cause), "{how:?}");
    victim.assert_untouched();
    victim.assert_survives();
}

fn refused_for_all(list: List, check: Check) {
    for how in [Use::Send, Use::Write, Use::Sink, Use::Receive] {
        refused(how, list, check);
    }
}

#[test]
fn a_tag_that_was_given_back() {
    refused_for_all(
        |victim| {
            // The request still names the deregistered tag.
            victim.engine.device().table().deregister(victim.open.tag).unwrap();
            vec![victim.open.sge(0, 2 * LEN)]
        },
        Check::Valid,
    );
}

#[test]
fn b_window_instead_of_a_region() {
    refused_for_all(
        |victim| {
            let remote = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
            let tag = victim.window(&victim.bindable, 1, remote);
            vec![Sge { tag, ..victim.bindable.sge(0, 2 * LEN) }]
        },
        Check::Kind,
    );
}

#[test]
fn c_region_of_another_domain() {
    refused_for_all(|victim| vec![victim.foreign.sge(0, 2 * LEN)], Check::Domain);
}

#[test]
fn d_tag_of_another_instance() {
    refused_for_all(
        |victim| vec![Sge { tag: next_tag(victim.open.tag), ..victim.open.sge(0, 2 * LEN) }],
        Check::Instance,
    );
}

#[test]
fn e_range_begins_a_byte_early() {
    refused_for_all(
        |victim| vec![Sge { addr: victim.open.addr - 1, ..victim.open.sge(0, 2 * LEN) }],
        Check::Range,
    );
}

#[test]
fn e_range_ends_a_byte_late() {
    refused_for_all(
        |victim| vec![victim.open.sge(AREA as u64 + 1 - u64::from(2 * LEN), 2 * LEN)],
        Check::Range,
    );
}

#[test]
fn e_range_wraps() {
    refused_for_all(|victim| vec![Sge { addr: u64::MAX - 10, ..victim.open.sge(0, 2 * LEN) }], Check::Wrap);
}

#[test]
fn f_send_of_memory_that_may_only_be_written() {
    for how in [Use::Send, Use::Write] {
        refused(how, |victim| vec![victim.writable.sge(0, 2 * LEN)], Check::Right);
    }
}

#[test]
fn f_receive_into_memory_that_may_only_be_read() {
    for how in [Use::Sink, Use::Receive] {
        refused(how, |victim| vec![victim.readable.sge(0, 2 * LEN)], Check::Right);
    }
}

/// All elements are checked before the first byte is sent or placed.
#[test]
fn the_last_of_several_elements_counts() {
    refused_for_all(
        |victim| vec![victim.open.sge(0, LEN), victim.open.sge(512, 8), victim.foreign.sge(0, LEN)],
        Check::Domain,
    );
}

/// A receive is checked when it is used: an invalid element does not matter to a message that does not reach
/// it.
#[test]
fn a_receive_is_checked_as_far_as_it_is_used() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Default::default(), 0);
    attacked.peer.open();
    let buffers = Sges::from(&[victim.open.sge(0, LEN), victim.foreign.sge(0, LEN)][..]);
    attacked.pair.qp().post_receive(ReceiveRequest { id: 1, buffers: buffers.clone() }).unwrap();
    attacked.pair.qp().post_receive(ReceiveRequest { id: 2, buffers }).unwrap();
    attacked.peer.send(&send(1), &[0xee; LEN as usize]);
    assert_eq!(attacked.one().status, Status::Success);
    attacked.peer.send(&segment(2, 0, false), &[0xdd; LEN as usize]);
    attacked.peer.send(&segment(2, LEN, true), &[0xdd; 1]);
    let completion = attacked.one();
    assert_eq!((completion.wr_id, completion.status), (2, Status::LocalProtection));
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    victim.assert_untouched_except(&[(victim.open.at, LEN as usize)]);
    victim.assert_survives();
}

/// A Read whose sink is deregistered after the request was sent fails when its response arrives (requirement
/// M8 is checked at each use).
#[test]
fn a_sink_that_is_deregistered_before_the_response() {
    use ironwarp_wire::{Header, Tagged};
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Default::default(), 0);
    attacked.peer.open();
    let sge = victim.open.sge(0, LEN);
    attacked.post(7, Operation::Read(RemoteAddr { tag: Tag(0x7777_7700), offset: 0 }), sge);
    let received = attacked.peer.receive_message();
    let crate::common::peer::Received::Message(Header::ReadRequest(request), ..) = received else {
        panic!("{received:?}")
    };
    victim.engine.device().table().deregister(victim.open.tag).unwrap();
    let answer = Header::ReadResponse(Tagged { last: true, addr: request.sink });
    attacked.peer.send(&answer, &[0xee; LEN as usize]);
    let completion = attacked.one();
    assert_eq!((completion.wr_id, completion.status), (7, Status::LocalProtection), "{completion:?}");
    assert!(
        matches!(completion.cause.as_deref(), Some(QpError::Local(denied)) if denied.check == Check::Valid)
    );
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    victim.assert_untouched();
    victim.assert_survives();
}

// --- g: windows ---

/// Posts a Bind that must fail, and returns the check that failed.
fn bind_refused(binding: impl FnOnce(&Victim) -> Binding) -> Check {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Default::default(), 0);
    attacked.peer.open();
    let window = victim.engine.device().table().allocate_window(victim.domain).unwrap();
    let operation = Operation::Bind { window, binding: binding(&victim) };
    attacked.post(7, operation, &[][..]);
    let completion = attacked.one();
    assert_eq!((completion.wr_id, completion.status), (7, Status::WindowBind), "{completion:?}");
    let cause = completion.cause.expect("a cause");
    let QpError::Local(denied) = *cause else { panic!("{cause:?}") };
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    attacked.closed();
    assert!(!victim.engine.device().table().look_up(window).expect("the window still exists").valid);
    victim.assert_untouched();
    victim.assert_survives();
    denied.check
}

fn whole(region: Tag, at: u64, rights: Rights) -> Binding {
    Binding {
        region,
        at,
        len: AREA as u64,
        rights,
        one_touch: false,
        zero_based: false,
        scope: Scope::Stream,
    }
}

#[test]
fn g_region_that_forbids_windows() {
    let check = bind_refused(|victim| whole(victim.readable.tag, victim.readable.addr, Rights::REMOTE_READ));
    assert_eq!(check, Check::Bind);
}

/// A window cannot have rights that its region does not have.
#[test]
fn f_window_with_more_rights_than_its_region() {
    let check = bind_refused(|victim| {
        let memory =
            Memory::direct(victim.open.addr, AREA as u64, Rights::LOCAL_READ | Rights::BIND).unwrap();
        let region = victim.engine.device().register(victim.domain, memory).unwrap();
        whole(region, victim.open.addr, Rights::REMOTE_WRITE)
    });
    assert_eq!(check, Check::Right);
}

#[test]
fn e_window_beyond_its_region() {
    let check =
        bind_refused(|victim| whole(victim.bindable.tag, victim.bindable.addr + 1, Rights::REMOTE_READ));
    assert_eq!(check, Check::Range);
}

#[test]
fn c_window_on_a_region_of_another_domain() {
    let check = bind_refused(|victim| whole(victim.foreign.tag, victim.foreign.addr, Rights::REMOTE_READ));
    assert_eq!(check, Check::Domain);
}

#[test]
fn a_window_on_a_region_that_was_given_back() {
    let check = bind_refused(|victim| {
        victim.engine.device().table().deregister(victim.bindable.tag).unwrap();
        whole(victim.bindable.tag, victim.bindable.addr, Rights::REMOTE_READ)
    });
    assert_eq!(check, Check::Valid);
}

/// Requirement M7, the anticipatory option: a failed registration by work request ends the stream, and the
/// requests after it are flushed.
#[test]
fn a_failed_registration_flushes_the_requests_after_it() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Default::default(), RECEIVES);
    attacked.peer.open();
    let tag = victim.engine.device().table().allocate(victim.domain).unwrap();
    let memory = Memory::direct(victim.open.addr, AREA as u64, Rights::LOCAL_READ).unwrap();
    let list: Sges = victim.open.sge(0, LEN).into();
    let request = |id, operation, list: Sges| {
        let data = Data::Memory(list);
        WorkRequest::new(id, operation, data)
    };
    let wrong = Operation::Register { tag: next_tag(tag), memory };
    let requests = vec![request(7, wrong, Sges::default()), request(8, SEND, list)];
    attacked.pair.qp().post_send(requests).unwrap();
    let [first, second] = <[_; 2]>::try_from(attacked.completions(2)).unwrap();
    assert_eq!((first.wr_id, second.wr_id, second.status), (7, 8, Status::Flushed), "{first:?} {second:?}");
    assert_ne!(first.status, Status::Success);
    let cause = first.cause.expect("a cause");
    let QpError::Register { error: RegisterError::Denied(denied), .. } = &*cause else { panic!("{cause:?}") };
    assert_eq!(denied.check, Check::Instance);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    attacked.closed();
    attacked.error(RECEIVES);
    victim.assert_untouched();
    victim.assert_survives();
}

/// A local error ends only its own stream: requests posted afterwards are flushed at once, without accessing
/// memory.
#[test]
fn requests_after_a_local_error_are_flushed() {
    let victim = Victim::new();
    let mut attacked: Attacked = victim.connect_peer();
    attacked.post(1, SEND, victim.foreign.sge(0, LEN));
    let failed = attacked.one();
    assert_eq!((failed.wr_id, failed.status), (1, Status::LocalProtection), "{failed:?}");
    attacked.error(RECEIVES);
    attacked.post(2, SEND, victim.open.sge(0, LEN));
    let flushed = attacked.one();
    assert_eq!((flushed.wr_id, flushed.status), (2, Status::Flushed), "{flushed:?}");
    let late = ReceiveRequest { id: 3, buffers: victim.open.sge(0, LEN).into() };
    attacked.pair.qp().post_receive(late).unwrap();
    let flushed = attacked.one();
    assert_eq!((flushed.wr_id, flushed.status), (3, Status::Flushed), "{flushed:?}");
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    attacked.peer.finish();
    assert!(attacked.pair.wait_closed(TIMEOUT));
    victim.assert_untouched();
    victim.assert_survives();
}
