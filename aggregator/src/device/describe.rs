//! Summary statistics as pandas' `describe` gives them, which is what HTA prints.

/// The summary of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) count: i64,
    pub(super) mean: f64,
    /// Of the sample; `None` for a single value.
    pub(super) std: Option<f64>,
    pub(super) min: f64,
    pub(super) p25: f64,
    pub(super) p50: f64,
    pub(super) p75: f64,
    pub(super) max: f64,
}

/// Describes values in any order; `None` without any.
pub(super) fn describe(mut values: Vec<f64>) -> Option<Summary> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    Some(Summary {
        count: values.len() as i64,
        mean,
        std: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
        min,
        p25: quantile(&values, 0.25),
        p50: quantile(&values, 0.5),
        p75: quantile(&values, 0.75),
        max,
    })
}

/// The quantile of sorted values, linear between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    quantile_of(sorted.len() as u64, share, |place| sorted[place as usize])
}

/// The quantile of `n` ≥ 1 sorted values, asked for by their places.
fn quantile_of(n: u64, share: f64, value: impl Fn(u64) -> f64) -> f64 {
    let position = share * (n - 1) as f64;
    let below = position.floor();
    let (low, high) = (value(below as u64), value(position.ceil() as u64));
    low + (high - low) * (position - below)
}

/// Describes small whole numbers, of which `counts[v]` have the value `v`; `None` without any.
pub(super) fn describe_counts(counts: &[u64]) -> Option<Summary> {
    let (min, max) = (counts.iter().position(|n| *n > 0)?, counts.iter().rposition(|n| *n > 0)?);
    let values = || counts.iter().enumerate().map(|(value, n)| (value as f64, *n as f64));
    let count: u64 = counts.iter().sum();
    let n = count as f64;
    let mean = values().map(|(value, n)| value * n).sum::<f64>() / n;
    let squares: f64 = values().map(|(value, n)| n * (value - mean) * (value - mean)).sum();
    let at = |place: u64| {
        let mut before = 0;
        let holds = |n: &u64| {
            before += n;
            before > place
        };
        counts.iter().position(holds).unwrap_or(max) as f64
    };
    Some(Summary {
        count: count as i64,
        mean,
        std: (count > 1).then(|| (squares / (n - 1.0)).sqrt()),
        min: min as f64,
        p25: quantile_of(count, 0.25, at),
        p50: quantile_of(count, 0.5, at),
        p75: quantile_of(count, 0.75, at),
        max: max as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_pandas_describes() {
        let found = describe(vec![4.0, 1.0, 2.0, 9.0]).unwrap();
        assert_eq!((found.count, found.mean, found.min, found.max), (4, 4.0, 1.0, 9.0));
        assert_eq!((found.p25, found.p50, found.p75), (1.75, 3.0, 5.25));
        assert!((found.std.unwrap() - 3.559_026_084_010_437).abs() < 1e-12);
        assert_eq!(describe(vec![3.0]).unwrap().std, None);
        assert_eq!(describe(Vec::new()), None);
    }

    #[test]
    fn counted_values_are_described_like_listed_ones() {
        let listed = describe(vec![1.0, 1.0, 2.0, 4.0, 4.0, 4.0, 9.0]).unwrap();
        let counted = describe_counts(&[0, 2, 1, 0, 3, 0, 0, 0, 0, 1, 0]).unwrap();
        assert!((listed.std.unwrap() - counted.std.unwrap()).abs() < 1e-12);
        assert_eq!(Summary { std: None, ..counted }, Summary { std: None, ..listed });
        assert_eq!(describe_counts(&[0, 0]), None);
        assert_eq!(describe_counts(&[1]).map(|s| (s.count, s.std, s.p50)), Some((1, None, 0.0)));
    }
}
