//! Checks the packets that QEMU recorded at the guest's network card.

use crate::relay::SEGMENT;
use crate::session::{Ending, Ours, Session, Told, Variant};
use crate::tshark;
use ironwarp::connection::MpaMode;
use ironwarp::protocol::Cause;
use ironwarp::queue::Completes;
use ironwarp_pcap::{
    Capture, Connection, Conversation, Frame, Kind, ProblemKind, connections, dissect, read,
};
use ironwarp_wire::mpa::{Revision, RtrSet};
use ironwarp_wire::{Fpdu, Header};
use std::path::Path;

/// Number of frames of a connection above which tshark takes too long.
const MANY: usize = 10_000;

/// Checks a file with the packets of these sessions, each a connection.
pub(crate) fn check(file: &Path, variant: Variant, sessions: &[Session]) {
    let bytes = std::fs::read(file).unwrap();
    let recording = read(&bytes).unwrap();
    assert!(!recording.cut_off, "QEMU did not write all of {}", file.display());
    let mut connections = connections(&recording.packets).unwrap();
    // Connections without data are the test of siw's timeout.
    connections.retain(|connection| connection.streams.iter().any(|stream| !stream.bytes.is_empty()));
    assert_eq!(connections.len(), sessions.len(), "each session is one connection");
    let mut conversations = Vec::new();
    for (connection, session) in connections.iter().zip(sessions) {
        let _told = Told(format!("in the capture of {}: {session:?}", variant.name()));
        let conversation = dissect(connection).expect("starts with an MPA Request");
        every_byte_decodes(connection, &conversation, session);
        terminates(&conversation, session);
        if let Ours::Connected(_) = session.ours {
            startup(&conversation, session, variant);
            fpdus(&conversation, session);
            reads(&conversation, session, variant);
        }
        // Sessions with tens of thousands of FPDUs are not different, only longer.
        if conversation.frames.len() < MANY {
            conversations.push(conversation);
        }
    }
    for (i, conversations) in without_reuse(conversations).into_iter().enumerate() {
        let (datagrams, others, start, cut_off) = (Vec::new(), 0, std::time::Duration::ZERO, false);
        let resegmented = file.with_extension(format!("resegmented-{i}.pcap"));
        tshark::check(&Capture { conversations, datagrams, others, start, cut_off }, &resegmented);
    }
}

/// Splits conversations so that no pair of ports occurs twice in a list. The guest's kernel picks ports at random and
/// may reuse one; tshark then takes the new Request and Reply for FPDUs of the earlier connection.
fn without_reuse(conversations: Vec<Conversation>) -> Vec<Vec<Conversation>> {
    let mut lists: Vec<Vec<Conversation>> = Vec::new();
    for it in conversations {
        let ends = |it: &Conversation| (it.initiator, it.responder);
        match lists.iter_mut().find(|list| list.iter().all(|other| ends(other) != ends(&it))) {
            Some(list) => list.push(it),
            None => lists.push(vec![it]),
        }
    }
    lists
}

/// The frames of each direction are contiguous from the first byte to the last, unless an end was killed.
fn every_byte_decodes(connection: &Connection, conversation: &Conversation, session: &Session) {
    for problem in &conversation.problems {
        let cut = matches!(problem.kind, ProblemKind::Truncated { .. } | ProblemKind::NoReply);
        assert!(cut && session.ending == Ending::Broken, "{session:?}: {problem:?}");
    }
    for (end, stream) in connection.ends.iter().zip(&connection.streams) {
        assert_eq!(stream.gap, None);
        let mut decoded = 0;
        for frame in sent_by(conversation, *end == conversation.initiator) {
            assert_eq!(frame.range.start, decoded);
            decoded = frame.range.end;
        }
        assert!(decoded == stream.bytes.len() || session.ending == Ending::Broken);
    }
}

/// Checks which end terminated the stream, and why. Ironwarp sends the RFC's codes, siw its own.
fn terminates(conversation: &Conversation, session: &Session) {
    let found: Vec<(bool, Cause, u8)> = conversation
        .frames
        .iter()
        .filter_map(|frame| match fpdu(frame)?.header {
            Header::Terminate(terminate) => {
                Some((frame.from_initiator == session.connects, terminate.cause, frame.bytes[20]))
            }
            _ => None,
        })
        .collect();
    match session.ending {
        Ending::Quiet | Ending::Broken => assert_eq!(found, []),
        Ending::Ours(cause) => {
            let (layer, kind, _) = cause.to_wire();
            assert_eq!(found, [(true, cause, layer << 4 | kind)], "RFC 5040 figure 9");
        }
        Ending::Siws(cause) => {
            let (layer, kind, _) = cause.to_wire();
            assert_eq!(found, [(false, cause, kind << 4 | layer)], "siw swaps the two halves of the byte");
        }
    }
}

