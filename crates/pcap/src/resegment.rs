//! Rewrites a capture so that each frame has a TCP segment of its own.
//!
//! Wireshark's decoder loses synchronisation if a TCP segment ends within the first eight bytes of an FPDU, and does
//! not recover. TCP may split the stream anywhere, so a capture of a healthy connection may look broken in Wireshark.
//!
//! Connections of other protocols are omitted, and so are the bytes after a problem in one direction of a connection.

use crate::{Capture, CaptureWriter, Conversation, Frame, Moment, OpenConnection};
use std::io::{self, Write};

/// Writes the frames of `capture` to `out` with their original times.
pub fn resegment<W: Write>(capture: &Capture, out: W) -> io::Result<W> {
    let mut writer = CaptureWriter::new(out)?;
    let mut open: Vec<Option<OpenConnection>> = capture.conversations.iter().map(|_| None).collect();
    for Event { at, conversation: index, kind } in events(capture) {
        let conversation = &capture.conversations[index];
        match (kind, open[index].take()) {
            (EventKind::Open, _) => {
                let (client, server) = (conversation.initiator, conversation.responder);
                open[index] = Some(writer.open(at.time, client, server)?);
            }
            (EventKind::Frame(frame), Some(mut connection)) => {
                writer.send(at.time, &mut connection, frame.from_initiator, &frame.bytes)?;
                open[index] = Some(connection);
            }
            (EventKind::Close, Some(connection)) => writer.close(at.time, connection)?,
            (_, None) => {}
        }
    }
    writer.flush()?;
    Ok(writer.into_inner())
}

/// An event on a connection.
struct Event<'a> {
    at: Moment,
    /// Index of the conversation.
    conversation: usize,
    kind: EventKind<'a>,
}

/// The kind of an event.
enum EventKind<'a> {
    Open,
    Frame(&'a Frame),
    Close,
}

/// Returns the events of all connections in the order of the capture.
fn events(capture: &Capture) -> Vec<Event<'_>> {
    let mut events: Vec<_> =
        capture.conversations.iter().enumerate().flat_map(|(index, it)| events_of(index, it)).collect();
    events.sort_by_key(|event| event.at.packet); // stable, so events of one packet stay in order
    events
}

/// Returns the events of one connection, in order.
fn events_of(conversation: usize, of: &Conversation) -> impl Iterator<Item = Event<'_>> {
    let Conversation { frames, opened, closed, .. } = of;
    let frames =
        frames.iter().map(move |frame| Event { at: frame.at, conversation, kind: EventKind::Frame(frame) });
    let close = closed.map(|at| Event { at, conversation, kind: EventKind::Close });
    std::iter::once(Event { at: *opened, conversation, kind: EventKind::Open }).chain(frames).chain(close)
}
