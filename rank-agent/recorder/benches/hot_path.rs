//! Cost of recording: nanoseconds of the program per event, and bytes on disk per event.
//!
//! ```console
//! cargo bench -p rankscope-recorder              # both; times are meaningful only in release builds
//! cargo bench -p rankscope-recorder -- bytes     # only the bytes
//! ```
//!
//! Times are measured in bursts that fit a queue, with a pause after each, in which the writer empties it. So no record is
//! dropped and the writer does not compete for the core. The same loop without recording is printed beside them.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use fixtures::bench::quantile;
use recorder::{
    Clock, Collective, CollectiveOp, Interval, Kind, Memory, NameId, Options, Phase, Recorder, ShapeId, ThreadRecorder,
};
use trace::{EventRow, Row, ShardMeta, batch_from_rows, write_shard};

/// Number of events of a burst.
const BURST: usize = 16_384;
/// Room for several bursts, in case a busy machine delays the writer.
const QUEUE_RECORDS: usize = 8 * BURST;
/// Number of rare records of a burst: their queue has a smaller, fixed size.
const RARE_BURST: usize = 1024;
/// Number of events whose mean time is one sample of the percentiles.
const CHUNK: usize = 64;
const BURSTS: usize = 24;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let only_bytes = std::env::args().any(|argument| argument == "bytes");
    let directory = std::env::temp_dir().join(format!("rankscope-hot-path-{}", std::process::id()));
    let result = (|| {
        if !only_bytes {
            times(&directory.join("times"))?;
        }
        bytes(&directory.join("bytes"))
    })();
    std::fs::remove_dir_all(&directory).ok();
    result
}

// ---- time
// ----------------------------------------------------------------------------------------------------------------------

struct Names {
    outer: NameId,
    gemm: NameId,
    shapes: ShapeId,
}

fn times(run: &Path) -> Result<()> {
    let recorder = Recorder::start(Options { queue_records: QUEUE_RECORDS, ..Options::new(run, "bench", 0, 1) })?;
    let disabled = Recorder::disabled(Clock::system());
    let names = Names {
        outer: recorder.intern("forward"),
        gemm: recorder.intern("gemm"),
        shapes: recorder.intern_shapes(&[&[64, 1024], &[1024, 1024]], &["float", "float"]),
    };
    let (thread, off) = (recorder.thread("main"), disabled.thread("main"));
    recorder.begin_step(0, Phase::Active);

    println!("one event, in a loop of nothing else (ns; percentiles over means of {CHUNK} events)");
    println!("  {:<34}{:>9}{:>9}{:>9}{:>9}", "", "mean", "p50", "p90", "p99");
    report("empty loop", &sample(|_| ()));
    let clock_ns = report("clock_gettime, once", &sample(|_| _ = black_box(thread.now_ns())));
    report("scope, recording off", &sample(|_| scope(&off, &names)));
    let scope_ns = report("scope", &sample(|_| scope(&thread, &names)));
    report("scope with bytes, FLOPs and shapes", &sample(|_| full_scope(&thread, &names)));
    report("interval", &sample(|i| interval(&thread, &names, i)));
    report("collective", &sample_rare(|i| thread.collective(collective(i))));
    report("memory", &sample_rare(|_| thread.memory(Memory::host(names.outer, 1024))));

    println!("\nan operation of about 10 µs, alone and in a scope (ns)");
    let alone = report("operation", &sample(|_| operation()));
    let recorded = report(
        "operation in a scope",
        &sample(|_| {
            let _scope = thread.scope(Kind::CpuOp, names.gemm);
            operation();
        }),
    );
    println!("  ratio of the medians {:.4}", recorded / alone);

    let summary = recorder.finish();
    println!("\n{summary}");
    println!(
        "goal 100 ns an event: a scope takes {scope_ns:.0} ns, of which {:.0} ns are two looks at the clock\n",
        2.0 * clock_ns
    );
    Ok(())
}

#[inline(never)]
fn scope(thread: &ThreadRecorder, names: &Names) {
    let _scope = thread.scope(Kind::CpuOp, names.gemm);
}

#[inline(never)]
fn full_scope(thread: &ThreadRecorder, names: &Names) {
    let _scope = thread.scope(Kind::CpuOp, names.gemm).bytes(4 << 20).flops(1 << 27).shapes(names.shapes);
}

