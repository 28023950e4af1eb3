//! Random choices.

use ironwarp_rnic::fault::Rng;

/// Returns one of the elements.
pub(super) fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    let index = usize::try_from(rng.below(from.len() as u64)).expect("an index");
    from[index]
}
