//! Builds jobs with chosen times.

use trace::{CollectiveRow, MatchLevel, StepRow};

use crate::{Stragglers, reduce};
use measure::own_time::{OwnTime, map_rank};
use model::thresholds::Thresholds;
use model::{Barrier, Collective, Events, Instance, Kind, Member, NO_PARENT, NONE, RankData, RankInfo, RankOutline};
use trace::StragglerRow;

/// Host ranges with their lengths in nanoseconds, one after the other.
pub(super) type Work = Vec<(&'static str, i64)>;

/// The time from the last arrival at a collective to its end.
pub(super) const TRANSFER_NS: i64 = 100;

/// A job of ranks that share one communicator, laid out from the work that each rank does before each collective.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    /// For each step, rank and collective, the work before that collective. The last entry of a rank is the work after
    /// its last collective.
    pub(super) steps: Vec<Vec<Vec<Work>>>,
    /// The offset of each rank's clock; a missing value means 0.
    pub(super) clock_ahead_ns: Vec<i64>,
    /// The begin of each rank's first step; a missing value means 0.
    pub(super) begin_ns: Vec<i64>,
}

/// The rows of one rank while they are built.
struct RankBuilder {
    data: RankData,
    ahead_ns: i64,
    now_ns: i64,
}

impl RankBuilder {
    fn new(rank: usize, world: usize, begin_ns: i64, ahead_ns: i64) -> Self {
        let info = RankInfo { rank: rank as i32, world_size: Some(world as i32), ..RankInfo::default() };
        let outline = RankOutline { info, ..RankOutline::default() };
        Self { data: RankData { outline, ..RankData::default() }, ahead_ns, now_ns: begin_ns }
    }

    fn work(&mut self, work: &Work, step: usize) {
        for &(name, ns) in work {
            let local_ns = self.now_ns + self.ahead_ns;
            push_row(&mut self.data, Row { kind: Kind::UserAnnotation, name, thread: 1, step, from_ns: local_ns, ns });
            self.now_ns += ns;
        }
    }

    fn collective(&mut self, step: usize, start_ns: i64, end_ns: i64) {
        self.data.outline.collectives.push(Collective::from(CollectiveRow {
            rank: self.data.outline.info.rank,
            op: "allreduce".into(),
            step: Some(step as i32),
            start_ns: Some(start_ns + self.ahead_ns),
            end_ns: Some(end_ns + self.ahead_ns),
            state: "done".into(),
            ..CollectiveRow::default()
        }));
        self.now_ns = end_ns;
    }
}

/// One row for [`push_row`].
pub(super) struct Row<'a> {
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    pub(super) thread: i64,
    pub(super) step: usize,
    pub(super) from_ns: i64,
    pub(super) ns: i64,
}

/// Adds a row. Rows must be added in the order of time.
pub(super) fn push_row(data: &mut RankData, row: Row<'_>) {
    let existing = data.names.iter().position(|n| &**n == row.name);
    let name = existing.unwrap_or_else(|| {
        data.names.push(row.name.into());
        data.names.len() - 1
    });
    let on_device = row.kind.is_device_work();
    let Events { kind, name: names, ts_ns, dur_ns, id, step, thread, device, stream, .. } = &mut data.events;
    kind.push(row.kind);
    names.push(name as u32);
    ts_ns.push(row.from_ns);
    dur_ns.push(row.ns);
    id.push(id.len() as i64);
    step.push(row.step as i32);
    thread.push(if on_device { NONE } else { row.thread });
    device.push(if on_device { 0 } else { NONE });
    stream.push(if on_device { 7 } else { NONE });
    let Events { correlation, external, parent, is_comm, bytes, flops, .. } = &mut data.events;
    correlation.push(NONE);
    external.push(NONE);
    parent.push(NO_PARENT);
    is_comm.push(row.name.starts_with("nccl") || row.name.starts_with("mpi:"));
    bytes.push(NONE);
    flops.push(NONE);
}

impl Job {
    /// The rows that the ranks of this job would record, and the matched collectives.
    pub(super) fn run(&self) -> (Vec<RankData>, Vec<Instance>) {
        let world = self.steps.first().map_or(0, Vec::len);
        let value_of = |values: &Vec<i64>, rank: usize| values.get(rank).copied().unwrap_or(0);
        let mut ranks: Vec<RankBuilder> = (0..world)
            .map(|r| RankBuilder::new(r, world, value_of(&self.begin_ns, r), value_of(&self.clock_ahead_ns, r)))
            .collect();
        let mut instances = Vec::new();
        for (step, works) in self.steps.iter().enumerate() {
            let begins_ns: Vec<i64> = ranks.iter().map(|r| r.now_ns).collect();
            for i in 0..works[0].len() {
                for (rank, work) in ranks.iter_mut().zip(works) {
                    rank.work(&work[i], step);
                }
                if i + 1 == works[0].len() {
                    break;
                }
                let end_ns = ranks.iter().map(|r| r.now_ns).max().unwrap() + TRANSFER_NS;
                let members = ranks.iter_mut().map(|r| meet(r, step, end_ns)).collect();
                instances.push(instance(instances.len(), step, world, members));
            }
            for (rank, begin_ns) in ranks.iter_mut().zip(begins_ns) {
                rank.data.outline.steps.push(StepRow {
                    rank: rank.data.outline.info.rank,
                    step: step as i32,
                    phase: "active".into(),
                    start_ns: begin_ns + rank.ahead_ns,
                    end_ns: rank.now_ns + rank.ahead_ns,
                    loss: None,
                    window: None,
                });
            }
        }
        (ranks.into_iter().map(|r| r.data).collect(), instances)
    }

    /// Maps and reduces the job.
    pub(super) fn analyze(&self, thresholds: &Thresholds) -> Stragglers {
        let (ranks, instances) = self.run();
        let parts: Vec<OwnTime> = ranks.iter().map(|r| map_rank(r, thresholds)).collect();
        let ahead = |rank: i32| self.clock_ahead_ns.get(rank as usize).copied().unwrap_or(0);
        reduce(&parts, &instances, (&|rank, _, t_ns| t_ns - ahead(rank), &|_, _| Some(0)), thresholds)
    }
}

fn meet(rank: &mut RankBuilder, step: usize, end_ns: i64) -> Member {
    let start_ns = rank.now_ns;
    rank.collective(step, start_ns, end_ns);
    Member {
        rank: rank.data.outline.info.rank,
        index: rank.data.outline.collectives.len() as u32 - 1,
        start_ns: start_ns + rank.ahead_ns,
        end_ns: Some(end_ns + rank.ahead_ns),
        device_clock: false,
    }
}

pub(super) fn instance(id: usize, step: usize, world: usize, members: Vec<Member>) -> Instance {
    Instance {
        id: id as i64,
        comm_id: 1,
        seq: Some(id as i64),
        op: "allreduce".into(),
        bytes: None,
        shares: model::Shares::Equal,
        step: Some(step as i32),
        sender: None,
        bucket: None,
        ranks_expected: Some(world as i32),
        fused: false,
        level: MatchLevel::Seq,
        barrier: Barrier::Strict,
        members,
    }
}

/// `steps` steps with the same work of each rank.
pub(super) fn repeat(steps: usize, ranks: &[Vec<Work>]) -> Vec<Vec<Vec<Work>>> {
    vec![ranks.to_vec(); steps]
}

/// The verdicts in the order of ranks.
pub(super) fn verdicts(result: &Stragglers) -> Vec<&str> {
    result.stragglers.iter().map(|r: &StragglerRow| &*r.verdict).collect()
}
