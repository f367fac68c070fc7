//! Accuracy of clocks that are fitted by collectives. Real traces of one host get random clock shifts of up to ±10 s
//! and drifts of up to ±50 ppm. `--clock collective` analyses them, and the fits are compared with the planted clocks.
//!
//! ```console
//! $ cargo bench -p aggregator --bench clock_truth -- [TRIALS] [FOLDER…]
//! ```
//!
//! A pure shift must change nothing: every trial of a folder then has the same errors. `error_ns` is stated for 95 % of
//! the clocks, `bound_ns` for all. The truth assumes that two devices of one host show the same time, although the
//! driver converts their times with its own error (torchrec4_long_a2a: 26 µs throughout). The rule that `error_ns` is
//! never below the duration of the quickest operation was designed with that folder, so only the other folders test it.
//!
//! Exit code 1: a clock exceeds its bound, fewer than 95 % are within their errors, or the analysis changed.

#[path = "../tests/clock_truth/mod.rs"]
mod clock_truth;

use std::error::Error;
use std::process::ExitCode;

use clock_truth::{FOLDERS, Score, Trial, Truth, skews};
use fixtures::data::find_folder;
use fixtures::random::Random;
use model::clock_choice::Choice;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let trials: usize = arguments.first().map_or(Ok(50), |text| text.parse())?;
    let names: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let mut wrong = 0;
    println!("{trials} trials; all times in µs, each as median and largest");
    println!(
        "{:19} {:>6} {:7} {:6} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7}",
        "", "span s", "bent", "clock", "clocks", "off", "", "error", "", "bound", "", "within%", "beyond"
    );
    for (name, one_host) in FOLDERS.into_iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let Some(path) = find_folder(name) else { continue };
        let truth = Truth::of(&path, one_host)?;
        for drifting in [false, true] {
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            let done: Result<Vec<Trial>, _> =
                (0..trials).map(|_| truth.trial(Choice::Collective, drifting, &mut random)).collect();
            wrong += usize::from(!report(name, &truth, drifting, &done?));
        }
    }
    println!("{wrong} of these contradict what was stated");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the trials of a folder, and returns whether all stated errors hold.
fn report(name: &str, truth: &Truth, drifting: bool, trials: &[Trial]) -> bool {
    let bent = if drifting { "±50ppm" } else { "shift" };
    let mut good = true;
    for device in [false, true] {
        let score = Score::of(trials, device);
        if score.clocks() == 0 {
            continue;
        }
        let clock = if device { "device" } else { "host" };
        println!("{name:19} {:>6.2} {bent:7} {clock:6} {:>6} {}", truth.span_s(), score.clocks(), score.line());
        good &= score.beyond_bound == 0 && score.within_pct() >= 95.0;
    }
    let (within_pct, worst_us) = skews(trials);
    let all = |what: fn(&Trial) -> bool| if trials.iter().all(what) { "same" } else { "CHANGED" };
    let (instances, verdicts, breakdown) =
        (all(|t| t.same_instances), all(|t| t.same_verdicts), all(|t| t.same_breakdown));
    let against = if truth.relative { "the unbent traces" } else { "one shared clock" };
    println!(
        "{:19} against {against}: collectives {instances}, verdicts {verdicts}, breakdown {breakdown}; {within_pct:.1} % of skews \
         within error_ns, at most {worst_us:.1} µs off",
        ""
    );
    good && [instances, verdicts, breakdown] == ["same"; 3] && within_pct >= 95.0
}
