//! How epoll reports edges, on its own and in nested sets, and how eventfds count.

use super::super::testing::{loopback, pair};
use super::*;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use std::thread;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const NOW: Option<Duration> = Some(Duration::ZERO);

/// Returns the events of one wait.
fn take(set: &Epoll, timeout: Option<Duration>) -> Vec<Event> {
    let mut events = Events::new(8);
    set.wait(&mut events, timeout).unwrap();
    events.iter().collect()
}

fn event(data: u64, readable: bool, writable: bool) -> Event {
    Event { data, readable, writable, ended: false }
}

/// A socket in an inner epoll set, and that set in an outer one, both edge-triggered, like a poll set in the epoll of
/// its lane. The socket's first event, that it is writable, was taken.
struct Nest {
    outer: Epoll,
    inner: Epoll,
    near: crate::sys::socket::TcpLink,
    far: crate::sys::socket::TcpLink,
}

const INNER: u64 = 1;
const SOCKET: u64 = 2;

impl Nest {
    fn new() -> Self {
        let (near, far) = pair();
        let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        inner.add(&near, SOCKET, Interest::Edges).unwrap();
        assert_eq!(take(&inner, LIMIT), [event(SOCKET, false, true)]);
        outer.add(&inner, INNER, Interest::ReadableEdges).unwrap();
        Self { outer, inner, near, far }
    }

    /// Lets the peer send a byte, and waits until it has arrived.
    fn arrive(&self) {
        assert_eq!(self.far.send(&[Piece::Own(b"x")]), Ok(1));
        crate::sys::testing::wait(&self.near, rustix::event::PollFlags::IN);
    }

    fn arm(&self) {
        self.outer.modify(&self.inner, INNER, Interest::ReadableEdges).unwrap();
    }

    fn disarm(&self) {
        self.outer.modify(&self.inner, INNER, Interest::Disarmed).unwrap();
    }

    /// Takes the events of the outer set.
    fn outer(&self) -> Vec<Event> {
        take(&self.outer, NOW)
    }

    /// Takes the events of the inner set.
    fn inner(&self) -> Vec<Event> {
        take(&self.inner, NOW)
    }
}

const SET_READY: [Event; 1] = [Event { data: INNER, readable: true, writable: false, ended: false }];
const SOCKET_READY: [Event; 1] = [Event { data: SOCKET, readable: true, writable: true, ended: false }];
const SOCKET_ENDED: [Event; 1] = [Event { data: SOCKET, readable: true, writable: true, ended: true }];

#[test]
fn an_outer_set_reports_each_change_of_an_inner_one() {
    let nest = Nest::new();
    assert_eq!(nest.outer(), []);
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    // The event of the inner set was not taken. The outer set does not report it again, but does report a new one.
    assert_eq!(nest.outer(), []);
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
    assert_eq!(nest.outer(), []);
}

#[test]
fn an_inner_set_is_not_ready_once_its_events_were_taken() {
    let nest = Nest::new();
    nest.arrive();
    assert_eq!(nest.inner(), SOCKET_READY);
    // The outer set was armed all the time, and the byte is still unread, but only edges are reported.
    assert_eq!(nest.outer(), []);
    nest.arm();
    assert_eq!(nest.outer(), []);
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
}

#[test]
fn arming_finds_what_came_before() {
    let nest = Nest::new();
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    // The event of the inner set was not taken, so arming reports it again.
    nest.arm();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
    nest.arm();
    assert_eq!(nest.outer(), []);
}

#[test]
fn edges_while_disarmed_are_not_lost() {
    let nest = Nest::new();
    nest.disarm();
    nest.arrive();
    assert_eq!(nest.outer(), []);
    nest.arm();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
    assert_eq!(nest.outer(), []);
}

/// A lane must not miss an edge that occurs after it has taken the inner events and before its next wait.
#[test]
fn an_edge_after_the_last_look_is_reported() {
    let nest = Nest::new();
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
}

#[test]
fn a_waiting_thread_is_woken_through_both_sets() {
    let nest = Nest::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&nest.outer, LIMIT));
        nest.arrive();
        assert_eq!(waiting.join().unwrap(), SET_READY);
    });
    // Arming alone wakes the thread, too, if the inner set has an event already.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&nest.outer, LIMIT));
        nest.arm();
        assert_eq!(waiting.join().unwrap(), SET_READY);
    });
}

/// A program thread takes events from the inner set while the outer one is armed: both sets report the event.
#[test]
fn a_program_and_a_lane_may_both_see_the_event() {
    let nest = Nest::new();
    nest.arrive();
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_READY);
    assert_eq!(nest.inner(), []);
}

#[test]
fn a_hang_up_passes_through_both_sets() {
    let nest = Nest::new();
    nest.far.finish();
    crate::sys::testing::wait(&nest.near, rustix::event::PollFlags::IN);
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_ENDED);
    assert_eq!(nest.near.recv(&[], &mut [0]), Err(LinkError::Ended));
    // A reset is another edge.
    nest.far.abort();
    crate::sys::testing::wait(&nest.near, rustix::event::PollFlags::ERR);
    assert_eq!(nest.outer(), SET_READY);
    assert_eq!(nest.inner(), SOCKET_ENDED);
}

