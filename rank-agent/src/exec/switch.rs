//! When the program is recorded: from the start, by a schedule of time, or when somebody says so.
//!
//! ```text
//!  --delay 2 --duration 3        program │....|#####|......   # recorded
//!  rank-agent ctl stop, start            │####|.....|######
//! ```
//!
//! The order is stored in the page that the program's processes follow. Ranks tell each other the newest order whenever
//! they meet, so that one command switches a job on all of its hosts. What was not recorded stands in the run: `counters`,
//! source `schedule`.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use recorder::{ControlPage, Order};
use trace::CounterRow;

use super::cli::NcclDetail;

/// Source of the rows that say when nothing was recorded.
pub const SOURCE: &str = "schedule";
/// Intervals without recording that are kept one by one; of more, the time is added up.
const MAX_INTERVALS: usize = 64;
/// Intervals that a sentence names.
const MAX_NAMED: usize = 6;

/// A schedule of time, from the start of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSchedule {
    /// Nothing is recorded before.
    pub delay: Option<Duration>,
    /// Nothing is recorded after the delay and this.
    pub duration: Option<Duration>,
}

/// Switches recording of this rank's program.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    page: Option<ControlPage>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    order: Order,
    /// How many orders there were before, on any rank.
    version: u32,
    /// Somebody took over from the schedule.
    by_hand: bool,
    /// What is to happen next, the next first, and who wants it.
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

/// What a rank tells of its switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Whether rows are made.
    pub order: Order,
    /// Time since the program started.
    pub running: Option<Duration>,
    /// Time until the schedule switches.
    pub next: Option<Duration>,
    /// Time without recording so far.
    pub off: Duration,
}

fn detail_of(detail: NcclDetail) -> recorder::nccl::Detail {
    match detail {
        NcclDetail::Coll => recorder::nccl::Detail::Coll,
        NcclDetail::Channels => recorder::nccl::Detail::Channels,
        NcclDetail::Proxy => recorder::nccl::Detail::Proxy,
    }
}

impl Switch {
    /// The order before the program starts: with a delay, nothing is recorded yet.
    pub fn first_order(schedule: TimeSchedule, detail: NcclDetail) -> Order {
        Order { record: schedule.delay.is_none(), detail: detail_of(detail) }
    }

