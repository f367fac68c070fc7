//! The steps of all ranks as charts: named ranges, operators, compute and communication of each rank.
//!
//! ```text
//!  rank 0  ranges          |input|forward     |backward          |  the innermost named range of the host
//!          operators         |add|linear|      |addmm|   |wait   |  the innermost operator, and waits for the device
//!          compute         |##|###|##|########|########|#########|  kernels and copies; nothing without a device
//!          communication                 [~~~~~~~~####]             ~ waits for the last rank, # moves data
//! ```
//!
//! Bars are not nested, so a lane is a list of gaps and lengths. Bars that have no room, or are too short to be seen, are joined with
//! their neighbours and have a count. Each bar refers to a description, which many bars share.
//!
//! Every rank is loaded once and draws all its steps. Each step may have so many bars that what is held of all ranks is bounded,
//! whatever the size of the trace.

mod collectives;
mod descriptions;
mod lanes;

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{JobPathRow, OmissionRow, PathKind};

use self::collectives::{Call, Instances};
use self::descriptions::Descriptions;
use self::lanes::{Bar, COMMUNICATION, COMPUTE, Drawn, DrawnStep, LANES, SEEN, What, draw_rank, joined, least_for};
use crate::page_limits::Limits;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::stragglers::add_stragglers;
use crate::string_pool::visible_sentence;
use align::aligned::Analyzed;
use model::Error;
use model::analysis::Analysis;
use model::rank_order::by_prominence;
use model::scope::prepare;
use model::units::{ns, plural, ranks as numbers, shorten};

pub(crate) static SECTION: Section = Section {
    id: "timeline",
    title: "One step, all ranks",
    lead: "Lanes of a rank: ranges of the host, operators, kernels, communication. Solid bars work or transfer data, hatched bars \
           wait. The line under the lanes is the critical path of the job: it leads to the rank that the job waits for.",
    proof: true,
    tables: &[],
    data,
    scripts: &[
        script!("timeline_data.js"),
        script!("timeline_arrows.js"),
        script!("timeline_pen.js"),
        script!("timeline_details.js"),
        script!("timeline_area.js"),
        script!("timeline_search.js"),
        script!("timeline.js"),
    ],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let step = timeline_step(run.analysis(), run.timeline_step)?;
    let timelines = step.map(|step| timelines(run, step, page)).unwrap_or_default();
    page.value("timeline", &timelines)?;
    add_stragglers(run, page)?;
    let facts = &run.analysis().facts;
    let several = facts.ranks.len() > 1;
    let of = if several { " of all ranks on one clock, the ranks of the verdict first" } else { "" };
    let others = if facts.steps.len() > 1 { "; other steps can be chosen" } else { "" };
    let step = step.map_or("One step".into(), |step| format!("Step {step}"));
    let lead = format!("{step}{of}{others}. {}", SECTION.lead);
    let chart = Chart::unless(timelines.is_empty().then_some("No rank has a row in the selected step."));
    Ok(Some(Chart { title: (!several).then_some("One step"), lead: Some(lead), ..chart }))
}

/// The requested step, or the one of median length.
fn timeline_step(analysis: &Analysis, requested: Option<i32>) -> Result<Option<i32>, Error> {
    match requested {
        None => Ok(typical_step(analysis)),
        Some(step) if analysis.facts.steps.contains(&step) => Ok(Some(step)),
        Some(step) => {
            let recorded = numbers(&analysis.facts.steps);
            let why = format!("this step was not recorded; recorded steps: {recorded}");
            Err(Error::Option { option: "timeline", value: step.to_string(), why })
        }
    }
}

/// The steps with their lengths, the shortest first.
fn steps_by_length(analysis: &Analysis) -> Vec<(i64, i32)> {
    let mut lengths: BTreeMap<i32, i64> = BTreeMap::new();
    for row in &analysis.tables.step_breakdown {
        if let Some(step) = row.step.filter(|step| *step >= 0) {
            let length = lengths.entry(step).or_default();
            *length = (*length).max(row.wall_ns);
        }
    }
    let mut by_length: Vec<(i64, i32)> = lengths.into_iter().map(|(step, length)| (length, step)).collect();
    by_length.sort_unstable();
    by_length
}

/// The step of median length.
fn typical_step(analysis: &Analysis) -> Option<i32> {
    let by_length = steps_by_length(analysis);
    by_length.get(by_length.len().checked_sub(1)? / 2).map(|(_, step)| *step)
}

