//! Planted runs: written by the real shard writer, with everything that an analysis must find known beforehand.
//!
//! Every step of every rank is drawn in global time and then told in the rank's own clock. One step of three ranks,
//! rank 1 planted to be slow in its forward pass:
//!
//! ```text
//!  rank 0  |input|forward  |backward      |wait....................|optimizer|
//!  rank 1  |input|forward.........(delay) |backward      |wait.....|optimizer|
//!  rank 2  |input|forward  |backward      |wait....................|optimizer|
//!  bucket 0, rank 0     [~~~~~~~~~~~~~~~~~~~~~~##]                  ~ waits, # moves data
//!  bucket 0, rank 1                            [##]
//!  bucket 1, rank 0                              [~~~~~~~##]
//! ```
//!
//! Forward and backward are filled with operators that begin at equal distances. All ranks leave a collective at the
//! same moment, so the optimizer, and with it the next step, begins on all of them together.

use std::path::Path;
use std::sync::Arc;

use trace::{
    BucketRow, ClockSampleRow, CollectiveRow, CounterRow, EventRow, Manifest, MemoryRow, RankRow, Row, SCHEMA_VERSION,
    ShardMeta, StepRow, Text, batch_from_rows, write_shard,
};

/// What to plant.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ranks.
    pub ranks: i32,
    /// Active steps.
    pub steps: i32,
    /// Buckets of a step.
    pub buckets: i32,
    /// Operators in each of forward and backward.
    pub ops: i32,
    /// Length of an operator, at most.
    pub op_ns: i64,
    /// Operators are shorter than `op_ns` by less than this, without a pattern; 0: all are equally long.
    pub jitter_ns: i64,
    /// Gap after each operator.
    pub gap_ns: i64,
    /// Offset of each rank's clock: global = local + offset (at global 0). Missing ranks have none.
    pub offset_ns: Vec<i64>,
    /// How much faster than global time each rank's clock runs. Missing ranks: 0.
    pub drift_ppb: Vec<i64>,
    /// (rank, delay of its forward pass in every step).
    pub slow: Vec<(i32, i64)>,
    /// Transfer time of every bucket, after the last arrival.
    pub transfer_ns: i64,
    /// Rows of a part.
    pub part_rows: usize,
}

impl Default for Plan {
    /// Four ranks, five steps of three buckets, perfect clocks, nobody slow.
    fn default() -> Self {
        Self {
            ranks: 4,
            steps: 5,
            buckets: 3,
            ops: 12,
            op_ns: 100_000,
            jitter_ns: 0,
            gap_ns: LAUNCH_NS,
            offset_ns: Vec::new(),
            drift_ppb: Vec::new(),
            slow: Vec::new(),
            transfer_ns: 150_000,
            part_rows: 131_072,
        }
    }
}

impl Plan {
    /// A plan of about `rows` rows of `events` a rank.
    pub fn with_rows(mut self, rows: usize) -> Self {
        let fixed = FIXED_ROWS + self.buckets as usize;
        let of_step = (rows / self.steps as usize).saturating_sub(fixed);
        self.ops = ((of_step - OPTIMIZER_OPS as usize - 1) / 2) as i32;
        self
    }

    /// Local time of a global time on this rank: rounded down, exact without drift.
    pub fn local(&self, rank: i32, global_ns: i64) -> i64 {
        let offset = self.offset_ns.get(rank as usize).copied().unwrap_or(0);
        let drift = self.drift_ppb.get(rank as usize).copied().unwrap_or(0);
        let bend = i128::from(global_ns) * i128::from(drift) / 1_000_000_000;
        global_ns - offset + bend as i64
    }

    /// Length of a gemm: the same on all ranks, so that none has more work than planted.
    fn gemm_ns(&self, step: i32, backward: bool, op: i64) -> i64 {
        let number = (i64::from(step) * 2 + i64::from(backward)) * i64::from(self.ops) + op;
        let hash = number.unsigned_abs().wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let hash = hash.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33;
        if self.jitter_ns > 0 { self.op_ns - (hash as i64) % self.jitter_ns } else { self.op_ns }
    }

    fn delay(&self, rank: i32) -> i64 {
        self.slow.iter().filter(|(r, _)| *r == rank).map(|(_, ns)| ns).sum()
    }

    fn pass_ns(&self) -> i64 {
        i64::from(self.ops) * (self.op_ns + self.gap_ns)
    }
}

/// One step of one rank: the truth, in global time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTruth {
    /// Rank.
    pub rank: i32,
    /// Step.
    pub step: i32,
    /// Length.
    pub wall_ns: i64,
    /// Compute alone.
    pub compute_ns: i64,
    /// Communication under compute.
    pub overlap_ns: i64,
    /// Communication alone.
    pub exposed_ns: i64,
    /// The rest.
    pub idle_ns: i64,
}