#[inline(never)]
fn interval(thread: &ThreadRecorder, names: &Names, i: usize) {
    let start_ns = 1_000 * i as i64;
    thread.record(Interval { bytes: Some(4096), ..Interval::new(Kind::CpuOp, names.gemm, start_ns, start_ns + 500) });
}

fn collective(i: usize) -> Collective {
    let start_ns = Some(1_000 * i as i64);
    Collective {
        bytes: Some(1 << 20),
        start_ns,
        end_ns: start_ns,
        ..Collective::new(7, i as i64, CollectiveOp::AllReduce)
    }
}

/// Arithmetic that the compiler cannot remove.
#[inline(never)]
fn operation() {
    let mut x = black_box(1.000_1_f64);
    for _ in 0..6_500 {
        x = x * 1.000_000_1 + 1e-9;
    }
    black_box(x);
}

/// Mean times of chunks in ns per event.
fn sample(event: impl Fn(usize)) -> Vec<f64> {
    sample_bursts(BURST, event)
}

/// Like [`sample`], for the smaller queue of rare records.
fn sample_rare(event: impl Fn(usize)) -> Vec<f64> {
    sample_bursts(RARE_BURST, event)
}

fn sample_bursts(burst: usize, event: impl Fn(usize)) -> Vec<f64> {
    let mut samples = Vec::with_capacity(BURSTS * burst / CHUNK);
    let mut i = 0;
    for _ in 0..BURSTS {
        for _ in 0..burst / CHUNK {
            let start = Instant::now();
            for _ in 0..CHUNK {
                event(black_box(i));
                i += 1;
            }
            samples.push(start.elapsed().as_nanos() as f64 / CHUNK as f64);
        }
        // Time for the writer, which polls the queues.
        std::thread::sleep(Duration::from_millis(80));
    }
    samples
}

fn report(what: &str, samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share| quantile(&sorted, share);
    let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
    println!("  {what:<34}{mean:>9.1}{:>9.1}{:>9.1}{:>9.1}", at(0.5), at(0.9), at(0.99));
    at(0.5)
}

// ---- bytes
// ---------------------------------------------------------------------------------------------------------------------

/// Steps of the reference workload, like a recording of one rank: eight layers, two buckets, noise on every duration.
fn bytes(run: &Path) -> Result<()> {
    println!("bytes on disk per event, by rows of a part (a rank of the reference workload, 8 layers)");
    for (part, rows) in [500, 2_000, 5_000, 20_000, 50_000, 200_000].into_iter().enumerate() {
        let events = workload(rows);
        let meta = ShardMeta {
            run_id: "019a5f0e-1c2d-7c3a-9d53-3f6d1f6a2b10".into(),
            rank: 3,
            host: "node-017".into(),
            pid: 41_233,
            boot_id: "6f3a6f1e-95d5-4e0e-9d4c-5c6c4c1f8f51".into(),
            clock_domain: "6f3a6f1e-95d5-4e0e-9d4c-5c6c4c1f8f51 monotonic_raw time:[4026531834]".into(),
            session: String::new(),
        };
        let size = write_shard(run, &EventRow::table(), &meta, part as u32, &[batch_from_rows(&events)?])?.bytes;
        println!("  {rows:>8} rows {size:>10} bytes {:>8.2} bytes/event", size as f64 / rows as f64);
    }
    println!("goal: 12 bytes/event");
    Ok(())
}

/// Small deterministic noise, so that runs are comparable.
struct Noise(u64);

impl Noise {
    /// `mean_ns` ± `percent`, never below 1.
    fn around(&mut self, mean_ns: i64, percent: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (self.0 >> 33) as i64 % 2001 - 1000;
        (mean_ns + mean_ns * percent / 100 * share / 1000).max(1)
    }
}

/// Makes nested rows with chosen times.
struct Timeline {
    rows: Vec<EventRow>,
    noise: Noise,
    now_ns: i64,
    next_id: i64,
    parent: Option<i64>,
    step: i32,
}

