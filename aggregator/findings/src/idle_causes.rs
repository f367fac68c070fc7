//! Why devices idle: their host makes first calls, stalls, or runs code of its own. Some idle time is unknown: the work of a graph may have
//! no rows.

use std::collections::{BTreeMap, BTreeSet};

use trace::name_rules::{is_data_loading, is_input};
use trace::{IdleCauseRow, Kind, Severity, Verdict};

use crate::finding::{Found, finding, place as place_of, saving, share, short_name, step_rows};
use crate::registry::Context;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};
use model::units::{ns, plural};

kind! {
    /// Devices idle while a host makes calls that take long only once in a process.
    ///
    /// The mean of this idle time in a step, on the named rank.
    FIRST_CALLS: "first-calls", by first_calls
}

kind! {
    /// Devices idle while calls of a host take far longer than they usually do.
    ///
    /// The mean of this idle time in a step, on the named rank.
    HOST_STALLS: "host-stalls", by stalls
}

kind! {
    /// Devices idle while a host runs code outside of operators and calls for 1 ms or more at a time.
    ///
    /// The mean of this idle time in a step, on the named rank.
    HOST_CODE: "host-code", by code
}

kind! {
    /// Devices have no rows after the launch of a CUDA graph for most of their idle time, so what they do then is unknown.
    GRAPHS_WITHOUT_ROWS: "graphs-without-rows", by graphs
}

/// A smaller share of the steps of a rank, in percent, is no finding.
const LEAST_PCT: f64 = 5.0;
/// So many places are named.
const NAMED: usize = 2;

/// The rank whose devices idle most for one of the reasons.
struct Worst<'a> {
    rank: i32,
    /// Per step.
    ns: i64,
    step_ns: i64,
    stalls: i64,
    /// Those rows with the most, the largest first, each with its idle time in all steps.
    rows: Vec<(&'a IdleCauseRow, i64)>,
    steps: i64,
    /// The number of ranks with a finding, and of all.
    on: usize,
    of: usize,
}

/// Finds the rank; `idle_ns` is the part of a row that counts.
fn worst<'a>(context: &Context<'a>, idle_ns: fn(&IdleCauseRow) -> i64) -> Option<Worst<'a>> {
    let analysis = context.analysis;
    // The time of the steps, and their numbers.
    let mut walls: BTreeMap<i32, (i64, BTreeSet<i32>)> = BTreeMap::new();
    for row in step_rows(analysis) {
        let (longest_ns, steps) = walls.entry(row.rank).or_default();
        steps.extend(row.step);
        *longest_ns = longest_ns.saturating_add(row.wall_ns);
    }
    let devices = |rank: i32| context.devices.keys().filter(|key| key.0 == rank).count().max(1) as i64;
    let victims: BTreeSet<i32> =
        analysis.tables.stragglers.iter().filter(|row| row.verdict == Verdict::Victim).map(|row| row.rank).collect();
    let mut by_rank: BTreeMap<i32, Vec<(&IdleCauseRow, i64)>> = BTreeMap::new();
    // A victim's host waits for other ranks.
    for row in analysis.tables.idle_causes.iter().filter(|row| idle_ns(row) > 0 && !victims.contains(&row.rank)) {
        by_rank.entry(row.rank).or_default().push((row, idle_ns(row)));
    }
    let of_rank = |(rank, mut rows): (i32, Vec<(&'a IdleCauseRow, i64)>)| {
        let (wall_ns, steps) = walls.get(&rank)?;
        let (steps, wall_ns) = (steps.len().max(1) as i64, wall_ns / devices(rank));
        let sum_ns = sum(&rows);
        rows.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let stalls = rows.iter().map(|(row, _)| row.stalls).sum();
        let worst =
            Worst { rank, ns: sum_ns / steps, step_ns: wall_ns / steps, stalls, rows, steps, on: 0, of: walls.len() };
        (share(&(sum_ns, wall_ns)) >= LEAST_PCT).then_some(worst)
    };
    let all: Vec<Worst<'_>> = by_rank.into_iter().filter_map(of_rank).collect();
    let on = all.len();
    let worst = all.into_iter().rev().max_by(|a, b| share(&(a.ns, a.step_ns)).total_cmp(&share(&(b.ns, b.step_ns))))?;
    Some(Worst { on, ..worst })
}

