//! The aggregator's tables in the format of HTA's files.

use std::collections::BTreeMap;
use std::path::Path;

use formats::kineto::KinetoSource;
use model::RankData;
use model::analysis::Tables;
use model::communication::Counted;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use trace::rank::Launches;

use crate::table::{Table, numbered, put};

/// A folder as analysed by the aggregator.
pub(crate) struct Ours {
    pub(crate) tables: Tables,
    pub(crate) ranks: Vec<RankData>,
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

impl Ours {
    pub(crate) fn new(folder: &Path) -> Self {
        let source = KinetoSource::open(&[folder.to_path_buf()]).unwrap();
        let ranks = source.ranks().into_iter().map(|rank| source.load(rank).unwrap()).collect();
        let mut options = Options::default();
        options.communication.counted = Some(Counted::Hta);
        Self { tables: analyze(&source, &options, &|_, _| ()).unwrap().tables, ranks }
    }

    pub(crate) fn table(&self, file: &str) -> Table {
        let mut table = Table::new();
        match file {
            "temporal_breakdown.csv" => self.temporal(&mut table),
            "comm_comp_overlap.csv" => self.overlap(&mut table),
            "kernel_breakdown_full.0.csv" => self.kernel_types(&mut table),
            "kernel_breakdown_full.1.csv" => self.kernels(&mut table),
            "idle_time.0.csv" => self.idle(&mut table),
            "kernel_launch_stats.csv" => self.launches(&mut table),
            "queue_length_summary.csv" => self.queues(&mut table),
            "memory_bw_summary.csv" => self.bandwidths(&mut table),
            "user_annotation_breakdown_cpu.csv" => self.annotations(false, &mut table),
            "gpu_user_annotation_breakdown.csv" => self.annotations(true, &mut table),
            other => panic!("unknown file: {other}"),
        }
        table
    }

    fn temporal(&self, table: &mut Table) {
        for r in &self.tables.hta_temporal_breakdown {
            let row = r.rank.to_string();
            put(table, &row, "kernel_time(us)", us(r.kernel_time_ns));
            let parts = [
                ("idle_time", r.idle_time_ns),
                ("compute_time", r.compute_time_ns),
                ("non_compute_time", r.non_compute_time_ns),
            ];
            for (name, ns) in parts {
                put(table, &row, &format!("{name}(us)"), us(ns));
                put(table, &row, &format!("{name}_pctg"), 100.0 * ns as f64 / r.kernel_time_ns as f64);
            }
        }
    }

    fn overlap(&self, table: &mut Table) {
        for rank in self.ranks.iter().map(|r| r.outline.info.rank) {
            let of_all = |r: &&trace::StepBreakdownRow| r.rank == rank && r.step.is_none();
            let all = || self.tables.step_breakdown.iter().filter(of_all);
            let (overlap, comm) = all().fold((0, 0), |(o, c), r| (o + r.overlap_ns, c + r.comm_total_ns));
            put(table, &rank.to_string(), "comp_comm_overlap_pctg", 100.0 * overlap as f64 / comm as f64);
        }
    }

    fn kernel_types(&self, table: &mut Table) {
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for r in &self.tables.kernel_breakdown {
            let row = match &*r.running {
                "compute" => "COMPUTATION",
                "communication" => "COMMUNICATION",
                "memory" => "MEMORY",
                "compute+communication" => "COMPUTATION overlapping COMMUNICATION",
                "compute+memory" => "COMPUTATION overlapping MEMORY",
                "communication+memory" => "COMMUNICATION overlapping MEMORY",
                "compute+communication+memory" => "COMPUTATION overlapping COMMUNICATION overlapping MEMORY",
                other => panic!("{other}"),
            };
            *sums.entry(row).or_default() += r.total_ns;
        }
        let all: i64 = sums.values().sum();
        for (row, sum) in sums {
            put(table, row, "sum", us(sum));
            put(table, row, "percentage", 100.0 * sum as f64 / all as f64);
        }
    }

    fn kernels(&self, table: &mut Table) {
        for r in &self.tables.kernel_stats {
            let work = match &*r.work {
                "compute" => "COMPUTATION",
                "communication" => "COMMUNICATION",
                "memory" => "MEMORY",
                other => panic!("{other}"),
            };
            let row = format!("{} | {work} | {}", r.rank, r.name);
            lengths(table, &row, r.total_ns, r.max_ns, r.min_ns, r.std_ns, r.mean_ns);
        }
    }

    fn annotations(&self, on_device: bool, table: &mut Table) {
        for r in self.tables.annotation_stats.iter().filter(|r| r.device_id.is_some() == on_device) {
            let row = format!("{} | {}", r.rank, r.name);
            lengths(table, &row, r.total_ns, r.max_ns, r.min_ns, r.std_ns, r.mean_ns);
        }
    }

