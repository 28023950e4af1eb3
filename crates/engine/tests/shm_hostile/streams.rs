//! Data and credit, the switch between routes, and TCP beside shared memory.

use super::common::attack::{Attack, Link};
use super::common::ring::{DATA, record};
use super::common::victim::{RECEIVES, Victim};
use super::common::{send, wait_until};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::queue::Status;
use ironwarp_shm::RING_LEN;
use ironwarp_wire::private::Signal;
use std::sync::atomic::{AtomicBool, Ordering};

/// The credit of a new channel.
const WINDOW: usize = 256 << 10;

/// Sends `len` bytes of data as fast as the victim reads them.
fn send_garbage(attack: &mut Attack, len: usize) {
    let (channel, piece) = (attack.victims_channel, vec![0; 8 << 10]);
    for _ in 0..len / piece.len() {
        wait_until("room in the ring", || {
            attack.link.ring.has_room(piece.len()) || attack.pair.qp().error().is_some()
        });
        if attack.pair.qp().error().is_some() {
            return;
        }
        attack.link.send(channel, DATA, &piece);
    }
}

#[test]
fn data_before_the_switch_waits_for_it() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = connect(&victim);
        let fpdu = attack.fpdu(&send(1), b"early");
        attack.send_data(&fpdu[..7]);
        attack.send_data(&fpdu[7..]);
        attack.link.wait_read();
        attack.switch();
        let completion = attack.completions(1).remove(0);
        assert_eq!((completion.status, completion.byte_len), (Status::Success, 5));
        attack.assert_works(2);
    }
    victim.assert_survives(());
}

#[test]
fn data_beyond_the_credit_before_the_switch_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = connect(&victim);
        send_garbage(&mut attack, 8 * WINDOW);
        attack.assert_broken();
    }
    victim.assert_survives(());
}

/// The victim posts no more receives, so it cannot consume the messages.
#[test]
fn data_beyond_the_credit_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let receives = u32::try_from(RECEIVES).unwrap();
        (1..=receives).for_each(|msn| attack.assert_works(msn));
        let channel = attack.victims_channel;
        for msn in receives + 1..10_000 {
            let fpdu = attack.fpdu(&send(msn), &[7; 1000]);
            wait_until("room in the ring", || {
                attack.link.ring.has_room(fpdu.len()) || attack.pair.qp().error().is_some()
            });
            if attack.pair.qp().error().is_some() {
                break;
            }
            attack.link.send(channel, DATA, &fpdu);
        }
        attack.assert_broken();
    }
    victim.assert_survives(());
}

#[test]
fn empty_records_are_skipped() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let channel = attack.victims_channel;
        for _ in 0..20 {
            (0..10_000).for_each(|_| attack.link.ring.put(channel, DATA, &[]));
            attack.link.publish();
            attack.link.wait_read();
        }
        attack.assert_works(1);
    }
    victim.assert_survives(());
}

#[test]
fn a_switch_without_a_channel_ends_the_connection() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    attacked.peer.send_switch(Route::SharedMemory);
    assert_eq!(*attacked.error(), QpError::Protocol(Protocol::UnexpectedSwitch(Route::SharedMemory)));
    let mut dialled = victim.dial_peer();
    dialled.peer.send_switch(Route::Tcp);
    assert_eq!(*dialled.error(), QpError::Protocol(Protocol::UnexpectedSwitch(Route::Tcp)));
    victim.assert_survives((attacked, dialled));
}

#[test]
fn a_second_switch_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let switch = attack.fpdu(&Signal::Switch(Route::SharedMemory).to_header(), &[]);
        attack.send_data(&switch);
        assert_eq!(*attack.error(), QpError::Protocol(Protocol::UnexpectedSwitch(Route::SharedMemory)));
    }
    victim.assert_survives(());
}

/// Each switch puts back what was received after it. Many in one buffer must not cost more and more.
#[test]
fn a_flood_of_switches_costs_little() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = connect(&victim);
        let back = attack.fpdu(&Signal::Switch(Route::Tcp).to_header(), &[]);
        for piece in back.repeat(5000).chunks(8000) {
            attack.send_data(piece);
        }
        let switch = Signal::Switch(Route::SharedMemory).to_header();
        let there: Vec<u8> = (0..5000).flat_map(|_| attack.peer.frame(&switch, &[])).collect();
        attack.peer.send_bytes(&there);
        attack.peer.send(&send(1), b"after all");
        let completion = attack.completions(1).remove(0);
        assert_eq!((completion.status, completion.byte_len), (Status::Success, 9));
    }
    victim.assert_survives(());
}

#[test]
fn a_peer_can_switch_back_and_forth() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = connect(&victim);
        for msn in [1, 3] {
            attack.switch();
            attack.assert_works(msn);
            let back = attack.fpdu(&Signal::Switch(Route::Tcp).to_header(), &[]);
            attack.send_data(&back);
            attack.assert_works_over_tcp(msn + 1);
        }
    }
    victim.assert_survives(());
}

#[test]
fn bytes_on_tcp_after_the_switch_wait_in_the_socket() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.peer.send_bytes(&[0xff; 1000]);
        attack.assert_works(1);
        // The end of TCP is behind them, and is found nevertheless.
        attack.peer.finish();
        attack.error();
    }
    victim.assert_survives(());
}

