//! What the processes do that have the end that moves: they take it over, run it and hand it over, as the test says. They stop or
//! kill themselves at steps that the test chooses.

use super::station::{FLOOD, Station};
use super::{get, hosts};
use ironwarp::config::ClusterKey;
use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
use ironwarp::memory::Tag;
use ironwarp::prelude::*;
use ironwarp::queue::PostError;
use ironwarp_testkit::control::{is_readable, put};
use ironwarp_testkit::hosts::INTERFACE;
use ironwarp_testkit::native::SOON;
use rustix::fd::OwnedFd;
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::fmt::Debug;
use std::io::stdin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The steps at which this process stops or kills itself.
static ACTS: Mutex<Vec<(String, Signal)>> = Mutex::new(Vec::new());

/// Stops or kills the process if the test has chosen this step.
fn reach(step: &dyn Debug) {
    let name = format!("{step:?}");
    let mut acts = ACTS.lock().unwrap();
    let Some(at) = acts.iter().position(|(its, _)| *its == name) else { return };
    let (_, signal) = acts.remove(at);
    drop(acts);
    say("at");
    kill_process(getpid(), signal).unwrap();
    // Another thread may take the signal, so this one might go on for a while.
    assert_eq!(hear().0, ["go"]);
}

fn say(text: &str) {
    put(stdin(), text.as_bytes(), &[]); // fails if the test has ended, which kills this process
}

/// Waits for the words of the test.
fn hear() -> (Vec<String>, Option<OwnedFd>) {
    while !is_readable(stdin(), Duration::from_secs(600)) {}
    let (text, descriptors) = get(stdin());
    let words = str::from_utf8(&text).unwrap().split(' ').map(str::to_owned).collect();
    (words, descriptors.into_iter().next())
}

fn millis(word: &str) -> Duration {
    Duration::from_millis(word.parse().unwrap())
}

/// Sets the steps from words like `Offered=kill`.
fn choose(words: &[String]) {
    let act = |word: &String| {
        let (step, act) = word.split_once('=').unwrap();
        (step.to_owned(), if act == "kill" { Signal::KILL } else { Signal::STOP })
    };
    *ACTS.lock().unwrap() = words.iter().map(act).collect();
}

/// Threads that post requests, also while the adapter moves.
type Flood = (Arc<AtomicBool>, JoinHandle<u64>);

fn flood(station: &Station, first: u64) -> Flood {
    let stop = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&stop);
    (stop, station.flood_from(first, move || its.load(Ordering::Relaxed)))
}

fn end((stop, thread): Flood) -> u64 {
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap()
}

/// Completes what is outstanding, and tells the test how much there was.
fn finish(mut station: Station, its_flood: Option<Flood>) {
    // A source that was killed has not said how many requests it had posted.
    let posted = its_flood.map(end);
    let all =
        |station: &Station| posted.is_none_or(|posted| station.flooded.load(Ordering::Relaxed) == posted);
    station.run(all).unwrap();
    say("finished");
    // The other end may need confirmations until it has finished as well.
    station.run(|_| is_readable(stdin(), Duration::ZERO)).unwrap();
    assert_eq!(hear().0, ["count"]);
    let flooded = station.flooded.load(Ordering::Relaxed);
    let or_more = if posted.is_none() { "+" } else { "" };
    say(&format!("counts {flooded}{or_more} {:?}", station.counts()));
    hear(); // the connections stay until the end of the test
}