fn sum(rows: &[(&IdleCauseRow, i64)]) -> i64 {
    rows.iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
}

impl Worst<'_> {
    fn on_ranks(&self) -> String {
        if self.of > 1 { format!(" ({} of {} so)", self.on, plural(self.of, "rank")) } else { String::new() }
    }

    /// The places with the most, each with its time in a step: `29.9 s in `aten::to` (`cudaFree`), 11.9 s in …`.
    fn places(&self) -> String {
        let mut sums: Vec<(&IdleCauseRow, i64)> = Vec::new();
        for (row, ns) in &self.rows {
            // The rows of a place come with the longest first.
            match sums.iter_mut().find(|(known, _)| place(known) == place(row)) {
                Some((_, sum_ns)) => *sum_ns = sum_ns.saturating_add(*ns),
                None => sums.push((row, *ns)),
            }
        }
        sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let named = sums.iter().take(NAMED).map(|(row, sum_ns)| {
            let inner =
                row.name.as_ref().filter(|name| row.outer_operator.as_ref().is_some_and(|outer| outer != *name));
            let inner = inner.map_or(String::new(), |name| format!(" (`{}`)", short_name(name)));
            format!("{} {}{inner}", ns(sum_ns / self.steps), place(row))
        });
        named.collect::<Vec<String>>().join(", ")
    }

    fn claim(&self, quantity: Quantity) -> Claim {
        let claim = Claim::new(quantity, Relation::Exceeds, "idle_causes").of(self.rank, None);
        claim.value(Value::Ns(self.ns)).explains(Part::Idle, self.ns)
    }

    fn evidence(&self, column: &str) -> String {
        format!(
            "idle_causes.{column} of that rank, in active steps; threshold {LEAST_PCT} % of a step (this program's)"
        )
    }
}

/// Where a row is: the operator that the program called, or the call, range or function.
fn place(row: &IdleCauseRow) -> String {
    let name = row.outer_operator.as_ref().or(row.name.as_ref());
    match (name, &row.annotation) {
        (Some(name), _) => format!("in `{}`", short_name(name)),
        (None, Some(range)) => format!("in range `{}`", short_name(range)),
        (None, None) => "outside of all that was recorded".into(),
    }
}

fn first_calls(context: &Context<'_>) -> Option<Found> {
    let worst = worst(context, |row| row.first_ns)?;
    let title = format!(
        "the device of rank {} idles for {} of a {} step while its host makes first calls: {}{}",
        worst.rank,
        ns(worst.ns),
        ns(worst.step_ns),
        worst.places(),
        worst.on_ranks()
    );
    let suggestion = "a process pays for these once: it starts CUDA, loads libraries, chooses algorithms. Record later steps, after a \
                      warm-up, to see what training takes";
    let claim = worst.claim(Quantity::FirstCalls).advises(Advice::RecordMore);
    Some(saving(worst.ns, finding(claim, Severity::Warning, title, worst.evidence("first_ns"), suggestion)))
}

fn stalls(context: &Context<'_>) -> Option<Found> {
    let worst = worst(context, |row| if is_call(row) { row.stalled_ns } else { 0 })?;
    let title = format!(
        "the device of rank {} idles for {} of a {} step while {} of its host {} far longer than usual: {}{}",
        worst.rank,
        ns(worst.ns),
        ns(worst.step_ns),
        plural(usize::try_from(worst.stalls).unwrap_or(usize::MAX), "call"),
        if worst.stalls == 1 { "takes" } else { "take" },
        worst.places(),
        worst.on_ranks()
    );
    let suggestion = "the process does not run there: it waits for a core, for garbage collection or for memory. Give each rank cores of \
                      its own (taskset, numactl), start fewer threads, and call gc.freeze() before the steps";
    let claim = worst.claim(Quantity::HostStalls);
    Some(saving(worst.ns, finding(claim, Severity::Warning, title, worst.evidence("stalled_ns"), suggestion)))
}

