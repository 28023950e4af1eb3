//! Tests that tags cannot be guessed (RFC 5042 §6.1).

use super::super::slab::MIN_FREE_INDICES;
use super::super::{RegisterError, index_of};
use super::*;
use crate::fault::Rng;
use ironwarp_wire::private::SIGNAL_TAG;
use std::collections::{HashMap, HashSet};

const READ: Rights = Rights::LOCAL_READ;

/// Registers `count` regions and returns their tags.
fn tags(table: &Table, count: usize) -> Vec<Tag> {
    (0..count).map(|_| register(table, READ)).collect()
}

#[test]
fn one_tag_does_not_tell_of_the_next() {
    let tags = tags(&table_of(4096), 4096);
    let mut differences = HashMap::new();
    for pair in tags.windows(2) {
        *differences.entry(pair[1].0.wrapping_sub(pair[0].0)).or_insert(0) += 1;
    }
    assert_eq!(
        differences.values().max(),
        Some(&1),
        "two pairs of consecutive tags have the same difference"
    );
}

#[test]
fn few_tags_are_spread_over_all_bits() {
    let tags = tags(&table_of(1024), 1024);
    for bit in 0..u32::BITS {
        let set = tags.iter().filter(|tag| tag.0 >> bit & 1 == 1).count();
        assert!((448..576).contains(&set), "bit {bit} is set in {set} of 1024 tags");
    }
}

#[test]
fn tags_of_one_adapter_are_not_those_of_another() {
    let [one, other] =
        [1, 2].map(|key| tags(&Table::new(Limits::new(1024), TagCipher::new([key; 16])), 1024));
    let one = HashSet::<Tag>::from_iter(one);
    assert!(other.iter().all(|tag| !one.contains(tag)));
}

/// The probability that a guess is right is the share of valid tags among all 2³².
#[test]
fn guesses_hit_as_often_as_chance_has_it() {
    const REGIONS: usize = 200_000;
    const GUESSES: usize = 4_000_000;
    let table = table_of(REGIONS);
    tags(&table, REGIONS);
    let mut rng = Rng::new(1);
    let guess = || Tag(u32::try_from(rng.below(1 << 32)).unwrap());
    let hits =
        std::iter::repeat_with(guess).take(GUESSES).filter(|&tag| table.look_up(tag).is_some()).count();
    let expected = (GUESSES * REGIONS) >> 32;
    // Four standard deviations: the square root of 186 is 13.6.
    assert!(hits.abs_diff(expected) < 55, "{hits} hits, {expected} expected");
}

/// A program that registers a buffer for each request shows its peer the same indices again and again.
#[test]
fn indices_are_not_used_again_in_the_same_order() {
    let table = table_of(10_000);
    let mut indices = Vec::new();
    for _ in 0..4 * MIN_FREE_INDICES {
        let tag = register(&table, READ);
        indices.push(index_of(tag));
        table.deregister(tag).unwrap();
    }
    let mut successor = HashMap::new();
    let predicted =
        indices.windows(2).filter(|pair| successor.insert(pair[0], pair[1]) == Some(pair[1])).count();
    assert!(predicted < MIN_FREE_INDICES / 50, "{predicted} of {} could be predicted", 3 * MIN_FREE_INDICES);
}

/// With these keys, the slot of a reserved index is among the first thousand.
#[test]
fn reserved_indices_are_passed_over_and_cost_no_entry() {
    for (key, reserved) in [(10_847, Tag(0)), (16_646, SIGNAL_TAG)] {
        let cipher = TagCipher::new(u128::to_le_bytes(key));
        assert!(cipher.slot(index_of(reserved)) < 1000, "choose another key");
        let table = Table::new(Limits::new(1000), cipher);
        let tags = tags(&table, 1000);
        assert!(tags.iter().all(|&tag| index_of(tag) != index_of(reserved)));
        assert_eq!(table.len(), 1000);
        let full = table.register(&ALL, HOME, memory(READ));
        assert_eq!(full, Err(RegisterError::Full { entries: 1000 }));
        assert_eq!(table.current_tag(reserved), None);
        tags.into_iter().for_each(|tag| table.deregister(tag).unwrap());
        assert!(table.is_empty());
    }
}