/// The timelines of the page.
#[derive(Debug, Default, Serialize)]
struct Timelines {
    /// The step that is shown first.
    chosen: Option<i32>,
    /// The step of median length.
    typical: Option<i32>,
    /// Ascending by step.
    steps: Vec<Timeline>,
    descriptions: Descriptions,
    calls: Vec<Call>,
    /// Where each rank ran.
    identities: Vec<(i32, String)>,
}

impl Timelines {
    /// Whether there is nothing to draw.
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// One step. Times count from the start of the step.
#[derive(Debug, Default, Serialize)]
struct Timeline {
    step: i32,
    /// Length of the timeline.
    span_ns: i64,
    /// Unit of the lanes, in ns.
    unit_ns: i64,
    ranks: Vec<RankLanes>,
    /// The critical path of the job in the step. Four numbers for each piece: position in `ranks`, 0 for work, 1 for a transfer
    /// or 2 for time that is not explained, start, length.
    path: Vec<i64>,
}

#[derive(Debug, Serialize)]
struct RankLanes {
    rank: i32,
    /// Start and end of the rank's step.
    window: (i64, i64),
    /// Numbers for each bar of each lane: gap since the end of the previous bar, length, description, rows; of compute and
    /// communication a fifth: of device work, the time since its launch + 1 (0: unknown); of a collective, three times its position
    /// in `calls` + 1 (0: unknown), plus 0 for waiting, 1 for data transfer, 2 for both.
    lanes: [Vec<i64>; LANES],
}

/// Bars of a rank in a step that show it well enough. Fewer steps are drawn rather than coarser ones.
const BARS_OF_RANK: usize = 80;
/// Bars that a rank in a step has at least, mostly. It bounds the steps that are drawn before their bars are counted.
const FEWEST_BARS: usize = 20;

/// The steps that may find room beside `chosen`, the longest first.
fn other_steps(analyzed: &Analyzed, chosen: i32, ranks: usize, limits: &Limits) -> Vec<i32> {
    let by_length = steps_by_length(&analyzed.analysis).into_iter().rev().map(|(_, step)| step);
    by_length.filter(|step| *step != chosen).take(limits.other_slices / (ranks * FEWEST_BARS)).collect()
}

/// Draws the steps of all ranks, `chosen` in most detail. Ranks that cannot be loaded again are left out and counted. What could
/// not be read this time, though it was read for the analysis, joins the omissions of the page.
fn timelines(run: &ReportInput<'_>, chosen: i32, page: &mut PageData) -> Timelines {
    let (analyzed, limits) = (run.analyzed, run.limits);
    let chosen_ranks = shown_ranks(run, page);
    let ranks = chosen_ranks.len().max(1);
    let others = other_steps(analyzed, chosen, ranks, limits);
    let quota = (ranks * BARS_OF_RANK).max(limits.other_slices / others.len().max(1));
    // Four times what a rank has room for: ranks and steps differ, and the bars of all are joined together at the end.
    let most_of_chosen = limits.slices.min(4 * limits.slices / ranks);
    let most_of_other = (2 * quota / ranks).max(most_of_chosen / (others.len() + 1));
    let most_bars = |step: i32| match step {
        _ if step == chosen => Some(most_of_chosen),
        _ => others.contains(&step).then_some(most_of_other),
    };
    let instances = Instances::of(analyzed, &|step| most_bars(step).is_some());
    let (drawn, omissions) = draw(run, &chosen_ranks, &instances, &most_bars);
    let failed = omissions.iter().filter(|of_rank| !of_rank.is_empty()).count();
    if failed > 0 {
        page.note(format!("{} could not be read a second time as a whole.", plural(failed, "rank")));
    }
    page.omissions.extend(omissions.concat());
    let mut fitted = Fitted::new(page, limits.descriptions);
    let path = &analyzed.analysis.tables.job_critical_path;
    let mut steps: Vec<Timeline> = fitted.fit(&drawn, chosen, path, limits.slices).into_iter().collect();
    let all: usize = drawn.iter().flat_map(|of_rank| of_rank.steps.values()).map(DrawnStep::bars).sum();
    // Without room for all bars, the longest other steps have an outline each.
    let has_room_for_all = all <= limits.slices;
    let mut room = limits.other_slices;
    for step in &others {
        if !has_room_for_all && room < quota {
            break;
        }
        let before = fitted.lacks.drawn;
        steps.extend(fitted.fit(&drawn, *step, path, if has_room_for_all { all } else { quota }));
        room = room.saturating_sub(fitted.lacks.drawn - before);
    }
    steps.sort_by_key(|timeline| timeline.step);
    note_missing_steps(analyzed, chosen, &steps, fitted.page);
    fitted.lacks.note(steps.len(), fitted.page);
    let comm_names = drawn.iter().flat_map(|d| d.comm_names.clone()).collect();
    let (calls, without) = instances.shown(&fitted.positions, &comm_names, &mut fitted.page.names, limits.arrivals);
    let (shortened, descriptions) = (fitted.shortened, fitted.descriptions);
    if shortened > 0 {
        page.note(format!(
            "{} have only a name: the page has no room for more details.",
            plural(shortened, "description")
        ));
    }
    if without > 0 {
        page.note(format!("The page has no room for the arrivals at {}.", plural(without, "collective")));
    }
    let identity = |d: &Drawn| {
        let known = analyzed.analysis.identity(d.rank)?;
        Some((d.rank, visible_sentence(&known.words().join(" · "))))
    };
    let identities = drawn.iter().filter_map(identity).collect();
    Timelines {
        chosen: Some(chosen),
        typical: typical_step(&analyzed.analysis),
        steps,
        descriptions,
        calls,
        identities,
    }
}

/// The ranks that find room, ascending.
fn shown_ranks(run: &ReportInput<'_>, page: &mut PageData) -> Vec<i32> {
    if let Some(sentence) = run.shown.sentence() {
        page.note(format!("{sentence} `--ranks` chooses others."));
    }
    run.analysis().facts.ranks.iter().copied().filter(|rank| run.shown.has(*rank)).collect()
}

/// Loads ranks and draws their steps. The ranks that the verdict names come first.
fn draw(
    run: &ReportInput<'_>,
    ranks: &[i32],
    instances: &Instances<'_>,
    most_bars: &(dyn Fn(i32) -> Option<usize> + Sync),
) -> (Vec<Drawn>, Vec<Vec<OmissionRow>>) {
    let ReportInput { source, options, analyzed, .. } = *run;
    let listed = &analyzed.analysis.tables.omissions;
    let draw = |rank: &i32| {
        let (mut data, details) = match source.load_detailed(*rank) {
            Ok(loaded) => loaded,
            Err(error) => {
                let why = format!("it could not be read a second time: {error}");
                return (None, vec![OmissionRow::lost("rank in the timeline", why).rank(*rank).amount(1)]);
            }
        };
        let is_new = |row: &OmissionRow| !listed.iter().any(|listed| listed.rank == row.rank && listed == row);
        let new: Vec<OmissionRow> = std::mem::take(&mut data.omissions).into_iter().filter(is_new).collect();
        prepare(&mut data, options, analyzed.time.get(rank).copied());
        (Some(draw_rank(&data, &details, &analyzed.clocks, instances, most_bars)), new)
    };
    let (drawn, omissions): (Vec<Option<Drawn>>, Vec<Vec<OmissionRow>>) =
        ranks.par_iter().with_max_len(1).map(draw).unzip();
    let mut drawn: Vec<Drawn> = drawn.into_iter().flatten().collect();
    let named = by_prominence(&analyzed.analysis.tables.stragglers).into_iter().filter(|row| row.stands_on.is_some());
    let named: Vec<i32> = named.map(|row| row.rank).collect();
    drawn.sort_by_key(|d| (named.iter().position(|rank| *rank == d.rank).unwrap_or(named.len()), d.rank));
    (drawn, omissions)
}

/// Notes the steps that are not drawn.
fn note_missing_steps(analyzed: &Analyzed, chosen: i32, drawn: &[Timeline], page: &mut PageData) {
    let recorded = &analyzed.analysis.facts.steps;
    let is_drawn = |step: &i32| *step == chosen || drawn.iter().any(|timeline| timeline.step == *step);
    let missing: Vec<i32> = recorded.iter().copied().filter(|step| !is_drawn(step)).collect();
    if !missing.is_empty() {
        let is = if missing.len() == 1 { "is" } else { "are" };
        let text = format!(
            "{} {is} not in the timeline: {}. The page has room for step {chosen} and the longest others. `--timeline STEP` draws \
             another step.",
            plural(missing.len(), "step"),
            // The count is said, and all numbers are in the tables.
            shorten(&numbers(&missing), 80)
        );
        page.note(text);
    }
}

/// The timelines, fitted into the page one after the other.
struct Fitted<'a> {
    page: &'a mut PageData,
    most_descriptions: usize,
    descriptions: Descriptions,
    /// Collectives in the page, as positions in the list of all, in the order of their first bars.
    positions: Vec<usize>,
    calls: FxHashMap<usize, usize>,
    /// Number of descriptions of which only the name is in the page.
    shortened: usize,
    lacks: Lacks,
}

