//! Decides when the program is recorded: from the start, by a schedule of time, or by `ctl`.
//!
//! ```text
//!  --delay 2 --duration 3        program │....|#####|......   # recorded
//!  --paused, ctl start                   │.......|#########
//!  ctl stop, ctl start                   │####|.....|######
//! ```
//!
//! The order is stored in a page that the program's processes follow. Ranks exchange the newest order whenever they compare
//! clocks, so that one command switches a job on all of its hosts. The table `counters`, source `schedule`, lists the times
//! without recording.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use recorder::{ControlPage, Order};
use trace::{CounterRow, lock};

/// Source of the counter rows that list times without recording.
const SOURCE: &str = "schedule";
/// Intervals without recording that are kept one by one; further ones are only counted and added up.
const MAX_INTERVALS: usize = 64;
/// Intervals that the counter row names.
const MAX_NAMED: usize = 6;

/// The reason of switches that `ctl` made, in counter rows.
const BY_CTL: &str = "rankscope ctl";

/// NCCL events to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NcclDetail {
    /// Collectives and point-to-point operations.
    Coll,
    /// Also the time of each GPU channel.
    Channels,
    /// Also each operation of NCCL's proxy thread.
    Proxy,
}

impl NcclDetail {
    /// All of them, from the least to the most.
    pub(super) const ALL: [Self; 3] = [Self::Coll, Self::Channels, Self::Proxy];

    /// The detail with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|detail| detail.as_str() == name)
    }

    /// Its name in `RANKSCOPE_NCCL_DETAIL`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Coll => "coll",
            Self::Channels => "channels",
            Self::Proxy => "proxy",
        }
    }

    fn for_recorder(self) -> recorder::CollectiveDetail {
        match self {
            Self::Coll => recorder::CollectiveDetail::Coll,
            Self::Channels => recorder::CollectiveDetail::Channels,
            Self::Proxy => recorder::CollectiveDetail::Proxy,
        }
    }
}

/// A schedule of time, measured from the start of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimeSchedule {
    /// Nothing is recorded until `ctl start`; the others are `None`.
    pub(super) paused: bool,
    /// Time before recording starts.
    pub(super) delay: Option<Duration>,
    /// Time of recording after the delay; `None`: to the end.
    pub(super) duration: Option<Duration>,
}

/// Switches recording of this rank's program.
#[derive(Clone, Debug)]
pub(super) struct Switch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    page: Option<ControlPage>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    order: Order,
    /// Number of earlier orders, over all ranks.
    version: u32,
    /// `ctl` has replaced the schedule.
    by_hand: bool,
    /// Coming switches in the order of time: when, whether to record from then on, and the reason.
    plan: Vec<(Instant, bool, &'static str)>,
    schedule: TimeSchedule,
    began: Option<Instant>,
    ended: Option<Instant>,
    off: Option<(Instant, &'static str)>,
    offs: Vec<Off>,
    /// Time without recording beyond [`MAX_INTERVALS`].
    more: (u64, Duration),
    over: bool,
}

/// An interval in which nothing was recorded.
#[derive(Clone, Copy, Debug)]
struct Off {
    from: Instant,
    to: Instant,
    why: &'static str,
}

/// State of a switch, for `ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SwitchState {
    /// Whether and how much the program records.
    pub(super) order: Order,
    /// Time since the program started.
    pub(super) running: Option<Duration>,
    /// Time until the next planned switch.
    pub(super) next: Option<Duration>,
    /// Time without recording so far.
    pub(super) off: Duration,
}

impl Switch {
    /// The order before the program starts: with a delay, or paused, recording is off.
    pub(super) fn first_order(schedule: TimeSchedule, detail: NcclDetail) -> Order {
        Order { record: !schedule.paused && schedule.delay.is_none(), detail: detail.for_recorder() }
    }

