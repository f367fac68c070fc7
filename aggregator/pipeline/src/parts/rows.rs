//! Parts as rows of tables, and back. The reduction takes the same values from both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::IntoIter;

use trace::{
    BucketRow, ClockSampleRow, CollectiveRow, CommEvidenceRow, CommRow, CounterRow, DeviceRow, GraphNodeRow,
    GraphPathRow, GraphSegmentRow, MappedCollectiveRow, MappedRankRow, OwnRangeRow, OwnStepRow, OwnStretchRow,
    OwnTimeRow, PathCutRow, PathStepRow, RecurringRangeRow, StepOverheadRow, StepRow, TableRows, Tables,
};

use measure::communication::{CommunicationEvidence, Suspect};
use measure::graph::condensed::{Condensed, Kept, Segment};
use measure::graph::{NodeKind, Path};
use measure::overhead::StepOverhead;
use measure::own_time::{Done, OwnTime, PathWork, RangePart, StepPart, Stretch};
use measure::part::RankPart;
use model::intervals::Interval;
use model::steps::StepWindow;
use model::{CollectiveShapes, RankInfo, RankOutline};

/// The data of ranks on critical paths, by rank and by [`OwnTime::without_waits`].
pub(crate) type PathsOfRanks = BTreeMap<(i32, bool), Arc<PathWork>>;

macro_rules! part_rows {
    ($( $table:ident: $row:ident, )+) => {
        /// The rows of some parts, table by table, in the order of ranks.
        #[derive(Debug, Default)]
        pub(crate) struct PartRows {
            $( $table: Vec<$row>, )+
            /// The tables of the analysis that one rank alone decides.
            pub(crate) tables: Tables,
        }

        impl PartRows {
            /// Every table.
            pub(crate) fn all(&self) -> Vec<&dyn TableRows> {
                let mut all: Vec<&dyn TableRows> = vec![ $( &self.$table, )+ ];
                all.extend(self.tables.all());
                all
            }

            /// Every table.
            pub(crate) fn all_mut(&mut self) -> Vec<&mut dyn TableRows> {
                let mut all: Vec<&mut dyn TableRows> = vec![ $( &mut self.$table, )+ ];
                all.extend(self.tables.all_mut());
                all
            }
        }

        /// The rows that are not yet in a part.
        struct Remaining {
            $( $table: IntoIter<$row>, )+
        }

        impl Remaining {
            fn of(rows: PartRows) -> (Self, Tables) {
                (Self { $( $table: rows.$table.into_iter(), )+ }, rows.tables)
            }
        }

        $( impl OfRank for $row {
            fn rank(&self) -> i32 {
                self.rank
            }
        } )+
    };
}

part_rows! {
    mapped_ranks: MappedRankRow,
    collectives: CollectiveRow,
    mapped_collectives: MappedCollectiveRow,
    steps: StepRow,
    comms: CommRow,
    clock_samples: ClockSampleRow,
    buckets: BucketRow,
    devices: DeviceRow,
    counters: CounterRow,
    comm_evidence: CommEvidenceRow,
    recurring_ranges: RecurringRangeRow,
    step_overhead: StepOverheadRow,
    own_time: OwnTimeRow,
    own_stretches: OwnStretchRow,
    own_steps: OwnStepRow,
    own_ranges: OwnRangeRow,
    path_cuts: PathCutRow,
    path_steps: PathStepRow,
    graph_segments: GraphSegmentRow,
    graph_nodes: GraphNodeRow,
    graph_paths: GraphPathRow,
}

/// A row of one rank.
trait OfRank {
    fn rank(&self) -> i32;
}

/// Takes the next rows, which are those of `rank`. Thousands of ranks stay in memory, so the list is as long as its rows.
fn rows_of<R: OfRank>(rows: &mut IntoIter<R>, rank: i32) -> Vec<R> {
    let count = rows.as_slice().iter().take_while(|row| row.rank() == rank).count();
    let mut of_rank = Vec::with_capacity(count);
    of_rank.extend(rows.take(count));
    of_rank
}

