//! HTA's window of a rank: the rows up to the start of the last step of several, unless that step is wanted, too.

use rayon::prelude::*;
use trace::Text;
use trace::rank::{Events, Kind, RowsByCorrelation};

/// The window of a rank.
pub(crate) struct Window {
    /// The start of the first row, without the row of the profiler, which spans the trace and which HTA drops; 0 without a row.
    pub(crate) base_ns: i64,
    /// The steps of the whole trace, ascending.
    pub(crate) steps: Vec<i64>,
    /// The first row of the host with each correlation.
    launches: RowsByCorrelation,
    /// The end of the window; `None` if it has all rows.
    end_ns: Option<i64>,
    /// The rows of the window: those of the host, then others, then those of streams, each by time. Each part is a slice of the
    /// columns, without a copy.
    rows: Vec<u32>,
    /// How many of the rows are of the host.
    pub(crate) of_host: usize,
    /// How many of the rows are of streams: kernels, copies, fills and synchronisations.
    pub(crate) of_streams: usize,
}

impl Window {
    /// The window of the rows of a rank. `strict`: as HTA chooses it.
    pub(crate) fn of(events: &Events, names: &[Text], include_last: bool, strict: bool) -> Self {
        let all = events.len();
        let is_profiler: Vec<bool> = names.iter().map(|name| name.starts_with("PyTorch Profiler")).collect();
        let counts = |row: &usize| events.kind[*row] != Kind::Other || !is_profiler[events.name[*row] as usize];
        // Rows are sorted by their start.
        let base_ns = (0..all).find(counts).map_or(0, |row| events.ts_ns[row]);
        let number: Vec<Option<i64>> = names.iter().map(|name| step_number(name)).collect();
        let marks = (0..all).filter_map(|row| Some((row, number[events.name[row] as usize]?)));
        let marks: Vec<(usize, i64)> = marks.filter(|(row, _)| is_on_host(events, *row)).collect();
        let mut steps: Vec<i64> = marks.iter().map(|(_, step)| *step).collect();
        steps.sort_unstable();
        steps.dedup();
        let last = if include_last { all.checked_sub(1) } else { marks.last().map(|(row, _)| *row) };
        let last = last.filter(|_| steps.len() > 1 && (strict || !include_last));
        let end_ns = last.map(|last| events.ts_ns[last].saturating_add(i64::from(include_last)));
        let has_correlation = |row: usize| is_on_host(events, row) && events.correlation[row] >= 0;
        let launches = RowsByCorrelation::collect(events, has_correlation);
        let in_window: Vec<u32> = match end_ns {
            Some(end_ns) => rows_until(events, &launches, end_ns, strict),
            None => (0..all as u32).collect(),
        };
        let part = |wanted: fn(&Events, usize) -> bool| -> Vec<u32> {
            in_window.par_iter().copied().filter(|row| wanted(events, *row as usize)).collect()
        };
        let (mut rows, streams) = rayon::join(|| part(is_on_host), || part(is_of_stream));
        let (of_host, of_streams) = (rows.len(), streams.len());
        rows.extend(part(|events, row| !is_on_host(events, row) && !is_of_stream(events, row)));
        rows.extend(streams);
        Self { base_ns, steps, launches, end_ns, rows, of_host, of_streams }
    }

    /// When the first row of the host with a row's correlation begins, if it is in the window.
    pub(crate) fn launch_ns(&self, events: &Events, row: usize) -> Option<i64> {
        let start_ns = events.ts_ns[self.launches.get(events.correlation[row])? as usize];
        self.end_ns.is_none_or(|end_ns| start_ns < end_ns).then(|| start_ns.saturating_sub(self.base_ns))
    }

    /// A column of the rows of the window, given the value of each row of the trace.
    pub(crate) fn column<T: Send>(&self, value: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
        self.rows.par_iter().map(|row| value(*row as usize)).collect()
    }

    /// As [`column`](Self::column), but moves the rows of the host in place: fresh memory costs more time than the values. The other
    /// rows are copied first.
    pub(crate) fn kept<T: Copy>(&self, mut values: Vec<T>, convert: impl Fn(T) -> T) -> Vec<T> {
        let (host, behind) = self.rows.split_at(self.of_host);
        let behind: Vec<T> = behind.iter().map(|row| convert(values[*row as usize])).collect();
        // A row of the host never moves to a later place.
        host.iter().enumerate().for_each(|(to, from)| values[to] = convert(values[*from as usize]));
        values.truncate(host.len());
        values.extend(behind);
        values
    }
}

/// The number of a step's mark. HTA also takes marks with blanks around the `#` or with text behind the number.
fn step_number(name: &str) -> Option<i64> {
    let number = name.strip_prefix("ProfilerStep")?.trim_start().strip_prefix('#')?.trim_start();
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Whether a row is one of the host.
fn is_on_host(events: &Events, row: usize) -> bool {
    events.device[row] < 0 && events.stream[row] < 0
}

/// Whether a row is work of a stream or a synchronisation of it.
fn is_of_stream(events: &Events, row: usize) -> bool {
    let is_work = matches!(events.kind[row], Kind::Kernel | Kind::GpuMemcpy | Kind::GpuMemset | Kind::Sync);
    is_work && events.stream[row] >= 0
}

/// The rows before a time: those of the host by their start, those of a device by that of their launch.
///
/// ```text
///                   end
/// launch  ──   ──    ┆ ──
/// kernel         ──  ┆──  ──     the first two are in the window
/// ```
fn rows_until(events: &Events, launches: &RowsByCorrelation, end_ns: i64, strict: bool) -> Vec<u32> {
    let starts = |row: usize| events.ts_ns[row] < end_ns;
    let is_kept = |row: &u32| {
        let row = *row as usize;
        // Rows are sorted by their start, so the first row with a correlation is the launch.
        let launched = launches.get(events.correlation[row]).map(|launch| starts(launch as usize));
        match launched {
            _ if is_on_host(events, row) => starts(row),
            launched if strict => launched == Some(true) || events.kind[row] == Kind::GpuUserAnnotation,
            launched => launched.unwrap_or_else(|| starts(row)),
        }
    };
    (0..events.len() as u32).into_par_iter().filter(is_kept).collect()
}
