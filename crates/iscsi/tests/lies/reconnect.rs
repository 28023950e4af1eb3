//! The connection is lost in the middle of writes.

use crate::lab::{LEN, Lab, Mode, TIMEOUT, is_end, options, pattern, random, settings};
use crate::window::open;
use ironwarp::Adapter;
use ironwarp::memory::{Access, Buffer};
use ironwarp_iscsi::{Error, Request, Session};
use ironwarp_testkit::iscsi::{Script, Sending, Settings, Target};
use ironwarp_testkit::wait;
use ironwarp_wire::iscsi::TargetPdu;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// Number of writes that are outstanding at a time, each to its own part of the disk.
const SLOTS: usize = 16;
/// Number of writes.
const WRITES: usize = 600;

/// Asks the test to close the connection, at random PDUs of the target, and waits until it is closed.
struct Dropper {
    state: Mutex<(u64, u64)>,
    ask: Mutex<(Sender<()>, Receiver<()>)>,
}

impl Script for Dropper {
    fn send(&self, sending: &mut Sending) {
        if !matches!(sending.now[0].pdu, TargetPdu::R2t(_) | TargetPdu::Response(_)) {
            return;
        }
        let mut state = self.state.lock().unwrap();
        let (seed, left) = &mut *state;
        *left -= 1;
        if *left == 0 {
            *left = 1 + random(seed) % 60;
            let (ask, closed) = &*self.ask.lock().unwrap();
            if ask.send(()).is_ok() {
                let _ = closed.recv(); // fails at the end of the test
            }
        }
    }
}

/// Starts a target that closes its connections at random points, and calls `test` with it.
fn with_dropper(settings: Settings, seed: u64, test: impl FnOnce(&Target)) {
    let (ask, asked) = mpsc::channel();
    let (close, closed) = mpsc::channel();
    let dropper = Dropper { state: Mutex::new((seed, 40)), ask: Mutex::new((ask, closed)) };
    let target = Target::start(settings, dropper);
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let target = &target;
        scope.spawn(move || {
            loop {
                match asked.recv_timeout(Duration::from_millis(20)) {
                    Ok(()) => {
                        target.disconnect();
                        close.send(()).unwrap();
                    }
                    Err(_) if stopped.try_recv() == Err(mpsc::TryRecvError::Disconnected) => return,
                    Err(_) => {}
                }
            }
        });
        test(target);
        drop(stop);
    });
}

/// Writes to all slots again and again. Each write that is reported done is on the disk at that time.
fn write_all(target: &Target, session: &mut Session) {
    let capacity = session.capacity(0).unwrap();
    let buffer = Buffer::new(SLOTS * LEN).unwrap();
    let memory = session.domain().register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE).unwrap();
    let mut slots = HashMap::new();
    let mut expected = vec![Vec::new(); SLOTS];
    let mut started = 0;
    let mut start =
        |session: &mut Session, slots: &mut HashMap<_, _>, expected: &mut [Vec<u8>], slot: usize| {
            if started == WRITES {
                return;
            }
            started += 1;
            expected[slot] = pattern(started as u64, LEN);
            memory.write(slot * LEN, &expected[slot]).unwrap();
            let list = [memory.slice(slot * LEN..(slot + 1) * LEN).unwrap()];
            let request = Request::write(0, &capacity, (slot * LEN / 512) as u64, &list).unwrap();
            slots.insert(session.start(request).unwrap(), slot);
        };
    (0..SLOTS).for_each(|slot| start(session, &mut slots, &mut expected, slot));
    for _ in 0..WRITES {
        let finished = session.next(TIMEOUT).unwrap().expect("a command ends in time");
        let slot = slots.remove(&finished.task).expect("each command ends once");
        assert_eq!(finished.result.unwrap() as usize, LEN);
        let found = target.disk().bytes()[slot * LEN..(slot + 1) * LEN].to_vec();
        assert!(found == expected[slot], "a write was reported done, but is not on the disk");
        start(session, &mut slots, &mut expected, slot);
    }
    assert!(slots.is_empty());
    assert!(target.disk().bytes()[..SLOTS * LEN] == expected.concat(), "wrong bytes on the disk");
    assert!(target.disk().bytes()[SLOTS * LEN..].iter().all(|byte| *byte == 0), "bytes outside of the slots");
}

#[test]
fn writes_survive_the_loss_of_connections() {
    for digests in [false, true] {
        for settings in [settings(), Settings { first_burst: LEN / 4, ..Settings::default() }] {
            with_dropper(settings, 0x5eed + u64::from(digests), |target| {
                let options = options(digests).reconnect(TIMEOUT);
                let mut session =
                    Session::connect(&Adapter::new().unwrap(), target.addr(), &options).unwrap();
                write_all(target, &mut session);
                assert!(session.reconnects() > 5, "{} reconnects", session.reconnects());
                println!("{WRITES} writes, {} reconnects", session.reconnects());
                assert_eq!(target.violations(), [""; 0]);
            });
        }
    }
}

/// A command that was sent, but waits for the smaller window of the new connection, can be aborted, and no other command ends.
#[test]
fn commands_can_be_aborted_after_the_session_has_reconnected() {
    for round in 0..20 {
        let settings = Settings { window: 4, ..settings() };
        let mut lab = Lab::start(settings, &options(true).reconnect(TIMEOUT), |_, _| {});
        lab.control.set(Mode::Hold);
        let requests: Vec<_> = (0..8).map(|index| lab.read(index)).collect();
        let tasks = lab.session.start_all(requests).unwrap();
        lab.target.wait_until_held(8); // of four commands
        lab.target.send(&open(lab.control.last_command().cmd_sn.wrapping_add(10)));
        assert!(lab.session.next(Duration::from_millis(1)).unwrap().is_none());
        wait::until(|| {
            assert!(lab.session.next(Duration::from_millis(1)).unwrap().is_none());
            lab.control.commands().len() == 2 + 8 // two of the query of the capacity
        });
        lab.target.disconnect();
        while lab.session.reconnects() == 0 {
            assert!(lab.session.next(Duration::from_millis(1)).unwrap().is_none());
        }
        lab.target.wait_until_held(8);
        // The fifth is not posted, nor is the last.
        assert!(lab.session.abort(tasks[4]) && lab.session.abort(tasks[7]), "round {round}");
        lab.control.set(Mode::Honest);
        lab.target.release();
        let mut ended: Vec<_> = (0..6).map(|_| lab.next()).collect();
        ended.sort_by_key(|finished| finished.task);
        let expected = [0, 1, 2, 3, 5, 6].map(|index| tasks[index]);
        assert!(ended.iter().map(|finished| finished.task).eq(expected), "{ended:?}");
        assert!(ended.iter().all(|finished| finished.result.is_ok()), "{ended:?}");
        lab.check_outside();
        lab.check_works();
    }
}

#[test]
fn without_reconnect_outstanding_commands_fail() {
    for digests in [false, true] {
        let mut lab = Lab::start(settings(), &options(digests), |sending, _| sending.hold());
        lab.control.set(Mode::Lie);
        let requests: Vec<_> = (0..10).map(|index| lab.write(index * 32)).collect();
        let tasks = lab.session.start_all(requests).unwrap();
        lab.target.wait_until_held(10);
        lab.target.disconnect();
        for task in tasks {
            let finished = lab.next();
            assert!(finished.task == task && is_end(&finished.result), "{finished:?}");
        }
        let request = lab.read(0);
        assert!(matches!(lab.session.start(request), Err(Error::Ended)));
        lab.check_outside();
    }
}