/// The shortenings of the steps that were fitted.
#[derive(Debug, Default)]
struct Lacks {
    /// Number of collectives without a last arrival.
    undivided: usize,
    bars: usize,
    drawn: usize,
    /// Greatest length below which bars are joined.
    least: i64,
    /// Number of pieces of the critical path that are too short.
    pieces: usize,
}

impl Lacks {
    fn note(&self, steps: usize, page: &mut PageData) {
        let steps = plural(steps, "step");
        if self.undivided > 0 {
            let undivided = plural(self.undivided, "collective");
            let text = format!(
                "Waiting is not separated from transfer in {undivided} of single ranks ({steps}): peers are missing, or the collective is \
                 one-sided or did not end."
            );
            page.note(text);
        }
        if self.drawn < self.bars {
            let text = format!(
                "In {steps}, {} bars are drawn as {}: bars under {} are merged with their neighbours. `rankscope export` writes all \
                 bars for Perfetto.",
                self.bars,
                self.drawn,
                ns(self.least)
            );
            page.note(text);
        }
        if self.pieces > 0 {
            let text = format!("In {steps}, short pieces of the critical path are not drawn: {}.", self.pieces);
            page.note(text);
        }
    }
}

/// Times in the unit of a timeline, from its start.
struct Times {
    from: i64,
    unit_ns: i64,
}

