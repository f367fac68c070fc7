//! Options for the thresholds of a verdict.

use clap::Args;

use crate::Error;
use crate::model::thresholds::Thresholds;

/// Thresholds of the verdict "cause". The defaults are those of the library.
#[derive(Debug, Args)]
#[command(next_help_heading = "When a rank is called a cause")]
pub(super) struct ThresholdArguments {
    /// Require so many steps for a verdict [default: 3].
    #[arg(long, value_name = "N")]
    min_steps: Option<usize>,
    /// Require an effect of so many percent of the median step [default: 2].
    #[arg(long, value_name = "PERCENT")]
    min_effect_pct: Option<f64>,
    /// Require a distance of so many standard errors from the other ranks [default: 4].
    #[arg(long, value_name = "Z")]
    min_z: Option<f64>,
    /// Require that so large a share of the steps shows it, from 0 to 1 [default: 0.8].
    #[arg(long, value_name = "SHARE")]
    min_persistence: Option<f64>,
}

impl ThresholdArguments {
    /// Returns the thresholds of the library, overridden by the given options.
    pub(super) fn resolve(&self) -> Result<Thresholds, Error> {
        let default = Thresholds::default();
        Ok(Thresholds {
            min_steps: self.min_steps.unwrap_or(default.min_steps),
            min_effect_pct: within("min-effect-pct", self.min_effect_pct, default.min_effect_pct, 100.0)?,
            min_z: within("min-z", self.min_z, default.min_z, f64::MAX)?,
            min_persistence: within("min-persistence", self.min_persistence, default.min_persistence, 1.0)?,
            ..default
        })
    }
}

fn within(option: &'static str, given: Option<f64>, default: f64, most: f64) -> Result<f64, Error> {
    let Some(value) = given else { return Ok(default) };
    if (0.0..=most).contains(&value) {
        return Ok(value);
    }
    let why = if most == f64::MAX { "must be 0 or more".into() } else { format!("must be from 0 to {most}") };
    Err(Error::Option { option, value: value.to_string(), why })
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
        assert_eq!(within("min-z", None, 4.0, f64::MAX).unwrap(), 4.0);
        assert_eq!(within("min-z", Some(2.5), 4.0, f64::MAX).unwrap(), 2.5);
        for bad in [-1.0, 1.5, f64::NAN] {
            assert!(within("min-persistence", Some(bad), 0.8, 1.0).is_err());
        }
    }
}
