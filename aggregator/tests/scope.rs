//! A job whose devices are a step behind their hosts, and its analysis under every selection of steps. One column is 1
//! ms.
//!
//! ```text
//!            |-1-| |-2-| |-3-|
//!  rank 0          g1ncclg2ncclg3nccl        g: gemm, nccl: from the rank's arrival to the end
//!  rank 2          gemmncgemmncgemmnc        2 ms more of gemm in every step
//! ```

#![expect(clippy::unwrap_used, reason = "unwrap is allowed in tests and their helpers")]

use std::ops::Range;

use aggregator::render;
use align::aligned::align_source;
use diff::{Group, Key, Measure};
use drawn::Drawn;
use key_averages::table::{TableOptions, key_averages};
use model::analysis::{Analysis, VerdictKind};
use model::options::{Options, TimeBound};
use model::source::{Source, SourceInfo};
use model::{Error, Kind, RankData, RankInfo};
use pipeline::analyze;
use pipeline::diff::profile_run;
use regex::Regex;
use trace::OmissionRow;
use trace::rank::Details;

const STEPS: i32 = 6;
const COLUMN_NS: i64 = 1_000_000;

/// Rank 1 has no marks of the `skipped` steps. `shift` is added to its step numbers.
#[derive(Clone, Debug, Default)]
struct Behind {
    skipped: Vec<i32>,
    shift: i32,
}

impl Source for Behind {
    fn info(&self) -> SourceInfo {
        SourceInfo { path: "behind".into(), world_size: Some(4), ..SourceInfo::default() }
    }
    fn ranks(&self) -> Vec<i32> {
        (0..4).collect()
    }
    fn problems(&self) -> Vec<OmissionRow> {
        Vec::new()
    }
    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let every = |step: &str| step.repeat(STEPS as usize);
        let (gemm, nccl) = if rank == 2 { ("####..", "....##") } else { ("##....", "..####") };
        let on_device = |step: &str| format!("......{}", every(step));
        let mut data = Drawn::rank(rank)
            .steps(&every("#####."))
            .launches(1, &every(".#...."))
            .launches(101, &every("...#.."))
            .device(Kind::Kernel, "gemm", (0, 7), 1, &on_device(gemm))
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 8), 101, &on_device(nccl))
            .collectives(&on_device(nccl))
            .data();
        let clock_domain = "h/utc".to_string();
        data.outline.info =
            RankInfo { rank, world_size: Some(4), host: "h".into(), clock_domain, ..RankInfo::default() };
        let events = &mut data.events;
        events.ts_ns.iter_mut().chain(&mut events.dur_ns).for_each(|t| *t *= COLUMN_NS);
        for (collective, step) in data.outline.collectives.iter_mut().zip(1..) {
            let row = &mut *collective;
            (row.comm_size, row.device_id, row.timing_source) = (Some(4), Some(0), "cupti".into());
            row.set_step(Some(step));
            row.map_times(|ns| ns * COLUMN_NS);
        }
        for step in &mut data.outline.steps {
            (step.start_ns, step.end_ns) = (step.start_ns * COLUMN_NS, step.end_ns * COLUMN_NS);
        }
        if rank == 1 {
            self.renumber(&mut data);
        }
        Ok(data)
    }
}

impl Behind {
    fn renumber(&self, data: &mut RankData) {
        let number = |step: i32| if self.skipped.contains(&step) { -1 } else { step + self.shift };
        data.outline.steps.iter_mut().for_each(|s| s.step = number(s.step));
        data.outline.steps.retain(|s| s.step >= 0);
        data.events.step.iter_mut().filter(|s| **s >= 0).for_each(|s| *s = number(*s));
        data.outline.collectives.iter_mut().for_each(|c| c.set_step(c.step().map(number)));
    }
}

fn chosen(steps: Range<i32>) -> Options {
    Options { steps: Some(steps), ..Options::default() }
}

fn analyzed(options: &Options) -> Analysis {
    analyze(&Behind::default(), options, &|_, _| ()).unwrap()
}