impl PartRows {
    /// Adds a part. Parts come in the order of ranks.
    pub(crate) fn push(&mut self, part: RankPart) {
        let RankPart {
            outline,
            rows,
            recorded_steps,
            has_selected_time,
            has_marked_steps,
            buckets,
            devices,
            counters,
            tables,
            overhead,
            communication,
            recurring,
            straggler,
        } = part;
        // Ranks are joined when the parts are read again.
        let RankOutline { info, collectives, steps, comms, comm_ids: _, clock_samples, recorded_ns, has_device_rows } =
            outline;
        let RankInfo { rank, world_size, host, pid, clock_domain, closed_cleanly, roles, file } = info;
        self.mapped_ranks.push(MappedRankRow {
            rank,
            world_size,
            host: host.into(),
            pid,
            clock_domain: clock_domain.into(),
            closed_cleanly,
            file,
            roles,
            recorded_start_ns: recorded_ns.map(|(start_ns, _)| start_ns),
            recorded_end_ns: recorded_ns.map(|(_, end_ns)| end_ns),
            has_device_rows,
            rows: rows as i64,
            recorded_steps: Some(recorded_steps),
            has_selected_time,
            has_marked_steps,
            comm_kernels_ns: communication.total_ns,
        });
        for collective in collectives {
            self.collectives.push(collective.row());
            let comms_id = collective.comms_id().map(u64::cast_signed);
            self.mapped_collectives.push(MappedCollectiveRow { rank, comms_id, exposed_ns: collective.exposed_ns() });
        }
        self.steps.extend(steps);
        self.comms.extend(comms);
        self.clock_samples.extend(clock_samples);
        self.buckets.extend(buckets);
        self.devices.extend(devices);
        self.counters.extend(counters);
        self.push_evidence(rank, communication);
        self.recurring_ranges.extend(recurring);
        for (step, StepOverhead { total_ns, by_name }) in overhead {
            self.step_overhead.push(StepOverheadRow { rank, step, name: None, calls: 0, total_ns });
            let of_name = |(name, (calls, total_ns))| StepOverheadRow { rank, step, name: Some(name), calls, total_ns };
            self.step_overhead.extend(by_name.into_iter().map(of_name));
        }
        if let Some(straggler) = straggler {
            self.push_own_time(*straggler);
        }
        if let Some(tables) = tables {
            self.tables.append(*tables);
        }
    }

    fn push_evidence(&mut self, rank: i32, evidence: CommunicationEvidence) {
        let CommunicationEvidence { total_ns: _, by_name_ns, suspects } = evidence;
        let row = |name| CommEvidenceRow { rank, name, ..CommEvidenceRow::default() };
        self.comm_evidence
            .extend(by_name_ns.into_iter().map(|(name, ns)| CommEvidenceRow { by_name_ns: Some(ns), ..row(name) }));
        self.comm_evidence.extend(suspects.into_iter().map(|(name, suspect)| CommEvidenceRow {
            suspect_ns: Some(suspect.total_ns),
            suspect_overlap_ns: Some(suspect.overlap_ns),
            suspect_device_ns: Some(suspect.device_ns),
            ..row(name)
        }));
    }

