//! Injects known faults: a rank that is slow in one phase, or a rank with a wrong clock.

use std::fmt;
use std::time::Duration;

use recorder::Clock;

use crate::Error;

/// The part of a step in which a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The loading of the batch.
    Input,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
}

/// A fault, as given by `--inject`.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// `slow:rank=R,ms=M[,phase=forward|backward|input][,every=K]`: the rank waits inside that phase of every K-th step.
    Slow {
        /// The slow rank.
        rank: usize,
        /// Its wait in such a step.
        wait: Duration,
        /// The phase that holds the wait.
        phase: Phase,
        /// The rank waits in steps whose number is a multiple of this; at least 1.
        every: u32,
    },
    /// `clock:rank=R[,offset_ms=O][,drift_ppm=D]`: the rank's clock is shifted and drifts.
    Clock {
        /// The rank with the wrong clock.
        rank: usize,
        /// Offset of the clock at its creation.
        offset_ns: i64,
        /// Excess of its rate, in ns per second.
        drift_ppb: i64,
    },
}

impl Fault {
    /// Parses one `--inject` value.
    ///
    /// # Errors
    /// [`Error::Usage`], which names the wrong part.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Usage(format!("--inject {text:?}: {problem}"));
        let (what, parts) = text.split_once(':').ok_or_else(|| wrong("begins with neither slow: nor clock:".into()))?;
        let allowed: &[&str] = match what {
            "slow" => &["rank", "ms", "phase", "every"],
            "clock" => &["rank", "offset_ms", "drift_ppm"],
            _ => return Err(wrong(format!("{what:?} is neither slow nor clock"))),
        };
        let mut values: Vec<(&str, &str)> = Vec::new();
        for part in parts.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong(format!("{part:?} is not name=value")))?;
            let (name, value) = (name.trim(), value.trim());
            if !allowed.contains(&name) {
                return Err(wrong(format!("{name:?} is none of {}", allowed.join(", "))));
            }
            if values.iter().any(|(known, _)| *known == name) {
                return Err(wrong(format!("{name} is given twice")));
            }
            values.push((name, value));
        }
        let find = |name: &str| values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let number = |name: &str, limit: f64| -> Result<Option<f64>, Error> {
            let Some(value) = find(name) else { return Ok(None) };
            let number: f64 = value.parse().map_err(|_| wrong(format!("{name}={value} is not a number")))?;
            if !number.is_finite() || number.abs() > limit {
                return Err(wrong(format!("{name}={value} is beyond ±{limit}")));
            }
            Ok(Some(number))
        };
        let rank = find("rank").ok_or_else(|| wrong("rank is missing".into()))?;
        let rank = rank.parse().map_err(|_| wrong(format!("rank={rank} is not a rank")))?;
        if what == "clock" {
            // One year: far more than two hosts ever differ, and all sums of times stay within 64 bits.
            let offset_ms = number("offset_ms", 3.2e10)?.unwrap_or(0.0);
            // 10 %: a real clock never drifts that much.
            let drift_ppm = number("drift_ppm", 1e5)?.unwrap_or(0.0);
            return Ok(Self::Clock {
                rank,
                offset_ns: (offset_ms * 1e6).round() as i64,
                drift_ppb: (drift_ppm * 1e3).round() as i64,
            });
        }
        let ms = number("ms", 3.6e6)?.ok_or_else(|| wrong("ms is missing".into()))?;
        if ms < 0.0 {
            return Err(wrong(format!("ms={ms} is negative")));
        }
        let phase = match find("phase") {
            None | Some("forward") => Phase::Forward,
            Some("backward") => Phase::Backward,
            Some("input") => Phase::Input,
            Some(other) => return Err(wrong(format!("phase={other} is none of forward, backward, input"))),
        };
        let every = match find("every").map(str::parse) {
            None => 1,
            Some(Ok(every)) if every > 0 => every,
            Some(_) => return Err(wrong("every is not a number of steps, which is at least 1".into())),
        };
        Ok(Self::Slow { rank, wait: Duration::from_secs_f64(ms / 1e3), phase, every })
    }

    /// The rank with this fault.
    pub fn rank(&self) -> usize {
        match self {
            Self::Slow { rank, .. } | Self::Clock { rank, .. } => *rank,
        }
    }
}

impl fmt::Display for Fault {
    /// Formats the fault as on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow { rank, wait, phase, every } => {
                let phase = match phase {
                    Phase::Input => "input",
                    Phase::Forward => "forward",
                    Phase::Backward => "backward",
                };
                write!(f, "slow:rank={rank},ms={},phase={phase}", wait.as_secs_f64() * 1e3)?;
                if *every > 1 { write!(f, ",every={every}") } else { Ok(()) }
            }
            Self::Clock { rank, offset_ns, drift_ppb } => {
                let (offset_ms, drift_ppm) = (*offset_ns as f64 / 1e6, *drift_ppb as f64 / 1e3);
                write!(f, "clock:rank={rank},offset_ms={offset_ms},drift_ppm={drift_ppm}")
            }
        }
    }
}

/// The clock of `rank`: the system's clock with every `clock:` fault of that rank.
pub fn clock_for(faults: &[Fault], rank: usize) -> Clock {
    let mut bend: Option<(i64, i64)> = None;
    for fault in faults {
        if let Fault::Clock { rank: faulty, offset_ns, drift_ppb } = fault
            && *faulty == rank
        {
            let (offset, drift) = bend.unwrap_or((0, 0));
            bend = Some((offset + offset_ns, drift + drift_ppb));
        }
    }
    bend.map_or_else(Clock::system, |(offset_ns, drift_ppb)| Clock::bent(offset_ns, drift_ppb))
}

