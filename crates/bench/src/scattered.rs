//! Chooses the connection for the next request: all in turn, with large strides, skipping those that still wait for an answer. So the
//! state of each connection is cold in the cache, as with many clients.

#[derive(Debug)]
pub(crate) struct Scattered {
    waits: Vec<bool>,
    at: usize,
    stride: usize,
}

impl Scattered {
    /// Creates an order of `len` connections.
    pub(crate) fn new(len: usize) -> Self {
        // A stride that is coprime to the length visits all. Near the golden ratio, strides are most evenly spread.
        let golden = len * 618 / 1000;
        let stride = (golden..).find(|stride| *stride > 0 && divisor(*stride, len) == 1).unwrap_or(1);
        Self { waits: vec![false; len], at: 0, stride }
    }

    /// Returns a connection that does not wait. There must be one. The first one is number zero.
    pub(crate) fn next(&mut self) -> usize {
        loop {
            let this = self.at;
            self.at = (this + self.stride) % self.waits.len();
            if !self.waits[this] {
                self.waits[this] = true;
                return this;
            }
        }
    }

    /// Marks a connection as answered.
    pub(crate) fn done(&mut self, which: usize) {
        self.waits[which] = false;
    }
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_used_in_turn_except_those_that_wait() {
        for len in [1, 2, 3, 100, 9000] {
            let mut order = Scattered::new(len);
            let mut seen: Vec<_> = (0..len).map(|_| order.next()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..len).collect::<Vec<_>>());
            order.done(len / 2);
            assert_eq!(order.next(), len / 2);
        }
    }
}
