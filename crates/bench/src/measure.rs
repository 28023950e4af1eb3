//! Clocks, the payload pattern, and the output of a turn.

use crate::control::Server;
use crate::result::Result;
use crate::turn::Turn;
use std::fmt;
use std::fs;
use std::time::Instant;

/// A byte that does not occur in a [`pattern`]. Over bare TCP this byte ends a phase.
pub(crate) const END: u8 = 0xff;

/// The result of a turn.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Duration of the measurement in seconds.
    pub(crate) seconds: f64,
    /// Number of messages.
    pub(crate) messages: u64,
    /// Payload of all messages in bytes.
    pub(crate) bytes: u64,
    /// Half of a round trip in seconds, or zero if not measured.
    pub(crate) half: f64,
    /// Resident memory per connection in bytes, or zero if not measured.
    pub(crate) resident: f64,
    /// Number of wakeups of a sleeping consumer per completion.
    pub(crate) wakes: f64,
    /// Number of voluntary context switches of both programs per message.
    pub(crate) switches: f64,
    /// Processor time of client and server in seconds.
    pub(crate) processor: [f64; 2],
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, messages, bytes, half, resident, wakes, switches, processor: [client, server] } =
            self;
        write!(f, "seconds={seconds} messages={messages} bytes={bytes} half={half} resident={resident} ")?;
        write!(f, "wakes={wakes} switches={switches} client={client} server={server}")
    }
}

/// Measures time, processor time and context switches until [`Stopwatch::stop`].
#[derive(Debug)]
pub(crate) struct Stopwatch {
    processor: [f64; 2],
    switches: u64,
    start: Instant,
}

impl Stopwatch {
    /// Starts to measure.
    pub(crate) fn start(server: &Server) -> Result<Self> {
        let (processor, switches) = (server.processor_time()?, server.switches()?);
        Ok(Self { processor, switches, start: Instant::now() })
    }

    /// Stops measuring. Returns the result for this many messages of this size.
    pub(crate) fn stop(self, server: &Server, messages: u64, size: usize) -> Result<Measured> {
        let seconds = self.start.elapsed().as_secs_f64();
        let switches = (server.switches()? - self.switches) as f64 / messages.max(1) as f64;
        let now = server.processor_time()?;
        // Not below zero: a thread may have ended whose time was counted before.
        let processor = [0, 1].map(|end| f64::max(now[end] - self.processor[end], 0.0));
        let bytes = messages * size as u64;
        Ok(Measured { seconds, messages, bytes, switches, processor, ..Measured::default() })
    }
}

/// Runs a ping-pong: first to warm up, then to measure. `ping` makes one round trip with a number, and `check` verifies
/// the answer while the clock is stopped. Reports the median, which ignores the few round trips that were interrupted.
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

/// Returns the payload of a message. Adjacent bytes differ, and none is [`END`] or zero.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..=250_u8).cycle().skip(1).filter(|byte| *byte > 0).take(len).collect()
}

/// Returns the first and last eight bytes of a message as text, for comparison.
pub(crate) fn edges(bytes: &[u8]) -> String {
    let edge = bytes.len().min(8);
    format!("{:02x?} {:02x?}", &bytes[..edge], &bytes[bytes.len() - edge..])
}

/// Checks that the [edges](edges()) of the received data are those of the message. Without this check, a result could
/// be that of a transport that loses data.
pub(crate) fn compare(received: &str, message: &[u8]) -> Result {
    match received == edges(message) {
        true => Ok(()),
        false => Err(format!("received {received}, expected {}", edges(message)).into()),
    }
}

/// Returns the resident set of this process in bytes.
pub(crate) fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024.0)
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
    fn missing_data_is_detected() {
        let message = pattern(100);
        compare(&edges(&message), &message).unwrap();
        assert!(compare(&edges(&[0; 100]), &message).is_err());
    }
}
