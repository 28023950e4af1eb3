//! Compares segmentation in software with that of the kernel: a super-packet that comes in from one TAP device leaves through
//! another one without offloads, over a bridge.

use crate::arrived::Arrived;
use crate::ring::{Ring, Space};
use crate::tap::Tap;
use ironwarp_io_unit::frame::{MAX_FRAME, VNET_HEADER, segments};
use ironwarp_io_unit::message::Mac;
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::super_packet::SuperPacket;
use ironwarp_testkit::wait::until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::process::Command;

const MTU: u32 = 1500;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Reads the frames that the kernel sends through a device.
fn read(tap: &Tap, space: &Space, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while frames.len() < count {
        match tap.read(space).unwrap() {
            Some(len) => {
                let mut buffer = vec![0; len];
                space.memory.read(space.at, &mut buffer).unwrap();
                assert_eq!(buffer[..10], [0; 10], "neither segments nor a checksum are left to do");
                frames.push(buffer.split_off(VNET_HEADER));
            }
            None => {
                let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
                let ready = poll(&mut [PollFd::new(tap, PollFlags::IN)], Some(&limit)).unwrap();
                assert_eq!(ready, 1, "{} of {count} frames within 10 s", frames.len());
            }
        }
    }
    frames
}

#[test]
fn software_segments_as_the_kernel_does() {
    if !in_network("kernel_segments::software_segments_as_the_kernel_does") {
        return;
    }
    let from = Tap::open("from", Some(Mac([2, 0, 0, 0, 1, 1])), MTU).unwrap();
    let to = Tap::open("to", Some(Mac([2, 0, 0, 0, 1, 2])), MTU).unwrap();
    // The only frames are those of this test.
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip("link add bridge type bridge mcast_snooping 0");
    for (name, tap) in [("from", &from), ("to", &to)] {
        ip(&format!("link set {name} master bridge up"));
        tap.set_carrier(true).unwrap();
    }
    ip("link set bridge up");
    for name in ["from", "to"] {
        // The kernel notices a carrier some time after it was set.
        until(|| {
            let shown = Command::new("ip").args(["-d", "link", "show", "dev", name]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("bridge_slave state forwarding")
        });
    }
    let domain = ironwarp::Adapter::new().unwrap().protection_domain();
    let space = Ring::new(&domain).unwrap().space(MAX_FRAME).unwrap();
    let payload: Vec<u8> = (0..60_000u32).map(|number| number.to_be_bytes()[number as usize % 4]).collect();
    let mut compared = 0;
    for (udp, ipv6) in [(false, false), (false, true), (true, false), (true, true)] {
        for (tags, extras, tcp_options) in [(0, 0, 3), (1, 2, 0), (2, 0, 10)] {
            for (size, len) in [(1400, 60_000), (1200, 2400), (999, 1000), (0, 1000), (0, 999)] {
                let packet = SuperPacket {
                    tags,
                    ipv6,
                    extras,
                    udp,
                    tcp_options,
                    tcp_flags: 0xd9, // CWR, ECE, ACK, PSH, FIN
                    sequence: u32::MAX - 5000,
                    id: u16::MAX - 3,
                    size,
                    payload: payload[..len].to_vec(),
                };
                let bytes = packet.bytes();
                let mut ours = Vec::new();
                segments(&bytes, MTU, |frame| ours.push(frame.to_vec())).unwrap();
                assert!(from.write(&Arrived::inline(bytes)), "the kernel refuses {packet:?}");
                let theirs = read(&to, &space, ours.len());
                for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let differs = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
                    assert_eq!(
                        (differs, ours.len()),
                        (None, theirs.len()),
                        "frame {index}, udp {udp}, ipv6 {ipv6}, {tags} tags, {extras} extras, segments of {size}"
                    );
                }
                compared += ours.len();
            }
        }
    }
    assert_eq!(to.read(&space).unwrap(), None, "no frame is left");
    assert_eq!(compared, 12 * (43 + 2 + 2 + 1 + 1));
}
