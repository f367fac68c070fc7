//! Known faults on request: a rank that is slow in one phase, a rank whose clock is wrong.

use std::fmt;
use std::time::Duration;

use recorder::Clock;

use crate::Error;

/// The part of a step in which a rank is made slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Making the batch.
    Input,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
}

/// A fault, read from `--inject`.
#[derive(Clone, Debug, PartialEq)]
pub enum Injection {
    /// `slow:rank=R,ms=M[,phase=forward|backward|input]`: the rank waits inside that phase of every step.
    Slow {
        /// Which rank.
        rank: usize,
        /// How long.
        wait: Duration,
        /// Where.
        phase: Phase,
    },
    /// `clock:rank=R[,offset_ms=O][,drift_ppm=D]`: the rank's clock source itself is bent.
    Clock {
        /// Which rank.
        rank: usize,
        /// What is added to the clock at its creation.
        offset_ns: i64,
        /// How much faster it runs, in ns per second.
        drift_ppb: i64,
    },
}

impl Injection {
    /// Reads one `--inject` value.
    ///
    /// # Errors
    /// [`Error::Usage`], which names the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Usage(format!("--inject {text:?}: {problem}"));
        let (what, parts) = text.split_once(':').ok_or_else(|| wrong("begins with neither slow: nor clock:".into()))?;
        let allowed: &[&str] = match what {
            "slow" => &["rank", "ms", "phase"],
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
            // A year is far more than two hosts ever differ, and keeps all sums of times within 64 bits.
            let offset_ms = number("offset_ms", 3.2e10)?.unwrap_or(0.0);
            // A clock that is 10 % fast is broken beyond anything a fit should be tested with.
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
        Ok(Self::Slow { rank, wait: Duration::from_secs_f64(ms / 1e3), phase })
    }

    /// The rank it concerns.
    pub fn rank(&self) -> usize {
        match self {
            Self::Slow { rank, .. } | Self::Clock { rank, .. } => *rank,
        }
    }
}

impl fmt::Display for Injection {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow { rank, wait, phase } => {
                let phase = match phase {
                    Phase::Input => "input",
                    Phase::Forward => "forward",
                    Phase::Backward => "backward",
                };
                write!(f, "slow:rank={rank},ms={},phase={phase}", wait.as_secs_f64() * 1e3)
            }
            Self::Clock { rank, offset_ns, drift_ppb } => {
                let (offset_ms, drift_ppm) = (*offset_ns as f64 / 1e6, *drift_ppb as f64 / 1e3);
                write!(f, "clock:rank={rank},offset_ms={offset_ms},drift_ppm={drift_ppm}")
            }
        }
    }
}

/// The clock of `rank`: the system's, bent by every `clock:` injection for that rank.
pub fn clock_for(injections: &[Injection], rank: usize) -> Clock {
    let mut bend: Option<(i64, i64)> = None;
    for injection in injections {
        if let Injection::Clock { rank: whose, offset_ns, drift_ppb } = injection
            && *whose == rank
        {
            let (offset, drift) = bend.unwrap_or((0, 0));
            bend = Some((offset + offset_ns, drift + drift_ppb));
        }
    }
    bend.map_or_else(Clock::system, |(offset_ns, drift_ppb)| Clock::bent(offset_ns, drift_ppb))
}

/// How long `rank` waits in `phase` of every step.
pub fn wait_in(injections: &[Injection], rank: usize, phase: Phase) -> Duration {
    let mut total = Duration::ZERO;
    for injection in injections {
        if let Injection::Slow { rank: whose, wait, phase: where_ } = injection
            && *whose == rank
            && *where_ == phase
        {
            total += *wait;
        }
    }
    total
}

/// Waits for `wait`, and hardly longer, although every core may be taken: it naps, so that the core is free as it is
/// during a slow read, and spins for the last moment.
///
/// The naps are short on purpose. A thread that has just computed and then sleeps once is put behind the others when it
/// wakes: on a machine with eight runnable threads per core the wait was 2 to 4 ms too long in the median, 10 to 90 ms
/// at worst, however much of its end was spent spinning. A thread that has napped a few times is owed time and is run
/// at once: 0.0 ms in the median, 4 ms at worst.
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

/// One nap of a wait.
const NAP: Duration = Duration::from_millis(1);
/// How much of a wait is spun: more than Linux's default timer slack of 50 µs.
const SPIN: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_documentation_says() {
        let slow = |rank, ms, phase| Injection::Slow { rank, wait: Duration::from_millis(ms), phase };
        assert_eq!(Injection::parse("slow:rank=5,ms=30").unwrap(), slow(5, 30, Phase::Forward));
        assert_eq!(Injection::parse("slow:rank=0,ms=20,phase=backward").unwrap(), slow(0, 20, Phase::Backward));
        assert_eq!(Injection::parse("slow:ms=20,phase=input,rank=1").unwrap(), slow(1, 20, Phase::Input));
        assert_eq!(
            Injection::parse("clock:rank=3,offset_ms=250,drift_ppm=40").unwrap(),
            Injection::Clock { rank: 3, offset_ns: 250_000_000, drift_ppb: 40_000 }
        );
        assert_eq!(
            Injection::parse("clock:rank=3,offset_ms=-0.5").unwrap(),
            Injection::Clock { rank: 3, offset_ns: -500_000, drift_ppb: 0 }
        );
    }

    #[test]
    fn is_written_as_it_is_read() {
        for text in ["slow:rank=5,ms=30,phase=forward", "clock:rank=3,offset_ms=-250.5,drift_ppm=40"] {
            assert_eq!(Injection::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_nonsense_by_name() {
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
            ("slow:rank=1,ms=1,ms=2", "given twice"),
            ("clock:rank=1,ms=1", "none of rank, offset_ms, drift_ppm"),
            ("clock:rank=1,offset_ms=1e30", "beyond"),
        ] {
            let message = Injection::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn waits_of_one_rank_and_phase_add_up() {
        let all: Vec<Injection> =
            ["slow:rank=1,ms=2", "slow:rank=1,ms=3", "slow:rank=2,ms=9", "slow:rank=1,ms=4,phase=input"]
                .iter()
                .map(|text| Injection::parse(text).unwrap())
                .collect();
        assert_eq!(wait_in(&all, 1, Phase::Forward), Duration::from_millis(5));
        assert_eq!(wait_in(&all, 1, Phase::Input), Duration::from_millis(4));
        assert_eq!(wait_in(&all, 0, Phase::Forward), Duration::ZERO);
    }

    #[test]
    fn never_waits_less() {
        let begin = std::time::Instant::now();
        wait_exactly(Duration::from_millis(12));
        assert!(begin.elapsed() >= Duration::from_millis(12));
    }
}
