//! How true the clocks are that collectives give: real traces of one host, whose clocks are shifted by up to ±10 s and
//! bent by up to ±50 ppm at random, analysed by `--clock collective`, and compared with what was done to them.
//!
//! ```console
//! $ cargo bench -p aggregator --bench clock_truth -- [TRIALS] [FOLDER…]
//! ```
//!
//! A shift alone must change nothing: then every trial of a folder gives the same errors, those of its ranks.
//! `error_ns` is stated for 95 % of clocks, `bound_ns` for all. That two devices of one host show the same time is
//! taken for the truth, though the driver converts their times with an error of its own (torchrec4_long_a2a: 26 µs
//! throughout). The rule that `error_ns` is never below the time of the quickest operation was made knowing that
//! folder, so only the others test it.
//!
//! Exit code 1 if a clock is beyond its bound, fewer than 95 % are within their errors, or the analysis changed.

#[path = "../tests/clock_truth/mod.rs"]
mod clock_truth;

use std::error::Error;
use std::process::ExitCode;

use aggregator::clock::Choice;
use clock_truth::{FOLDERS, Random, Score, Trial, Truth, folder, skews};

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
        let Some(path) = folder(name) else {
            println!("{name}: not on this machine; RANKSCOPE_DATA names a folder that holds kineto/");
            continue;
        };
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

/// Prints the trials of a folder, and says whether everything stated holds.
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
    let against = if truth.relative { "the straight traces" } else { "one shared clock" };
    println!(
        "{:19} against {against}: collectives {instances}, verdicts {verdicts}, breakdown {breakdown}; {within_pct:.1} % of skews \
         within error_ns, at most {worst_us:.1} µs off",
        ""
    );
    good && [instances, verdicts, breakdown] == ["same"; 3] && within_pct >= 95.0
}
