//! Clocks, the bytes that are moved, and the line that a turn ends with.

use crate::Result;
use crate::control::Server;
use crate::turn::Turn;
use std::fmt;
use std::time::Instant;

/// A byte that [`pattern`] does not have. Over bare TCP it ends a phase.
pub(crate) const END: u8 = 0xff;

/// What came of a turn.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Half a round trip in seconds; zero where there are none.
    pub(crate) half: f64,
    /// What a connection takes of memory, in bytes; zero where that is not measured.
    pub(crate) resident: f64,
    /// How often a consumer that sleeps was woken, for each completion.
    pub(crate) wakes: f64,
    /// Seconds that the processors worked for the client, and for the server.
    pub(crate) processor: [f64; 2],
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, messages, bytes, half, resident, wakes, processor: [client, server] } = self;
        write!(f, "seconds={seconds} messages={messages} bytes={bytes} half={half} resident={resident} ")?;
        write!(f, "wakes={wakes} client={client} server={server}")
    }
}

/// Counts time and processor time from here to [`Stopwatch::stop`].
#[derive(Debug)]
pub(crate) struct Stopwatch {
    processor: [f64; 2],
    start: Instant,
}

impl Stopwatch {
    pub(crate) fn start(server: &Server) -> Result<Self> {
        let processor = server.processor_time()?;
        Ok(Self { processor, start: Instant::now() })
    }

    pub(crate) fn stop(self, server: &Server, messages: u64, size: usize) -> Result<Measured> {
        let seconds = self.start.elapsed().as_secs_f64();
        let now = server.processor_time()?;
        let processor = [now[0] - self.processor[0], now[1] - self.processor[1]];
        let bytes = messages * size as u64;
        Ok(Measured { seconds, messages, bytes, processor, ..Measured::default() })
    }
}

/// Plays ping-pong: first to warm up, then to measure. `ping` does one round trip with this number, `check` looks at what
/// came back, when the clock does not run. The median counts: it knows nothing of the few that were interrupted.
pub(crate) fn ping_pong<E>(
    server: &Server,
    turn: &Turn,
    endpoint: &mut E,
    ping: fn(&mut E, u64) -> Result,
    check: fn(&E, u64) -> Result,
) -> Result<Measured> {
    let mut pings = Vec::new();
    let mut watch = Stopwatch::start(server)?;
    for time in [turn.warm_up(), turn.time()] {
        pings.clear();
        watch = Stopwatch::start(server)?;
        while watch.start.elapsed() < time || pings.is_empty() {
            let number = pings.len() as u64;
            let start = Instant::now();
            ping(endpoint, number)?;
            pings.push(start.elapsed());
            check(endpoint, number)?;
        }
    }
    let measured = watch.stop(server, 2 * pings.len() as u64, turn.size)?;
    pings.sort();
    Ok(Measured { half: pings[pings.len() / 2].as_secs_f64() / 2.0, ..measured })
}

/// The bytes of a message. No two neighbours are the same, and none is [`END`] or zero.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..=250_u8).cycle().skip(1).filter(|byte| *byte > 0).take(len).collect()
}

/// How a message begins and ends, as text to compare.
pub(crate) fn edges(bytes: &[u8]) -> String {
    let edge = bytes.len().min(8);
    format!("{:02x?} {:02x?}", &bytes[..edge], &bytes[bytes.len() - edge..])
}

/// The data has arrived where it should, or the figure is worth nothing.
pub(crate) fn compare(holds: &str, message: &[u8]) -> Result {
    match holds == edges(message) {
        true => Ok(()),
        false => Err(format!("{holds} arrived, not {}", edges(message)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_has_neither_zeros_nor_the_byte_that_ends_a_phase() {
        let pattern = pattern(1 << 16);
        assert!(pattern.iter().all(|byte| *byte != 0 && *byte != END));
        assert!(pattern.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn what_did_not_arrive_is_found() {
        let message = pattern(100);
        compare(&edges(&message), &message).unwrap();
        assert!(compare(&edges(&[0; 100]), &message).is_err());
    }
}
