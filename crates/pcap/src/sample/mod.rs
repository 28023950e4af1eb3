//! A capture that holds every message the codec can emit, in every framing and packing, for other decoders to read.
//!
//! `script.rs` says which conversations there are; this file puts them into TCP segments. Nothing is random: each run
//! gives the same bytes.

mod script;

pub use script::samples;

use crate::{CaptureWriter, Encoder, OwnedStartup};
use ironwarp_wire::mpa::{Framing, Role};
use ironwarp_wire::{Header, Misuse};
use std::io::{self, Error, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// A conversation to be written.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What it is for.
    pub name: String,
    /// Who sends the Request; also the TCP client.
    pub initiator: SocketAddr,
    /// The other end.
    pub responder: SocketAddr,
    /// The initiator's startup frame.
    pub request: OwnedStartup,
    /// The responder's.
    pub reply: OwnedStartup,
    /// What follows.
    pub turns: Vec<Turn>,
    /// How it is put into TCP segments.
    pub packing: Packing,
}

/// Messages that one side sends before the other has its turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Which side.
    pub from_initiator: bool,
    /// A header and a payload for each FPDU.
    pub fpdus: Vec<(Header, Vec<u8>)>,
}

/// How FPDUs are put into TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One to one.
    Single,
    /// As many whole FPDUs as fit.
    Packed,
    /// Each FPDU cut into segments that hold nothing else, and the first of them not too little.
    Pieces,
    /// Cut without regard for FPDUs, except that a segment never ends within the first bytes of one, which Wireshark's
    /// decoder does not survive.
    Split,
}

/// The longest segment with [`Packing::Packed`].
const PACKED: usize = 1448;
/// The lengths of the segments with [`Packing::Pieces`] and [`Packing::Split`], over and over; odd ones among them, so
/// that the cuts fall everywhere.
const SPLIT: [usize; 11] = [13, 97, 8, 512, 3, 250, 9, 1000, 1, 16, 65];
/// So much of an FPDU must be in one segment for Wireshark's decoder.
const HEAD: usize = 8;

/// Writes all samples as one capture.
pub fn write<W: Write>(out: W) -> io::Result<W> {
    let mut writer = CaptureWriter::new(out)?;
    let mut clock = Clock(Duration::from_secs(1_000_000_000));
    for sample in samples() {
        sample.write(&mut writer, &mut clock)?;
    }
    writer.flush()?;
    Ok(writer.into_inner())
}

/// Goes a little further with each segment.
struct Clock(Duration);

impl Clock {
    fn tick(&mut self) -> Duration {
        self.0 += Duration::from_micros(10);
        self.0
    }
}

impl Sample {
    /// What the FPDUs of one direction carry beside their messages.
    pub fn framing(&self, from_initiator: bool) -> Framing {
        let receiver = if from_initiator { &self.reply } else { &self.request };
        Framing { crc: self.request.crc || self.reply.crc, markers: receiver.markers }
    }

    fn write(&self, writer: &mut CaptureWriter<impl Write>, clock: &mut Clock) -> io::Result<()> {
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

fn misuse(misuse: Misuse) -> Error {
    Error::new(ErrorKind::InvalidInput, misuse)
}

impl Packing {
    fn segments(self, fpdus: &[Vec<u8>]) -> Vec<Vec<u8>> {
        match self {
            Self::Single => fpdus.to_vec(),
            Self::Packed => packed(fpdus),
            Self::Pieces => split(fpdus, true),
            Self::Split => split(fpdus, false),
        }
    }
}

fn packed(fpdus: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for fpdu in fpdus {
        match segments.last_mut() {
            Some(segment) if segment.len() + fpdu.len() <= PACKED => segment.extend(fpdu),
            _ => segments.push(fpdu.clone()),
        }
    }
    segments
}

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