/// One bucket of one step on one rank: the truth, in global time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTruth {
    /// Step.
    pub step: i32,
    /// Bucket.
    pub bucket: i32,
    /// Rank.
    pub rank: i32,
    /// Last gradient produced.
    pub ready_ns: i64,
    /// Handed over.
    pub enqueue_ns: i64,
    /// Entered.
    pub start_ns: i64,
    /// Left.
    pub end_ns: i64,
    /// Waited for the last rank.
    pub wait_ns: i64,
    /// Not hidden under compute.
    pub exposed_ns: i64,
}

/// Everything that an analysis must find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// By rank and step.
    pub steps: Vec<StepTruth>,
    /// By step, bucket and rank.
    pub buckets: Vec<BucketTruth>,
    /// Rows of `events` written.
    pub events: u64,
    /// Bytes of `events` on disk.
    pub events_bytes: u64,
}

/// Global time at which the first step begins: well after 0, so that offsets leave local times positive.
const FIRST_STEP_NS: i64 = 10_000_000_000;
const INPUT_NS: i64 = 50_000;
const OPTIMIZER_OPS: i32 = 4;
/// Handing over and starting take this long.
const ENQUEUE_NS: i64 = 2_000;
const QUEUE_NS: i64 = 3_000;
/// From the last gradient of a bucket to its collective, if that is free.
pub const LAUNCH_NS: i64 = ENQUEUE_NS + QUEUE_NS;
/// Between two steps.
const BETWEEN_NS: i64 = 10_000;
/// `ProfilerStep`, four phases and `make_batch` of every step.
const FIXED_ROWS: usize = 6;
const BUCKET_BYTES: i64 = 4 << 20;
const COMM_ID: i64 = 0x5eed;
const MAIN_THREAD: i64 = 100;
const COMM_THREAD: i64 = 101;

/// One row in global time.
struct Bar {
    name: Text,
    kind: &'static str,
    thread: i64,
    start: i64,
    end: i64,
    parent: Option<usize>,
    is_comm: bool,
}

/// One step of one rank in global time.
struct Drawn {
    start: i64,
    end: i64,
    bars: Vec<Bar>,
    buckets: Vec<BucketTruth>,
}

struct Names {
    gemm: Text,
    phases: [Text; 4],
    batch: Text,
    sgd: Text,
    wait: Text,
    all_reduce: Text,
}

impl Names {
    fn new() -> Self {
        Self {
            gemm: "gemm".into(),
            phases: ["input".into(), "forward".into(), "backward".into(), "optimizer".into()],
            batch: "make_batch".into(),
            sgd: "sgd_momentum".into(),
            wait: "wait_all_reduce".into(),
            all_reduce: "mpi:all_reduce".into(),
        }
    }
}

/// Writes the planted run and returns the truth.
///
/// # Errors
/// Those of the shard writer.
pub fn write(plan: &Plan, run: &Path) -> Result<Truth, trace::Error> {
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: "planted".into(),
        world_size: plan.ranks,
        created_utc_ns: 0,
        tool: "planted".into(),
        command: Vec::new(),
        config: serde_json::Map::new(),
    };
    manifest.write(run)?;
    let times = bucket_times(plan);
    let mut truth = Truth::default();
    for rank in 0..plan.ranks {
        write_rank(plan, run, rank, &times, &mut truth)?;
    }
    truth.buckets.sort_by_key(|b| (b.step, b.bucket, b.rank));
    Ok(truth)
}

/// The truth without the run: for a process that only reads it. Counts of rows and bytes are 0.
pub fn truth(plan: &Plan) -> Truth {
    let (times, names) = (bucket_times(plan), Names::new());
    let mut truth = Truth::default();
    for rank in 0..plan.ranks {
        let mut start = FIRST_STEP_NS;
        for step in 0..plan.steps {
            let mut drawn = draw(plan, rank, step, start, &times, &names);
            start = drawn.end + BETWEEN_NS;
            truth.steps.push(expose(&mut drawn, rank, step));
            truth.buckets.append(&mut drawn.buckets);
        }
    }
    truth.buckets.sort_by_key(|b| (b.step, b.bucket, b.rank));
    truth
}

/// For each bucket: when the last rank arrives and when all leave, counted from the start of the step.
struct BucketTimes {
    last_ns: i64,
    end_ns: i64,
}

