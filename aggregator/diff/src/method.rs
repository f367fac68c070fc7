//! How a comparison is made: its parameters, and the change of one row.

use serde::Serialize;

/// The method of the comparison and its parameters. The result contains all of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// The method in words.
    pub words: String,
    /// Share of the shorter side's step below which a change does not matter.
    pub smallest_share: f64,
    /// Allowance for the variation between runs: variance of a run / variance of its steps.
    pub between_runs: f64,
    /// The allowance as a share of the row's own value (standard deviation).
    pub between_runs_relative: f64,
    /// Degrees of freedom that the allowance contributes.
    pub prior_df: f64,
    /// Confidence level of each interval.
    pub confidence: f64,
    /// Highest false discovery rate over all rows.
    pub false_discoveries: f64,
    /// Minimum number of steps of a run to estimate the variation of its steps. With fewer, nothing is significant
    /// unless at least three runs a side show the variation between runs.
    pub least_steps: usize,
    /// Whether the runs of one side may have different world sizes or programs.
    pub unlike_runs: bool,
}

impl Default for Method {
    fn default() -> Self {
        Self {
            words:
                "median over steps, of the step and its parts the mean of the middle half; standard error by circular \
                    block bootstrap over steps, plus variance between runs (an allowance with one run a side, measured \
                    with several); Student's t; false discoveries by Benjamini and Yekutieli"
                    .into(),
            smallest_share: 0.01,
            between_runs: 1.0,
            between_runs_relative: 0.02,
            prior_df: 8.0,
            confidence: 0.95,
            false_discoveries: 0.05,
            least_steps: 5,
            unlike_runs: false,
        }
    }
}

/// A change between two sides, and its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Value of B − value of A.
    pub delta_ns: f64,
    /// Standard error of the difference, including the variance between runs.
    pub se_ns: f64,
    /// Degrees of freedom of Student's t.
    pub df: f64,
    /// Lower end of the confidence interval.
    pub low_ns: f64,
    /// Upper end of the confidence interval.
    pub high_ns: f64,
    /// Probability of such a change if the true change does not exceed the smallest relevant one.
    pub p: f64,
}

impl Change {
    /// Whether the interval holds 0: the data allow that nothing changed.
    pub(crate) fn may_be_none(&self) -> bool {
        self.low_ns <= 0.0 && 0.0 <= self.high_ns
    }
}
