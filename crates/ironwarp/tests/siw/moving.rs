//! Ironwarp's end moves from adapter to adapter, and siw does not notice (requirement X2).

use crate::end::End;
use crate::guest::Guest;
use crate::session::{Bench, Session, Settings};
use crate::shape::Shape;
use ironwarp::hand_over::{HandOverOptions, TakeOverOptions, TakenOver};
use ironwarp::queue::Completes;
use ironwarp::{Adapter, Config};
use ironwarp_testkit::long_form;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fmt::Write;
use std::thread;

/// Length of a Write and a Read of a round, each of which has several segments.
const LEN: usize = 5000;
/// Length of a message of a round. siw's end has memory for 100 of them, which it does not use again.
const MESSAGE: usize = 600;

/// Returns the session in which Ironwarp's end moves.
pub(crate) fn all() -> Vec<Session> {
    vec![moves(if long_form::is_requested() { 100 } else { 20 })]
}

/// Moves this number of times. siw writes, reads and sends meanwhile: it waits for Ironwarp only once in each round.
fn moves(rounds: usize) -> Session {
    let mut siw = "connect advert".to_owned();
    for at in (0..rounds).map(|round| round * LEN) {
        write!(siw, " write={LEN}@{at} read={LEN}@{at} send={MESSAGE} receive={MESSAGE}").unwrap();
    }
    write!(siw, " written={} parting disconnected", rounds * LEN).unwrap();
    let shape = Shape { half: rounds * LEN, receives: rounds + 2, receive: MESSAGE, ..Shape::default() };
    let ours = move |bench: &Bench, guest: &Guest| {
        let mut adapter = Adapter::open(config()).unwrap();
        let mut end = End::new(&adapter, true, Completes::WhenSent, shape);
        guest.wait_for_line("PEER ok listen");
        end.connect(bench.outward).unwrap();
        end.advert();
        for at in (0..rounds).map(|round| round * LEN) {
            let taken = hand_over(&adapter);
            (adapter, end) = end.moved(taken);
            end.write(LEN, at);
            end.read(LEN, at);
            end.receive(MESSAGE);
            end.send(MESSAGE);
        }
        end.written(rounds * LEN);
        guest.wait_for_line("PEER ok parting");
        end.disconnect();
    };
    Session::alone("moves", siw, ours).settings(Settings::NoCrc).connects(true).shape(|used| *used = shape)
}

fn config() -> Config {
    Config::default().crc(false)
}

/// Hands an adapter over to another one of this process.
fn hand_over(adapter: &Adapter) -> TakenOver {
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let target = thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new().config(config())));
    let handed_over = adapter.hand_over(here, &HandOverOptions::new());
    let taken = target.join().unwrap();
    handed_over.unwrap();
    taken.unwrap()
}