fn code(context: &Context<'_>) -> Option<Found> {
    // Other findings name the input.
    let worst = worst(context, |row| if is_call(row) || loads_input(row) { 0 } else { row.stalled_ns })?;
    let title = format!(
        "the device of rank {} idles for {} of a {} step while its host runs code outside of operators: {}{}",
        worst.rank,
        ns(worst.ns),
        ns(worst.step_ns),
        worst.places(),
        worst.on_ranks()
    );
    let of_kind = |kind: Kind| {
        let mut rows = context.analysis.tables.idle_causes.iter().filter(|row| row.rank == worst.rank);
        rows.any(|row| is_of(row, kind))
    };
    let suggestion = match (of_kind(Kind::PythonFunction), of_kind(Kind::CpuOp)) {
        (true, _) => {
            "this code holds the device up: move it out of the step, or run it in another thread while the device works"
        }
        (_, true) => {
            "record Python stacks (with_stack=True), or put record_function around the parts of the step, to see which code it is"
        }
        _ => "put NVTX ranges around the parts of the program, or sample it with perf, to see which code it is",
    };
    let claim = worst.claim(Quantity::HostCode);
    Some(saving(worst.ns, finding(claim, Severity::Warning, title, worst.evidence("stalled_ns"), suggestion)))
}

fn graphs(context: &Context<'_>) -> Option<Found> {
    let worst = worst(context, |row| row.graph_ns)?;
    let (key, device) =
        context.devices.iter().filter(|(key, _)| key.0 == worst.rank).max_by_key(|(_, time)| time.own_idle_ns())?;
    let idle_ns = device.own_idle_ns();
    if worst.ns < idle_ns / 2 {
        return None;
    }
    let title = format!(
        "{} has no rows for {} of a {} step after the launch of a CUDA graph: it may work or idle then{}",
        place_of(key.0, Some(key.1)),
        ns(worst.ns),
        ns(worst.step_ns),
        worst.on_ranks()
    );
    let suggestion = "a newer CUPTI records all work of graphs, and so does a run without graphs: compare with one before you look for idle \
                      time";
    let claim = Claim::new(Quantity::Unknown, Relation::Exceeds, "idle_causes").of(worst.rank, Some(key.1));
    let claim = claim.value(Value::Ns(worst.ns)).explains(Part::Idle, worst.ns).advises(Advice::RecordMore);
    Some(finding(claim, Severity::Warning, title, worst.evidence("graph_ns"), suggestion))
}

/// Whether a row is in a range that loads input, or is one.
fn loads_input(row: &IdleCauseRow) -> bool {
    [&row.name, &row.annotation].into_iter().flatten().any(|name| is_input(name) || is_data_loading(name))
}

fn is_of(row: &IdleCauseRow, kind: Kind) -> bool {
    row.kind.as_ref().is_some_and(|known| *known == kind)
}

fn is_call(row: &IdleCauseRow) -> bool {
    is_of(row, Kind::CpuOp) || is_of(row, Kind::Runtime) || is_of(row, Kind::Driver)
}

#[cfg(test)]
mod tests {
    use trace::{FindingRow, StepBreakdownRow};

    use super::*;
    use crate::FindingKind;
    use model::analysis::Analysis;

    const MS: i64 = 1_000_000;

    /// One rank with two steps of 100 ms, half of it idle.
    fn analysis(rows: Vec<IdleCauseRow>) -> Analysis {
        let mut analysis = Analysis::default();
        let step = |step| StepBreakdownRow {
            device_id: Some(0),
            step: Some(step),
            wall_ns: 100 * MS,
            idle_ns: 50 * MS,
            ..StepBreakdownRow::default()
        };
        analysis.tables.step_breakdown = vec![step(1), step(2)];
        analysis.tables.idle_causes = rows;
        analysis
    }

