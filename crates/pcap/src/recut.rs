//! A capture cut anew: the same frames, each in a TCP segment of its own.
//!
//! Wireshark's decoder loses its way when a TCP segment ends within the first eight bytes of an FPDU, and does not find
//! it again. TCP cuts where it likes, so a capture of a healthy connection may look broken there. After this it does not.
//!
//! Connections that do not speak iWARP are left out, and so is what follows a problem in one direction of a connection:
//! there are no frames there to keep.

use crate::{Capture, CaptureWriter, Conversation, Frame, Moment, OpenConnection};
use std::io::{self, Write};

/// Writes the frames of `capture` to `out`, with the times they had.
pub fn recut<W: Write>(capture: &Capture, out: W) -> io::Result<W> {
    let mut writer = CaptureWriter::new(out)?;
    let mut open: Vec<Option<OpenConnection>> = capture.conversations.iter().map(|_| None).collect();
    for Event { at, of, step } in events(capture) {
        let conversation = &capture.conversations[of];
        match (step, open[of].take()) {
            (Step::Open, _) => {
                let (client, server) = (conversation.initiator, conversation.responder);
                open[of] = Some(writer.open(at.time, client, server)?);
            }
            (Step::Frame(frame), Some(mut connection)) => {
                writer.send(at.time, &mut connection, frame.from_initiator, &frame.bytes)?;
                open[of] = Some(connection);
            }
            (Step::Close, Some(connection)) => writer.close(at.time, connection)?,
            (_, None) => {}
        }
    }
    writer.flush()?;
    Ok(writer.into_inner())
}

/// Something that happens on a connection.
struct Event<'a> {
    at: Moment,
    of: usize,
    step: Step<'a>,
}

enum Step<'a> {
    Open,
    Frame(&'a Frame),
    Close,
}

/// What happens on all connections, in the order of the capture.
fn events(capture: &Capture) -> Vec<Event<'_>> {
    let mut events: Vec<_> =
        capture.conversations.iter().enumerate().flat_map(|(of, it)| events_of(of, it)).collect();
    events.sort_by_key(|event| event.at.packet); // stable: what one packet brought stays in order
    events
}

fn events_of(of: usize, conversation: &Conversation) -> impl Iterator<Item = Event<'_>> {
    let Conversation { frames, opened, closed, .. } = conversation;
    let frames = frames.iter().map(move |frame| Event { at: frame.at, of, step: Step::Frame(frame) });
    let close = closed.map(|at| Event { at, of, step: Step::Close });
    std::iter::once(Event { at: *opened, of, step: Step::Open }).chain(frames).chain(close)
}
