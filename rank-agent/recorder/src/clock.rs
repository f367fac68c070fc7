//! The rank's clock: CLOCK_MONOTONIC_RAW, which no time daemon adjusts, or a bent clock that tests the alignment.

use rustix::time::{ClockId, clock_gettime};

/// Source of all timestamps. All copies of a clock return the same time.
///
/// A bent clock changes the time at its source, so that all rows and all ping answers of its rank agree.
///
/// ```
/// let (clock, bent) = (recorder::Clock::system(), recorder::Clock::bent(250_000_000, 40_000));
/// let (a, b) = (clock.now_ns(), bent.now_ns());
/// assert!(b - a >= 250_000_000);
/// assert_ne!(clock.domain(), bent.domain());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    bend: Option<Bend>,
}

/// now = raw + offset + (raw − origin)·drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bend {
    offset_ns: i64,
    drift_ppb: i64,
    origin_ns: i64,
}

impl Bend {
    fn apply(self, raw_ns: i64) -> i64 {
        // In i128, because ten days in ns times 1000 ppm in ppb leaves i64.
        let drift_ns = (i128::from(raw_ns) - i128::from(self.origin_ns)) * i128::from(self.drift_ppb) / 1_000_000_000;
        let bent_ns = i128::from(raw_ns) + i128::from(self.offset_ns) + drift_ns;
        bent_ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { bend: None }
    }

    /// The system's clock plus `offset_ns`, and from now on `drift_ppb` ns faster per second.
    pub fn bent(offset_ns: i64, drift_ppb: i64) -> Self {
        Self { bend: Some(Bend { offset_ns, drift_ppb, origin_ns: read_ns(ClockId::MonotonicRaw) }) }
    }

    /// The current time in ns since an arbitrary origin: the boot of the host, if the clock is not bent.
    #[inline]
    pub fn now_ns(&self) -> i64 {
        let raw_ns = read_ns(ClockId::MonotonicRaw);
        match self.bend {
            None => raw_ns,
            Some(bend) => bend.apply(raw_ns),
        }
    }

    /// The clock domain: boot id, clock name, time namespace and bend. Processes with equal domains share one clock.
    ///
    /// If the kernel does not report boot id or namespace, the domain names the process instead, so that it equals no
    /// other domain.
    pub fn domain(&self) -> String {
        let bend = self.bend.map_or(String::new(), |bend| {
            // The origin is part of the domain: clocks that begin to drift at different times are different clocks.
            format!(" bent {:+} ns {:+} ppb from {}", bend.offset_ns, bend.drift_ppb, bend.origin_ns)
        });
        let boot = boot_id();
        let namespace = std::fs::read_link("/proc/self/ns/time");
        match (boot.is_empty(), namespace) {
            (false, Ok(namespace)) => format!("{boot} monotonic_raw {}{bend}", namespace.display()),
            _ => format!("unknown {} {} monotonic_raw{bend}", host_name(), std::process::id()),
        }
    }

    /// Compares this clock with UTC. Returns `(local_ns, utc_ns, rtt_ns)`: the local midpoint, UTC since 1970, and the
    /// duration of the comparison. It keeps the fastest of several tries, to exclude a preemption.
    pub fn utc_sample(&self) -> (i64, i64, i64) {
        const TRIES: usize = 8;
        let mut best = self.bracket();
        for _ in 1..TRIES {
            let sample = self.bracket();
            if sample.2 < best.2 {
                best = sample;
            }
        }
        best
    }

    fn bracket(&self) -> (i64, i64, i64) {
        let before_ns = self.now_ns();
        let utc_ns = read_ns(ClockId::Realtime);
        let rtt_ns = self.now_ns() - before_ns;
        (before_ns + rtt_ns / 2, utc_ns, rtt_ns)
    }
}

#[inline]
fn read_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Linux's random id of this boot; empty on other systems.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or(String::new(), |id| id.trim().to_string())
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bend_is_exact_also_after_a_year() {
        let bend = Bend { offset_ns: 250_000_000, drift_ppb: 40_000, origin_ns: 1_000 };
        assert_eq!(bend.apply(1_000), 250_001_000);
        // One second later the clock has gained 40 µs.
        assert_eq!(bend.apply(1_000_001_000), 1_250_041_000);
        // A year later it has gained 40 ppm of a year.
        let year_ns = 365 * 86_400 * 1_000_000_000_i64;
        assert_eq!(bend.apply(1_000 + year_ns) - bend.apply(1_000), year_ns + year_ns / 25_000);
        let slow = Bend { offset_ns: 0, drift_ppb: -40_000, origin_ns: 0 };
        assert_eq!(slow.apply(1_000_000_000), 999_960_000);
        assert_eq!(Bend { offset_ns: i64::MAX, ..bend }.apply(i64::MAX), i64::MAX);
    }

    #[test]
    fn a_clock_never_runs_backwards() {
        for clock in [Clock::system(), Clock::bent(-5, -100_000)] {
            let times: Vec<i64> = (0..1000).map(|_| clock.now_ns()).collect();
            assert!(times.is_sorted());
        }
    }

    #[test]
    fn domains_are_stable_and_differ_between_clocks() {
        let bent = Clock::bent(1, 0);
        assert_eq!(Clock::system().domain(), Clock::system().domain());
        assert_eq!(bent.domain(), { bent }.domain());
        assert_ne!(Clock::system().domain(), bent.domain());
        assert!(Clock::system().domain().contains("monotonic_raw"));
    }

    #[test]
    fn a_utc_sample_lies_within_its_bracket() {
        let clock = Clock::bent(1_000_000_000_000, 0);
        let before_ns = clock.now_ns();
        let (local_ns, utc_ns, rtt_ns) = clock.utc_sample();
        assert!(before_ns <= local_ns && local_ns <= clock.now_ns());
        assert!(rtt_ns >= 0);
        // 2020-01-01: every real clock is later.
        assert!(utc_ns > 1_577_836_800 * 1_000_000_000);
    }
}
