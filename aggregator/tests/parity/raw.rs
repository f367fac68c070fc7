//! Traces as HTA reads them: with serde_json, independent of the tested reader.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

/// Deviations of HTA from its own definitions. All false: the definitions, to the last digit of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Starts are rounded up and ends down to whole µs.
    pub(crate) round: bool,
    /// In traces of two or more steps, device rows without a recorded launch are left out.
    pub(crate) filter: bool,
    /// Every row that names a stream counts as device work: synchronisations and Triton's operators too.
    pub(crate) streams: bool,
    /// Launches have one of a few names, and every host row with the same correlation id is a launch.
    pub(crate) names: bool,
    /// HTA's patterns decide the type of a kernel.
    pub(crate) types: bool,
    /// A gap is measured from the end of the previous row, even if an earlier row still runs. Overlaps count as
    /// negative gaps.
    pub(crate) gaps: bool,
    /// Work without a recorded launch counts as launched by the trace's first row.
    pub(crate) first_row: bool,
    /// Bandwidths and queue lengths are running sums. Rounding residues count, touching copies overlap, and work that
    /// begins before its launch makes a length negative.
    pub(crate) series: bool,
}

/// For each rule: its description and its switch.
pub(crate) type Switch = (&'static str, fn(&mut Rules) -> &mut bool);
pub(crate) const SWITCHES: [Switch; 8] = [
    ("HTA cuts times to whole µs", |r| &mut r.round),
    ("HTA leaves out device rows whose launch was not recorded, where a trace has several steps", |r| &mut r.filter),
    ("HTA counts every row with a stream as device work, synchronisations too", |r| &mut r.streams),
    ("HTA recognises launches by a few names only", |r| &mut r.names),
    ("HTA classifies kernels by other names", |r| &mut r.types),
    ("HTA measures gaps from the end of the previous row, and adds overlaps as negative gaps", |r| &mut r.gaps),
    ("HTA takes the first row of the trace for a launch that was not recorded", |r| &mut r.first_row),
    ("HTA uses running sums: touching copies overlap, and work before its launch gives a negative length", |r| {
        &mut r.series
    }),
];

pub(crate) const HTA: Rules = Rules {
    round: true,
    filter: true,
    streams: true,
    names: true,
    types: true,
    gaps: true,
    first_row: true,
    series: true,
};

/// A complete event; times in µs.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) index: i64,
    pub(crate) category: String,
    pub(crate) name: String,
    pub(crate) ts: f64,
    pub(crate) dur: f64,
    pub(crate) stream: i64,
    pub(crate) correlation: i64,
    pub(crate) bandwidth: f64,
    /// Process and thread.
    pub(crate) thread: String,
}

impl Event {
    pub(crate) fn end(&self) -> f64 {
        self.ts + self.dur
    }

    /// Whether the category is device work.
    pub(crate) fn is_work(&self) -> bool {
        ["kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"].contains(&self.category.as_str())
    }

    pub(crate) fn is_call(&self) -> bool {
        ["cuda_runtime", "cuda_driver", "Runtime"].contains(&self.category.as_str())
    }

    fn is_gpu(&self, rules: Rules) -> bool {
        if rules.streams { self.stream != -1 } else { self.is_work() }
    }

    /// Compute, communication or memory; `OTHER` exists only in HTA.
    pub(crate) fn work_type(&self, rules: Rules) -> &'static str {
        let name = self.name.as_str();
        let starts = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        if !rules.types {
            let lower = name.to_lowercase();
            return match () {
                () if self.category.to_lowercase().contains("mem") => "MEMORY",
                () if lower.starts_with("nccl") || lower.starts_with("rccl") => "COMMUNICATION",
                () => "COMPUTATION",
            };
        }
        if starts(&["nccl", "hip", "hccl"]) || name.contains("ncclKernel") {
            "COMMUNICATION"
        } else if starts(&["Memcpy", "Memset", "dma"]) {
            "MEMORY"
        } else if ["Memcpy", "Memset", "dma", "Sync"].iter().any(|word| name.contains(word))
            || starts(&["Stream Wait Event", "runFunction", "job_exe", "packet", "pe_exe"])
            || (name.starts_with("cuda") && name.contains("LaunchKernel"))
        {
            "OTHER"
        } else {
            "COMPUTATION"
        }
    }
}

/// The events of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) rank: i64,
    pub(crate) events: Vec<Event>,
    /// Whether times have a fraction.
    pub(crate) fractional: bool,
    /// Resolution of the doubles in which HTA holds times.
    pub(crate) grid: f64,
}

/// The device rows and host rows of a rank by some rules.
pub(crate) struct Split {
    pub(crate) gpu: Vec<Event>,
    pub(crate) cpu: Vec<Event>,
}

impl Rank {
    pub(crate) fn read(path: &Path, rank: i64) -> Self {
        let mut bytes = Vec::new();
        flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
        // Keep times as strings, so that they parse to the nearest double like HTA's reader, bit by bit.
        let times = regex::bytes::Regex::new(r#""(ts|dur)":\s*(-?[0-9.]+)"#).unwrap();
        let bytes = times.replace_all(&bytes, br#""$1": "$2""#.as_slice());
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let list = document["traceEvents"].as_array().unwrap();
        let events: Vec<Event> = (0_i64..).zip(list).filter_map(|(index, event)| event_of(index, event)).collect();
        let fractional = list.iter().any(|e| e["ts"].as_str().is_some_and(|ts| ts.contains('.')));
        let latest = events.iter().map(|e| e.ts).fold(0.0, f64::max);
        Self { rank, events, fractional, grid: f64::EPSILON * latest }
    }

    /// Error of a duration in HTA: up to 1 µs at the start, up to 1 µs at the end, and the rounding of doubles at both.
    pub(crate) fn slack_us(&self) -> f64 {
        if self.fractional { 2.0 + 2.0 * self.grid } else { 0.0 }
    }

    pub(crate) fn split(&self, rules: Rules, several_steps: bool) -> Split {
        let rounded = |event: &Event| {
            let mut event = event.clone();
            if rules.round && self.fractional {
                let end = event.end().floor();
                event.ts = event.ts.ceil();
                event.dur = end - event.ts;
            }
            event
        };
        let (mut gpu, cpu): (Vec<Event>, Vec<Event>) =
            self.events.iter().map(rounded).partition(|event| event.is_gpu(rules));
        if rules.filter && several_steps {
            let correlations: BTreeSet<i64> = cpu.iter().map(|e| e.correlation).collect();
            gpu.retain(|e| e.correlation >= 0 && correlations.contains(&e.correlation));
        }
        Split { gpu, cpu }
    }
}

fn event_of(index: i64, event: &Value) -> Option<Event> {
    let category = event["cat"].as_str()?;
    if category == "Trace" {
        return None;
    }
    let args = &event["args"];
    let integer = |key: &str| args[key].as_i64().unwrap_or(-1);
    Some(Event {
        index,
        category: category.into(),
        name: event["name"].as_str().unwrap_or_default().into(),
        ts: event["ts"].as_str()?.parse().ok()?,
        dur: event["dur"].as_str()?.parse().ok()?,
        stream: integer("stream"),
        correlation: integer("correlation"),
        thread: format!("{} {}", event["pid"], event["tid"]),
        bandwidth: args["memory bandwidth (GB/s)"].as_f64().unwrap_or(0.0),
    })
}
