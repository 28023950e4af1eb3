//! Prints a capture: one line per frame, like a packet analyser, and a summary.

use crate::{Capture, CapturedDatagram, Conversation, Frame, Kind, Moment, Problem};
use std::io::{self, Write};

/// Writes `capture` to `out`.
///
/// The initiator of each connection, or the sender of each datagram, is on the left, with an arrow in the direction of the
/// frame. Packet numbers and times match those of other analysers.
pub fn show(capture: &Capture, out: &mut impl Write) -> io::Result<()> {
    let lines = lines(capture);
    let widest = |len: fn(&Line) -> usize| lines.iter().map(len).max().unwrap_or(0);
    let (left, right) = (widest(|line| line.ends.0.len()), widest(|line| line.ends.1.len()));
    for Line { ends: (initiator, responder), at, from_initiator, text } in &lines {
        let arrow = if *from_initiator { "→" } else { "←" };
        let time = at.time.saturating_sub(capture.start).as_secs_f64();
        writeln!(out, "{:5} {time:11.6}  {initiator:>left$} {arrow} {responder:right$}  {text}", at.packet)?;
    }
    writeln!(out, "{}", summary(capture))
}

/// A line of the output: a frame, a datagram or a problem.
struct Line {
    /// The ends of the connection, or of the datagram.
    ends: (String, String),
    at: Moment,
    from_initiator: bool,
    text: String,
}

/// Returns frames and problems of all connections, and all datagrams, in the order of the capture.
fn lines(capture: &Capture) -> Vec<Line> {
    let connections = capture.conversations.iter().flat_map(lines_of);
    let mut lines: Vec<_> = connections.chain(capture.datagrams.iter().map(line_of)).collect();
    lines.sort_by_key(|line| line.at.packet);
    lines
}

/// Returns the line of a datagram.
fn line_of(datagram: &CapturedDatagram) -> Line {
    let text = match &datagram.header {
        Ok((header, len)) => format!("{header}, {len} bytes, CRC ok"),
        Err(error) => format!("!! {error}"),
    };
    let ends = (datagram.from.to_string(), datagram.to.to_string());
    Line { ends, at: datagram.at, from_initiator: true, text }
}

/// Returns frames and problems of one connection.
fn lines_of(of: &Conversation) -> impl Iterator<Item = Line> {
    let ends = || (of.initiator.to_string(), of.responder.to_string());
    let frames = of.frames.iter().map(move |frame| Line {
        ends: ends(),
        at: frame.at,
        from_initiator: frame.from_initiator,
        text: format!("{frame}{}", crc_note(of, frame)),
    });
    let problems = of.problems.iter().map(move |problem: &Problem| Line {
        ends: ends(),
        at: problem.at,
        from_initiator: problem.from_initiator,
        text: format!("!! {problem}"),
    });
    frames.chain(problems)
}

/// Returns the CRC note of a frame. A frame with a wrong CRC is a problem instead.
fn crc_note(of: &Conversation, frame: &Frame) -> &'static str {
    match (&frame.kind, of.framing(frame.from_initiator).crc) {
        (Kind::Startup(_), _) => "",
        (Kind::Fpdu { .. }, true) => ", CRC ok",
        (Kind::Fpdu { .. }, false) => ", no CRC",
    }
}

/// Returns the last line: the number of frames of each kind, and of problems.
fn summary(capture: &Capture) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for (_, frame) in capture.frames() {
        match counts.iter_mut().find(|(name, _)| *name == frame.name()) {
            Some((_, count)) => *count += 1,
            None => counts.push((frame.name(), 1)),
        }
    }
    let total = counts.iter().map(|(_, count)| count).sum();
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let list = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    let problems = capture.conversations.iter().map(|it| it.problems.len()).sum();
    let others = match capture.others {
        0 => String::new(),
        others => format!("; {} not iWARP", plural(others, "more connection")),
    };
    let datagrams = match capture.datagrams.len() {
        0 => String::new(),
        datagrams => format!("; {}", plural(datagrams, "datagram")),
    };
    let cut_off = if capture.cut_off { "; the file ends in the middle of a packet" } else { "" };
    format!(
        "{} on {}{list}; {}{others}{datagrams}{cut_off}",
        plural(total, "frame"),
        plural(capture.conversations.len(), "connection"),
        plural(problems, "problem")
    )
}

/// Returns a count with its noun, such as `2 frames`.
fn plural(count: usize, noun: &str) -> String {
    match count {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
