//! Injects known faults: ranks that are slow in one phase, a slow link, or a rank with a wrong clock.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use agent::fabric::Transfer;
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
    /// The update, before its wait for the gradients.
    Optimizer,
}

impl Phase {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Forward, "forward"),
        (Self::Backward, "backward"),
        (Self::Input, "input"),
        (Self::Optimizer, "optimizer"),
    ];
}

/// The ranks with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One rank.
    Rank(usize),
    /// All ranks of a pipeline's stage.
    Stage(usize),
    /// All ranks of a host; hosts are numbered in the order of their lowest ranks.
    Host(usize),
}

impl Place {
    fn key(self) -> (&'static str, usize) {
        match self {
            Self::Rank(number) => ("rank", number),
            Self::Stage(number) => ("stage", number),
            Self::Host(number) => ("host", number),
        }
    }
}

/// A fault, as given by `--inject`.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// `slow:rank=R|stage=S|host=H,ms=M[,phase=forward|backward|input|optimizer][,every=K][,from=A][,to=B]`: the ranks
    /// wait inside that phase of every K-th step, from step A on and before step B.
    Slow {
        /// The slow ranks.
        place: Place,
        /// Their wait in such a step.
        wait: Duration,
        /// The phase that holds the wait.
        phase: Phase,
        /// They wait in steps whose number is a multiple of this; at least 1.
        every: u32,
        /// They wait in these steps only.
        steps: Range<u32>,
    },
    /// `link:ranks=A-B,ms=M`: messages between the two ranks arrive later, and collectives of a communicator end later in
    /// which the two are neighbours in the ring.
    Link {
        /// The ends of the link.
        ranks: (usize, usize),
        /// The delay of each transfer.
        wait: Duration,
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
        let (what, parts) =
            text.split_once(':').ok_or_else(|| wrong("does not begin with slow:, link: or clock:".into()))?;
        let allowed: &[&str] = match what {
            "slow" => &["rank", "stage", "host", "ms", "phase", "every", "from", "to"],
            "link" => &["ranks", "ms"],
            "clock" => &["rank", "offset_ms", "drift_ppm"],
            _ => return Err(wrong(format!("unknown fault {what:?}; use slow, link or clock"))),
        };
        let fields = Fields::parse(parts, allowed).map_err(wrong)?;
        match what {
            "slow" => fields.slow(),
            "link" => fields.link(),
            _ => fields.clock(),
        }
        .map_err(wrong)
    }

    /// Checks that the job has the place of this fault.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self, size: usize, stages: usize, hosts: usize) -> Result<(), Error> {
        let missing = |what: &str, count: usize| {
            Err(Error::Usage(format!("--inject {self}: the job has {what}s 0 to {} only", count - 1)))
        };
        let places = match self {
            Self::Slow { place, .. } => vec![*place],
            Self::Link { ranks: (a, b), .. } => vec![Place::Rank(*a), Place::Rank(*b)],
            Self::Clock { rank, .. } => vec![Place::Rank(*rank)],
        };
        for place in places {
            match place {
                Place::Rank(rank) if rank >= size => return missing("rank", size),
                Place::Stage(stage) if stage >= stages => return missing("stage", stages),
                Place::Host(host) if host >= hosts => return missing("host", hosts),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The `name=value` parts of a fault.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn parse(parts: &'a str, allowed: &[&str]) -> Result<Self, String> {
        let mut values: Vec<(&str, &str)> = Vec::new();
        for part in parts.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not name=value"))?;
            let (name, value) = (name.trim(), value.trim());
            if !allowed.contains(&name) {
                return Err(format!("unknown key {name:?}; use {}", allowed.join(", ")));
            }
            if values.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name} is given twice"));
            }
            values.push((name, value));
        }
        Ok(Self(values))
    }

    fn find(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn number(&self, name: &str, limit: f64) -> Result<Option<f64>, String> {
        let Some(value) = self.find(name) else { return Ok(None) };
        let number: f64 = value.parse().map_err(|_| format!("{name}={value} is not a number"))?;
        if !number.is_finite() || number.abs() > limit {
            return Err(format!("{name}={value} is beyond ±{limit}"));
        }
        Ok(Some(number))
    }

    fn wait(&self) -> Result<Duration, String> {
        let ms = self.number("ms", 3.6e6)?.ok_or("ms is missing")?;
        if ms < 0.0 {
            return Err(format!("ms={ms} is negative"));
        }
        Ok(Duration::from_secs_f64(ms / 1e3))
    }

    fn count(&self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.find(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("{name}={value} is not a {name}"))
    }

    fn step(&self, name: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.find(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("{name}={value} is not the number of a step"))
    }

    fn slow(&self) -> Result<Fault, String> {
        let places = [
            self.count("rank")?.map(Place::Rank),
            self.count("stage")?.map(Place::Stage),
            self.count("host")?.map(Place::Host),
        ];
        let mut places = places.into_iter().flatten();
        let (Some(place), None) = (places.next(), places.next()) else {
            return Err("one of rank, stage, host is needed: it is missing, or there are several".into());
        };
        let phase = self.find("phase").unwrap_or("forward");
        let names = Phase::ALL.map(|(_, name)| name).join(", ");
        let found = Phase::ALL.iter().find(|(_, name)| *name == phase);
        let (phase, _) = *found.ok_or_else(|| format!("unknown phase {phase:?}; use {names}"))?;
        let every = match self.find("every").map(str::parse) {
            None => 1,
            Some(Ok(every)) if every > 0 => every,
            Some(_) => return Err("every is not a number of steps, which is at least 1".into()),
        };
        let steps = self.step("from")?.unwrap_or(0)..self.step("to")?.unwrap_or(u32::MAX);
        if steps.is_empty() {
            return Err(format!("no step is from={} and before to={}", steps.start, steps.end));
        }
        Ok(Fault::Slow { place, wait: self.wait()?, phase, every, steps })
    }

    fn link(&self) -> Result<Fault, String> {
        let text = self.find("ranks").ok_or("ranks is missing")?;
        let ranks = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let ranks = ranks.filter(|(a, b)| a != b).ok_or_else(|| format!("ranks={text} is not A-B, as in 2-3"))?;
        Ok(Fault::Link { ranks, wait: self.wait()? })
    }

    fn clock(&self) -> Result<Fault, String> {
        let rank = self.count("rank")?.ok_or("rank is missing")?;
        // One year: far more than two hosts ever differ, and all sums of times stay within 64 bits.
        let offset_ms = self.number("offset_ms", 3.2e10)?.unwrap_or(0.0);
        // 10 %: a real clock never drifts that much.
        let drift_ppm = self.number("drift_ppm", 1e5)?.unwrap_or(0.0);
        let (offset_ns, drift_ppb) = ((offset_ms * 1e6).round() as i64, (drift_ppm * 1e3).round() as i64);
        Ok(Fault::Clock { rank, offset_ns, drift_ppb })
    }
}