fn ready_ns(plan: &Plan, rank: i32, bucket: i32) -> i64 {
    let backward = INPUT_NS + plan.pass_ns() + plan.delay(rank);
    // A bucket is ready when an operator has ended: the share of the backward pass that its number says.
    let ops = i64::from(plan.ops) * i64::from(bucket + 1) / i64::from(plan.buckets);
    backward + ops * (plan.op_ns + plan.gap_ns) - plan.gap_ns
}

fn bucket_times(plan: &Plan) -> Vec<BucketTimes> {
    let mut times: Vec<BucketTimes> = Vec::new();
    for bucket in 0..plan.buckets {
        let free = times.last().map_or(0, |t| t.end_ns);
        let arrival = |rank| (ready_ns(plan, rank, bucket) + LAUNCH_NS).max(free);
        let last_ns = (0..plan.ranks).map(arrival).max().unwrap_or(free);
        times.push(BucketTimes { last_ns, end_ns: last_ns + plan.transfer_ns });
    }
    times
}

fn draw(plan: &Plan, rank: i32, step: i32, start: i64, times: &[BucketTimes], names: &Names) -> Drawn {
    let mut bars: Vec<Bar> = Vec::new();
    let mut add = |name: &Text, kind, thread, from: i64, to: i64, parent: Option<usize>, is_comm| {
        bars.push(Bar { name: name.clone(), kind, thread, start: start + from, end: start + to, parent, is_comm });
        bars.len() - 1
    };
    let backward_from = INPUT_NS + plan.pass_ns() + plan.delay(rank);
    let backward_to = backward_from + plan.pass_ns();
    let comm_to = times.last().map_or(backward_to, |t| t.end_ns).max(backward_to);
    let step_to = comm_to + i64::from(OPTIMIZER_OPS) * plan.op_ns;
    let main = MAIN_THREAD;
    let whole = add(&format!("ProfilerStep#{step}").into(), "user_annotation", main, 0, step_to, None, false);
    let [input, forward, backward, optimizer] = &names.phases;
    let phase = add(input, "user_annotation", main, 0, INPUT_NS, Some(whole), false);
    add(&names.batch, "cpu_op", main, 0, INPUT_NS, Some(phase), false);
    for (name, from, to) in [(forward, INPUT_NS, backward_from), (backward, backward_from, backward_to)] {
        let phase = add(name, "user_annotation", main, from, to, Some(whole), false);
        for op in 0..i64::from(plan.ops) {
            let at = from + op * (plan.op_ns + plan.gap_ns);
            add(
                &names.gemm,
                "cpu_op",
                main,
                at,
                at + plan.gemm_ns(step, std::ptr::eq(name, backward), op),
                Some(phase),
                false,
            );
        }
    }
    add(&names.wait, "cpu_op", main, backward_to, comm_to, Some(whole), true);
    let phase = add(optimizer, "user_annotation", main, comm_to, step_to, Some(whole), false);
    for op in 0..i64::from(OPTIMIZER_OPS) {
        let at = comm_to + op * plan.op_ns;
        add(&names.sgd, "cpu_op", main, at, at + plan.op_ns, Some(phase), false);
    }
    let mut buckets = Vec::new();
    for (bucket, time) in (0..plan.buckets).zip(times) {
        let ready = ready_ns(plan, rank, bucket);
        let free = if bucket == 0 { 0 } else { times[bucket as usize - 1].end_ns };
        let from = (ready + LAUNCH_NS).max(free);
        add(&names.all_reduce, "cpu_op", COMM_THREAD, from, time.end_ns, None, true);
        buckets.push(BucketTruth {
            step,
            bucket,
            rank,
            ready_ns: start + ready,
            enqueue_ns: start + ready + ENQUEUE_NS,
            start_ns: start + from,
            end_ns: start + time.end_ns,
            wait_ns: time.last_ns - from,
            exposed_ns: 0,
        });
    }
    Drawn { start, end: start + step_to, bars, buckets }
}

/// The rows of one rank, in its own clock.
struct RankRows<'a> {
    plan: &'a Plan,
    rank: i32,
    next_id: i64,
    events: Vec<EventRow>,
    collectives: Vec<CollectiveRow>,
    steps: Vec<StepRow>,
}

