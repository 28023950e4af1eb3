//! Which of many connections has the next request: all of them in turn, neighbours far apart, none that still waits for its
//! answer. So every connection is cold when it comes, as those of many clients are. Used by both loops of requests.

#[derive(Debug)]
pub(crate) struct Scattered {
    waits: Vec<bool>,
    at: usize,
    stride: usize,
}

impl Scattered {
    /// Of so many.
    pub(crate) fn new(len: usize) -> Self {
        // Whatever has no divisor in common with the length meets all. Near the golden section it scatters best.
        let golden = len * 618 / 1000;
        let stride = (golden..).find(|stride| *stride > 0 && divisor(*stride, len) == 1).unwrap_or(1);
        Self { waits: vec![false; len], at: 0, stride }
    }

    /// One that does not wait: there must be one. The first of all is number zero.
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

    /// It has its answer.
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
    fn all_have_their_turn_and_none_that_waits() {
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