#[test]
fn a_closed_socket_leaves_its_set() {
    let Nest { outer, inner, near, far } = Nest::new();
    assert_eq!(far.send(&[Piece::Own(b"x")]), Ok(1));
    crate::sys::testing::wait(&near, rustix::event::PollFlags::IN);
    drop(near);
    assert_eq!(take(&outer, NOW), []);
    assert_eq!(take(&inner, NOW), []);
}

#[test]
fn edges_are_reported_once_each() {
    let (near, far) = pair();
    let set = Epoll::new().unwrap();
    set.add(&near, 5, Interest::Edges).unwrap();
    assert_eq!(take(&set, LIMIT), [event(5, false, true)]);
    assert_eq!(far.send(&[Piece::Own(b"abc")]), Ok(3));
    assert_eq!(take(&set, LIMIT), [event(5, true, true)]);
    // Reading is not an edge, whether or not bytes are left.
    assert_eq!(near.recv(&[], &mut [0]), Ok(1));
    assert_eq!(take(&set, NOW), []);
    // The arrival of more bytes is an edge, although the socket was readable already.
    assert_eq!(far.send(&[Piece::Own(b"d")]), Ok(1));
    assert_eq!(take(&set, LIMIT), [event(5, true, true)]);
    // Modifying reports the current state.
    set.modify(&near, 6, Interest::Edges).unwrap();
    assert_eq!(take(&set, NOW), [event(6, true, true)]);
    set.delete(&near).unwrap();
    assert_eq!(far.send(&[Piece::Own(b"e")]), Ok(1));
    assert_eq!(take(&set, NOW), []);
    assert!(set.modify(&near, 6, Interest::Edges).is_err());
}

#[test]
fn room_after_a_full_socket_is_an_edge() {
    let (near, far) = pair();
    let set = Epoll::new().unwrap();
    set.add(&near, 5, Interest::Edges).unwrap();
    assert_eq!(take(&set, LIMIT), [event(5, false, true)]);
    let mut full = 0;
    while let Ok(sent) = near.send(&[Piece::Own(&[0; 65_536])]) {
        full += sent;
    }
    while full > 0 {
        match far.recv(&[], &mut vec![0; 1 << 20]) {
            Ok(received) => full -= received,
            Err(_) => crate::sys::testing::wait(&far, rustix::event::PollFlags::IN),
        }
    }
    assert_eq!(take(&set, LIMIT), [event(5, false, true)]);
}

#[test]
fn a_listener_is_readable_until_all_were_accepted() {
    let listener = crate::sys::tcp::Listener::new(loopback(), &crate::sys::testing::KEEPALIVE).unwrap();
    let set = Epoll::new().unwrap();
    set.add(&listener, 3, Interest::Readable).unwrap();
    assert_eq!(take(&set, NOW), []);
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(take(&set, LIMIT), [event(3, true, false)]);
    }
    assert!(listener.accept().unwrap().is_some());
    assert_eq!(take(&set, NOW), []);
}

#[test]
fn a_counter_gives_all_and_a_semaphore_one() {
    for (wake, takes) in
        [(EventFd::counter().unwrap(), &[3, 0, 0, 0]), (EventFd::semaphore().unwrap(), &[1, 1, 1, 0])]
    {
        let set = Epoll::new().unwrap();
        set.add(&wake, 4, Interest::Readable).unwrap();
        assert_eq!(take(&set, NOW), []);
        for _ in 0..3 {
            wake.signal();
        }
        for &expected in takes {
            assert_eq!(take(&set, NOW).len(), usize::from(expected > 0));
            assert_eq!(wake.take(), expected);
        }
    }
}

#[test]
fn a_full_wake_stays_full() {
    let wake = EventFd::counter().unwrap();
    rustix::io::write(&wake, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    wake.signal();
    assert_eq!(wake.take(), u64::MAX - 1);
}

#[test]
fn events_that_do_not_fit_are_reported_next() {
    let wakes = [(); 3].map(|()| EventFd::counter().unwrap());
    let set = Epoll::new().unwrap();
    for (data, wake) in (0..).zip(&wakes) {
        set.add(wake, data, Interest::Edges).unwrap();
    }
    let mut seen = Vec::new();
    let mut events = Events::new(2);
    for (len, full) in [(2, true), (1, false), (0, false)] {
        set.wait(&mut events, NOW).unwrap();
        assert_eq!((events.len(), events.is_full(), events.is_empty()), (len, full, len == 0));
        seen.extend(events.iter().map(|event| event.data));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    assert_eq!(format!("{events:?}"), "[]");
}

#[test]
fn waiting_lasts_as_long_as_asked() {
    let set = Epoll::new().unwrap();
    let begin = std::time::Instant::now();
    assert_eq!(take(&set, Some(Duration::from_micros(1500))), []);
    assert!(begin.elapsed() >= Duration::from_micros(1500));
}