    fn push_own_time(&mut self, own: OwnTime) {
        let OwnTime {
            rank,
            stretches,
            steps,
            ranges,
            ranges_dropped,
            dropped_max_ns,
            has_device,
            has_work,
            path_steps,
            path,
            without_waits,
            by_operators,
            graph,
        } = own;
        let ranges_dropped = ranges_dropped as i64;
        self.own_time.push(OwnTimeRow { rank, without_waits, has_device, has_work, ranges_dropped, dropped_max_ns });
        self.own_stretches.extend(stretches.into_iter().map(|stretch| {
            let Stretch { since_ns, from_ns, start_ns, end_ns, own_ns, previous, entered, waited, step } = stretch;
            let [previous, entered, waited] = [previous, entered, waited].map(|at| at.map(u32::cast_signed));
            OwnStretchRow {
                rank,
                without_waits,
                since_ns,
                from_ns,
                start_ns,
                end_ns,
                own_ns,
                previous,
                entered,
                waited,
                step,
            }
        }));
        let own_step = |StepPart { step, dur_ns, busy_ns }| OwnStepRow { rank, without_waits, step, dur_ns, busy_ns };
        self.own_steps.extend(steps.into_iter().map(own_step));
        self.own_ranges.extend(ranges.into_iter().map(|range| {
            let RangePart { name, input, fills, code, in_operator, self_ns } = range;
            OwnRangeRow { rank, without_waits, name, input, fills, code, in_operator, self_ns: Some(self_ns) }
        }));
        self.path_steps.extend(path_steps.into_iter().map(|step| PathStepRow {
            rank,
            without_waits,
            step: step.step,
            start_ns: step.window.start_ns,
            end_ns: step.window.end_ns,
        }));
        self.push_path(rank, without_waits, &path);
        if let Some(graph) = graph {
            self.push_graph(rank, &graph);
        }
        if let Some(own) = by_operators {
            self.push_own_time(*own);
        }
    }

    fn push_graph(&mut self, rank: i32, graph: &Condensed) {
        self.graph_segments.extend(graph.segments.iter().map(|segment| {
            let Segment { at_ns, collective, step, step_end_ns, host_ns, device_ns, late_ns, contended_ns } = *segment;
            let collective = collective.map(u32::cast_signed);
            GraphSegmentRow { rank, at_ns, collective, step, step_end_ns, host_ns, device_ns, late_ns, contended_ns }
        }));
        let mut before = 0;
        self.graph_nodes.extend(graph.nodes.iter().map(|node| {
            let Kept { kind, segment, at_ns, end_ns, collective, paths_end } = *node;
            let paths = (paths_end - std::mem::replace(&mut before, paths_end)).cast_signed();
            let (segment, collective) = (segment.cast_signed(), collective.map(u32::cast_signed));
            GraphNodeRow { rank, kind: kind as i32, segment, at_ns, end_ns, collective, paths }
        }));
        self.graph_paths.extend(graph.paths.iter().map(|path| {
            let Path { from, host_ns, device_ns, late_ns, fixed_ns } = path;
            GraphPathRow { rank, from_node: from.cast_signed(), host_ns, device_ns, late_ns, fixed_ns }
        }));
    }

    fn push_path(&mut self, rank: i32, without_waits: bool, path: &PathWork) {
        self.path_cuts.extend(path.cuts().map(|(ts_ns, done)| {
            let Done { cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns } = done;
            PathCutRow {
                rank,
                without_waits,
                ts_ns,
                cpu_ns,
                host_gap_ns,
                data_loading_ns,
                gpu_compute_ns,
                gpu_memory_ns,
            }
        }));
    }

    /// The parts, and the tables of all of them. The parts themselves have no tables.
    /// `shapes` are those of parts before.
    pub(crate) fn into_parts(self, shapes: &mut CollectiveShapes) -> (Vec<RankPart>, Tables) {
        let (mut remaining, tables) = Remaining::of(self);
        let mut parts = Vec::with_capacity(remaining.mapped_ranks.len());
        while let Some(row) = remaining.mapped_ranks.next() {
            parts.push(remaining.part(row, shapes));
        }
        (parts, tables)
    }
}

/// A cut of a path, and the work before it.
fn cut(row: &PathCutRow) -> (i64, Done) {
    let PathCutRow { cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns, .. } = *row;
    (row.ts_ns, Done { cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns })
}

/// The next rows, which are those of a rank by one definition of work.
fn stretches_of(rows: &mut IntoIter<OwnStretchRow>, key: (i32, bool)) -> Vec<Stretch> {
    let count = rows.as_slice().iter().take_while(|row| (row.rank, row.without_waits) == key).count();
    // Collected without a length, the list would take the memory of the rows, which are larger.
    let mut stretches = Vec::with_capacity(count);
    stretches.extend(rows.take(count).map(stretch));
    stretches
}