impl Times {
    fn at(&self, t: i64) -> i64 {
        (t - self.from).div_euclid(self.unit_ns)
    }
}

impl<'a> Fitted<'a> {
    fn new(page: &'a mut PageData, most_descriptions: usize) -> Self {
        Self {
            page,
            most_descriptions,
            descriptions: Descriptions::default(),
            positions: Vec::new(),
            calls: FxHashMap::default(),
            shortened: 0,
            lacks: Lacks::default(),
        }
    }

    /// Fits a step into the page: doubles the length below which bars are joined until they are at most `most`.
    fn fit(&mut self, drawn: &[Drawn], step: i32, path: &[JobPathRow], most: usize) -> Option<Timeline> {
        let of_step: Vec<(&Drawn, &DrawnStep)> = drawn.iter().filter_map(|d| Some((d, d.steps.get(&step)?))).collect();
        let from = of_step.iter().map(|(_, d)| d.window.start_ns).min()?;
        let to = of_step.iter().map(|(_, d)| d.window.end_ns).max()?;
        let span_ns = (to - from).max(1);
        let lanes: Vec<&[Vec<Bar>; LANES]> = of_step.iter().map(|(_, d)| &d.lanes).collect();
        let least = least_for(&lanes, span_ns, most);
        let times = Times { from, unit_ns: (span_ns / SEEN).max(1) };
        let mut ranks = Vec::new();
        for (of_rank, of_step) in &of_step {
            let mut known = FxHashMap::default();
            let mut lanes = [const { Vec::new() }; LANES];
            for (lane, numbers) in lanes.iter_mut().enumerate() {
                let bars = joined(&of_step.lanes[lane], least);
                self.lacks.bars += bars.iter().map(|bar| bar.rows as usize).sum::<usize>();
                self.lacks.drawn += bars.len();
                *numbers = self.encode(lane, &bars, of_rank, &mut known, &times);
            }
            self.lacks.undivided += of_step.undivided;
            let window = (times.at(of_step.window.start_ns), times.at(of_step.window.end_ns));
            ranks.push(RankLanes { rank: of_rank.rank, window, lanes });
        }
        self.lacks.least = self.lacks.least.max(least);
        let (path, short) = pieces(path, step, &ranks, &times, least);
        self.lacks.pieces += short;
        Some(Timeline { step, span_ns, unit_ns: times.unit_ns, ranks, path })
    }

