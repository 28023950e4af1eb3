//! A conversation of the sample, and how it is divided into TCP segments.

use crate::{CaptureWriter, Encoder, OwnedStartup};
use ironwarp_wire::mpa::{Framing, Role};
use ironwarp_wire::{Header, Misuse};
use std::io::{self, Error, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// A conversation to be written.
#[derive(Clone, Debug)]
pub struct Sample {
    /// A description.
    pub name: String,
    /// The sender of the Request, which is also the TCP client.
    pub initiator: SocketAddr,
    /// The other end.
    pub responder: SocketAddr,
    /// The initiator's startup frame.
    pub request: OwnedStartup,
    /// The responder's startup frame.
    pub reply: OwnedStartup,
    /// The FPDUs that follow.
    pub turns: Vec<Turn>,
    /// How FPDUs are divided into TCP segments.
    pub packing: Packing,
}

/// Messages that one side sends before the other one replies.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Whether the initiator sends them.
    pub from_initiator: bool,
    /// Header and payload of each FPDU.
    pub fpdus: Vec<(Header, Vec<u8>)>,
}

/// How FPDUs are divided into TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One FPDU per segment.
    Single,
    /// As many whole FPDUs per segment as fit.
    Packed,
    /// Several segments per FPDU, of which the first is not too short.
    Pieces,
    /// Segments of arbitrary length, except that none ends within the first bytes of an FPDU, which Wireshark's decoder
    /// does not support.
    Split,
}

/// Maximum length of a segment with [`Packing::Packed`].
const PACKED: usize = 1448;
/// Segment lengths of [`Packing::Pieces`] and [`Packing::Split`], repeated cyclically. Some are odd, so that segments
/// end at all alignments.
const SPLIT: [usize; 11] = [13, 97, 8, 512, 3, 250, 9, 1000, 1, 16, 65];
/// Number of bytes of an FPDU that Wireshark's decoder needs in one segment.
const HEAD: usize = 8;

/// A clock that advances with each segment.
pub(super) struct Clock(pub(super) Duration);

impl Clock {
    /// Advances the clock, and returns the time.
    fn tick(&mut self) -> Duration {
        self.0 += Duration::from_micros(10);
        self.0
    }
}

impl Sample {
    /// Returns the framing of one direction.
    pub fn framing(&self, from_initiator: bool) -> Framing {
        let receiver = if from_initiator { &self.reply } else { &self.request };
        Framing { crc: self.request.crc || self.reply.crc, markers: receiver.markers }
    }

    pub(super) fn write(&self, writer: &mut CaptureWriter<impl Write>, clock: &mut Clock) -> io::Result<()> {
        let mut connection = writer.open(clock.tick(), self.initiator, self.responder)?;
        for startup in [&self.request, &self.reply] {
            let frame = Encoder::startup(&startup.view()).map_err(misuse)?;
            writer.send(clock.tick(), &mut connection, startup.role == Role::Request, &frame)?;
        }
        let mut encoders = [self.framing(false), self.framing(true)].map(Encoder::new);
        for turn in &self.turns {
            let encoder = &mut encoders[usize::from(turn.from_initiator)];
            let fpdus: Result<Vec<_>, _> =
                turn.fpdus.iter().map(|(header, payload)| encoder.fpdu(header, payload)).collect();
            for segment in self.packing.segments(&fpdus.map_err(misuse)?) {
                writer.send(clock.tick(), &mut connection, turn.from_initiator, &segment)?;
            }
        }
        writer.close(clock.tick(), connection)
    }
}

/// Converts an error of the encoder.
fn misuse(misuse: Misuse) -> Error {
    Error::new(ErrorKind::InvalidInput, misuse)
}

impl Packing {
    /// Divides FPDUs into TCP segments.
    fn segments(self, fpdus: &[Vec<u8>]) -> Vec<Vec<u8>> {
        match self {
            Self::Single => fpdus.to_vec(),
            Self::Packed => pack(fpdus),
            Self::Pieces => split(fpdus, true),
            Self::Split => split(fpdus, false),
        }
    }
}

/// Puts as many whole FPDUs into each segment as fit.
fn pack(fpdus: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for fpdu in fpdus {
        match segments.last_mut() {
            Some(segment) if segment.len() + fpdu.len() <= PACKED => segment.extend(fpdu),
            _ => segments.push(fpdu.clone()),
        }
    }
    segments
}

/// Divides FPDUs into short segments. With `aligned`, each FPDU starts a new segment.
fn split(fpdus: &[Vec<u8>], aligned: bool) -> Vec<Vec<u8>> {
    let mut lengths = SPLIT.iter().cycle();
    let mut segments: Vec<Vec<u8>> = vec![Vec::new()];
    let mut room = 0;
    for fpdu in fpdus {
        for (position, byte) in fpdu.iter().enumerate() {
            let full = room == 0 && (position == 0 || position >= HEAD);
            if full || (aligned && position == 0) {
                segments.push(Vec::new());
                room = *lengths.next().unwrap_or(&1);
            }
            segments.last_mut().into_iter().for_each(|segment| segment.push(*byte));
            room = room.saturating_sub(1);
        }
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}