fn stretch(row: OwnStretchRow) -> Stretch {
    let position = |at: Option<i32>| at.map(i32::cast_unsigned);
    Stretch {
        since_ns: row.since_ns,
        from_ns: row.from_ns,
        start_ns: row.start_ns,
        end_ns: row.end_ns,
        own_ns: row.own_ns,
        previous: position(row.previous),
        entered: position(row.entered),
        waited: position(row.waited),
        step: row.step,
    }
}

impl PartRows {
    /// The work of ranks on critical paths.
    pub(crate) fn into_paths(self) -> PathsOfRanks {
        let is_same = |a: &PathCutRow, b: &PathCutRow| (a.rank, a.without_waits) == (b.rank, b.without_waits);
        let of_rank = |rows: &[PathCutRow]| {
            ((rows[0].rank, rows[0].without_waits), Arc::new(PathWork::of_rows(rows.iter().map(cut))))
        };
        self.path_cuts.chunk_by(is_same).map(of_rank).collect()
    }

    /// The own time of ranks, which ascend, without its stretches. Ranks without rows have none.
    pub(crate) fn into_own_time(self, ranks: &[i32]) -> Vec<OwnTime> {
        let (mut remaining, _) = Remaining::of(self);
        ranks.iter().map(|rank| remaining.own_time(*rank)).collect()
    }

    /// Adds the stretches to the own time of ranks, which ascend.
    pub(crate) fn add_stretches<'a>(self, ranks: impl Iterator<Item = &'a mut OwnTime>) {
        let (mut remaining, _) = Remaining::of(self);
        let rows = &mut remaining.own_stretches;
        for own_time in ranks {
            own_time.stretches = stretches_of(rows, (own_time.rank, own_time.without_waits));
            if let Some(own_time) = &mut own_time.by_operators {
                own_time.stretches = stretches_of(rows, (own_time.rank, own_time.without_waits));
            }
        }
    }
}

impl Remaining {
    fn part(&mut self, row: MappedRankRow, shapes: &mut CollectiveShapes) -> RankPart {
        let rank = row.rank;
        let added = rows_of(&mut self.mapped_collectives, rank);
        let rows = rows_of(&mut self.collectives, rank);
        let collective = |(row, added): (CollectiveRow, MappedCollectiveRow)| {
            let mut collective = shapes.collective(row);
            collective.set_comms_id(added.comms_id.map(i64::cast_unsigned));
            collective.set_exposed_ns(added.exposed_ns);
            collective
        };
        // Collected without a length, the list would take the memory of the rows, which are larger.
        let mut collectives = Vec::with_capacity(rows.len());
        collectives.extend(rows.into_iter().zip(added).map(collective));
        let communication = self.evidence(rank, row.comm_kernels_ns);
        RankPart {
            outline: RankOutline {
                info: RankInfo {
                    rank,
                    world_size: row.world_size,
                    host: row.host.to_string(),
                    pid: row.pid,
                    clock_domain: row.clock_domain.to_string(),
                    closed_cleanly: row.closed_cleanly,
                    roles: row.roles,
                    file: row.file,
                },
                collectives,
                steps: rows_of(&mut self.steps, rank),
                comms: rows_of(&mut self.comms, rank),
                comm_ids: BTreeMap::new(),
                clock_samples: rows_of(&mut self.clock_samples, rank),
                recorded_ns: row.recorded_start_ns.zip(row.recorded_end_ns),
                has_device_rows: row.has_device_rows,
            },
            rows: row.rows.max(0) as u64,
            recorded_steps: row.recorded_steps.unwrap_or_default(),
            has_selected_time: row.has_selected_time,
            has_marked_steps: row.has_marked_steps,
            buckets: rows_of(&mut self.buckets, rank),
            devices: rows_of(&mut self.devices, rank),
            counters: rows_of(&mut self.counters, rank),
            tables: None,
            overhead: self.overhead(rank),
            communication,
            recurring: rows_of(&mut self.recurring_ranges, rank),
            straggler: None,
        }
    }

