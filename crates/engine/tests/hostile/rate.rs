//! The rate of a neighbour while its adapter is attacked. It shares CPUs with the attackers, which run in the
//! same process, so it is slower; but it must always make progress.

use crate::common::peer::{Peer, StartupSettings};
use crate::common::victim::{AREA, Victim};
use crate::common::{TIMEOUT, read, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_testkit::mapping::Mapping;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Attack<'a> = &'a (dyn Fn(&Victim) + Sync);

const TIME: Duration = Duration::from_millis(1500);

/// Rounds per second of the neighbour, while `attack` runs in a loop.
fn rate(victim: &Victim, attack: Attack<'_>) -> f64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                attack(victim);
            }
        });
        let (before, begin) = (victim.rounds(), Instant::now());
        std::thread::sleep(TIME); // the duration of the measurement, not a synchronisation
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let rounds = (victim.rounds() - before) as f64;
        over.store(true, Ordering::Relaxed);
        rounds / begin.elapsed().as_secs_f64()
    })
}

/// Runs each attack for [`TIME`], against a neighbour that goes as fast as it can.
#[test]
fn the_neighbour_makes_progress_under_attack() {
    let victim = Victim::with_pauses(Config::default().close(Duration::from_millis(200)), Duration::ZERO);
    let alone = rate(&victim, &|_| std::thread::sleep(Duration::from_millis(10)));
    let attacks: [(&str, Attack<'_>); 5] = [
        ("wrong tags", &wrong_tags),
        ("garbage", &garbage),
        ("resets", &resets),
        ("peers that never read", &never_reads),
        ("a flood of large Writes", &flood),
    ];
    println!("{:<24} {alone:>8.0} rounds/s", "no attack");
    for (name, attack) in attacks {
        let attacked = rate(&victim, attack);
        println!("{name:<24} {attacked:>8.0} rounds/s, {:.2} of it", attacked / alone);
        assert!(attacked > 0.0, "{name}: the neighbour made no progress");
    }
    let fared = victim.assert_survives();
    println!("the longest of {} rounds took {:?}", fared.rounds, fared.longest);
}

fn wrong_tags(victim: &Victim) {
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&write(victim.foreign.tag, victim.foreign.addr), &[0xee; 64]);
    attacked.peer.receive_terminate();
    attacked.closed();
}

fn garbage(victim: &Victim) {
    let mut peer = Peer::dial(victim.addr());
    peer.send_bytes(&[0xee; 4096]);
    let mut attacked = victim.connect_peer();
    attacked.peer.send_bytes(&[0xee; 4096]);
    attacked.peer.finish();
    assert!(attacked.pair.wait_closed(TIMEOUT));
}

fn resets(victim: &Victim) {
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&read(1, victim.open.tag, victim.open.addr, u32::try_from(AREA).unwrap()), &[]);
    attacked.peer.reset();
    assert!(attacked.pair.wait_closed(TIMEOUT));
}

fn never_reads(victim: &Victim) {
    let mut attacked = victim.connect_peer();
    for msn in 1..=32 {
        attacked.peer.send(&read(msn, victim.open.tag, victim.open.addr, u32::try_from(AREA).unwrap()), &[]);
    }
    attacked.peer.send(&send(99), &[]);
    assert!(attacked.pair.wait_closed(TIMEOUT));
}

fn flood(victim: &Victim) {
    let memory = Mapping::new(16);
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
    let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
    let tag = victim.engine.device().register(victim.domain, region).unwrap();
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 0);
    attacked.peer.open();
    let fpdu = attacked.peer.frame(&write(tag, memory.addr(0)), &[0xee; 60_000]);
    for _ in 0..200 {
        attacked.peer.send_bytes(&fpdu);
    }
    attacked.closed();
    victim.engine.device().table().deregister(tag).unwrap();
}
