//! Chooses the connection for the next request: all connections in turn, with large strides, except those that still
//! wait for an answer. The state of each connection is then cold in the cache, as in a server with many clients.

/// The order in which connections are used.
#[derive(Debug)]
pub(crate) struct Scattered {
    /// For each connection, whether it waits for an answer.
    waits: Vec<bool>,
    /// Index of the next connection.
    at: usize,
    /// Distance between two connections that are used one after the other.
    stride: usize,
}

impl Scattered {
    /// Creates an order of `len` connections.
    pub(crate) fn new(len: usize) -> Self {
        // A stride that is coprime to the length visits all connections. Near the golden ratio, the visits are most
        // evenly spread.
        let golden = len * 618 / 1000;
        let stride =
            (golden..).find(|stride| *stride > 0 && greatest_common_divisor(*stride, len) == 1).unwrap_or(1);
        Self { waits: vec![false; len], at: 0, stride }
    }

    /// Returns the index of the next connection that does not wait for an answer, and marks it as waiting. The first
    /// index is 0. Never returns if all connections wait.
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
    pub(crate) fn mark_answered(&mut self, which: usize) {
        self.waits[which] = false;
    }
}

/// Returns the greatest common divisor.
fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
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
            order.mark_answered(len / 2);
            assert_eq!(order.next(), len / 2);
        }
    }
}