impl Timeline {
    fn event(&mut self, kind: &str, name: &str, thread_id: i64) -> EventRow {
        self.next_id += 1;
        // Between two operations the program does other work.
        self.now_ns += self.noise.around(900, 60);
        EventRow {
            rank: 3,
            kind: kind.into(),
            name: name.into(),
            ts_ns: self.now_ns,
            id: self.next_id,
            step: Some(self.step),
            pid: Some(41_233),
            thread_id: Some(thread_id),
            parent_id: self.parent.filter(|_| thread_id == MAIN),
            open: Some(false),
            is_comm: Some(thread_id != MAIN),
            ..EventRow::default()
        }
    }

    fn op(&mut self, name: &str, mean_ns: i64, bytes: i64, flops: i64, dims: Option<&str>) {
        let mut row = self.event("cpu_op", name, MAIN);
        row.dur_ns = self.noise.around(mean_ns, 8);
        row.bytes = Some(bytes);
        row.flops = (flops > 0).then_some(flops);
        row.input_dims = dims.map(Into::into);
        row.input_types = dims.map(|_| r#"["float", "float"]"#.into());
        self.now_ns += row.dur_ns;
        self.rows.push(row);
    }

    fn range(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        let mut row = self.event("user_annotation", name, MAIN);
        let (index, outer) = (self.rows.len(), self.parent.replace(row.id));
        self.rows.push(row.clone());
        body(self);
        self.now_ns += self.noise.around(300, 50);
        row.dur_ns = self.now_ns - row.ts_ns;
        self.rows[index] = row;
        self.parent = outer;
    }

    fn all_reduce(&mut self, bytes: i64) {
        let mut row = self.event("cpu_op", "mpi:all_reduce", COMM);
        row.dur_ns = self.noise.around(bytes / 2, 40);
        row.bytes = Some(bytes);
        self.rows.push(row);
    }

    fn step(&mut self) {
        const DIMS: Option<&str> = Some("[[64, 1024], [1024, 1024]]");
        let flops = 2 * 64 * 1024 * 1024;
        self.range(&format!("ProfilerStep#{}", self.step), |t| {
            t.range("input", |t| t.op("make_batch", 180_000, 64 * 1024 * 4, 0, None));
            t.range("forward", |t| {
                for _ in 0..8 {
                    t.op("gemm", 1_350_000, 4_718_592, flops, DIMS);
                    t.op("bias_relu", 21_000, 528_384, 65_536, Some("[[64, 1024], [1024]]"));
                }
                t.op("softmax_cross_entropy", 95_000, 524_288, 0, None);
            });
            t.range("backward", |t| {
                for layer in 0..8 {
                    t.op("bias_relu_backward", 24_000, 786_432, 65_536, Some("[[64, 1024], [64, 1024]]"));
                    t.op("gemm", 1_400_000, 4_718_592, flops, Some("[[1024, 64], [64, 1024]]"));
                    t.op("bias_grad", 17_000, 266_240, 65_536, Some("[[64, 1024]]"));
                    t.op("gemm", 1_340_000, 4_718_592, flops, DIMS);
                    t.op("bucket_pack", 310_000, 4_198_400, 0, None);
                    if layer % 4 == 0 {
                        t.all_reduce(4_198_400 * 4);
                    }
                }
            });
            t.range("optimizer", |t| {
                for _ in 0..2 {
                    t.op("wait_all_reduce", 2_500_000, 16_793_600, 0, None);
                    t.op("bucket_unpack", 900_000, 16_793_600, 0, None);
                }
                for _ in 0..8 {
                    t.op("sgd_momentum", 620_000, 12_595_200, 4_198_400, Some("[[1024, 1024]]"));
                    t.op("sgd_momentum", 1_100, 12_288, 4_096, Some("[[1024]]"));
                }
                t.op("checksum", 1_900_000, 33_587_200, 0, None);
            });
        });
        self.step += 1;
    }
}

const MAIN: i64 = 41_233;
const COMM: i64 = 41_240;

fn workload(rows: usize) -> Vec<EventRow> {
    let (rows_held, noise) = (Vec::with_capacity(rows + 128), Noise(7));
    let mut timeline =
        Timeline { rows: rows_held, noise, now_ns: 512_345_678_901_234, next_id: 0, parent: None, step: 3 };
    while timeline.rows.len() < rows {
        timeline.step();
    }
    timeline.rows.truncate(rows);
    timeline.rows.sort_by_key(|row| (row.ts_ns, row.id));
    timeline.rows
}
