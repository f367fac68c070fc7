//! The shares of an all-to-all: what each rank of the group gets and gives, from the split sizes of `record_param_comms`.
//!
//! ```text
//!   "In msg nelems": 600, "In split size": "[1, 2, 3]"      a row has 100 elements: shares of 100, 200 and 300
//! ```
//!
//! Torch counts splits of one tensor (`all_to_allv`) in rows, and those of a list of tensors (`all_to_all`) in elements. For a list,
//! its `Out msg nelems` is that of the input. An empty split means equal shares.

use crate::bytes::value::Value;
use crate::meaning::names;

/// Bytes for and from each rank of the group; empty if they are unknown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) sent: Vec<i64>,
    pub(crate) received: Vec<i64>,
}

impl Shares {
    const UNKNOWN: Self = Self { sent: Vec::new(), received: Vec::new() };

    /// From the arguments of `record_param_comms`. `None` if all shares are equal, or the arguments do not divide the arrays.
    /// `sent_bytes` is the size of what the rank sends: of several operations in one kernel, the shares are unknown.
    pub(crate) fn from_record(record: &Value, group_size: Option<i32>, sent_bytes: Option<i64>) -> Option<Self> {
        let [sent, received] = [Side::of(record, "In"), Side::of(record, "Out")];
        let ranks = match (&sent.splits, &received.splits) {
            (Splits::Equal, Splits::Equal) => {
                let differ = sent.elements.zip(received.elements).is_some_and(|(sent, received)| sent != received);
                return differ.then_some(Self::UNKNOWN);
            }
            (Splits::Listed(list), Splits::Equal) | (Splits::Equal | Splits::Listed(_), Splits::Listed(list)) => {
                list.len()
            }
            (Splits::Cut, _) | (_, Splits::Cut) => return Some(Self::UNKNOWN),
        };
        let bytes = |side: Side| {
            let (_, size) = record.get("dtype").and_then(Value::text).and_then(names::dtype)?;
            side.shares(ranks)?.into_iter().map(|elements| elements.checked_mul(size)).collect::<Option<Vec<i64>>>()
        };
        let (Some(sent), Some(received)) = (bytes(sent), bytes(received)) else { return Some(Self::UNKNOWN) };
        let fits_group = group_size.is_none_or(|size| usize::try_from(size) == Ok(ranks));
        if !fits_group || sum(&sent).is_none_or(|sum| Some(sum) != sent_bytes) {
            return Some(Self::UNKNOWN);
        }
        let is_equal = sent.iter().chain(&received).all(|share| *share == sent[0]);
        (!is_equal).then_some(Self { sent, received })
    }
}

/// How the arguments divide an array.
enum Splits {
    Equal,
    /// Dots cut the list, or it is none.
    Cut,
    Listed(Vec<i64>),
}

/// One direction: the elements of the array, and its splits.
struct Side {
    elements: Option<i64>,
    splits: Splits,
    counts_elements: bool,
}

impl Side {
    fn of(record: &Value, direction: &str) -> Self {
        let member = |what: &str| record.get(&format!("{direction} {what}"));
        let elements = member("msg nelems").and_then(Value::integer).filter(|n| *n >= 0);
        let counts_elements = record.get("Collective name").and_then(Value::text) == Some("all_to_all");
        let splits = match member("split size").map(Value::integers) {
            None => Splits::Equal,
            Some(Some(list)) if list.is_empty() => Splits::Equal,
            Some(Some(list)) if list.iter().all(|split| *split >= 0) => Splits::Listed(list),
            Some(_) => Splits::Cut,
        };
        Self { elements, splits, counts_elements }
    }

    /// The elements of each share; `None` if they do not fit the array.
    fn shares(self, ranks: usize) -> Option<Vec<i64>> {
        match self.splits {
            Splits::Cut => None,
            Splits::Equal => {
                let (elements, shares) = (self.elements?, i64::try_from(ranks).ok()?);
                (elements % shares == 0).then(|| vec![elements / shares; ranks])
            }
            Splits::Listed(list) => {
                let rows = sum(&list).filter(|_| list.len() == ranks)?;
                if self.counts_elements || rows == 0 {
                    return Some(list);
                }
                let elements = self.elements.filter(|elements| elements % rows == 0)?;
                Some(list.into_iter().map(|split| split * (elements / rows)).collect())
            }
        }
    }
}

fn sum(all: &[i64]) -> Option<i64> {
    all.iter().try_fold(0_i64, |sum, one| sum.checked_add(*one))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bytes an element.
    #[track_caller]
    fn check(args: &str, sent_bytes: i64, expected: Option<(&[i64], &[i64])>) {
        let record = Value::parse(format!("{{{args}, \"dtype\": \"BFloat16\"}}").as_bytes()).unwrap();
        let expected = expected.map(|(sent, received)| Shares { sent: sent.into(), received: received.into() });
        assert_eq!(Shares::from_record(&record, Some(3), Some(sent_bytes)), expected, "{args}");
    }

    #[test]
    fn splits_of_a_tensor_are_rows_and_those_of_a_list_are_elements() {
        let rows = r#""Collective name": "all_to_allv", "In msg nelems": 600, "Out msg nelems": 900,
            "In split size": "[1, 2, 3]", "Out split size": [1, 4, 4]"#;
        check(rows, 1200, Some((&[200, 400, 600], &[200, 800, 800])));
        let elements = r#""Collective name": "all_to_all", "In msg nelems": 6, "Out msg nelems": 6,
            "In split size": "[1, 2, 3]", "Out split size": "[1, 4, 4]""#;
        check(elements, 12, Some((&[2, 4, 6], &[2, 8, 8])));
        let nothing_sent =
            r#""In msg nelems": 0, "Out msg nelems": 6, "In split size": "[0, 0, 0]", "Out split size": "[1, 1, 0]""#;
        check(nothing_sent, 0, Some((&[0, 0, 0], &[6, 6, 0])));
        let one_side =
            r#""In msg nelems": 6, "Out msg nelems": 8, "In split size": "[]", "Out split size": "[2, 1, 1]""#;
        check(one_side, 12, Some((&[4, 4, 4], &[8, 4, 4])));
    }

    #[test]
    fn equal_shares_are_not_listed() {
        for (splits, more) in
            [("[]", ""), ("[2, 2, 2]", r#", "Out msg nelems": 6"#), ("[]", r#", "Out msg nelems": 6"#)]
        {
            check(
                &format!(r#""In msg nelems": 6, "In split size": "{splits}", "Out split size": "{splits}"{more}"#),
                12,
                None,
            );
        }
    }

    #[test]
    fn shares_that_the_arguments_do_not_tell_are_unknown() {
        let unknown: Option<(&[i64], &[i64])> = Some((&[], &[]));
        for (splits, sent) in [
            ("[1, 2, ...]", 12),
            ("[1, 2]", 12),
            ("[1, 2, -3]", 12),
            ("[1, 2, 4]", 12),
            ("many", 12),
            // The kernel carries out more than this record.
            ("[1, 2, 3]", 24),
            ("[9223372036854775807, 2, 3]", 12),
        ] {
            check(
                &format!(
                    r#""In msg nelems": 6, "Out msg nelems": 6, "In split size": "{splits}", "Out split size": "[1, 2, 3]""#
                ),
                sent,
                unknown,
            );
        }
        for splits in [r#", "In split size": "[]", "Out split size": "[]""#, ""] {
            check(&format!(r#""In msg nelems": 6, "Out msg nelems": 9{splits}"#), 12, unknown);
        }
    }
}
