//! What was on the wire: the packets that QEMU recorded at the guest's network card. Before this: `session.rs`, which made
//! them.

use crate::relay::SEGMENT;
use crate::session::{HALF, HELLO, HELLO_OF_SIW};
use ironwarp::Completes;
use ironwarp_pcap::{Connection, Conversation, Frame, Kind, connections, dissect, read};
use ironwarp_wire::{Fpdu, Header};
use std::path::Path;

/// What is known of a session before its packets are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// Ironwarp connects to siw, not siw to Ironwarp.
    pub(crate) connects: bool,
    pub(crate) completes: Completes,
}

/// Checks a file that holds the packets of these sessions.
pub(crate) fn check(file: &Path, sessions: &[Session]) {
    let bytes = std::fs::read(file).unwrap();
    let recording = read(&bytes).unwrap();
    assert!(!recording.cut_off, "QEMU did not write all of {}", file.display());
    let connections = connections(&recording.packets).unwrap();
    assert_eq!(connections.len(), sessions.len());
    for (connection, session) in connections.iter().zip(sessions) {
        println!("in the capture: {session:?}");
        let conversation = dissect(connection).expect("it begins with an MPA Request");
        every_byte_decodes(connection, &conversation);
        startup(&conversation, session.connects);
        fpdus(&conversation, session.connects);
        reads(&conversation, *session);
    }
}

/// The frames of each direction follow one another from its first byte to its last.
fn every_byte_decodes(connection: &Connection, conversation: &Conversation) {
    assert_eq!(conversation.problems, []);
    for (end, stream) in connection.ends.iter().zip(&connection.streams) {
        assert_eq!(stream.hole, None);
        let mut decoded = 0;
        for frame in sent_by(conversation, *end == conversation.initiator) {
            assert_eq!(frame.range.start, decoded);
            decoded = frame.range.end;
        }
        assert_eq!(decoded, stream.bytes.len());
    }
}

/// The startup frames, byte for byte: flags (C and S), revision, length, IRD (and A), ORD (and C, D), private data.
fn startup(conversation: &Conversation, connects: bool) {
    let (request, reply) = if connects {
        (request(), reply_of_siw())
    } else {
        let request = frame(b"Req", [0x10, 2, 0, 18, 0, 4, 0, 4], HELLO_OF_SIW);
        (request, frame(b"Rep", [0x50, 2, 0, 23, 0, 4, 0, 4], HELLO))
    };
    for (expected, initiator) in [(request, true), (reply, false)] {
        let first = sent_by(conversation, initiator).next().unwrap();
        assert_eq!(first.bytes, expected, "{first}");
    }
    // One end suffices.
    assert!(conversation.from_initiator.crc && conversation.from_responder.crc);
}

/// Ironwarp's Request: peer-to-peer setup with an RTR by Write or Read, and CRCs.
pub(crate) fn request() -> Vec<u8> {
    frame(b"Req", [0x50, 2, 0, 23, 0x80, 4, 0xc0, 4], HELLO)
}

/// siw in its plain form does not ask for the peer-to-peer setup, but agrees to it. An RTR by Write suits it.
pub(crate) fn reply_of_siw() -> Vec<u8> {
    frame(b"Rep", [0x50, 2, 0, 18, 0x80, 4, 0x80, 4], HELLO_OF_SIW)
}

fn frame(kind: &[u8; 3], fields: [u8; 8], private_data: &[u8]) -> Vec<u8> {
    [b"MPA ID ", &kind[..], b" Frame", &fields, private_data].concat()
}

/// Ironwarp treats siw as the stranger it is.
fn fpdus(conversation: &Conversation, connects: bool) {
    assert!(conversation.frames.iter().all(|frame| frame.name() != "Terminate"));

    let signals = |initiator| -> Vec<&Frame> {
        sent_by(conversation, initiator).filter(|frame| frame.name() == "Signal").collect()
    };
    assert!(signals(!connects).is_empty(), "siw does not know signals");
    if connects {
        // It is the RTR, too. Nobody answers it; it is repeated for a siw that missed it.
        let opening = sent_by(conversation, true).nth(1).unwrap();
        assert_eq!(opening.name(), "Signal");
        assert!(signals(true).iter().all(|signal| signal.bytes == opening.bytes));
        println!("  siw was nudged {} times", signals(true).len() - 1);
    } else {
        assert!(signals(false).is_empty(), "nobody gave a signal, so none is answered");
    }

    let largest = sent_by(conversation, connects).map(|frame| frame.bytes.len()).max().unwrap();
    println!("  Ironwarp's largest FPDU has {largest} bytes");
    assert!(
        largest <= SEGMENT,
        "an FPDU of {largest} bytes on a path with segments of {SEGMENT} bytes or less"
    );
}

/// Each Read was answered with as much as was asked for, and Ironwarp sends empty ones where it has to know what siw got.
fn reads(conversation: &Conversation, session: Session) {
    let Session { connects, completes } = session;
    let half = u32::try_from(HALF).unwrap();
    assert_eq!(requests(conversation, !connects), [half, 0], "the Reads of siw");
    assert_eq!(answers(conversation, connects), [half, 0], "what Ironwarp answered");

    let asked = requests(conversation, connects);
    match completes {
        Completes::WhenSent => assert_eq!(asked, [half]),
        // One each behind the advert, the Write, WRITTEN and DONE. The Read itself needs none.
        Completes::WhenAcknowledged => assert_eq!(asked, [0, 0, 0, half, 0]),
    }
    let answered = answers(conversation, !connects);
    assert_eq!(answered.len(), asked.len(), "what siw answered: {answered:?}");
    for (asked, answered) in asked.into_iter().zip(answered) {
        // A busy siw answers a Read of nothing with what it sent before: guest/README.md. It may, or may not.
        if asked == 0 && answered > 0 {
            println!("  siw answered a Read of nothing with {answered} bytes");
        } else {
            assert_eq!(answered, asked);
        }
    }
}

/// The lengths of the Reads that one end asked for.
fn requests(conversation: &Conversation, initiator: bool) -> Vec<u32> {
    let requests = sent_by(conversation, initiator).filter_map(|frame| match fpdu(frame)?.header {
        Header::ReadRequest(read) => Some(read.len),
        _ => None,
    });
    requests.collect()
}

/// How many bytes one end answered to each Read.
fn answers(conversation: &Conversation, initiator: bool) -> Vec<u32> {
    let (mut answers, mut answer) = (Vec::new(), 0);
    for fpdu in sent_by(conversation, initiator).filter_map(fpdu) {
        if let Header::ReadResponse(response) = fpdu.header {
            answer += u32::from(fpdu.payload_len);
            if response.last {
                answers.push(std::mem::take(&mut answer));
            }
        }
    }
    answers
}

fn sent_by(conversation: &Conversation, initiator: bool) -> impl Iterator<Item = &Frame> {
    conversation.frames.iter().filter(move |frame| frame.from_initiator == initiator)
}

fn fpdu(frame: &Frame) -> Option<Fpdu> {
    match frame.kind {
        Kind::Fpdu { fpdu, .. } => Some(fpdu),
        Kind::Startup(_) => None,
    }
}
