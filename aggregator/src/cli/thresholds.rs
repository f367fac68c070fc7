//! Options for the thresholds of a verdict.

use clap::Args;

use model::thresholds::Thresholds;

/// Thresholds of the verdict "cause". The defaults are those of the library.
#[derive(Debug, Args)]
#[command(next_help_heading = "When a rank is called a cause")]
pub(super) struct ThresholdArguments {
    /// Require so many steps for a verdict [default: 3].
    #[arg(long, value_name = "N")]
    min_steps: Option<usize>,
    /// Require an effect of so many percent of the median step [default: 2].
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| number(text, 100.0))]
    min_effect_pct: Option<f64>,
    /// Require a distance of so many standard errors from the other ranks [default: 4].
    #[arg(long, value_name = "Z", value_parser = |text: &str| number(text, f64::MAX))]
    min_z: Option<f64>,
    /// Require that so large a share of the steps shows it, from 0 to 1 [default: 0.8].
    #[arg(long, value_name = "SHARE", value_parser = |text: &str| number(text, 1.0))]
    min_persistence: Option<f64>,
}

impl ThresholdArguments {
    /// Returns the thresholds of the library, overridden by the given options.
    pub(super) fn thresholds(&self) -> Thresholds {
        let default = Thresholds::default();
        Thresholds {
            min_steps: self.min_steps.unwrap_or(default.min_steps),
            min_effect_pct: self.min_effect_pct.unwrap_or(default.min_effect_pct),
            min_z: self.min_z.unwrap_or(default.min_z),
            min_persistence: self.min_persistence.unwrap_or(default.min_persistence),
            ..default
        }
    }
}

/// Parses a number from 0 to `most`.
pub(super) fn number(text: &str, most: f64) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (0.0..=most).contains(number)).ok_or_else(|| {
        if most == f64::MAX { "expected 0 or more".into() } else { format!("expected a number from 0 to {most}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The help text repeats the defaults of the library.
    #[test]
    fn the_help_names_the_defaults() {
        let t = Thresholds::default();
        assert_eq!((t.min_steps, t.min_effect_pct, t.min_z, t.min_persistence), (3, 2.0, 4.0, 0.8));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        assert_eq!((number("2.5", f64::MAX), number("1", 1.0)), (Ok(2.5), Ok(1.0)));
        for bad in ["-1", "1.5", "NaN", "inf", ""] {
            assert!(number(bad, 1.0).is_err(), "{bad}");
        }
        assert!(number("inf", f64::MAX).is_err());
    }
}