    /// A switch that stands as the page does.
    pub fn new(page: Option<ControlPage>, schedule: TimeSchedule, order: Order) -> Self {
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
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program starts now.
    pub fn begin(&self) {
        let now = Instant::now();
        let mut state = self.state();
        state.began = Some(now);
        if !state.order.record {
            state.off = Some((now, if state.by_hand { "rank-agent ctl" } else { "--delay" }));
        }
        if !state.by_hand {
            let TimeSchedule { delay, duration } = state.schedule;
            let start = delay.map(|delay| (now + delay, true, "--delay"));
            let stop = duration.map(|duration| (now + delay.unwrap_or_default() + duration, false, "--duration"));
            state.plan = start.into_iter().chain(stop).collect();
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Carries out the schedule; returns after [`close`](Self::close). After the program's end too: other ranks, whose
    /// programs run, follow.
    pub fn run(&self) {
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

    /// What somebody orders from outside; the schedule has no say any more. With `lasting` it is undone after that.
    pub fn by_hand(&self, record: bool, detail: Option<NcclDetail>, lasting: Option<Duration>) {
        const WHO: &str = "rank-agent ctl";
        let mut state = self.state();
        state.by_hand = true;
        state.plan = lasting.map(|lasting| (Instant::now() + lasting, !record, WHO)).into_iter().collect();
        let order = Order { record, detail: detail.map_or(state.order.detail, detail_of) };
        let before = state.version;
        self.change(&mut state, order, WHO);
        if state.version == before {
            // Newer than any, even if it changes nothing here: other ranks may stand otherwise.
            state.version += 1;
        }
        drop(state);
        self.0.changed.notify_all();
    }

    fn change(&self, state: &mut State, order: Order, why: &'static str) {
        if order == state.order {
            return;
        }
        let now = Instant::now();
        state.version += 1;
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

    /// This rank's order in one word, for other ranks. The larger is the newer.
    pub fn word(&self) -> u64 {
        self.state().word()
    }

    /// Follows the newest order of all ranks.
    pub fn follow(&self, words: impl Iterator<Item = u64>) {
        use recorder::nccl::Detail;
        let mut state = self.state();
        let own = state.word();
        let Some(newest) = words.max().filter(|newest| *newest > own) else { return };
        let detail = [Detail::Coll, Detail::Channels, Detail::Proxy][((newest >> 1) & 3).min(2) as usize];
        let by_hand = newest >> 3 & 1 != 0;
        if by_hand {
            state.plan.clear();
        }
        state.by_hand |= by_hand;
        let why = if by_hand { "rank-agent ctl" } else { "the schedule of another rank" };
        self.change(&mut state, Order { record: newest & 1 != 0, detail }, why);
        // The order is that rank's, and as old as there.
        state.version = u32::try_from(newest >> 8).unwrap_or(u32::MAX);
    }

    /// How it stands.
    pub fn now(&self) -> Now {
        let (state, now) = (self.state(), Instant::now());
        Now {
            order: state.order,
            running: state.began.map(|began| state.ended.unwrap_or(now) - began),
            next: state.plan.first().map(|(at, ..)| at.saturating_duration_since(now)),
            off: state.time_off(now),
        }
    }

    /// The program has ended: nothing counts as not recorded any more.
    pub fn finish(&self) {
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

    /// All programs have ended.
    pub fn close(&self) {
        self.state().over = true;
        self.0.changed.notify_all();
    }

    /// Whether rows could be made at any time.
    pub fn was_on(&self) -> bool {
        let state = self.state();
        let (Some(began), Some(ended)) = (state.began, state.ended) else { return true };
        state.time_off(ended) < ended - began
    }

    /// What was not recorded, after the end. `None`: everything was.
    pub fn row(&self, rank: i32) -> Option<CounterRow> {
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
        // How many rows there would have been, nobody knows.
        Some(CounterRow { rank, source: SOURCE.into(), recorded: 0, dropped: 0, omitted: 0, why: Some(why.into()) })
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
        };
        Switch::new(None, schedule, Switch::first_order(schedule, DETAIL))
    }

    fn why(switch: &Switch) -> String {
        switch.row(0).and_then(|row| row.why).map_or(String::new(), |why| why.to_string())
    }

    /// Carries out the schedule while `body` looks on.
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
            assert!(began.elapsed() < Duration::from_secs(60), "it never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// ```text
    /// delay 20 ms, duration 20 ms     |..|##|......
    /// ```
    #[test]
    fn a_schedule_is_carried_out_and_what_it_left_out_is_said() {
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
    fn a_delay_that_is_over_switches_on() {
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
    fn who_takes_over_by_hand_ends_the_schedule() {
        let switch = switch(Some(3_600_000), Some(1));
        switch.begin();
        switch.by_hand(true, Some(NcclDetail::Proxy), None);
        let now = switch.now();
        assert_eq!((now.order.record, now.order.detail, now.next), (true, recorder::nccl::Detail::Proxy, None));
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
            assert_eq!(each.now().order, Order { record: true, detail: recorder::nccl::Detail::Coll });
        }
        assert_eq!(a.word(), b.word());
    }

    /// What ends by itself on the rank that was told ends on the others, too.
    #[test]
    fn ranks_follow_the_end_of_an_order_for_a_while() {
        let (a, b) = (switch(None, None), switch(None, None));
        a.begin();
        b.begin();
        std::thread::scope(|threads| {
            a.by_hand(false, None, None);
            b.follow([a.word(), b.word()].into_iter());
            a.by_hand(true, None, Some(Duration::from_millis(30)));
            b.follow([a.word(), b.word()].into_iter());
            assert!(b.now().order.record);
            // The program of the rank that was told ends before its order does.
            a.finish();
            threads.spawn(|| a.run());
            wait_until(|| !a.now().order.record);
            let words = [a.word(), b.word()];
            a.follow(words.into_iter());
            b.follow(words.into_iter());
            assert!(!a.now().order.record && !b.now().order.record, "{words:?}");
            a.close();
        });
        assert!(a.state().off.is_none() && a.was_on(), "what came after its program's end is not counted");
    }

    #[test]
    fn many_intervals_are_added_up() {
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