    fn evidence(&mut self, rank: i32, total_ns: i64) -> CommunicationEvidence {
        let mut evidence = CommunicationEvidence { total_ns, ..CommunicationEvidence::default() };
        for row in rows_of(&mut self.comm_evidence, rank) {
            if let Some(ns) = row.by_name_ns {
                evidence.by_name_ns.insert(row.name.clone(), ns);
            }
            if let (Some(total_ns), Some(overlap_ns), Some(device_ns)) =
                (row.suspect_ns, row.suspect_overlap_ns, row.suspect_device_ns)
            {
                evidence.suspects.insert(row.name, Suspect { total_ns, overlap_ns, device_ns });
            }
        }
        evidence
    }

    fn overhead(&mut self, rank: i32) -> BTreeMap<i32, StepOverhead> {
        let mut overhead: BTreeMap<i32, StepOverhead> = BTreeMap::new();
        for row in rows_of(&mut self.step_overhead, rank) {
            let of_step = overhead.entry(row.step).or_default();
            match row.name {
                None => of_step.total_ns = row.total_ns,
                Some(name) => drop(of_step.by_name.insert(name, (row.calls, row.total_ns))),
            }
        }
        overhead
    }

    /// The own time of a rank, and that without its recorded waits, if there are two.
    fn own_time(&mut self, rank: i32) -> OwnTime {
        let rows = rows_of(&mut self.own_time, rank);
        let (with, without): (Vec<OwnTimeRow>, Vec<OwnTimeRow>) = rows.into_iter().partition(|row| !row.without_waits);
        // The rows of the first definition come first in every table.
        let mut own = with.into_iter().next().map_or_else(OwnTime::default, |row| self.own_time_of(row));
        own.rank = rank;
        own.by_operators = without.into_iter().next().map(|row| Box::new(self.own_time_of(row)));
        own.graph = self.graph(rank).map(Arc::new);
        own
    }

    fn graph(&mut self, rank: i32) -> Option<Condensed> {
        let segment = |row: GraphSegmentRow| {
            let GraphSegmentRow {
                rank: _,
                at_ns,
                collective,
                step,
                step_end_ns,
                host_ns,
                device_ns,
                late_ns,
                contended_ns,
            } = row;
            let collective = collective.map(i32::cast_unsigned);
            Segment { at_ns, collective, step, step_end_ns, host_ns, device_ns, late_ns, contended_ns }
        };
        let mut paths_end = 0;
        let node = |row: GraphNodeRow| {
            let GraphNodeRow { rank: _, kind, segment, at_ns, end_ns, collective, paths } = row;
            paths_end += paths.cast_unsigned();
            let (segment, collective) = (segment.cast_unsigned(), collective.map(i32::cast_unsigned));
            Kept { kind: NodeKind::numbered(kind), segment, at_ns, end_ns, collective, paths_end }
        };
        let path = |row: GraphPathRow| {
            let GraphPathRow { rank: _, from_node, host_ns, device_ns, late_ns, fixed_ns } = row;
            Path { from: from_node.cast_unsigned(), host_ns, device_ns, late_ns, fixed_ns }
        };
        let nodes: Vec<Kept> = rows_of(&mut self.graph_nodes, rank).into_iter().map(node).collect();
        let segments = rows_of(&mut self.graph_segments, rank).into_iter().map(segment).collect();
        let paths = rows_of(&mut self.graph_paths, rank).into_iter().map(path).collect();
        Some(Condensed { nodes, paths, segments }).filter(Condensed::is_whole)
    }