    fn idle(&self, table: &mut Table) {
        let mut streams: BTreeMap<(i32, i64), BTreeMap<&str, i64>> = BTreeMap::new();
        for q in &self.ranks {
            for row in (0..q.events.len()).filter(|row| q.events.kind[*row].is_device_work()) {
                streams.entry((q.outline.info.rank, q.events.stream[row])).or_default();
            }
        }
        for r in &self.tables.idle_breakdown {
            streams.entry((r.rank, r.stream_id.unwrap())).or_default().insert(&r.category, r.idle_ns);
        }
        for ((rank, stream), gaps) in streams {
            let all: i64 = gaps.values().sum();
            for category in ["host_wait", "kernel_wait", "other"] {
                let idle = gaps.get(category).copied().unwrap_or(0);
                let row = format!("{rank} | {stream} | {category}");
                put(table, &row, "idle_time", us(idle));
                put(table, &row, "idle_time_ratio", if all == 0 { 0.0 } else { idle as f64 / all as f64 });
            }
        }
    }

    fn launches(&self, table: &mut Table) {
        let mut seen = BTreeMap::new();
        for data in &self.ranks {
            let events = &data.events;
            for launch in Launches::collect(events).joined(events, &|_| true) {
                let (host, device) = (launch.host as usize, launch.device as usize);
                let row = numbered(&format!("{} | {}", data.outline.info.rank, events.correlation[device]), &mut seen);
                put(table, &row, "cpu_duration", us(events.dur_ns[host]));
                put(table, &row, "gpu_duration", us(events.dur_ns[device]));
                put(table, &row, "launch_delay", us((events.ts_ns[device] - events.end_ns(host)).max(0)));
            }
        }
    }

    fn queues(&self, table: &mut Table) {
        for r in &self.tables.queue_length {
            let row = format!("{} | {}", r.rank, r.stream_id.unwrap());
            put(table, &row, "count", r.points as f64);
            put(table, &row, "mean", r.mean_length);
            put(table, &row, "std", r.std_length);
            put(table, &row, "min", r.min_length as f64);
            put(table, &row, "25%", r.p25_length);
            put(table, &row, "50%", r.p50_length);
            put(table, &row, "75%", r.p75_length);
            put(table, &row, "max", r.max_length as f64);
        }
    }

    fn bandwidths(&self, table: &mut Table) {
        for r in self.tables.memcpy_bandwidth.iter().filter(|r| r.points > 0) {
            let row = format!("{} | {}", r.rank, r.name);
            put(table, &row, "count", r.points as f64);
            let cells = [
                ("mean", r.point_mean_gbs),
                ("std", r.point_std_gbs),
                ("min", r.point_min_gbs),
                ("25%", r.point_p25_gbs),
                ("50%", r.point_p50_gbs),
                ("75%", r.point_p75_gbs),
                ("max", r.point_max_gbs),
            ];
            for (column, value) in cells {
                put(table, &row, column, value.unwrap_or(f64::NAN));
            }
        }
    }

    /// Checks sums over launches against the launches themselves.
    pub(crate) fn launch_sums_agree(&self) {
        for data in &self.ranks {
            let rank = data.outline.info.rank;
            let launches = Launches::collect(&data.events).joined(&data.events, &|_| true);
            let sum = |of: &dyn Fn(usize, usize) -> i64| -> i64 {
                launches.iter().map(|l| of(l.host as usize, l.device as usize)).sum()
            };
            let of_rank = || self.tables.launch_stats.iter().filter(move |r| r.rank == rank && r.name.is_none());
            let events = &data.events;
            assert_eq!(of_rank().map(|r| r.launches).sum::<i64>(), launches.len() as i64);
            // A call that launches several kernels is one call.
            let mut works = std::collections::BTreeMap::<usize, i64>::new();
            launches.iter().for_each(|l| *works.entry(l.host as usize).or_default() += 1);
            let of_calls = |of: &dyn Fn(usize) -> i64| -> i64 { works.keys().map(|host| of(*host)).sum() };
            assert_eq!(of_rank().map(|r| r.cpu_total_ns).sum::<i64>(), of_calls(&|host| events.dur_ns[host]));
            assert_eq!(of_rank().map(|r| r.gpu_total_ns).sum::<i64>(), sum(&|_, device| events.dur_ns[device]));
            // Only the first work of a call has a launch delay.
            let mut seen = std::collections::BTreeSet::new();
            let delay =
                |l: &trace::rank::Launch| (events.ts_ns[l.device as usize] - events.end_ns(l.host as usize)).max(0);
            let delays: Vec<i64> = launches.iter().filter(|l| seen.insert(l.host)).map(delay).collect();
            assert_eq!(of_rank().map(|r| r.delay_total_ns).sum::<i64>(), delays.iter().sum::<i64>());
            let outliers = delays.iter().filter(|delay_ns| **delay_ns > 100_000).count() as i64;
            assert_eq!(of_rank().map(|r| r.delay_outliers).sum::<i64>(), outliers);
            assert_eq!(
                of_rank().map(|r| r.runtime_outliers).sum::<i64>(),
                of_calls(&|host| i64::from(events.dur_ns[host] > 50_000))
            );
            assert_eq!(
                of_rank().map(|r| r.short_kernels).sum::<i64>(),
                sum(&|host, device| i64::from(works[&host] == 1 && events.dur_ns[device] < events.dur_ns[host]))
            );
        }
    }
}

fn lengths(table: &mut Table, row: &str, total: i64, max: i64, min: i64, std_ns: f64, mean_ns: f64) {
    put(table, row, "sum (us)", us(total));
    put(table, row, "max (us)", us(max));
    put(table, row, "min (us)", us(min));
    put(table, row, "stddev", std_ns / 1e3);
    put(table, row, "mean (us)", mean_ns / 1e3);
}