    /// A switch with the page's order.
    pub(super) fn new(page: Option<ControlPage>, schedule: TimeSchedule, order: Order) -> Self {
        let state = State {
            order,
            version: 0,
            by_hand: false,
            plan: Vec::new(),
            schedule,
            began: None,
            ended: None,
            off: None,
            offs: Vec::new(),
            more: (0, Duration::ZERO),
            over: false,
        };
        Self(Arc::new(Shared { page, state: Mutex::new(state), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Notes the program's start, from which the schedule counts.
    pub(super) fn begin(&self) {
        let now = Instant::now();
        let mut state = self.state();
        state.began = Some(now);
        if !state.order.record {
            let why = if state.schedule.paused { "--paused" } else { "--delay" };
            state.off = Some((now, if state.by_hand { BY_CTL } else { why }));
        }
        if !state.by_hand {
            let TimeSchedule { delay, duration, .. } = state.schedule;
            let start = delay.map(|delay| (now + delay, true, "--delay"));
            let stop = duration.map(|duration| (now + delay.unwrap_or_default() + duration, false, "--duration"));
            state.plan = start.into_iter().chain(stop).collect();
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Carries out the plan until [`close`](Self::close). It goes on after the program's end, because other ranks whose
    /// programs still run follow this one.
    pub(super) fn run(&self) {
        let mut state = self.state();
        while !state.over {
            let Some((at, record, why)) = state.plan.first().copied() else {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let wait = at.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                state.plan.remove(0);
                let order = Order { record, ..state.order };
                self.change(&mut state, order, why);
            } else {
                let waited = self.0.changed.wait_timeout(state, wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Applies a `ctl` command and cancels the schedule; reverts after `duration`.
    pub(super) fn by_hand(&self, record: bool, detail: Option<NcclDetail>, duration: Option<Duration>) {
        let mut state = self.state();
        state.by_hand = true;
        state.plan = duration.map(|duration| (Instant::now() + duration, !record, BY_CTL)).into_iter().collect();
        let order = Order { record, detail: detail.map_or(state.order.detail, NcclDetail::for_recorder) };
        let before = state.version;
        self.change(&mut state, order, BY_CTL);
        if state.version == before {
            // The command changed nothing here, but it must be the newest: other ranks may have another order.
            state.version = state.version.saturating_add(1);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    fn change(&self, state: &mut State, order: Order, why: &'static str) {
        if order == state.order {
            return;
        }
        let now = Instant::now();
        state.version = state.version.saturating_add(1);
        if order.record != state.order.record && state.began.is_some() && state.ended.is_none() {
            match state.off.take() {
                Some(off) => state.add_off(off, now),
                None => state.off = Some((now, why)),
            }
        }
        state.order = order;
        if let Some(page) = &self.0.page {
            page.store(order);
        }
    }

    /// This rank's order in one word, for other ranks; a newer order is a larger word.
    pub(super) fn word(&self) -> u64 {
        self.state().word()
    }

    /// Follows the newest order of all ranks.
    pub(super) fn follow(&self, words: impl Iterator<Item = u64>) {
        use recorder::CollectiveDetail as Detail;
        let mut state = self.state();
        let own = state.word();
        let Some(newest) = words.max().filter(|newest| *newest > own) else { return };
        let detail = [Detail::Coll, Detail::Channels, Detail::Proxy][((newest >> 1) & 3).min(2) as usize];
        let by_hand = newest >> 3 & 1 != 0;
        if by_hand {
            state.plan.clear();
        }
        state.by_hand |= by_hand;
        let why = if by_hand { BY_CTL } else { "the schedule of another rank" };
        self.change(&mut state, Order { record: newest & 1 != 0, detail }, why);
        // The order keeps the version that it has on the other rank.
        state.version = u32::try_from(newest >> 8).unwrap_or(u32::MAX);
    }

    /// The present state.
    pub(super) fn now(&self) -> SwitchState {
        let (state, now) = (self.state(), Instant::now());
        SwitchState {
            order: state.order,
            running: state.began.map(|began| state.ended.unwrap_or(now) - began),
            next: state.plan.first().map(|(at, ..)| at.saturating_duration_since(now)),
            off: state.time_off(now),
        }
    }

    /// Notes the program's end; later time does not count as time without recording.
    pub(super) fn finish(&self) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        let now = Instant::now();
        state.ended = Some(now);
        if let Some(off) = state.off.take() {
            state.add_off(off, now);
        }
    }

    /// Ends [`run`](Self::run), after all ranks' programs have ended.
    pub(super) fn close(&self) {
        self.state().over = true;
        self.0.changed.notify_all();
    }

    /// Whether recording was on at any time.
    pub(super) fn was_on(&self) -> bool {
        let state = self.state();
        let (Some(began), Some(ended)) = (state.began, state.ended) else { return true };
        state.time_off(ended) < ended - began
    }

    /// The counter row that lists the times without recording; `None` if there were none. Call it after `finish`.
    pub(super) fn row(&self, rank: i32) -> Option<CounterRow> {
        let state = self.state();
        let (began, ended) = (state.began?, state.ended?);
        let intervals = state.offs.len() as u64 + state.more.0;
        if intervals == 0 {
            return None;
        }
        let seconds = |duration: Duration| format!("{:.3}", duration.as_secs_f64());
        let named = state
            .offs
            .iter()
            .take(MAX_NAMED)
            .map(|off| format!("{} to {} s ({})", seconds(off.from - began), seconds(off.to - began), off.why));
        let named: Vec<String> = named.collect();
        let rest = intervals - named.len() as u64;
        let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
        let why = format!(
            "recording was off for {} of the program's {} s: {}{rest}",
            seconds(state.time_off(ended)),
            seconds(ended - began),
            named.join(", ")
        );
        // The number of rows that were not recorded is unknown.
        Some(CounterRow { rank, source: SOURCE.into(), why: Some(why.into()), ..CounterRow::default() })
    }
}

impl State {
    fn word(&self) -> u64 {
        let order = u64::from(self.order.record) | (self.order.detail as u64) << 1;
        u64::from(self.version) << 8 | u64::from(self.by_hand) << 3 | order
    }

    fn add_off(&mut self, (from, why): (Instant, &'static str), to: Instant) {
        if self.offs.len() < MAX_INTERVALS {
            self.offs.push(Off { from, to, why });
        } else {
            self.more = (self.more.0 + 1, self.more.1 + (to - from));
        }
    }

    fn time_off(&self, now: Instant) -> Duration {
        let open = self.off.map_or(Duration::ZERO, |(from, _)| now - from);
        self.offs.iter().map(|off| off.to - off.from).sum::<Duration>() + self.more.1 + open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETAIL: NcclDetail = NcclDetail::Channels;

    fn switch(delay_ms: Option<u64>, duration_ms: Option<u64>) -> Switch {
        let schedule = TimeSchedule {
            delay: delay_ms.map(Duration::from_millis),
            duration: duration_ms.map(Duration::from_millis),
            paused: false,
        };
        Switch::new(None, schedule, Switch::first_order(schedule, DETAIL))
    }

    fn why(switch: &Switch) -> String {
        switch.row(0).and_then(|row| row.why).map_or(String::new(), |why| why.to_string())
    }

    /// Carries out the schedule while `body` runs.
    fn running(switch: &Switch, body: impl FnOnce()) {
        std::thread::scope(|threads| {
            threads.spawn(|| switch.run());
            body();
            switch.finish();
            switch.close();
        });
    }

    #[track_caller]
    fn wait_until(what: impl Fn() -> bool) {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < Duration::from_secs(60), "timed out");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// ```text
    /// delay 20 ms, duration 20 ms     |..|##|......
    /// ```
    #[test]
    fn a_schedule_is_carried_out_and_its_pauses_are_listed() {
        let switch = switch(Some(20), Some(20));
        assert!(!switch.now().order.record);
        running(&switch, || {
            switch.begin();
            wait_until(|| switch.state().plan.is_empty());
            assert!(!switch.now().order.record);
        });
        assert!(switch.was_on());
        let (state, ms) = (switch.state(), Duration::from_millis);
        let (began, ended) = (state.began.unwrap(), state.ended.unwrap());
        let [before, after] = state.offs[..] else { panic!("{:?}", state.offs) };
        assert_eq!((before.from, before.why, after.to, after.why), (began, "--delay", ended, "--duration"));
        assert!(before.to - began >= ms(20) && after.from - began >= ms(40) && after.from >= before.to, "{state:?}");
        drop(state);
        let why = why(&switch);
        assert!(why.contains("0.000 to 0.") && why.contains("(--delay)") && why.contains("(--duration)"), "{why}");
    }

    #[test]
    fn recording_starts_after_the_delay() {
        let switch = switch(Some(20), Some(3_600_000));
        running(&switch, || {
            switch.begin();
            wait_until(|| switch.now().order.record);
            assert!(switch.now().next.is_some_and(|next| next > Duration::from_secs(3000)));
        });
    }

    #[test]
    fn a_program_that_ends_before_the_delay_was_never_recorded() {
        let switch = switch(Some(3_600_000), None);
        switch.begin();
        std::thread::sleep(Duration::from_millis(2));
        switch.finish();
        assert!(!switch.was_on());
        let seconds: Vec<f64> = why(&switch).split(' ').filter_map(|word| word.parse().ok()).collect();
        let off = seconds[0];
        assert!(seconds == [off, off, 0.0, off] && off >= 0.002, "{}", why(&switch));
        let always = self::switch(None, None);
        always.begin();
        always.finish();
        assert_eq!((always.was_on(), always.row(0)), (true, None));
    }

    #[test]
    fn a_paused_program_is_recorded_from_the_first_start_on() {
        let schedule = TimeSchedule { paused: true, ..TimeSchedule::default() };
        let switch = Switch::new(None, schedule, Switch::first_order(schedule, DETAIL));
        switch.begin();
        assert!(!switch.now().order.record && switch.now().next.is_none(), "no time ends the pause");
        switch.by_hand(true, None, None);
        assert!(switch.now().order.record);
        switch.finish();
        assert!(why(&switch).contains("(--paused)"), "{}", why(&switch));
    }

    #[test]
    fn a_ctl_command_cancels_the_schedule() {
        let switch = switch(Some(3_600_000), Some(1));
        switch.begin();
        switch.by_hand(true, Some(NcclDetail::Proxy), None);
        let now = switch.now();
        assert_eq!((now.order.record, now.order.detail, now.next), (true, recorder::CollectiveDetail::Proxy, None));
        switch.by_hand(false, None, Some(Duration::from_secs(3600)));
        assert!(!switch.now().order.record && switch.now().next.is_some());
    }

    #[test]
    fn ranks_follow_the_newest_order() {
        let (a, b) = (switch(None, None), switch(Some(3_600_000), None));
        let meet = || {
            let words = [a.word(), b.word()];
            a.follow(words.into_iter());
            b.follow(words.into_iter());
        };
        a.begin();
        b.begin();
        a.by_hand(false, None, None);
        meet();
        assert!(!a.now().order.record && !b.now().order.record && b.now().next.is_none());
        b.by_hand(true, Some(NcclDetail::Coll), None);
        meet();
        meet();
        for each in [&a, &b] {
            assert_eq!(each.now().order, Order { record: true, detail: recorder::CollectiveDetail::Coll });
        }
        assert_eq!(a.word(), b.word());
    }

    /// An order with a duration ends on all ranks.
    #[test]
    fn ranks_follow_the_end_of_an_order_with_a_duration() {
        let (a, b) = (switch(None, None), switch(None, None));
        a.begin();
        b.begin();
        std::thread::scope(|threads| {
            a.by_hand(false, None, None);
            b.follow([a.word(), b.word()].into_iter());
            a.by_hand(true, None, Some(Duration::from_millis(30)));
            b.follow([a.word(), b.word()].into_iter());
            assert!(b.now().order.record);
            // The program of the rank with the order ends before the order does.
            a.finish();
            threads.spawn(|| a.run());
            wait_until(|| !a.now().order.record);
            let words = [a.word(), b.word()];
            a.follow(words.into_iter());
            b.follow(words.into_iter());
            assert!(!a.now().order.record && !b.now().order.record, "{words:?}");
            a.close();
        });
        assert!(a.state().off.is_none() && a.was_on(), "time after the program's end does not count");
    }

    #[test]
    fn intervals_beyond_the_limit_are_added_up() {
        let switch = switch(None, None);
        switch.begin();
        for _ in 0..MAX_INTERVALS + 3 {
            switch.by_hand(false, None, None);
            switch.by_hand(true, None, None);
        }
        switch.finish();
        assert!(why(&switch).ends_with(&format!("and {} more", MAX_INTERVALS + 3 - MAX_NAMED)), "{}", why(&switch));
    }
}