    fn row(kind: Kind, name: &str, outer: Option<&str>) -> IdleCauseRow {
        let (kind, name) = (Some(kind.into()), Some(name.into()));
        IdleCauseRow { kind, name, outer_operator: outer.map(Into::into), ..IdleCauseRow::default() }
    }

    fn found(kind: &FindingKind, rows: Vec<IdleCauseRow>) -> Option<FindingRow> {
        kind.in_tables(&analysis(rows)).pop()
    }

    #[test]
    fn first_calls_are_named_with_the_operator_around_them() {
        let starts = |ns| IdleCauseRow { first_ns: ns, ..row(Kind::Runtime, "cudaFree", Some("aten::to")) };
        let conv = IdleCauseRow { first_ns: 20 * MS, ..row(Kind::CpuOp, "aten::conv2d", Some("aten::conv2d")) };
        let found_row = found(&FIRST_CALLS, vec![starts(60 * MS), conv]).unwrap();
        assert_eq!(
            &*found_row.title,
            "the device of rank 0 idles for 40.0 ms of a 100 ms step while its host makes first calls: 30.0 ms in `aten::to` (`cudaFree`), \
             10.0 ms in `aten::conv2d`"
        );
        assert_eq!(found_row.saving_ns, Some(40 * MS));
        assert_eq!(found(&FIRST_CALLS, vec![starts(9 * MS)]), None, "less than 5 % of a step");
    }

    #[test]
    fn stalls_are_counted_and_code_is_none() {
        let of = |kind, name: &str| IdleCauseRow { stalled_ns: 30 * MS, stalls: 3, ..row(kind, name, None) };
        let rows = vec![of(Kind::Runtime, "cudaEventRecord"), of(Kind::UserAnnotation, "forward")];
        let title = found(&HOST_STALLS, rows.clone()).unwrap().title;
        assert!(
            title.ends_with("while 3 calls of its host take far longer than usual: 15.0 ms in `cudaEventRecord`"),
            "{title}"
        );
        let code = found(&HOST_CODE, rows).unwrap();
        assert!(code.title.ends_with("runs code outside of operators: 15.0 ms in `forward`"), "{}", code.title);
        assert!(code.suggestion.starts_with("put NVTX ranges"), "{}", code.suggestion);
    }

    /// Ranges of input have findings of their own. The advice depends on what was recorded.
    #[test]
    fn code_is_not_input_and_stacks_are_not_asked_for_twice() {
        let of = |kind, name: &str| IdleCauseRow { stalled_ns: 30 * MS, stalls: 3, ..row(kind, name, None) };
        let input = of(Kind::UserAnnotation, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__");
        assert_eq!(found(&HOST_CODE, vec![input]), None);
        let python = found(&HOST_CODE, vec![of(Kind::PythonFunction, "train.py(11): load")]).unwrap();
        assert!(python.title.ends_with("15.0 ms in `train.py(11): load`"), "{}", python.title);
        assert!(python.suggestion.starts_with("this code holds the device up"), "{}", python.suggestion);
        let torch = vec![of(Kind::UserAnnotation, "forward"), row(Kind::CpuOp, "aten::mm", None)];
        assert!(found(&HOST_CODE, torch).unwrap().suggestion.starts_with("record Python stacks"));
    }

    #[test]
    fn graphs_without_rows_are_named_if_they_may_be_most_of_the_idle_time() {
        let graphs = |ns| vec![IdleCauseRow { graph_ns: ns, ..row(Kind::Runtime, "cudaGraphLaunch", None) }];
        let title = found(&GRAPHS_WITHOUT_ROWS, graphs(60 * MS)).unwrap().title;
        let wanted = "device 0 of rank 0 has no rows for 30.0 ms of a 100 ms step after the launch of a CUDA graph: it may work or idle then";
        assert_eq!(&*title, wanted);
        assert_eq!(found(&GRAPHS_WITHOUT_ROWS, graphs(40 * MS)), None, "most of the idle time has another cause");
    }
}
