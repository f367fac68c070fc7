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
    let position = share * (sorted.len() - 1) as f64;
    let below = position.floor();
    let (low, high) = (sorted[below as usize], sorted[position.ceil() as usize]);
    low + (high - low) * (position - below)
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
}
