//! Contents and layout of messages, and the check of every byte in and around them.

use ironwarp::memory::Contents;

/// Fill byte around and between the pieces of a message.
const GUARD: u8 = 0xa5;
/// Length of such margins: odd, so that pieces start anywhere in a word.
const MARGIN: usize = 37;
/// Regions are filled and checked in parts of this size.
const PART: usize = 256 << 10;
const WORD: usize = size_of::<u64>();

/// Returns the seed of a step, which determines the contents. Words of two steps differ.
pub(crate) fn seed(op: usize, size: usize, step: usize) -> u64 {
    let mixed = [op, size, step].iter().fold(1, |seed, it| spread(seed).wrapping_add(*it as u64));
    spread(mixed)
}

/// Returns word `index` of a message.
pub(crate) fn word(seed: u64, index: usize) -> u64 {
    spread(seed.wrapping_add(index as u64))
}

fn spread(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

/// Returns bytes `from..from + len` of a message.
pub(crate) fn bytes(seed: u64, from: usize, len: usize) -> Vec<u8> {
    let skip = from % WORD;
    let mut bytes = vec![0; (skip + len).next_multiple_of(WORD)];
    for (index, to) in (from / WORD..).zip(bytes.as_chunks_mut::<WORD>().0) {
        *to = word(seed, index).to_le_bytes();
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

/// Offsets and lengths of the pieces of a message in a region.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) pieces: Vec<(usize, usize)>,
}

impl Layout {
    /// One unaligned piece.
    pub(crate) fn one(size: usize) -> Self {
        Self { pieces: vec![(MARGIN, size)] }
    }

    /// One aligned word, as atomic operations require.
    pub(crate) fn aligned() -> Self {
        Self { pieces: vec![(MARGIN.next_multiple_of(WORD), WORD)] }
    }

    /// Pieces of very different lengths, some of them empty, in another order than in the message. A different `salt`
    /// gives different pieces.
    pub(crate) fn uneven(size: usize, salt: usize) -> Self {
        let mut left = size;
        let lens = [1 + salt, 0, 7, size / 3 + salt, size / 2, size].map(|len| {
            let len = len.min(left);
            left -= len;
            len
        });
        assert_eq!(left, 0);
        let mut at = MARGIN;
        let mut pieces: Vec<_> = lens
            .iter()
            .rev()
            .map(|len| {
                let begin = at;
                at += len + MARGIN;
                (begin, *len)
            })
            .collect();
        pieces.reverse();
        Self { pieces }
    }

    /// Length of a region with room for the message and a margin.
    pub(crate) fn region_len(&self) -> usize {
        self.pieces.iter().map(|(at, len)| at + len).max().unwrap() + MARGIN
    }

    /// Fills the margins.
    pub(crate) fn guard(&self, region: &Contents) {
        for (at, len) in self.margins() {
            region.write(at, &vec![GUARD; len]).unwrap();
        }
    }

    /// Writes a message to its place.
    pub(crate) fn fill(&self, region: &Contents, seed: u64) {
        self.each_part(|at, from, len| region.write(at, &bytes(seed, from, len)).unwrap());
    }

    /// Checks that the message is there, and that nothing else changed.
    #[track_caller]
    pub(crate) fn check(&self, region: &Contents, seed: u64) {
        self.check_margins(region);
        self.each_part(|at, from, len| compare(&get(region, at, len), &bytes(seed, from, len), at));
    }

    /// Checks that nothing changed.
    #[track_caller]
    pub(crate) fn check_untouched(&self, region: &Contents) {
        self.check_margins(region);
        self.each_part(|at, _, len| compare(&get(region, at, len), &vec![0; len], at));
    }

    #[track_caller]
    fn check_margins(&self, region: &Contents) {
        assert_eq!(region.len(), self.region_len());
        for (at, len) in self.margins() {
            compare(&get(region, at, len), &vec![GUARD; len], at);
        }
    }

    /// Offsets and lengths of the margins.
    fn margins(&self) -> Vec<(usize, usize)> {
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable();
        let mut end = 0;
        let mut margins = Vec::new();
        for (at, len) in pieces.into_iter().chain([(self.region_len(), 0)]) {
            margins.push((end, at - end));
            end = at + len;
        }
        margins
    }

    /// Calls `each` for every part of every piece, with its offset in the region, its offset in the message, and its
    /// length.
    fn each_part(&self, mut each: impl FnMut(usize, usize, usize)) {
        let mut from = 0;
        for (begin, len) in &self.pieces {
            for at in (0..*len).step_by(PART) {
                each(begin + at, from + at, PART.min(len - at));
            }
            from += len;
        }
    }
}

fn get(region: &Contents, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(at, &mut bytes).unwrap();
    bytes
}

#[track_caller]
fn compare(found: &[u8], expected: &[u8], at: usize) {
    if found != expected {
        let wrong: Vec<_> = (0..found.len()).filter(|i| found[*i] != expected[*i]).collect();
        let first = wrong[0];
        let (found, expected) = (found[first], expected[first]);
        panic!(
            "byte {} of the region is {found:#04x}, not {expected:#04x}; {} more are wrong",
            at + first,
            wrong.len() - 1
        );
    }
}

/// Tests the check itself: a message with one wrong byte in or beside it does not pass.
#[test]
fn a_wrong_byte_anywhere_is_found() {
    let domain = ironwarp::Adapter::new().unwrap().protection_domain();
    for layout in [Layout::one(100), Layout::uneven(100, 2), Layout::one(0), Layout::aligned()] {
        let buffer = ironwarp::memory::Buffer::new(layout.region_len()).unwrap();
        let region = domain.register(buffer, ironwarp::memory::Access::LOCAL_WRITE).unwrap();
        layout.guard(&region);
        layout.check_untouched(&region);
        layout.fill(&region, 5);
        layout.check(&region, 5);
        for at in 0..region.len() {
            let was = get(&region, at, 1)[0];
            region.write(at, &[was ^ 1]).unwrap();
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| layout.check(&region, 5)));
            assert!(checked.is_err(), "byte {at} of {layout:?}");
            region.write(at, &[was]).unwrap();
        }
        layout.check(&region, 5);
    }
}