/// Rank, step, length.
type Walls = Vec<(i32, i32, i64)>;

/// Rank, step and length: from columns, by device windows, and by critical paths.
fn walls(analysis: &Analysis) -> (Walls, Walls) {
    let rows = analysis.tables.step_breakdown.iter();
    let paths = analysis.tables.critical_path.iter();
    (
        rows.filter_map(|r| Some((r.rank, r.step.filter(|s| *s >= 0)?, r.wall_ns / COLUMN_NS))).collect(),
        paths.map(|r| (r.rank, r.step, r.wall_ns / COLUMN_NS)).collect(),
    )
}

#[test]
fn selected_steps_equal_those_of_the_whole_run() {
    let whole = analyzed(&Options::default());
    assert_eq!((whole.verdict.kind, whole.verdict.rank), (VerdictKind::Cause, Some(2)));
    for steps in [3..4, 2..5, 1..7, 6..i32::MAX] {
        let part = analyzed(&chosen(steps.clone()));
        let of_whole = |all: Vec<(i32, i32, i64)>| -> Vec<(i32, i32, i64)> {
            all.into_iter().filter(|(_, step, _)| steps.contains(step)).collect()
        };
        let (by_device, by_path) = walls(&whole);
        assert_eq!(walls(&part), (of_whole(by_device), of_whole(by_path)));
        let mut rows = part.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0));
        assert!(rows.all(|row| whole.tables.step_breakdown.contains(row)));

        let numbers = (steps.start..steps.end.min(STEPS + 1)).collect::<Vec<_>>();
        assert_eq!((&part.facts.steps, part.verdict.steps), (&numbers, numbers.len() as i32));
        assert_eq!(part.verdict.kind == VerdictKind::Cause, numbers.len() >= 3, "{steps:?}: {}", part.verdict.sentence);
        // In few steps, no rank may be named at all.
        if let Some(rank) = part.verdict.rank {
            assert_eq!((rank, part.verdict.own_excess_ns), (2, whole.verdict.own_excess_ns), "{steps:?}");
        }
        let chosen = whole.tables.collective_instances.iter().filter(|i| i.step.is_some_and(|s| steps.contains(&s)));
        let fields = |i: &trace::InstanceRow| (i.step, i.complete, i.first_start_ns, i.last_start_ns, i.transfer_ns);
        let instances = part.tables.collective_instances.iter().map(fields);
        assert_eq!(instances.collect::<Vec<_>>(), chosen.map(fields).collect::<Vec<_>>());
        // What a step waited for may be outside of the selection.
        let mut omissions =
            part.tables.omissions.iter().filter(|row| &*row.what != "starts in the account of lost time");
        assert_eq!(omissions.next(), None);
    }
}

/// The tables without a step column hold only the device time of the selected steps.
#[test]
fn sums_equal_those_of_the_breakdown() {
    let part = analyzed(&chosen(3..4));
    let data = Behind::default().load(2).unwrap();
    let options = TableOptions { steps: Some(3..4), ..TableOptions::default() };
    let table = key_averages(&data, &Details::default(), &options);
    for kernel in ["gemm", "ncclDevKernel_AllReduce"] {
        let row = table.rows.iter().find(|r| &*r.name == kernel).unwrap();
        let sums = part.tables.kernel_stats.iter().find(|r| r.rank == 2 && &*r.name == kernel).unwrap();
        assert_eq!((sums.calls, sums.total_ns), (row.calls, row.device_time_total_ns), "{kernel}");
    }
    let hta = part.tables.hta_temporal_breakdown.iter().find(|r| r.rank == 2).unwrap();
    assert_eq!((hta.kernel_time_ns, hta.compute_time_ns), (6 * COLUMN_NS, 4 * COLUMN_NS));
}