    fn encode(
        &mut self,
        lane: usize,
        bars: &[Bar],
        of_rank: &Drawn,
        known: &mut FxHashMap<u32, usize>,
        times: &Times,
    ) -> Vec<i64> {
        let mut numbers = Vec::with_capacity(5 * bars.len());
        let mut until = 0;
        for bar in bars {
            let What::Described(description, number) = bar.what else { continue };
            let (start, end) = (times.at(bar.start).max(until), times.at(bar.end));
            let (description, shortened) = self.descriptions.id(
                &of_rank.descriptions,
                description,
                known,
                &mut self.page.names,
                self.most_descriptions,
            );
            self.shortened += usize::from(shortened);
            numbers.extend([start - until, (end - start).max(0), description as i64, i64::from(bar.rows)]);
            match lane {
                COMPUTE => numbers.push(number),
                COMMUNICATION => numbers.push(self.call(number)),
                _ => {}
            }
            until = start.max(end);
        }
        numbers
    }

    /// The number of a bar of communication in the page: with the position of its collective there.
    fn call(&mut self, number: i64) -> i64 {
        let (at, does) = (number / 3, number % 3);
        if at == 0 {
            return does;
        }
        let next = self.positions.len();
        let position = *self.calls.entry(at as usize - 1).or_insert(next);
        if position == next {
            self.positions.push(at as usize - 1);
        }
        3 * (position as i64 + 1) + does
    }
}

