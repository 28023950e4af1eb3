//! Dissection of valid and invalid connections.

use super::*;
use crate::{Capture, CaptureWriter, Encoder, sample};
use ironwarp_wire::Send;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);

/// Returns the capture of a connection with these segments.
fn capture(segments: &[(bool, &[u8])]) -> Capture {
    let (client, server) = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:2000".parse().unwrap());
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    let mut connection = writer.open(TIME, client, server).unwrap();
    for (from_client, bytes) in segments {
        writer.send(TIME, &mut connection, *from_client, bytes).unwrap();
    }
    writer.close(TIME, connection).unwrap();
    Capture::parse(&writer.into_inner()).unwrap()
}

/// Returns the names of the frames and the problems of an iWARP connection with these segments.
fn found(segments: &[(bool, &[u8])]) -> (Vec<&'static str>, Vec<(bool, usize, ProblemKind)>) {
    let capture = capture(segments);
    let [conversation] = &capture.conversations[..] else { panic!("{capture:?}") };
    let problems = conversation.problems.iter().map(|it| (it.from_initiator, it.offset, it.kind));
    (conversation.frames.iter().map(Frame::name).collect(), problems.collect())
}

const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
const REPLY: &[u8] = b"MPA ID Rep Frame\x00\x01\0\0";
const REJECT: &[u8] = b"MPA ID Rep Frame\x20\x01\0\0";
const SEND: &[u8] = b"\x00\x12\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\x00\xa4\xca\xb4";

#[test]
fn the_two_directions_are_merged_in_the_order_of_the_packets() {
    let segments = [(true, REQUEST), (false, REPLY), (true, SEND), (false, SEND), (true, SEND)];
    let capture = capture(&segments);
    let frames: Vec<_> =
        capture.frames().map(|(_, it)| (it.from_initiator, it.at.packet, it.range.clone())).collect();
    let expected =
        [(true, 4, 0..20), (false, 5, 0..20), (true, 6, 20..44), (false, 7, 20..44), (true, 8, 44..68)];
    assert_eq!(frames, expected);
    assert_eq!((capture.others, &capture.conversations[0].problems[..]), (0, &[][..]));
}

#[test]
fn the_initiator_is_the_sender_of_the_request() {
    let capture = capture(&[(false, REQUEST), (true, REPLY)]);
    assert_eq!(capture.conversations[0].initiator, "10.0.0.2:2000".parse().unwrap());
}

/// RFC 5044 §7.1: markers are requested by the receiver.
#[test]
fn markers_are_used_if_the_receiver_requests_them() {
    for asks in [true, false] {
        let (mut request, mut reply) = (REQUEST.to_vec(), REPLY.to_vec());
        let asking = if asks { &mut request } else { &mut reply };
        asking[16] |= 0x80;
        let send = |markers| {
            let mut encoder = Encoder::new(Framing { crc: true, markers });
            let header =
                Header::Send(Send { msn: 1, last: true, offset: 0, solicited: false, word: SendWord::NONE });
            encoder.fpdu(&header, &[7; 600]).unwrap()
        };
        let (marked, plain) = (send(true), send(false));
        assert_eq!(marked.len(), plain.len() + 8);
        let segments = [(true, &request[..]), (false, &reply), (!asks, &marked), (asks, &plain)];
        assert_eq!(
            found(&segments),
            (vec!["MPA Request", "MPA Reply", "Send", "Send"], vec![]),
            "asks: {asks}"
        );
    }
}

#[test]
fn other_protocols_are_skipped() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"", b"MPA ID Req"] {
        let capture = capture(&[(true, bytes), (false, bytes)]);
        assert_eq!((capture.conversations.len(), capture.others), (0, 1));
    }
}

#[test]
fn a_violation_ends_its_direction_and_leaves_the_other() {
    let mut wrong = SEND.to_vec();
    wrong[15] = 4;
    let segments =
        [(true, REQUEST), (false, REPLY), (true, SEND), (true, &wrong), (true, SEND), (false, SEND)];
    let (names, problems) = found(&segments);
    assert_eq!(names, ["MPA Request", "MPA Reply", "Send", "Send"]);
    let [(true, 44, ProblemKind::Violation { violation: Violation::Crc { received, .. } })] = problems[..]
    else {
        panic!("{problems:?}")
    };
    assert_eq!(received, 0xb4ca_a400);
}

#[test]
fn a_broken_startup_is_a_violation() {
    let mut wrong = REQUEST.to_vec();
    wrong[17] = 9;
    let violation = ProblemKind::Violation { violation: Violation::Revision(9) };
    assert_eq!(found(&[(true, &wrong), (false, REPLY)]), (vec!["MPA Reply"], vec![(true, 0, violation)]));
    let violation = ProblemKind::Violation { violation: Violation::Key { expected: "Reply" } };
    let (names, problems) = found(&[(true, REQUEST), (false, REQUEST)]);
    assert_eq!((names, problems), (vec!["MPA Request"], vec![(false, 0, violation)]));
}