#[test]
fn diff_and_the_exports_select_the_same_steps() {
    let options = chosen(2..5);
    let profile = profile_run(&Behind::default(), &options, &|| ()).unwrap();
    let wall = Key::new(Group::Step, "wall", Measure::Total);
    assert!(
        profile.ranks.iter().all(|rank| rank.series[&wall] == [6e6; 3].into_iter().collect()),
        "{:?}",
        profile.ranks
    );

    let aligned = align_source(&Behind::default(), &options, &|_, _| ()).unwrap();
    let analysis = analyzed(&options);
    let instances: Vec<_> = aligned.instances.iter().map(|i| (i.id, i.step, i.members.len())).collect();
    let rows = analysis.tables.collective_instances.iter();
    assert_eq!(instances, rows.map(|i| (i.instance, i.step, i.ranks_seen as usize)).collect::<Vec<_>>());

    let exported = render::perfetto(&Behind::default(), &options, Vec::new(), &|_, _| ()).unwrap();
    // For each of three steps and four ranks: two launches and two kernels, a collective, a mark.
    let counts = exported.counts;
    assert_eq!((counts.events, counts.collectives, counts.marks), (3 * 4 * 4, 3 * 4, 3 * 4));
}

#[test]
fn steps_that_no_rank_has_are_an_error() {
    for steps in [7..9, 0..1] {
        let error = analyze(&Behind::default(), &chosen(steps.clone()), &|_, _| ()).unwrap_err().to_string();
        let selection = if steps == (0..1) { "--steps 0" } else { "--steps 7..9" };
        assert_eq!(error, format!("behind: {selection} selects nothing: the recorded steps are 1–6"));
        assert!(profile_run(&Behind::default(), &chosen(steps.clone()), &|| ()).is_err());
        assert!(align_source(&Behind::default(), &chosen(steps), &|_, _| ()).is_err());
    }
}

#[test]
fn a_time_or_range_that_no_rank_has_is_an_error() {
    let late = Options { from: Some(TimeBound::SinceStartNs(1_000_000 * COLUMN_NS)), ..Options::default() };
    let no_range = Options { range: Some(Regex::new("nothing like this").unwrap()), ..Options::default() };
    for (options, why) in [(late, "nothing was recorded then"), (no_range, "no host range in that time matches")] {
        let error = analyze(&Behind::default(), &options, &|_, _| ()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("selects nothing: {why}")), "{error}");
        assert!(align_source(&Behind::default(), &options, &|_, _| ()).is_err());
    }
}

fn left_out(source: &Behind, options: &Options) -> Vec<(Option<i32>, String, Option<i64>, String)> {
    let analysis = analyze(source, options, &|_, _| ()).unwrap();
    let rows = analysis.tables.omissions.iter().filter(|row| row.what.starts_with("steps"));
    rows.map(|row| (row.rank, row.what.to_string(), row.amount, row.why.to_string())).collect()
}

#[test]
fn missing_steps_are_reported_and_their_collectives_keep_the_step() {
    let source = Behind { skipped: vec![2, 3, 5], shift: 0 };
    let why = |steps: &str| format!("other ranks recorded {steps}, this rank did not");
    let lacks = |count, steps: &str| (Some(1), "steps".to_string(), Some(count), why(steps));
    assert_eq!(left_out(&source, &Options::default()), [lacks(3, "2–3, 5")]);
    assert_eq!(left_out(&source, &chosen(3..5)), [lacks(1, "3")]);
    assert_eq!(left_out(&source, &chosen(4..5)), []);
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    let steps = analysis.tables.collective_instances.iter().map(|i| (i.step, i.ranks_seen));
    assert_eq!(steps.collect::<Vec<_>>(), (1..7).map(|step| (Some(step), 4)).collect::<Vec<_>>());
}

#[test]
fn a_rank_with_other_step_numbers_is_reported() {
    let source = Behind { skipped: Vec::new(), shift: 100 };
    let omitted = left_out(&source, &Options::default());
    let row = |what: &str, why: &str| (Some(1), what.to_string(), Some(6), why.to_string());
    assert_eq!(
        omitted,
        [
            row("steps", "other ranks recorded 1–6, this rank did not"),
            row("steps of few ranks", "most ranks did not record 101–106")
        ]
    );
}