#[test]
fn the_end_of_tcp_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        attack.peer.finish();
        assert_eq!(*attack.error(), QpError::Closed);
        let channel = attack.victims_channel;
        attack.link.send(channel, DATA, &[1; 100]);
    }
    victim.assert_survives(());
}

#[test]
fn half_an_fpdu_and_the_end_of_tcp_cut_the_connection_short() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let fpdu = attack.fpdu(&send(1), &[1; 100]);
        attack.send_data(&fpdu[..50]);
        attack.peer.finish();
        assert_eq!(*attack.error(), QpError::CutShort);
    }
    victim.assert_survives(());
}

#[test]
fn a_reset_of_tcp_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let Attack { attacked, mut link, victims_channel, .. } = Attack::switched(connect, &victim);
        let (peer, pair) = (attacked.peer, attacked.end.pair);
        peer.reset();
        wait_until("the connection to fail", || pair.qp().error().is_some());
        assert_eq!(**pair.qp().error().unwrap(), QpError::Lost(libc::ECONNRESET));
        link.send(victims_channel, DATA, &[1; 100]);
    }
    victim.assert_survives(());
}

/// The records for another channel take as long to serve as to write. The victim must not serve them for ever when it
/// looks for the rest of the stream.
#[test]
fn a_flood_of_records_at_the_end_of_tcp_delays_nobody() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let (stop, Attack { attacked, mut link, .. }) = (AtomicBool::new(false), attack);
        std::thread::scope(|scope| {
            scope.spawn(|| flood(&mut link, &stop));
            attacked.peer.finish();
            victim.go_on();
            attacked.error();
            stop.store(true, Ordering::Relaxed);
        });
        drop((attacked, link));
    }
    victim.assert_survives(());
}

/// Keeps the ring full of records for a channel that does not exist.
fn flood(link: &mut Link, stop: &AtomicBool) {
    let records = record(1, DATA, 0, &[]).repeat(RING_LEN / 8);
    link.ring.write(link.ring.out, link.ring.head, &records); // the ring is full of empty records, wherever it begins
    link.ring.write(link.ring.out, 0, &records);
    while !stop.load(Ordering::Relaxed) {
        let tail = link.ring.victims_tail();
        link.ring.set_head(tail + RING_LEN as u64);
        link.ring_bell();
    }
}

#[test]
fn headers_that_change_after_publication_harm_only_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        for round in 0..20 {
            let mut attack = Attack::switched(connect, &victim);
            let (channel, at) = (attack.victims_channel, attack.link.ring.head);
            let fpdu = attack.fpdu(&send(1), &[1; 100]);
            attack.send_data(&fpdu);
            let out = attack.link.ring.out;
            for i in 0..200_u32 {
                let len = [0x0fff_ffff, 8, 0, 32 << 10][(i % 4) as usize];
                attack.link.ring.write(out, at, &record(channel ^ (i & 1), (i % 3) as u8, len, &[])[..8]);
                attack.link.ring.set_head(at + 8 * u64::from(i % 16 + round));
            }
        }
    }
    victim.assert_survives(());
}

#[test]
fn payload_that_changes_while_it_is_copied_harms_only_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let fpdu = attack.fpdu(&send(1), &[1; 200]);
        let stop = AtomicBool::new(false);
        let (file, out) = (attack.link.ring.file.try_clone().unwrap(), attack.link.ring.out);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let data = 2 * 4096 + out * RING_LEN as u64;
                for i in (0_u8..=255).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Not the headers of records, but everything in the FPDUs.
                    for record in 0..64 {
                        let at = data + record * (fpdu.len() as u64 + 8).next_multiple_of(8) + 8;
                        let _ = std::os::unix::fs::FileExt::write_at(&file, &[i; 96], at);
                    }
                }
            });
            for _ in 0..500 {
                if attack.pair.qp().error().is_some() || !attack.link.ring.has_room(fpdu.len()) {
                    break;
                }
                attack.link.send(attack.victims_channel, DATA, &fpdu);
            }
            victim.go_on();
            stop.store(true, Ordering::Relaxed);
        });
    }
    victim.assert_survives(());
}

/// A peer that never releases room blocks what the victim sends to it, and nothing else. When the connection ends, the
/// memory is given back.
#[test]
fn a_reader_that_stalls_blocks_only_its_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.grant(u64::MAX);
        (0..32).for_each(|i| attack.post_send(i, 64 << 10));
        attack.link.fill_victims_ring();
        victim.go_on();
        // More requests while it is blocked, and the other direction.
        (32..60).for_each(|i| attack.post_send(i, 64 << 10));
        attack.assert_works(1);
        attack.pair.disconnect();
        attack.peer.finish();
        victim.go_on();
    }
    victim.assert_survives(());
}

#[test]
fn a_reader_that_stalls_and_resumes_gets_everything() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.grant(u64::MAX);
        (0..16).for_each(|i| attack.post_send(i, 64 << 10));
        attack.link.fill_victims_ring();
        victim.go_on();
        let mut bytes = 0;
        while bytes < 16 * (64 << 10) {
            let record = attack.link.ring.next();
            attack.link.ring_bell();
            assert_eq!(record.kind, DATA);
            bytes += record.payload.len();
        }
        assert!(attack.completions(16).iter().all(|completion| completion.status == Status::Success));
    }
    victim.assert_survives(());
}