impl RankRows<'_> {
    fn add(&mut self, step: i32, drawn: &Drawn) {
        let local = |t: i64| self.plan.local(self.rank, t);
        let kinds: [Text; 2] = ["user_annotation".into(), "cpu_op".into()];
        let first = self.next_id;
        let mut comm_ids = Vec::new();
        for (i, bar) in drawn.bars.iter().enumerate() {
            let id = first + i as i64;
            let ts_ns = local(bar.start);
            self.events.push(EventRow {
                rank: self.rank,
                kind: kinds[usize::from(bar.kind == "cpu_op")].clone(),
                name: bar.name.clone(),
                ts_ns,
                dur_ns: local(bar.end) - ts_ns,
                id,
                step: Some(step),
                pid: Some(1000 + i64::from(self.rank)),
                thread_id: Some(bar.thread),
                parent_id: bar.parent.map(|p| first + p as i64),
                is_comm: bar.is_comm.then_some(true),
                bytes: (&*bar.name == "gemm").then_some(1 << 20),
                flops: (&*bar.name == "gemm").then_some(1 << 24),
                ..EventRow::default()
            });
            if bar.thread == COMM_THREAD {
                comm_ids.push(id);
            }
        }
        self.next_id += drawn.bars.len() as i64;
        for (bucket, event_id) in drawn.buckets.iter().zip(comm_ids) {
            self.collectives.push(collective(self.plan, bucket, event_id));
        }
        self.steps.push(StepRow {
            rank: self.rank,
            step,
            phase: "active".into(),
            start_ns: local(drawn.start),
            end_ns: local(drawn.end),
            loss: Some(1.0),
        });
    }
}

fn collective(plan: &Plan, b: &BucketTruth, event_id: i64) -> CollectiveRow {
    let local = |t: i64| Some(plan.local(b.rank, t));
    CollectiveRow {
        rank: b.rank,
        comm_id: COMM_ID,
        comm_name: Some("world".into()),
        comm_size: Some(plan.ranks),
        seq: Some(i64::from(b.step) * i64::from(plan.buckets) + i64::from(b.bucket)),
        op: "allreduce".into(),
        dtype: Some("f32".into()),
        count: Some(BUCKET_BYTES / 4),
        bytes: Some(BUCKET_BYTES),
        step: Some(b.step),
        bucket: Some(b.bucket),
        ready_ns: local(b.ready_ns),
        enqueue_ns: local(b.enqueue_ns),
        start_ns: local(b.start_ns),
        end_ns: local(b.end_ns),
        state: "done".into(),
        timing_source: "host".into(),
        event_id: Some(event_id),
        ..CollectiveRow::default()
    }
}

fn write_rank(
    plan: &Plan,
    run: &Path,
    rank: i32,
    times: &[BucketTimes],
    truth: &mut Truth,
) -> Result<(), trace::Error> {
    let names = Names::new();
    let mut rows = RankRows { plan, rank, next_id: 1, events: Vec::new(), collectives: Vec::new(), steps: Vec::new() };
    let mut start = FIRST_STEP_NS;
    for step in 0..plan.steps {
        let mut drawn = draw(plan, rank, step, start, times, &names);
        start = drawn.end + BETWEEN_NS;
        let step_truth = expose(&mut drawn, rank, step);
        truth.steps.push(step_truth);
        truth.buckets.append(&mut drawn.buckets.clone());
        rows.add(step, &drawn);
    }
    let meta = ShardMeta {
        run_id: "planted".into(),
        rank,
        host: "planted-host".into(),
        pid: 1000 + i64::from(rank),
        boot_id: "boot".into(),
        clock_domain: format!("planted clock {rank}"),
        session: String::new(),
    };
    truth.events += rows.events.len() as u64;
    // A part holds what ended while it was open, as a recorder's does; so a later part may begin earlier.
    rows.events.sort_by_key(|e| e.ts_ns + e.dur_ns);
    for (part, chunk) in rows.events.chunks_mut(plan.part_rows).enumerate() {
        chunk.sort_by_key(|e| e.ts_ns);
        truth.events_bytes += write_shard(run, &EventRow::table(), &meta, part as u32, &[batch_from_rows(chunk)?])?;
    }
    let steps = rows.steps.len() as i64;
    one(run, &meta, &rows.collectives)?;
    one(run, &meta, &rows.steps)?;
    one(run, &meta, &clock_samples(plan, rank, start))?;
    one(run, &meta, &[rank_row(plan, &meta)])?;
    one(run, &meta, &buckets(plan, rank))?;
    one(run, &meta, &memory(plan, rank))?;
    let counter =
        CounterRow { rank, source: "host".into(), recorded: rows.next_id - 1 + steps, ..CounterRow::default() };
    one(run, &meta, &[counter])
}

fn one<R: Row>(run: &Path, meta: &ShardMeta, rows: &[R]) -> Result<(), trace::Error> {
    write_shard(run, &R::table(), meta, 0, &[batch_from_rows(rows)?]).map(|_| ())
}