impl fmt::Display for Fault {
    /// Formats the fault as on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow { place, wait, phase, every, steps } => {
                let phase = Phase::ALL.iter().find(|(known, _)| known == phase).map_or("", |(_, name)| name);
                let (what, number) = place.key();
                write!(f, "slow:{what}={number},ms={},phase={phase}", wait.as_secs_f64() * 1e3)?;
                if *every > 1 {
                    write!(f, ",every={every}")?;
                }
                if steps.start > 0 {
                    write!(f, ",from={}", steps.start)?;
                }
                if steps.end < u32::MAX { write!(f, ",to={}", steps.end) } else { Ok(()) }
            }
            Self::Link { ranks: (a, b), wait } => write!(f, "link:ranks={a}-{b},ms={}", wait.as_secs_f64() * 1e3),
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

/// The faults as they meet one rank: places that it belongs to are the rank, and other places are left out.
pub fn at_rank(faults: &[Fault], rank: usize, stage: usize, host: usize) -> Vec<Fault> {
    let mine = [Place::Rank(rank), Place::Stage(stage), Place::Host(host)];
    let placed = |fault: &Fault| match fault {
        Fault::Slow { place, wait, phase, every, steps } => mine.contains(place).then_some(Fault::Slow {
            place: Place::Rank(rank),
            wait: *wait,
            phase: *phase,
            every: *every,
            steps: steps.clone(),
        }),
        other => Some(other.clone()),
    };
    faults.iter().filter_map(placed).collect()
}

/// Total wait of `rank` in `phase` of one step, of faults [at the rank](at_rank).
pub fn wait_in(faults: &[Fault], rank: usize, phase: Phase, step: u32) -> Duration {
    let mut total = Duration::ZERO;
    for fault in faults {
        if let Fault::Slow { place, wait, phase: slow_phase, every, steps } = fault
            && *place == Place::Rank(rank)
            && *slow_phase == phase
            && step.is_multiple_of(*every)
            && steps.contains(&step)
        {
            total += *wait;
        }
    }
    total
}

/// The delays of the transfers of one rank on one communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowLinks {
    collectives: Duration,
    /// Delays of messages from members of the communicator.
    messages: Vec<(usize, Duration)>,
}

impl SlowLinks {
    /// The delays for `rank` on the communicator of `members`, which are ranks of the job.
    pub fn of(faults: &[Fault], members: &[usize], rank: usize) -> Self {
        let mut links = Self::default();
        let place = |rank: usize| members.iter().position(|member| *member == rank);
        for fault in faults {
            let Fault::Link { ranks: (a, b), wait } = fault else { continue };
            let (Some(at_a), Some(at_b)) = (place(*a), place(*b)) else { continue };
            let apart = at_a.abs_diff(at_b);
            if apart == 1 || apart + 1 == members.len() {
                links.collectives += *wait;
            }
            if rank == *a {
                links.messages.push((at_b, *wait));
            } else if rank == *b {
                links.messages.push((at_a, *wait));
            }
        }
        links
    }

