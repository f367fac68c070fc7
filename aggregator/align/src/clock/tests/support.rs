//! Real collectives, and ranks whose clocks have known errors.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde_json::Value;
use trace::{ClockSampleRow, CollectiveRow};

use crate::clock::{Clocks, fit};
use crate::matching::match_collectives;
use model::clock_choice::Choice;
use model::{Collective, Instance, RankInfo, RankOutline};

/// One rank of a test: its collectives, pings, and clock domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRank {
    pub(crate) rank: i32,
    pub(crate) rows: Vec<CollectiveRow>,
    pub(crate) samples: Vec<ClockSampleRow>,
    pub(crate) domain: String,
}

/// A collective of 4 bytes, done, timed by the host.
pub(crate) fn collective(rank: i32, op: &str, start_ns: i64, end_ns: i64) -> CollectiveRow {
    CollectiveRow {
        rank,
        comm_id: 7,
        op: op.into(),
        bytes: Some(4),
        start_ns: Some(start_ns),
        end_ns: Some(end_ns),
        state: "done".into(),
        timing_source: "host".into(),
        ..CollectiveRow::default()
    }
}

/// A clock's offset and drift: converts true time to the time that it shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bend {
    pub(crate) shift_ns: i64,
    pub(crate) drift: f64,
    pub(crate) origin_ns: i64,
    /// From this time on, the drift is larger by `turn`.
    pub(crate) turn_ns: i64,
    pub(crate) turn: f64,
}

impl Bend {
    pub(crate) fn show(&self, t: i64) -> i64 {
        let turned = self.turn * (t - self.turn_ns).max(0) as f64;
        t + self.shift_ns + (self.drift * (t - self.origin_ns) as f64 + turned).round() as i64
    }
}

impl TestRank {
    /// The rank as recorded with a bent clock.
    pub(crate) fn bent(&self, bend: Bend) -> Self {
        let mut rank = self.clone();
        for row in &mut rank.rows {
            row.start_ns = row.start_ns.map(|t| bend.show(t));
            row.end_ns = row.end_ns.map(|t| bend.show(t));
        }
        rank
    }

    pub(crate) fn outline(&self, world_size: Option<i32>) -> RankOutline {
        let clock_domain = self.domain.clone();
        RankOutline {
            info: RankInfo { rank: self.rank, world_size, clock_domain, ..RankInfo::default() },
            collectives: self.rows.iter().cloned().map(Collective::from).collect(),
            clock_samples: self.samples.clone(),
            recorded_ns: self.window(),
            ..RankOutline::default()
        }
    }

    pub(crate) fn window(&self) -> Option<(i64, i64)> {
        let times = || self.rows.iter().flat_map(|r| [r.start_ns, r.end_ns]).flatten();
        let sampled = || self.samples.iter().map(|s| s.local_ns);
        let all = || times().chain(sampled());
        Some((all().min()?, all().max()?))
    }
}

pub(crate) fn matched(ranks: &[TestRank]) -> (Vec<Instance>, Vec<trace::OmissionRow>) {
    let world_size = Some(ranks.len() as i32);
    let outlines: Vec<RankOutline> = ranks.iter().map(|r| r.outline(world_size)).collect();
    match_collectives(&outlines.iter().collect::<Vec<_>>())
}

pub(crate) fn fitted(ranks: &[TestRank], instances: &[Instance]) -> Clocks {
    fitted_by(ranks, instances, Choice::Auto)
}

pub(crate) fn fitted_by(ranks: &[TestRank], instances: &[Instance], choice: Choice) -> Clocks {
    let outlines: Vec<RankOutline> = ranks.iter().map(|r| r.outline(None)).collect();
    fit(&outlines.iter().collect::<Vec<_>>(), instances, choice)
}

/// Reproducible pseudo-random numbers (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in `from..=to`.
    pub(crate) fn between(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() >> 1) as i64 % (to - from + 1)
    }

    /// An exponentially distributed number with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        -mean * (1.0 - uniform).ln()
    }
}

/// The ranks of one of our own gloo runs, stored beside this file: 8 or 4 ranks of one host that share one clock.
pub(crate) fn gloo(csv: &str) -> Vec<TestRank> {
    let mut ranks: BTreeMap<i32, TestRank> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<i64> = line.split(',').map(|f| f.parse().unwrap()).collect();
        let rank = fields[0] as i32;
        let mut row = collective(rank, "allreduce", fields[1], fields[2]);
        row.bytes = Some(fields[3]);
        let entry = ranks.entry(rank).or_insert_with(|| TestRank { rank, ..TestRank::default() });
        entry.rows.push(row);
    }
    ranks.into_values().collect()
}

pub(crate) const GLOO8: &str = include_str!("gloo8_slow5.csv");
pub(crate) const GLOO4: &str = include_str!("gloo4_slow2_stack.csv");

/// The NCCL kernels of a folder of Kineto traces, by rank, as device-timed collectives. Only names and times are read.
pub(crate) fn nccl_kernels(folder: &Path) -> Vec<TestRank> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut ranks: Vec<TestRank> = paths.iter().map(|path| kernels_of(path)).collect();
    ranks.sort_by_key(|r| r.rank);
    ranks
}

fn kernels_of(path: &Path) -> TestRank {
    let file = MultiGzDecoder::new(File::open(path).unwrap());
    let json: Value = serde_json::from_reader(std::io::BufReader::new(file)).unwrap();
    let rank = json["distributedInfo"]["rank"].as_i64().unwrap() as i32;
    let base_ns = json["baseTimeNanoseconds"].as_i64().unwrap_or(0);
    // Whole microseconds since 1970 are exact only as integers. Decimal times count from a base time, and f64 holds
    // them to a ns.
    let ns = |v: &Value| v.as_i64().map_or_else(|| (v.as_f64().unwrap() * 1_000.0).round() as i64, |us| us * 1_000);
    let mut rows = Vec::new();
    for event in json["traceEvents"].as_array().unwrap() {
        let name = event["name"].as_str().unwrap_or_default();
        let is_kernel = matches!(event["cat"].as_str(), Some("kernel" | "Kernel"));
        if !is_kernel || !name.to_lowercase().contains("nccl") {
            continue;
        }
        let op = if name.contains("AllReduce") { "allreduce" } else { "alltoall" };
        assert!(op == "allreduce" || name.contains("SendRecv"), "an operation that these traces do not hold: {name}");
        let start_ns = base_ns + ns(&event["ts"]);
        let mut row = collective(rank, op, start_ns, start_ns + ns(&event["dur"]));
        row.bytes = None;
        row.timing_source = "cupti".into();
        rows.push(row);
    }
    rows.sort_by_key(|r| r.start_ns);
    TestRank { rank, rows, ..TestRank::default() }
}

/// Instances of an independent count from the end: (kernel name, number from the end) → (rank, start in whole µs).
pub(crate) fn reference_instances(data: &Path, folder: &str) -> BTreeMap<(String, u32), Vec<(i32, i64)>> {
    let csv = std::fs::read_to_string(data.join("expected_ref").join(folder).join("collectives_ref.csv")).unwrap();
    let mut instances: BTreeMap<(String, u32), Vec<(i32, i64)>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        let start_us: f64 = f[5].parse().unwrap();
        let key = (f[0].to_string(), f[1].parse().unwrap());
        instances.entry(key).or_default().push((f[2].parse().unwrap(), start_us.floor() as i64));
    }
    instances
}