/// Checks the startup frames against the variant.
fn startup(conversation: &Conversation, session: &Session, variant: Variant) {
    let mut startups = conversation.frames.iter().filter_map(|frame| match &frame.kind {
        Kind::Startup(startup) => Some(startup),
        Kind::Fpdu { .. } => None,
    });
    let (request, reply) = (startups.next().unwrap(), startups.next().unwrap());
    let rtr = |revision| match revision {
        Revision::One => None,
        Revision::Two(word) => Some(word.expect("S is set").rtr),
    };
    let found = (rtr(request.revision), rtr(reply.revision));
    let (write, both) = (Some(RtrSet::WRITE), Some(RtrSet::WRITE | RtrSet::READ));
    // As a server, siw follows its client, and prefers an RTR by Write.
    let expected = match (session.connects, session.shape.setup, variant) {
        (true, MpaMode::PeerToPeer, _) => (Some(both), Some(write)),
        // Ironwarp offers both.
        (false, _, Variant::P2p) => (Some(both), Some(both)),
        (true, MpaMode::ClientServer, _) | (false, _, Variant::Plain | Variant::Crc) => {
            (Some(None), Some(None))
        }
        (true, MpaMode::Unenhanced, _) | (false, _, Variant::V1) => (None, None),
    };
    assert_eq!(found, expected, "{session:?}: the RTRs of Request and Reply, or revision 1");
    assert!(!request.markers && !reply.markers);
    let crc = conversation.from_initiator.crc && conversation.from_responder.crc;
    assert_eq!(crc, session.crc(variant), "{session:?}");
}

/// Ironwarp does not use private extensions with siw.
fn fpdus(conversation: &Conversation, session: &Session) {
    let ours = session.connects;
    let signals = |initiator| -> Vec<&Frame> {
        sent_by(conversation, initiator).filter(|frame| frame.name() == "Signal").collect()
    };
    assert!(signals(!ours).is_empty(), "siw does not know signals");
    if ours {
        // It is also the RTR. There is no reply; it is repeated for a siw that missed it.
        let opening = sent_by(conversation, true).nth(1).unwrap();
        assert_eq!(opening.name(), "Signal");
        assert!(signals(true).iter().all(|signal| signal.bytes == opening.bytes));
    } else {
        assert!(signals(false).is_empty(), "no signal, so no reply");
    }

    let largest = sent_by(conversation, ours).map(|frame| frame.bytes.len()).max().unwrap();
    assert!(
        largest <= SEGMENT,
        "an FPDU of {largest} bytes on a path with segments of {SEGMENT} bytes or less"
    );
}

/// Each Read got a response of the requested length, and Ironwarp sends empty Reads for acknowledgements.
fn reads(conversation: &Conversation, session: &Session, variant: Variant) {
    if session.ending != Ending::Quiet {
        return;
    }
    let ours = session.connects;
    assert_eq!(requests(conversation, !ours), answers(conversation, ours), "the Reads of siw");
    let (asked, answered) = (requests(conversation, ours), answers(conversation, !ours));
    // siw may close before it responds to the one after the last message.
    let open = asked.len() - answered.len();
    assert!(open <= usize::from(!session.ironwarp_closes()), "responses of siw: {answered:?}");
    for (&asked, answered) in asked.iter().zip(answered) {
        // A busy siw may respond to an empty Read with earlier data: guest/README.md.
        assert!(answered == asked || asked == 0, "{answered} bytes for a Read of {asked}");
    }
    let acknowledging = asked.contains(&0);
    // In revision 1 it is unknown whether siw serves Reads, so none is sent for acknowledgements.
    let enhanced =
        if session.connects { session.shape.setup != MpaMode::Unenhanced } else { variant != Variant::V1 };
    assert_eq!(acknowledging, session.completes == Completes::WhenAcknowledged && enhanced, "{session:?}");
}

/// Returns the lengths of the Reads that one end requested.
fn requests(conversation: &Conversation, initiator: bool) -> Vec<u32> {
    let requests = sent_by(conversation, initiator).filter_map(|frame| match fpdu(frame)?.header {
        Header::ReadRequest(read) => Some(read.len),
        _ => None,
    });
    requests.collect()
}

/// Returns the length of each Read Response of one end.
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