    fn own_time_of(&mut self, row: OwnTimeRow) -> OwnTime {
        let OwnTimeRow { rank, without_waits, has_device, has_work, ranges_dropped, dropped_max_ns } = row;
        macro_rules! of_basis {
            ($table:ident) => {{
                let rows = self.$table.as_slice().iter();
                let count = rows.take_while(|r| (r.rank, r.without_waits) == (rank, without_waits)).count();
                self.$table.by_ref().take(count)
            }};
        }
        let range = |row: OwnRangeRow| RangePart {
            name: row.name,
            input: row.input,
            fills: row.fills,
            code: row.code,
            in_operator: row.in_operator,
            self_ns: row.self_ns.unwrap_or_default(),
        };
        let path_step = |row: PathStepRow| {
            let window = Interval::new(row.start_ns, row.end_ns);
            StepWindow { step: row.step, window }
        };
        let own_step = |row: OwnStepRow| StepPart { step: row.step, dur_ns: row.dur_ns, busy_ns: row.busy_ns };
        OwnTime {
            rank,
            stretches: Vec::new(),
            steps: of_basis!(own_steps).map(own_step).collect(),
            ranges: of_basis!(own_ranges).map(range).collect(),
            ranges_dropped: ranges_dropped.max(0) as usize,
            dropped_max_ns,
            has_device,
            has_work,
            path_steps: of_basis!(path_steps).map(path_step).collect(),
            path: Arc::new(PathWork::of_rows(of_basis!(path_cuts).map(|row| cut(&row)))),
            without_waits,
            by_operators: None,
            graph: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fixtures::planted::{Plan, write};

    use super::*;
    use formats::kineto::KinetoSource;
    use formats::run_source::RunSource;
    use measure::map::map_rank;
    use model::options::Options;
    use model::source::Source;

    /// The rows after they were batches of Arrow.
    fn written(rows: &PartRows) -> PartRows {
        let mut read = PartRows::default();
        for (from, to) in rows.all().into_iter().zip(read.all_mut()) {
            to.add_batch(&from.batch().unwrap()).unwrap();
        }
        read
    }

    fn check(source: &dyn Source) {
        let load = |rank: i32| map_rank(source.load(rank).unwrap(), &Options::default(), None);
        let mut parts: Vec<RankPart> = source.ranks().into_iter().map(load).collect();
        let own_time = |part: &RankPart| part.straggler.as_deref().cloned().unwrap();
        assert!(parts.iter().map(own_time).all(|own| !own.stretches.is_empty() && own.path.cuts().count() > 2));
        let mut rows = PartRows::default();
        parts.iter().for_each(|part| rows.push(part.clone()));
        let ranks: Vec<i32> = parts.iter().map(|part| part.outline.info.rank).collect();
        let mut read = written(&rows).into_own_time(&ranks);
        written(&rows).add_stretches(read.iter_mut());
        assert_eq!(read, parts.iter().map(own_time).collect::<Vec<_>>());
        let (read, tables) = written(&rows).into_parts(&mut CollectiveShapes::default());
        let mut expected = Tables::default();
        for part in &mut parts {
            expected.append(*part.tables.take().unwrap());
            part.straggler = None;
        }
        assert!(expected.step_breakdown.len() > parts.len(), "{}", expected.step_breakdown.len());
        assert!(tables == expected);
        for (read, part) in read.iter().zip(&parts) {
            assert_eq!(format!("{read:#?}"), format!("{part:#?}"));
        }
        assert_eq!(read.len(), parts.len());
    }

    /// Invariant (same): `map` and `reduce` give the bytes of `analyze`, however many processes share the ranks.
    #[test]
    fn parts_are_the_same_after_they_were_rows() {
        let run = tempfile::tempdir().unwrap();
        write(&Plan { slow: vec![(1, 300_000)], offset_ns: vec![5, 70, -900], ..Plan::default() }, run.path()).unwrap();
        check(&RunSource::open(run.path()).unwrap());
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/gloo8_slow5");
        check(&KinetoSource::open(&[traces]).unwrap());
    }
}