#[test]
fn a_truncated_direction_is_reported() {
    let open = [(true, REQUEST), (false, REPLY), (true, SEND)];
    for got in 1..SEND.len() {
        let (names, problems) = found(&[&open[..], &[(true, &SEND[..got])]].concat());
        assert_eq!(names.len(), 3);
        assert_eq!(problems, [(true, 44, ProblemKind::Truncated { got })]);
    }
    let (names, problems) = found(&[(true, REQUEST)]);
    assert_eq!((names, problems), (vec!["MPA Request"], vec![(false, 0, ProblemKind::NoReply)]));
    let (_, problems) = found(&[(true, REQUEST), (false, &REPLY[..5])]);
    assert_eq!(problems, [(false, 0, ProblemKind::Truncated { got: 5 })]);
    let (names, problems) = found(&[(true, REQUEST), (false, REJECT), (true, SEND)]);
    assert_eq!(names, ["MPA Request", "MPA Reject"]);
    assert_eq!(problems, [(true, 20, ProblemKind::AfterRejection { bytes: 24 })]);
}

#[test]
fn a_gap_in_the_capture_is_reported() {
    let mut file = CaptureWriter::new(Vec::new()).unwrap();
    let (client, server) = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:2000".parse().unwrap());
    let mut connection = file.open(TIME, client, server).unwrap();
    for (from_client, bytes) in [(true, REQUEST), (false, REPLY), (true, SEND), (true, SEND), (true, SEND)] {
        file.send(TIME, &mut connection, from_client, bytes).unwrap();
    }
    let file = file.into_inner();
    let packets: Vec<_> =
        crate::read(&file).unwrap().packets.into_iter().filter(|it| it.number != 7).collect();
    let connections = crate::connections(&packets).unwrap();
    let conversation = dissect(&connections[0]).unwrap();
    let [problem] = conversation.problems[..] else { panic!("{conversation:?}") };
    assert_eq!((problem.at.packet, problem.offset, problem.kind), (8, 44, ProblemKind::Gap { missing: 24 }));
    assert_eq!(conversation.frames.len(), 3);
}

#[test]
fn the_sample_is_read_back_as_it_was_written() {
    let capture = Capture::parse(&sample::write(Vec::new()).unwrap()).unwrap();
    let samples = sample::samples();
    assert_eq!(capture.conversations.len(), samples.len());
    for (found, sample) in capture.conversations.iter().zip(&samples) {
        assert_eq!(found.problems, [], "{}", sample.name);
        let mut expected = vec![Kind::Startup(sample.request.clone()), Kind::Startup(sample.reply.clone())];
        let fpdus = sample.turns.iter().flat_map(|turn| &turn.fpdus);
        expected.extend(fpdus.map(|(header, payload)| Kind::Fpdu {
            fpdu: Fpdu {
                header: *header,
                header_len: u16::try_from(header.encoded_len() + 2).unwrap(),
                payload_len: u16::try_from(payload.len()).unwrap(),
            },
            payload: payload.clone(),
        }));
        let found: Vec<_> = found.frames.iter().map(|frame| frame.kind.clone()).collect();
        assert!(found == expected, "{}", sample.name);
    }
}

/// Checks the offsets of untagged messages with several segments, which no other decoder reassembles.
#[test]
fn the_segments_of_the_sample_follow_each_other() {
    let fpdus = sample::samples().into_iter().flat_map(|sample| sample.turns).flat_map(|turn| turn.fpdus);
    let (mut due, mut later) = (0, 0);
    for (header, payload) in fpdus {
        let (offset, last, immediate) = match header {
            Header::Send(it) => (it.offset, it.last, 0),
            Header::SendImmediate(it) => {
                (it.send.offset, it.send.last, it.immediate.map_or(0, |data| data.0.len()))
            }
            Header::ReadV2Response(it) => (it.offset, it.last, 0),
            _ => continue,
        };
        assert_eq!(offset as usize, due, "{header}");
        due = if last { 0 } else { due + immediate + payload.len() };
        later += usize::from(offset > 0);
    }
    assert_eq!(later, 2 * 12 * (6 + 4 + 1)); // two per message
}

#[test]
fn the_sample_contains_every_message() {
    let capture = Capture::parse(&sample::write(Vec::new()).unwrap()).unwrap();
    let names: std::collections::BTreeSet<_> = capture.frames().map(|(_, frame)| frame.name()).collect();
    let expected = [
        "Atomic Request",
        "Atomic Response",
        "Immediate",
        "MPA Reject",
        "MPA Reply",
        "MPA Request",
        "Read Request",
        "Read Response",
        "Read V2 Request",
        "Read V2 Response",
        "Send",
        "Send Immediate",
        "Send Invalidate",
        "Send SE",
        "Send SE Invalidate",
        "Signal",
        "Terminate",
        "Write",
    ];
    assert_eq!(names, expected.into());
}
