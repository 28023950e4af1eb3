use super::*;

/// The first numbers of SplitMix64 for seed 1234567, as its authors' reference code prints them.
#[test]
fn it_is_splitmix64() {
    let mut rng = Rng::new(1_234_567);
    let first = [rng.next(), rng.next(), rng.next()];
    assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
}

#[test]
fn streams_of_a_seed_differ_and_so_do_streams_of_neighbours() {
    let first = |seed, number| Rng::stream(seed, number).next();
    let mut all: Vec<u64> = (0..100).flat_map(|seed| (0..100).map(move |n| first(seed, n))).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 10_000);
    assert_eq!(first(7, 8), first(7, 8));
}

#[test]
fn below_reaches_both_ends_and_not_beyond() {
    let mut rng = Rng::new(3);
    let mut seen = [0; 5];
    (0..1000).for_each(|_| seen[usize::try_from(rng.below(5)).unwrap()] += 1);
    assert!(seen.iter().all(|&count| (150..250).contains(&count)), "{seen:?}");
    assert_eq!(rng.below(0), 0);
}

#[test]
fn a_chance_is_met_as_often_as_it_says() {
    let mut rng = Rng::new(4);
    let mut hits = |millionths| {
        let chance = Chance::in_a_million(millionths);
        (0..100_000).filter(|_| rng.hits(chance)).count()
    };
    assert_eq!(hits(0), 0);
    assert_eq!((hits(1_000_000), hits(2_000_000)), (100_000, 100_000));
    assert!((19_500..20_500).contains(&hits(200_000)));
}

#[test]
fn a_part_is_neither_nothing_nor_all() {
    let mut rng = Rng::new(5);
    for whole in [2, 3, 4, 5, 1460, 65_536] {
        let parts: Vec<usize> = (0..2000).map(|_| rng.part_of(whole)).collect();
        assert!(parts.iter().all(|&part| 0 < part && part < whole), "{whole}");
        let half = parts.iter().filter(|&&part| part > whole / 2).count();
        assert!(whole == 2 || half > 50, "large parts occur: {half} of {whole}");
    }
    let small = (0..2000).filter(|_| rng.part_of(65_536) < 256).count();
    assert!((850..1150).contains(&small), "half of the magnitudes are below half of the bits: {small}");
    assert_eq!((rng.part_of(0), rng.part_of(1)), (0, 1));
}
