//! Medians, quartiles and ranges.

/// The median of some values, and their quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) quartiles: [f64; 2],
}

impl Summary {
    /// Summarises at least one value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share| quantile(&sorted, share);
        Self { median: at(0.5), quartiles: [at(0.25), at(0.75)] }
    }
}

/// The median, with minimum and maximum, as text.
pub(crate) fn spread(values: Vec<f64>, digits: usize) -> String {
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    match (least, most) {
        (Some(least), Some(most)) => {
            let median = Summary::of(values).median;
            format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
        }
        _ => "–".to_owned(),
    }
}

/// Interpolates between two values if needed.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len().saturating_sub(1)) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index, and never negative"
    )]
    let below = position.floor() as usize;
    let (Some(low), high) = (sorted.get(below), sorted.get(below + 1)) else { return f64::NAN };
    low + (high.unwrap_or(low) - low) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_its_neighbours() {
        assert_eq!(Summary::of([3.0, 1.0, 2.0]), Summary { median: 2.0, quartiles: [1.5, 2.5] });
        assert_eq!(Summary::of([4.0, 1.0, 3.0, 2.0]).median, 2.5);
        assert_eq!(Summary::of([7.0]), Summary { median: 7.0, quartiles: [7.0, 7.0] });
        assert!(Summary::of([]).median.is_nan());
    }
}
