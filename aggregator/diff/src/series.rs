//! The values of one quantity by step.

/// Values by the position of their step, ascending. A step without a value has 0. Most names of a long run occur in few
/// steps, so only the steps with a value take memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(Vec<(u32, f64)>);

impl Series {
    /// Adds to the value of a step. [`settle`](Self::settle) must follow.
    pub(crate) fn add(&mut self, step: usize, value: f64) {
        match self.0.last_mut() {
            Some((last, sum)) if *last as usize == step => *sum += value,
            _ => self.0.push((step as u32, value)),
        }
    }

    /// Sorts the values and adds those of one step.
    pub(crate) fn settle(&mut self) {
        self.0.sort_by_key(|(step, _)| *step);
        self.0.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            same
        });
    }

    /// The values of the steps that have one.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|(_, value)| *value)
    }

    /// The values that are in `steps`, which ascend, each with its position there.
    pub(super) fn within(&self, steps: &[usize]) -> impl Iterator<Item = (usize, f64)> {
        self.0.iter().filter_map(|(step, value)| Some((steps.binary_search(&(*step as usize)).ok()?, *value)))
    }

    /// The value of each of `steps`, which ascend.
    pub(super) fn at(&self, steps: &[usize]) -> Vec<f64> {
        let mut values = vec![0.0; steps.len()];
        self.within(steps).for_each(|(place, value)| values[place] = value);
        values
    }
}

/// One value for each step.
impl FromIterator<f64> for Series {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Self((0..).zip(values).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_step_add_up_in_any_order() {
        let mut series = Series::default();
        for (step, value) in [(7, 1.0), (2, 4.0), (7, 2.0), (7, 5.0), (3, f64::NAN)] {
            series.add(step, value);
        }
        series.settle();
        assert_eq!(series.at(&[0, 2, 7]), [0.0, 4.0, 8.0]);
        assert_eq!(series.within(&[2, 3, 7]).map(|(place, _)| place).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(series.at(&[3])[0].is_nan());
        assert_eq!([4.0, 0.0].into_iter().collect::<Series>().at(&[0, 1, 2]), [4.0, 0.0, 0.0]);
    }
}
