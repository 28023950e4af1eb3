//! Options of a connection, and sets of them that cover every pair of choices.

use ironwarp::Config;
use ironwarp::connection::Agreed;
use ironwarp::queue::Completes;

/// Number of choices of each option, in the order of the fields of [`Options`].
const CHOICES: [u8; 6] = [3, 4, 2, 2, 3, 2];

/// Options of a connection. The active end posts the operations, the other end is passive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Which ends request CRCs: neither, both, the passive end. One suffices (RFC 5044 §7.1).
    pub(crate) crc: u8,
    /// Which ends request markers in what they receive: neither, both, the active end, the passive end.
    pub(crate) markers: u8,
    pub(crate) ipv6: bool,
    pub(crate) acknowledged: bool,
    /// Which ends have the setting `private`: both, neither, the active end.
    pub(crate) private: u8,
    /// The passive end connects and the active end listens.
    pub(crate) passive_connects: bool,
}

impl Options {
    pub(crate) fn config(&self, passive: bool) -> Config {
        // A relay records the bytes of TCP.
        Config::default()
            .shm(false)
            .crc(self.crc == 1 || self.crc == 2 && passive)
            .markers(self.asks_for_markers(passive))
            .private(self.private == 0 || self.private == 2 && !passive)
    }

    pub(crate) fn address(&self) -> &'static str {
        if self.ipv6 { "[::1]:0" } else { "127.0.0.1:0" }
    }

    pub(crate) fn completes(&self) -> Completes {
        if self.acknowledged { Completes::WhenAcknowledged } else { Completes::WhenSent }
    }

    /// Whether both ends recognise each other as Ironwarp, and may use private extensions.
    pub(crate) fn recognised(&self) -> bool {
        self.private == 0
    }

    /// Checks that the negotiated parameters match the options.
    pub(crate) fn check(&self, agreed: &Agreed, passive: bool) {
        for framing in [agreed.send, agreed.receive] {
            assert_eq!(framing.crc, self.crc != 0, "{self:?}");
        }
        assert_eq!(agreed.receive.markers, self.asks_for_markers(passive), "{self:?}");
        assert_eq!(agreed.send.markers, self.asks_for_markers(!passive), "{self:?}");
    }

    fn asks_for_markers(&self, passive: bool) -> bool {
        self.markers == 1 || self.markers == if passive { 3 } else { 2 }
    }

    pub(crate) fn choices(&self) -> [u8; 6] {
        let Self { crc, markers, ipv6, acknowledged, private, passive_connects } = *self;
        [crc, markers, u8::from(ipv6), u8::from(acknowledged), private, u8::from(passive_connects)]
    }
}

impl From<[u8; 6]> for Options {
    fn from([crc, markers, ipv6, acknowledged, private, passive_connects]: [u8; 6]) -> Self {
        let (ipv6, acknowledged, passive_connects) = (ipv6 == 1, acknowledged == 1, passive_connects == 1);
        Self { crc, markers, ipv6, acknowledged, private, passive_connects }
    }
}

/// Sets in which every choice of one option meets every choice of every other, chosen greedily.
pub(crate) fn pairwise() -> Vec<Options> {
    let all = all();
    let mut missing: Vec<Pair> = all.iter().flat_map(pairs).collect();
    missing.sort_unstable();
    missing.dedup();
    let mut sets = Vec::new();
    while !missing.is_empty() {
        let adds = |set: &Options| pairs(set).iter().filter(|pair| missing.contains(pair)).count();
        let best = all.iter().rev().max_by_key(|set| adds(set)).unwrap();
        let covered = pairs(best);
        missing.retain(|pair| !covered.contains(pair));
        sets.push(*best);
    }
    sets
}

/// Two options, with a choice for each.
type Pair = [(usize, u8); 2];

fn pairs(set: &Options) -> Vec<Pair> {
    let choices: Vec<_> = set.choices().into_iter().enumerate().collect();
    let with_later = |at: usize| choices[at + 1..].iter().map(move |later| (at, *later));
    (0..choices.len()).flat_map(with_later).map(|(at, later)| [choices[at], later]).collect()
}

fn all() -> Vec<Options> {
    let mut all = vec![[0; 6]];
    for (at, count) in CHOICES.into_iter().enumerate() {
        let with = |set: [u8; 6], choice| {
            let mut set = set;
            set[at] = choice;
            set
        };
        all = all.into_iter().flat_map(|set| (0..count).map(move |choice| with(set, choice))).collect();
    }
    all.into_iter().map(Options::from).collect()
}

/// Counts in a different way than the sets are made: option by option, choice by choice.
#[test]
fn every_pair_of_options_is_in_a_set() {
    let sets: Vec<_> = pairwise().iter().map(Options::choices).collect();
    let mut pairs = 0;
    for one in 0..CHOICES.len() {
        for other in 0..one {
            for (a, b) in (0..CHOICES[one]).flat_map(|a| (0..CHOICES[other]).map(move |b| (a, b))) {
                assert!(sets.iter().any(|set| set[one] == a && set[other] == b), "{one}: {a}, {other}: {b}");
                pairs += 1;
            }
        }
    }
    assert_eq!(pairs, 105);
    assert!(sets.len() <= 16, "{} sets, and the minimum is 12", sets.len());
}