/// Hands the adapter over to another process, or to another host. Returns whether that was done.
fn give(words: &[String], socket: OwnedFd, (station, its_flood): &mut (Station, Option<Flood>)) -> bool {
    let to_host = words[0] == "give-host";
    choose(&words[if to_host { 4 } else { 3 }..]);
    let options = HandOverOptions::new().timeout(millis(&words[1])).pause(millis(&words[2]));
    let options = options.data(&station.state()).at(reach);
    let handed_over = if to_host {
        let command = hosts::arriving(hosts::HOST, &words[3], &socket);
        station.adapter.hand_over_to_host(command, &options).map(drop)
    } else {
        station.adapter.hand_over(socket, &options)
    };
    match &handed_over {
        Ok(()) => {
            let late = station.qps[FLOOD].post_send(WorkRequest::send_inline(0, b"late"));
            assert_eq!(late, Err(PostError::Frozen));
            say(&format!("ok {}", its_flood.take().map_or(0, end)));
        }
        Err(error) => {
            // It may have ended while the adapter was frozen.
            if let Some(ended) = its_flood.take() {
                *its_flood = Some(flood(station, end(ended)));
            }
            say(&format!("err {:?}: {error}", error.owner));
        }
    }
    handed_over.is_ok()
}

/// The settings of all adapters that move.
pub(crate) fn config() -> Config {
    Config::default().key(ClusterKey::new(&[0x5a; 32]).unwrap())
}

/// Does what the test says, to the end.
pub(crate) fn play() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    play_with(None);
}

/// Takes an adapter over from another host, which has started this process, and does what the test says.
pub(crate) fn arrive() {
    say(&format!("here {}", std::process::id()));
    let words = hear().0;
    if words[0] != "take" {
        return; // the test has ended
    }
    choose(&words[2..]);
    let options = TakeOverOptions::new().config(config()).timeout(millis(&words[1])).at(reach);
    let (input, output) = hosts::pipes();
    match Adapter::take_over_from_host(input, output, INTERFACE, options) {
        Ok(taken) => {
            say("ok taken");
            play_with(Some((Station::of(taken), None)));
        }
        Err(error) => {
            say(&format!("err {:?}: {error}", error.owner));
            hear();
        }
    }
}

/// Does what the test says, to the end.
fn play_with(mut state: Option<(Station, Option<Flood>)>) {
    loop {
        if let Some((station, _)) = &mut state {
            let is_told = |station: &Station| is_readable(stdin(), Duration::ZERO) || station.is_finished();
            if let Err(ended) = station.run(is_told) {
                say(&format!("ended {}", ended.0));
                state = None;
                continue;
            }
            if station.is_finished() {
                let (station, its_flood) = state.take().unwrap();
                return finish(station, its_flood);
            }
        }
        let (words, socket) = hear();
        match words[0].as_str() {
            "first" => {
                let at = words[1].parse().unwrap();
                let options = match words.get(2) {
                    Some(from) => ConnectOptions::new().from_addr(from.parse().unwrap()),
                    None => ConnectOptions::new(),
                };
                let mut station = Station::new(1, Adapter::open(config()).unwrap(), |qp| {
                    qp.start_connect(at, &options).unwrap();
                    qp.wait_connected(SOON).unwrap();
                });
                say(&format!("up {}", station.region.tag().0));
                station.theirs = Tag(hear().0[1].parse().unwrap());
                let its_flood = flood(&station, 0);
                state = Some((station, Some(its_flood)));
            }
            "take" => {
                choose(&words[2..]);
                let options = TakeOverOptions::new().timeout(millis(&words[1])).at(reach);
                match Adapter::take_over(socket.unwrap(), options) {
                    Ok(taken) => {
                        say(if taken.adopted { "ok adopted" } else { "ok taken" });
                        state = Some((Station::of(taken), None));
                    }
                    Err(error) => say(&format!("err {:?}: {error}", error.owner)),
                }
            }
            "give" | "give-host" => {
                if give(&words, socket.unwrap(), state.as_mut().unwrap()) {
                    state = None;
                }
            }
            "flood" => {
                if let Some((station, its_flood)) = &mut state {
                    *its_flood = Some(flood(station, words[1].parse().unwrap()));
                }
            }
            "finish" => {
                if let Some((station, _)) = &mut state {
                    station.is_finishing = true;
                }
            }
            "go" => {}
            _ => return, // the test has ended
        }
    }
}
