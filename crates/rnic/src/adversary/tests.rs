use super::*;

#[test]
fn a_setting_is_off_or_a_number() {
    let parsed = |text: &str| text.parse::<AdversarySeed>();
    assert_eq!(parsed("off"), Ok(AdversarySeed::default()));
    assert_eq!(parsed("17"), Ok(AdversarySeed(Some(17))));
    for wrong in ["", "on", "-1", "1.5"] {
        assert_eq!(parsed(wrong), Err(InvalidSeed), "{wrong}");
    }
    assert_eq!(
        (AdversarySeed(None).to_string(), AdversarySeed(Some(0)).to_string()),
        ("off".into(), "0".into())
    );
}

#[test]
fn a_seed_repeats_its_choices_and_objects_have_their_own() {
    let draws = |seed, sequence, number| {
        let adversary = Adversary::new(seed);
        let mut rng = adversary.sequence(sequence, number);
        (0..200).map(|_| adversary.draw_delay(&mut rng)).collect::<Vec<_>>()
    };
    let first = draws(1, Sequence::Send, 0);
    assert_eq!(first, draws(1, Sequence::Send, 0));
    for other in [draws(2, Sequence::Send, 0), draws(1, Sequence::Receive, 0), draws(1, Sequence::Send, 1)] {
        assert_ne!(first, other);
    }
}

#[test]
fn delays_are_bounded() {
    for seed in 0..50 {
        let adversary = Adversary::new(seed);
        let mut rng = adversary.sequence(Sequence::Completions, 1);
        let delays: Vec<_> = (0..2000).filter_map(|_| adversary.draw_delay(&mut rng)).collect();
        assert!((40..1000).contains(&delays.len()), "{}", delays.len());
        assert!(delays.iter().all(|delay| (MIN_DELAY..=MAX_DELAY).contains(delay)));
    }
}

#[test]
fn choices_are_counted_by_kind() {
    let adversary = Adversary::new(3);
    adversary.record(Choice::LostDatagram);
    (0..2).for_each(|_| adversary.record(Choice::LateArrival));
    let mut sum = adversary.counts();
    sum += adversary.counts();
    assert_eq!((sum.of(Choice::LateArrival), sum.of(Choice::LostDatagram)), (4, 2));
    assert!(
        sum.to_string().starts_with("4 late arrivals, ") && sum.to_string().ends_with(", 2 lost datagrams")
    );
}