/// Total wait of `rank` in `phase` of one step.
pub fn wait_in(faults: &[Fault], rank: usize, phase: Phase, step: u32) -> Duration {
    let mut total = Duration::ZERO;
    for fault in faults {
        if let Fault::Slow { rank: slow, wait, phase: slow_phase, every } = fault
            && *slow == rank
            && *slow_phase == phase
            && step.is_multiple_of(*every)
        {
            total += *wait;
        }
    }
    total
}

/// Waits for `wait` and hardly longer, even if all cores are busy: sleeps in short naps, which free the core as a slow read
/// would, and spins at the end.
///
/// The naps are short on purpose. The scheduler puts a thread that has just computed and then sleeps once behind the others
/// when it wakes: on a machine with eight runnable threads per core the wait was 2 to 4 ms too long in the median, 10 to
/// 90 ms at worst, with any length of the spin. The scheduler runs a thread that has napped a few times at once: 0.0 ms in
/// the median, 4 ms at worst.
pub fn wait_exactly(wait: Duration) {
    let begin = std::time::Instant::now();
    loop {
        let left = wait.saturating_sub(begin.elapsed());
        match left.checked_sub(SPIN) {
            _ if left.is_zero() => return,
            Some(nap) if !nap.is_zero() => std::thread::sleep(nap.min(NAP)),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Longest nap of a wait.
const NAP: Duration = Duration::from_millis(1);
/// Time of the spin at the end: more than Linux's default timer slack of 50 µs.
const SPIN: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_faults_are_parsed() {
        let slow = |rank, ms, phase| Fault::Slow { rank, wait: Duration::from_millis(ms), phase, every: 1 };
        assert_eq!(Fault::parse("slow:rank=5,ms=30").unwrap(), slow(5, 30, Phase::Forward));
        assert_eq!(Fault::parse("slow:rank=0,ms=20,phase=backward").unwrap(), slow(0, 20, Phase::Backward));
        assert_eq!(Fault::parse("slow:ms=20,phase=input,rank=1").unwrap(), slow(1, 20, Phase::Input));
        assert_eq!(
            Fault::parse("clock:rank=3,offset_ms=250,drift_ppm=40").unwrap(),
            Fault::Clock { rank: 3, offset_ns: 250_000_000, drift_ppb: 40_000 }
        );
        assert_eq!(
            Fault::parse("clock:rank=3,offset_ms=-0.5").unwrap(),
            Fault::Clock { rank: 3, offset_ns: -500_000, drift_ppb: 0 }
        );
    }

    #[test]
    fn a_formatted_fault_parses_to_itself() {
        for text in [
            "slow:rank=5,ms=30,phase=forward",
            "slow:rank=5,ms=30,phase=input,every=4",
            "clock:rank=3,offset_ms=-250.5,drift_ppm=40",
        ] {
            assert_eq!(Fault::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, part) in [
            ("slow", "neither slow: nor clock:"),
            ("fast:rank=1,ms=1", "neither slow nor clock"),
            ("slow:ms=1", "rank is missing"),
            ("slow:rank=1", "ms is missing"),
            ("slow:rank=-1,ms=1", "rank=-1 is not a rank"),
            ("slow:rank=1,ms=-1", "negative"),
            ("slow:rank=1,ms=inf", "beyond"),
            ("slow:rank=1,ms=x", "ms=x is not a number"),
            ("slow:rank=1,ms=1,phase=optimizer", "none of forward, backward, input"),
            ("slow:rank=1,ms=1,every=0", "at least 1"),
            ("slow:rank=1,ms=1,every=x", "at least 1"),
            ("slow:rank=1,ms=1,ms=2", "given twice"),
            ("clock:rank=1,ms=1", "none of rank, offset_ms, drift_ppm"),
            ("clock:rank=1,offset_ms=1e30", "beyond"),
        ] {
            let message = Fault::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn waits_of_one_rank_and_phase_add_up() {
        let all: Vec<Fault> =
            ["slow:rank=1,ms=2", "slow:rank=1,ms=3", "slow:rank=2,ms=9", "slow:rank=1,ms=4,phase=input"]
                .iter()
                .map(|text| Fault::parse(text).unwrap())
                .collect();
        assert_eq!(wait_in(&all, 1, Phase::Forward, 7), Duration::from_millis(5));
        assert_eq!(wait_in(&all, 1, Phase::Input, 7), Duration::from_millis(4));
        assert_eq!(wait_in(&all, 0, Phase::Forward, 7), Duration::ZERO);
        let every = [Fault::parse("slow:rank=1,ms=2,every=3").unwrap()];
        let waits_ms = (0..7).map(|step| wait_in(&every, 1, Phase::Forward, step).as_millis());
        assert_eq!(waits_ms.collect::<Vec<_>>(), [2, 0, 0, 2, 0, 0, 2]);
    }

    #[test]
    fn a_wait_is_never_too_short() {
        let begin = std::time::Instant::now();
        wait_exactly(Duration::from_millis(12));
        assert!(begin.elapsed() >= Duration::from_millis(12));
    }
}