    /// The delay of a transfer; `None` without one.
    pub fn delay(&self, transfer: Transfer) -> Option<Duration> {
        let delay = match transfer {
            Transfer::AllReduce | Transfer::AllGather | Transfer::ReduceScatter => self.collectives,
            Transfer::Send { .. } => Duration::ZERO,
            Transfer::Receive { peer } => {
                self.messages.iter().filter(|(from, _)| *from == peer).map(|(_, delay)| *delay).sum()
            }
        };
        (!delay.is_zero()).then_some(delay)
    }
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
        let slow = |rank, ms, phase| Fault::Slow {
            place: Place::Rank(rank),
            wait: Duration::from_millis(ms),
            phase,
            every: 1,
            steps: 0..u32::MAX,
        };
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
            "slow:rank=5,ms=30,phase=input,every=4,from=8,to=20",
            "slow:stage=1,ms=30,phase=optimizer",
            "slow:host=2,ms=30,phase=backward",
            "link:ranks=2-3,ms=1.5",
            "clock:rank=3,offset_ms=-250.5,drift_ppm=40",
        ] {
            assert_eq!(Fault::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, part) in [
            ("slow", "does not begin with slow:, link: or clock:"),
            ("fast:rank=1,ms=1", "unknown fault \"fast\"; use slow, link or clock"),
            ("slow:ms=1", "one of rank, stage, host"),
            ("slow:rank=1,stage=1,ms=1", "or there are several"),
            ("link:ms=1", "ranks is missing"),
            ("link:ranks=1-1,ms=1", "not A-B"),
            ("link:ranks=1,ms=1", "not A-B"),
            ("clock:offset_ms=1", "rank is missing"),
            ("slow:rank=1", "ms is missing"),
            ("slow:rank=-1,ms=1", "rank=-1 is not a rank"),
            ("slow:rank=1,ms=-1", "negative"),
            ("slow:rank=1,ms=inf", "beyond"),
            ("slow:rank=1,ms=x", "ms=x is not a number"),
            ("slow:rank=1,ms=1,phase=epilogue", "use forward, backward, input, optimizer"),
            ("slow:rank=1,ms=1,every=0", "at least 1"),
            ("slow:rank=1,ms=1,every=x", "at least 1"),
            ("slow:rank=1,ms=1,from=-1", "from=-1 is not the number of a step"),
            ("slow:rank=1,ms=1,to=x", "to=x is not the number of a step"),
            ("slow:rank=1,ms=1,from=5,to=5", "no step is from=5 and before to=5"),
            ("slow:rank=1,ms=1,ms=2", "given twice"),
            ("clock:rank=1,ms=1", "use rank, offset_ms, drift_ppm"),
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
        let between = [Fault::parse("slow:rank=1,ms=2,from=2,to=4").unwrap()];
        let waits_ms = (0..6).map(|step| wait_in(&between, 1, Phase::Forward, step).as_millis());
        assert_eq!(waits_ms.collect::<Vec<_>>(), [0, 0, 2, 2, 0, 0]);
    }

    #[test]
    fn a_stage_or_a_host_is_all_of_its_ranks() {
        let all: Vec<Fault> =
            ["slow:rank=5,ms=1", "slow:stage=1,ms=10", "slow:host=0,ms=100"].map(|t| Fault::parse(t).unwrap()).into();
        let wait_ms =
            |rank, stage, host| wait_in(&at_rank(&all, rank, stage, host), rank, Phase::Forward, 0).as_millis();
        assert_eq!((wait_ms(5, 1, 0), wait_ms(4, 1, 1), wait_ms(0, 0, 1)), (111, 10, 0));
        assert!(all[1].check(8, 2, 1).is_ok() && all[1].check(8, 1, 1).is_err() && all[0].check(5, 2, 1).is_err());
    }

    /// ```text
    /// ring of the communicator   2 — 3 — 6 — 7 — 2
    /// ```
    #[test]
    fn a_slow_link_delays_its_messages_and_the_rings_through_it() {
        let slow = [Fault::parse("link:ranks=7-2,ms=4").unwrap()];
        let delay = |rank, transfer| SlowLinks::of(&slow, &[2, 3, 6, 7], rank).delay(transfer).map(|d| d.as_millis());
        assert_eq!(delay(3, Transfer::AllReduce), Some(4), "the ring waits for its slowest link");
        assert_eq!(delay(2, Transfer::Receive { peer: 3 }), Some(4));
        assert_eq!(delay(2, Transfer::Receive { peer: 1 }), None);
        assert_eq!(delay(2, Transfer::Send { peer: 3 }), None, "the receiver gets it later");
        let apart = [Fault::parse("link:ranks=2-6,ms=4").unwrap()];
        assert_eq!(SlowLinks::of(&apart, &[2, 3, 6, 7], 2).delay(Transfer::AllReduce), None);
        assert_eq!(SlowLinks::of(&slow, &[2, 3], 2), SlowLinks::default());
    }

    #[test]
    fn a_wait_is_never_too_short() {
        let begin = std::time::Instant::now();
        wait_exactly(Duration::from_millis(12));
        assert!(begin.elapsed() >= Duration::from_millis(12));
    }
}
