//! Speeds of ports as InfiniBand encodes them: a number of lanes, and the speed of each.

/// A width and a speed, in the encoding of `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSpeed {
    /// The width: 1, 2, 4 or 8 for 1, 4, 8 or 12 lanes, or 16 for 2.
    pub(crate) width: u8,
    /// The speed of a lane.
    pub(crate) speed: u32,
    /// The product, in bits per second.
    bits: u64,
    /// The speed of a lane, as programs know it.
    name: &'static str,
}

/// The speeds that adapters have, in ascending order.
const SPEEDS: [LinkSpeed; 9] = [
    LinkSpeed::new(1, 1, 2_500_000_000, "SDR"),
    LinkSpeed::new(1, 4, 10_000_000_000, "QDR"),
    LinkSpeed::new(1, 32, 25_000_000_000, "EDR"),
    LinkSpeed::new(2, 4, 40_000_000_000, "QDR"),
    LinkSpeed::new(1, 64, 50_000_000_000, "HDR"),
    LinkSpeed::new(2, 32, 100_000_000_000, "EDR"),
    LinkSpeed::new(2, 64, 200_000_000_000, "HDR"),
    LinkSpeed::new(2, 128, 400_000_000_000, "NDR"),
    LinkSpeed::new(2, 256, 800_000_000_000, "XDR"),
];

impl LinkSpeed {
    const fn new(width: u8, speed: u32, bits: u64, name: &'static str) -> Self {
        Self { width, speed, bits, name }
    }

    /// Returns the highest speed that does not exceed this many bits per second, or else the lowest.
    pub(crate) fn nearest(bits: u64) -> Self {
        SPEEDS.into_iter().rev().find(|one| one.bits <= bits).unwrap_or(SPEEDS[0])
    }

    /// Returns the text of the file `rate`, such as `100 Gb/sec (4X EDR)`.
    pub(crate) fn rate(self) -> String {
        let lanes = if self.width == 1 { 1 } else { 4 };
        let (whole, tenths) = (self.bits / 1_000_000_000, self.bits / 100_000_000 % 10);
        let fraction = if tenths == 0 { String::new() } else { format!(".{tenths}") };
        format!("{whole}{fraction} Gb/sec ({lanes}X {})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_rounded_down() {
        for (bits, rate, encoded) in [
            (1, "2.5 Gb/sec (1X SDR)", (1, 1)),
            (24_999_999_999, "10 Gb/sec (1X QDR)", (1, 4)),
            (100_000_000_000, "100 Gb/sec (4X EDR)", (2, 32)),
            (u64::MAX, "800 Gb/sec (4X XDR)", (2, 256)),
        ] {
            let found = LinkSpeed::nearest(bits);
            assert_eq!((found.rate().as_str(), (found.width, found.speed)), (rate, encoded));
        }
    }
}
