//! What travels between a unit and its hosts.

use crate::agent::{is_agent, ping_from, stream_of};
use crate::network::{Network, Setup};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::tshark::{ERRORS, tshark};
use std::path::Path;

// Opcodes of RFC 5040, section 4.1, and of RFC 7306, section 6.
const WRITE: u8 = 0;
const SEND: u8 = 3;
const IMMEDIATE: u8 = 8;

#[test]
fn both_directions_push_and_nobody_reads() {
    let test = "capture::both_directions_push_and_nobody_reads";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start_with(2, Setup { captures: true, ..Setup::default() });
    let file = network.directory.path("host.pcap");
    let captures = [("IRONWARP_PCAP", file.to_str().unwrap())];
    let _hosts = [network.attach_with(1, &[], &captures), network.attach(2, &[])];
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    let ([left_v4, _], [right_v4, _]) = (left.addresses(), right.addresses());
    ping_from(&mut at_left, &right_v4);
    stream_of(4 << 20, &mut at_left, &mut at_right, &right_v4);
    stream_of(4 << 20, &mut at_right, &mut at_left, &left_v4);
    at_left.finish();
    at_right.finish();
    let unit: u16 = network.address.rsplit(':').next().unwrap().parse().unwrap();
    for file in [file, network.directory.path("unit.pcap")] {
        let messages = messages(&file);
        let count = |from_unit: bool, opcode| {
            messages
                .iter()
                .filter(|found| (found.from == unit) == from_unit && found.opcode == opcode)
                .count()
        };
        for from_unit in [false, true] {
            for opcode in [WRITE, SEND, IMMEDIATE] {
                assert!(count(from_unit, opcode) > 0, "from the unit: {from_unit}, opcode {opcode}");
            }
        }
        let others = messages.iter().find(|found| ![WRITE, SEND, IMMEDIATE].contains(&found.opcode));
        assert_eq!(others, None, "neither a Read nor a response to one");
        assert_eq!(tshark(&file, &["-Y", ERRORS]), "");
    }
}

/// A segment of a message in a capture.
#[derive(Debug, PartialEq)]
struct Message {
    /// TCP port of its origin.
    from: u16,
    opcode: u8,
}

fn messages(file: &Path) -> Vec<Message> {
    let arguments = ["-Y", "iwarp_rdma", "-T", "fields", "-e", "tcp.srcport", "-e", "iwarp_rdma.opcode"];
    let parse = |line: &str| {
        let (from, opcode) = line.split_once('\t').unwrap_or_else(|| panic!("{line}"));
        let opcode = u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap();
        Message { from: from.parse().unwrap(), opcode }
    };
    tshark(file, &arguments).lines().map(parse).collect()
}