/// The pieces of the critical path in a step, in the numbers of [`Timeline::path`], and the number of pieces shorter than `least`.
fn pieces(path: &[JobPathRow], step: i32, ranks: &[RankLanes], times: &Times, least: i64) -> (Vec<i64>, usize) {
    let path: Vec<&JobPathRow> = path.iter().filter(|row| row.step == step).collect();
    let short = path.iter().filter(|row| row.dur_ns < least).count();
    let place_of: FxHashMap<i32, usize> = ranks.iter().enumerate().map(|(at, r)| (r.rank, at)).collect();
    let piece = |row: &&JobPathRow| {
        let place = *place_of.get(&row.rank)?;
        let kind = match row.kind.known() {
            _ if row.unexplained_ns == row.dur_ns => 2,
            Some(PathKind::Transfer) => 1,
            _ => 0,
        };
        let (start, end) = (times.at(row.ts_ns), times.at(row.ts_ns.saturating_add(row.dur_ns)));
        Some([place as i64, kind, start, end - start])
    };
    (path.iter().filter(|row| row.dur_ns >= least).filter_map(piece).flatten().collect(), short)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::by_name::ByName;
    use drawn::Drawn as Rank;
    use model::analysis::Facts;
    use model::options::Options;
    use model::shown_ranks::ShownRanks;
    use model::source::{Source, SourceInfo};
    use model::{Kind, RankData};
    use pipeline::analyze::analyze_aligned;

    /// Ranks in memory that count how often they are loaded.
    struct Ranks(Vec<RankData>, AtomicUsize);

    impl Source for Ranks {
        fn info(&self) -> SourceInfo {
            SourceInfo { world_size: Some(self.0.len() as i32), ..SourceInfo::default() }
        }
        fn ranks(&self) -> Vec<i32> {
            (0..self.0.len() as i32).collect()
        }
        fn problems(&self) -> Vec<OmissionRow> {
            Vec::new()
        }
        fn load(&self, rank: i32) -> Result<RankData, Error> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(self.0[rank as usize].clone())
        }
    }

    /// Two ranks with three steps; the second step is the longest.
    fn job() -> Ranks {
        let rank = |rank| {
            Rank::rank(rank)
                .steps("#######.#############.########")
                .host(Kind::UserAnnotation, "forward", 1, ".####....########......####...")
                .host(Kind::CpuOp, "addmm", 1, "..###.....#####.........##....")
                .launches(1, "..#.......#.............#.....")
                .device(Kind::Kernel, "gemm", (0, 7), 1, "....##.......####.........##..")
                .data()
        };
        Ranks(vec![rank(0), rank(1)], AtomicUsize::new(0))
    }

    /// The timelines of the job as the page holds them, with the notes.
    fn page_of(ranks: &Ranks, limits: &Limits) -> (serde_json::Value, Vec<String>, Vec<String>) {
        let options = Options::default();
        let analyzed = analyze_aligned(ranks, &options, &|_, _| ()).unwrap();
        ranks.1.store(0, Ordering::Relaxed);
        let run = ReportInput {
            source: ranks,
            options: &options,
            analyzed: &analyzed,
            limits,
            timeline_step: Some(3),
            shown: &ShownRanks::of(&analyzed.analysis, limits.ranks),
            kernels: &ByName::default(),
            operators: &ByName::default(),
        };
        let mut page = PageData::default();
        let timelines = timelines(&run, 3, &mut page);
        assert_eq!(page.omissions, []);
        let names = serde_json::from_value(serde_json::to_value(&page.names).unwrap()).unwrap();
        (serde_json::to_value(&timelines).unwrap(), names, page.notes_of(""))
    }

    /// The names from a description outwards.
    fn path_of(page: &serde_json::Value, names: &[String], number: u64) -> Vec<String> {
        let mut path = Vec::new();
        let mut next = number + 1;
        while next > 0 {
            let description = &page["descriptions"][next as usize - 1];
            path.push(names[description[0].as_u64().unwrap() as usize].clone());
            next = description[2].as_u64().unwrap();
        }
        path
    }

    #[test]
    fn a_timeline_of_an_unrecorded_step_is_an_error() {
        let facts = Facts { steps: vec![3], ..Facts::default() };
        let analysis = Analysis { facts, ..Analysis::default() };
        assert_eq!(timeline_step(&analysis, Some(3)).unwrap(), Some(3));
        let error = timeline_step(&analysis, Some(9)).unwrap_err();
        assert_eq!(error.to_string(), "--timeline 9: this step was not recorded; recorded steps: 3");
    }

    #[test]
    fn every_rank_is_loaded_once_and_all_its_steps_are_drawn() {
        let ranks = job();
        let (page, names, notes) = page_of(&ranks, &Limits::default());
        assert_eq!(ranks.1.load(Ordering::Relaxed), 2);
        let steps: Vec<i64> = page["steps"].as_array().unwrap().iter().map(|s| s["step"].as_i64().unwrap()).collect();
        assert_eq!((steps.as_slice(), &page["chosen"]), ([1, 2, 3].as_slice(), &3.into()));
        // Lanes of step 2, which begins at 8: gap, length, description, rows, and of the kernel the time since its launch + 1.
        let lanes = &page["steps"][1]["ranks"][1]["lanes"];
        let numbers =
            |lane: usize| -> Vec<u64> { lanes[lane].as_array().unwrap().iter().filter_map(|n| n.as_u64()).collect() };
        assert_eq!((&numbers(0)[..2], numbers(0)[3]), (&[1, 8][..], 1));
        assert_eq!((&numbers(1)[..2], numbers(1)[3]), (&[2, 5][..], 1));
        assert_eq!((&numbers(2)[..2], &numbers(2)[3..]), (&[5, 4][..], &[1, 4][..]));
        assert_eq!(path_of(&page, &names, numbers(2)[2]), ["gemm", "cudaLaunchKernel", "addmm", "forward"]);
        assert_eq!(notes, [""; 0]);
    }

    /// Invariant (output): Steps for which the report's timeline has no room are named.
    #[test]
    fn steps_without_room_are_left_out_and_named() {
        let two = Limits { slices: 5, other_slices: 2 * BARS_OF_RANK, ..Limits::default() };
        let (page, _, notes) = page_of(&job(), &two);
        let steps: Vec<i64> = page["steps"].as_array().unwrap().iter().map(|s| s["step"].as_i64().unwrap()).collect();
        assert_eq!(steps, [2, 3], "the longest step stays");
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("1 step is not in the timeline: 1. "), "{notes:?}");
        assert!(notes[0].contains("`--timeline STEP`"), "{notes:?}");
    }

    /// Invariant (output): Rows of the report's timeline whose details have no room keep their names and are counted.
    #[test]
    fn descriptions_without_room_keep_their_names_and_are_counted() {
        let (page, names, notes) = page_of(&job(), &Limits { descriptions: 2, ..Limits::default() });
        let kernels = page["steps"][2]["ranks"][0]["lanes"][2].as_array().unwrap();
        assert_eq!(path_of(&page, &names, kernels[2].as_u64().unwrap()), ["gemm"]);
        assert!(notes.iter().any(|note| note.contains("have only a name")), "{notes:?}");
    }
}
