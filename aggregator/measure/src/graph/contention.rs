//! By how much computation takes longer beside communication: kernels of both share the device.
//!
//! A kernel that a rank runs beside communication and without it shows this, if it takes as long each time it runs without it. Shapes
//! are not always known, so kernels of one name that vary more than that do not count.

use rustc_hash::FxHashMap;

use model::intervals::{Coverage, Interval};
use model::stats::median;
use model::{Kind, RankData};

/// So many kernels of a name have to run beside communication, and without it.
const LEAST: usize = 5;
/// A kernel runs beside communication for at least this share of it …
const BESIDE: f64 = 0.5;
/// … and without communication with at most this one.
const WITHOUT: f64 = 0.02;
/// Kernels of a name that vary by a larger share have different shapes.
const VARIES: f64 = 0.1;
/// The least share by which time beside communication is lost to it, and the largest one that is taken to be that.
const SHARES: std::ops::Range<f64> = 0.03..0.7;
/// Kernels that show it take at least this share of the computation beside communication.
const SHOWN: f64 = 0.3;

/// The share of the time beside communication by which computation takes longer, and when the rank communicates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contention {
    share: f64,
    communicates: Coverage,
}

impl Contention {
    /// `None` where nothing shows that computation takes longer.
    pub(super) fn of(rank: &RankData) -> Option<Self> {
        let events = &rank.events;
        let kernels = |is_comm: bool| {
            (0..events.len()).filter(move |row| events.kind[*row] == Kind::Kernel && events.is_comm[*row] == is_comm)
        };
        let window = |row: usize| Interval::new(events.ts_ns[row], events.end_ns(row));
        let communicates = Coverage::new(kernels(true).map(window).collect());
        let mut by_name: FxHashMap<u32, Vec<(f64, f64)>> = FxHashMap::default();
        for row in kernels(false) {
            let beside_ns = communicates.within_ns(window(row));
            by_name.entry(events.name[row]).or_default().push((events.dur_ns[row] as f64, beside_ns as f64));
        }
        let all_ns: f64 = by_name.values().flatten().map(|(_, beside_ns)| beside_ns).sum();
        let mut shown: Vec<(f64, f64)> = by_name.values().filter_map(|kernels| share_of(kernels)).collect();
        shown.sort_by(|a, b| a.0.total_cmp(&b.0));
        let shown_ns: f64 = shown.iter().map(|(_, beside_ns)| beside_ns).sum();
        let mut before_ns = 0.0;
        let is_middle = |(_, beside_ns): &&(f64, f64)| {
            before_ns += beside_ns;
            before_ns >= shown_ns / 2.0
        };
        let (share, _) = *shown.iter().find(is_middle)?;
        (SHARES.contains(&share) && shown_ns >= SHOWN * all_ns).then_some(Self { share, communicates })
    }

    /// By how much computation in a window takes longer, in ns.
    pub(super) fn longer_ns(&self, window: Interval) -> i64 {
        (self.share * self.communicates.within_ns(window) as f64).round() as i64
    }
}

/// The share of kernels of one name, by length and time beside communication, and that time.
fn share_of(kernels: &[(f64, f64)]) -> Option<(f64, f64)> {
    let without: Vec<f64> = kernels.iter().filter(|(ns, beside)| *beside <= WITHOUT * ns).map(|(ns, _)| *ns).collect();
    let beside: Vec<(f64, f64)> = kernels.iter().filter(|(ns, beside)| *beside >= BESIDE * ns).copied().collect();
    if without.len() < LEAST || beside.len() < LEAST {
        return None;
    }
    let usual_ns = median(without.iter().copied())?;
    let varies_ns = median(without.iter().map(|ns| (ns - usual_ns).abs()))?;
    let share = median(beside.iter().map(|(ns, beside_ns)| (ns - usual_ns) / beside_ns))?;
    let varies = median(beside.iter().map(|(ns, beside_ns)| ((ns - usual_ns) / beside_ns - share).abs()))?;
    let is_alike = varies_ns <= VARIES * usual_ns && varies <= VARIES;
    is_alike.then(|| (share, beside.iter().map(|(_, beside_ns)| beside_ns).sum()))
}