fn rank_row(plan: &Plan, meta: &ShardMeta) -> RankRow {
    RankRow {
        rank: meta.rank,
        world_size: plan.ranks,
        local_rank: Some(meta.rank),
        host: meta.host.as_str().into(),
        pid: meta.pid,
        boot_id: Some(meta.boot_id.as_str().into()),
        clock_domain: meta.clock_domain.as_str().into(),
        launcher: Some("none".into()),
        closed_cleanly: true,
        ..RankRow::default()
    }
}

fn buckets(plan: &Plan, rank: i32) -> Vec<BucketRow> {
    let name = |i: i32| -> Arc<str> { format!("layer{i}.weight").into() };
    (0..plan.buckets)
        .map(|bucket| BucketRow {
            rank,
            bucket,
            bytes: BUCKET_BYTES,
            first_parameter: name(plan.buckets - bucket),
            last_parameter: name(plan.buckets - bucket - 1),
        })
        .collect()
}

/// Weights for ever, activations in the first step: the peak is 3 MiB.
fn memory(plan: &Plan, rank: i32) -> Vec<MemoryRow> {
    let row = |at: i64, name: &str, mib: i64| MemoryRow {
        rank,
        ts_ns: plan.local(rank, FIRST_STEP_NS + at),
        name: Some(name.into()),
        delta_bytes: mib << 20,
        ..MemoryRow::default()
    };
    vec![row(0, "weights", 1), row(INPUT_NS, "activations", 2), row(INPUT_NS + 1_000_000, "activations", -2)]
}

/// Bursts of pings with the parent in a binary tree, before and after the steps; the best are symmetric, so exact.
fn clock_samples(plan: &Plan, rank: i32, end: i64) -> Vec<ClockSampleRow> {
    const PINGS: i64 = 12;
    let mut rows = Vec::new();
    if rank == 0 {
        return rows;
    }
    let parent = (rank - 1) / 2;
    for burst in [FIRST_STEP_NS - 1_000_000_000, end + 1_000_000] {
        for ping in 0..PINGS {
            let at = burst + ping * 20_000;
            // Every third ping is slow on its way back.
            let late = if ping % 3 == 2 { 4_000 } else { 0 };
            let (send, receive) = (at - 1_000, at + 1_000 + late);
            let (local_send, local_receive) = (plan.local(rank, send), plan.local(rank, receive));
            let local_ns = local_send + (local_receive - local_send) / 2;
            let remote_ns = plan.local(parent, at);
            rows.push(ClockSampleRow {
                rank,
                peer_rank: Some(parent),
                kind: "ping".into(),
                local_ns,
                remote_ns,
                offset_ns: remote_ns - local_ns,
                rtt_ns: local_receive - local_send,
            });
        }
    }
    rows
}

/// Fills the truth of a step by counting, at every border, what is open: not the way the aggregator does it.
fn expose(drawn: &mut Drawn, rank: i32, step: i32) -> StepTruth {
    let compute: Vec<(i64, i64)> =
        drawn.bars.iter().filter(|b| b.kind == "cpu_op" && !b.is_comm).map(|b| (b.start, b.end)).collect();
    let comm: Vec<(i64, i64)> = drawn.buckets.iter().map(|b| (b.start_ns, b.end_ns)).collect();
    for bucket in &mut drawn.buckets {
        let window = (bucket.start_ns, bucket.end_ns);
        bucket.exposed_ns = count(&compute, &[window], window)[2];
    }
    let [compute_ns, overlap_ns, exposed_ns, idle_ns] = count(&compute, &comm, (drawn.start, drawn.end));
    StepTruth { rank, step, wall_ns: drawn.end - drawn.start, compute_ns, overlap_ns, exposed_ns, idle_ns }
}

/// Compute alone, both, communication alone, neither: within `window`.
fn count(compute: &[(i64, i64)], comm: &[(i64, i64)], window: (i64, i64)) -> [i64; 4] {
    let mut borders: Vec<(i64, i64, i64)> = Vec::new();
    for (list, (k, c)) in [(compute, (1, 0)), (comm, (0, 1))] {
        for (start, end) in list {
            let (start, end) = ((*start).clamp(window.0, window.1), (*end).clamp(window.0, window.1));
            borders.extend([(start, k, c), (end, -k, -c)]);
        }
    }
    borders.push((window.1, 0, 0));
    borders.sort_unstable();
    let (mut open_k, mut open_c, mut from) = (0, 0, window.0);
    let mut parts = [0; 4];
    for (at, k, c) in borders {
        let part = match (open_k > 0, open_c > 0) {
            (true, false) => 0,
            (true, true) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        parts[part] += at - from;
        (open_k, open_c, from) = (open_k + k, open_c + c, at);
    }
    parts
}
