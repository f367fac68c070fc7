//! Reads the operations of a job from a Parquet file, and the job's sizes from the file beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use trace::{place, read_columns};

use model::{Error, Room};

/// The most memory of a row: its columns, whose lists may have doubled; its operation, key and place; and the replay of them.
const ROW_BYTES: usize = 512;
/// The longest description of a job.
const MAX_META_BYTES: u64 = 1 << 20;

/// The sizes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobMeta {
    pub trial_name: String,
    pub(crate) run_id: i64,
    pub dp_size: i64,
    pub pp_size: i64,
    pub tp_size: i64,
    pub(crate) dsp_size: i64,
    pub(crate) vpp_size: i64,
    pub world_size: i64,
}

impl JobMeta {
    /// Reads lines of the form `name: value`. Sizes that are not given are 1.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let mut text = String::new();
        let read = place::open(path).and_then(|file| file.take(MAX_META_BYTES + 1).read_to_string(&mut text));
        if read.map_err(|source| Error::Io { path: path.into(), source })? as u64 > MAX_META_BYTES {
            let why = format!("it has more than {MAX_META_BYTES} bytes, so it is no description of a job");
            return Err(Error::NoInput { path: path.into(), why });
        }
        Self::parse(&text).map_err(|why| Error::NoInput { path: path.into(), why })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut meta =
            Self { dp_size: 1, pp_size: 1, tp_size: 1, dsp_size: 1, vpp_size: 1, world_size: 1, ..Self::default() };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = || format!("line {} is not of the form `dp_size: 4`: {line}", number + 1);
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let value = value.trim().trim_matches(['"', '\'']);
            let size = match name.trim() {
                "trial_name" => {
                    meta.trial_name = value.into();
                    continue;
                }
                "run_id" => &mut meta.run_id,
                "dp_size" => &mut meta.dp_size,
                "pp_size" => &mut meta.pp_size,
                "tp_size" => &mut meta.tp_size,
                "dsp_size" => &mut meta.dsp_size,
                "vpp_size" => &mut meta.vpp_size,
                "world_size" => &mut meta.world_size,
                _ => continue,
            };
            *size = value.parse().map_err(|_| wrong())?;
        }
        let sizes = [meta.dp_size, meta.pp_size, meta.tp_size, meta.dsp_size];
        if sizes.iter().any(|size| *size < 1) || meta.vpp_size < 1 {
            return Err("sizes must be at least 1".into());
        }
        let product = sizes.iter().try_fold(1_i64, |product, size| product.checked_mul(*size));
        if product != Some(meta.world_size) {
            return Err(format!("world_size {} is not dp_size × pp_size × tp_size × dsp_size", meta.world_size));
        }
        Ok(meta)
    }
}

/// The types of operations, by the names in the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum OpType {
    ForwardCompute,
    BackwardCompute,
    ForwardSend,
    ForwardRecv,
    BackwardSend,
    BackwardRecv,
    ParamsAllGather,
    GradsReduceScatter,
    LayernormAllReduce,
    EmbeddingAllReduce,
    SeparateAllReduce,
    ClipMainGrad,
    Optimizer,
    /// Garbage collection.
    Gc,
}

impl OpType {
    const ALL: [(Self, &'static str); 14] = [
        (Self::ForwardCompute, "forward-compute"),
        (Self::BackwardCompute, "backward-compute"),
        (Self::ForwardSend, "forward-send"),
        (Self::ForwardRecv, "forward-recv"),
        (Self::BackwardSend, "backward-send"),
        (Self::BackwardRecv, "backward-recv"),
        (Self::ParamsAllGather, "params-all-gather"),
        (Self::GradsReduceScatter, "grads-reduce-scatter"),
        (Self::LayernormAllReduce, "layernorm-grads-all-reduce"),
        (Self::EmbeddingAllReduce, "embedding-grads-all-reduce"),
        (Self::SeparateAllReduce, "separate-grads-all-reduce"),
        (Self::ClipMainGrad, "optimizer-clip-main-grad"),
        (Self::Optimizer, "optimizer"),
        (Self::Gc, "gc"),
    ];

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(optype, _)| *optype)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(optype, _)| *optype == self).map_or("", |(_, name)| name)
    }

    pub(super) fn is_compute(self) -> bool {
        matches!(self, Self::ForwardCompute | Self::BackwardCompute)
    }

    /// Whether the ideal time of the type is a median over communication, and not a mean over computation.
    pub(super) fn communicates(self) -> bool {
        !self.is_compute() && !matches!(self, Self::Optimizer | Self::Gc)
    }
}

/// One operation of a stage. It occurs once in each step on each data-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OpKey {
    pub(super) stage: i64,
    pub(super) optype: OpType,
    /// Counts the operations of the type in a step of a stage, from 0.
    pub(super) seq: i64,
}

impl fmt::Display for OpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of stage {}", self.optype.name(), self.seq, self.stage)
    }
}

/// An operation on data-parallel rank 0 in the first step. The dependencies of all steps and ranks are derived from these.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    /// The chunk of the model in its stage; −1 if the operation has none.
    pub(super) chunk: i64,
    /// The chunk of the model among those of all stages.
    pub(super) global_chunk: i64,
}

/// The operations of a job. A lane is one data-parallel rank in one step; times of operation `op` in `lane` are at
/// `op × lanes + lane`, in seconds since the begin of the step.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) steps: Vec<i64>,
    pub(super) dp_size: usize,
    pub(super) pp_size: i64,
    pub(super) keys: Vec<OpKey>,
    pub(super) position: FxHashMap<OpKey, usize>,
    pub(super) first: Vec<First>,
    pub(super) start_s: Vec<f64>,
    pub(super) end_s: Vec<f64>,
    pub(super) duration_s: Vec<f64>,
    /// The global rank of each (stage, data-parallel rank).
    pub(super) ranks: BTreeMap<(i64, usize), i64>,
    /// Whether the trace holds times of 32 bits. Sums are rounded as in the authors' program then, so that differences of nearly
    /// equal times are the same.
    pub(super) single: bool,
}

impl Operations {
    pub(super) fn lanes(&self) -> usize {
        self.steps.len() * self.dp_size
    }

    /// Rounds a sum or a difference of two times of the trace.
    pub(super) fn round(&self, seconds: f64) -> f64 {
        if self.single { f64::from(seconds as f32) } else { seconds }
    }

    pub(super) fn read(path: &Path, meta: &JobMeta, room: Room) -> Result<Self, Error> {
        let columns = Columns::read(path, room)?;
        Self::of(&columns, meta).map_err(|why| Error::NoInput { path: path.into(), why })
    }

    pub(super) fn of(columns: &Columns, meta: &JobMeta) -> Result<Self, String> {
        let mut operations = Self::empty(columns, meta)?;
        for row in 0..columns.optype.len() {
            operations.add(columns, row)?;
        }
        Ok(operations)
    }

    /// The operations of all rows, without times.
    fn empty(columns: &Columns, meta: &JobMeta) -> Result<Self, String> {
        let [dp_rank, stage, _, step, ..] = &columns.integers;
        let rows = columns.optype.len();
        if rows == 0 {
            return Err("the trace has no rows".into());
        }
        let steps = distinct(step.iter().copied());
        let dp_size = usize::try_from(dp_rank.iter().max().map_or(0, |dp| dp.saturating_add(1))).unwrap_or(0);
        let pp_size = stage.iter().max().map_or(0, |stage| stage.saturating_add(1));
        let sizes = (dp_size as i64, pp_size);
        if dp_rank.iter().chain(stage).any(|value| *value < 0) || sizes != (meta.dp_size, meta.pp_size) {
            return Err(format!(
                "the trace has {dp_size} data-parallel ranks and {pp_size} stages; its meta file says {} and {}",
                meta.dp_size, meta.pp_size
            ));
        }
        let keys = distinct((0..rows).map(|row| columns.key(row)));
        let lanes = steps.len().checked_mul(dp_size);
        // A file can claim any number of ranks; each operation must be on all of them.
        if lanes.and_then(|lanes| lanes.checked_mul(keys.len())) != Some(rows) {
            return Err(format!(
                "{rows} rows are not {} operations × {} steps × {dp_size} data-parallel ranks: some are missing or twice there",
                keys.len(),
                steps.len()
            ));
        }
        let unknown = First { start_s: f64::NAN, end_s: f64::NAN, chunk: -1, global_chunk: -1 };
        Ok(Self {
            dp_size,
            pp_size,
            position: keys.iter().enumerate().map(|(at, key)| (*key, at)).collect(),
            first: vec![unknown; keys.len()],
            start_s: vec![f64::NAN; rows],
            end_s: vec![f64::NAN; rows],
            duration_s: vec![f64::NAN; rows],
            ranks: BTreeMap::new(),
            single: columns.single,
            steps,
            keys,
        })
    }

    fn add(&mut self, columns: &Columns, row: usize) -> Result<(), String> {
        let [dp_rank, stage, rank, step, _, chunk, global_chunk] =
            columns.integers.each_ref().map(|values| values[row]);
        let (at, lanes) = (self.position[&columns.key(row)], self.lanes());
        let step_at = self.steps.partition_point(|known| *known < step);
        let slot = at * lanes + step_at * self.dp_size + dp_rank as usize;
        if !self.start_s[slot].is_nan() {
            return Err(format!("{} is twice in step {step} of data-parallel rank {dp_rank}", self.keys[at]));
        }
        let (start_s, duration_s) = (columns.start_s[row], columns.duration_s[row]);
        if !start_s.is_finite() || !duration_s.is_finite() {
            return Err(format!("{} of step {step} has no time", self.keys[at]));
        }
        let end_s = self.round(start_s + duration_s);
        self.start_s[slot] = start_s;
        self.duration_s[slot] = duration_s;
        self.end_s[slot] = end_s;
        if step_at == 0 {
            self.ranks.insert((stage, dp_rank as usize), rank);
        }
        if step_at == 0 && dp_rank == 0 {
            self.first[at] = First { start_s, end_s, chunk, global_chunk };
        }
        Ok(())
    }
}

/// The different values, ascending.
fn distinct<T: Copy + Ord + std::hash::Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let distinct: FxHashSet<T> = values.collect();
    let mut distinct: Vec<T> = distinct.into_iter().collect();
    distinct.sort_unstable();
    distinct
}

/// The columns of the trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    pub(super) optype: Vec<OpType>,
    pub(super) start_s: Vec<f64>,
    pub(super) duration_s: Vec<f64>,
    single: bool,
    /// The columns of [`INTEGERS`].
    pub(super) integers: [Vec<i64>; INTEGERS.len()],
}

const INTEGERS: [&str; 7] = ["dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc"];

impl Columns {
    fn key(&self, row: usize) -> OpKey {
        let [_, stage, _, _, seq, ..] = self.integers.each_ref().map(|values| values[row]);
        OpKey { stage, optype: self.optype[row], seq }
    }

    fn read(path: &Path, mut room: Room) -> Result<Self, Error> {
        let mut columns = Self { single: true, ..Self::default() };
        let mut wrong = None;
        let wanted: Vec<&str> = INTEGERS.into_iter().chain(["optype", "start_ts", "duration"]).collect();
        read_columns(path, &wanted, |batch| {
            wrong = room.take(batch.num_rows() * ROW_BYTES).and_then(|()| columns.add(batch)).err();
            wrong.is_none()
        })?;
        if let Some(why) = wrong {
            return Err(Error::NoInput { path: path.into(), why });
        }
        Ok(columns)
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let column = |name: &str| {
            let found = batch.column_by_name(name).ok_or_else(|| format!("the trace has no column {name}"))?;
            if found.null_count() > 0 {
                return Err(format!("column {name} has rows without a value"));
            }
            Ok(found)
        };
        for (values, name) in self.integers.iter_mut().zip(INTEGERS) {
            integers(column(name)?, values).ok_or_else(|| format!("column {name} does not hold integers"))?;
        }
        for (values, name) in [(&mut self.start_s, "start_ts"), (&mut self.duration_s, "duration")] {
            let found = column(name)?;
            self.single &= found.as_primitive_opt::<Float32Type>().is_some();
            floats(found, values).ok_or_else(|| format!("column {name} does not hold seconds"))?;
        }
        let add = |name: &str| {
            self.optype.push(OpType::parse(name).ok_or_else(|| format!("{name:?} is no known type of operation"))?);
            Ok(())
        };
        texts(column("optype")?, add)
    }
}

fn integers(column: &ArrayRef, values: &mut Vec<i64>) -> Option<()> {
    if let Some(column) = column.as_primitive_opt::<Int8Type>() {
        values.extend(column.values().iter().map(|value| i64::from(*value)));
    } else if let Some(column) = column.as_primitive_opt::<Int16Type>() {
        values.extend(column.values().iter().map(|value| i64::from(*value)));
    } else if let Some(column) = column.as_primitive_opt::<Int32Type>() {
        values.extend(column.values().iter().map(|value| i64::from(*value)));
    } else {
        values.extend(column.as_primitive_opt::<Int64Type>()?.values());
    }
    Some(())
}

fn floats(column: &ArrayRef, values: &mut Vec<f64>) -> Option<()> {
    if let Some(column) = column.as_primitive_opt::<Float32Type>() {
        values.extend(column.values().iter().map(|value| f64::from(*value)));
    } else {
        values.extend(column.as_primitive_opt::<Float64Type>()?.values());
    }
    Some(())
}

/// Calls `add` for each text of a column of texts or of a dictionary of them.
fn texts(column: &ArrayRef, mut add: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    if let Some(column) = column.as_string_opt::<i32>() {
        return column.iter().flatten().try_for_each(add);
    }
    if let Some(column) = column.as_string_opt::<i64>() {
        return column.iter().flatten().try_for_each(add);
    }
    let found = of_dictionary::<Int8Type>(column, &mut add)
        .or_else(|| of_dictionary::<Int16Type>(column, &mut add))
        .or_else(|| of_dictionary::<Int32Type>(column, &mut add));
    found.unwrap_or_else(|| Err("column optype does not hold texts".into()))
}

fn of_dictionary<K: ArrowDictionaryKeyType>(
    column: &ArrayRef,
    add: &mut impl FnMut(&str) -> Result<(), String>,
) -> Option<Result<(), String>> {
    let column = column.as_dictionary_opt::<K>()?;
    let names = column.values().as_string_opt::<i32>()?;
    Some(column.keys_iter().flatten().try_for_each(|key| add(names.value(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_must_agree() {
        let meta = JobMeta::parse("trial_name: AR\ndp_size: 4 # replicas\n\npp_size: 4\ntp_size: 4\nworld_size: 64\n")
            .unwrap();
        assert_eq!((meta.trial_name.as_str(), meta.dp_size, meta.vpp_size, meta.run_id), ("AR", 4, 1, 0));
        for wrong in ["dp_size: 4", "dp_size: four\nworld_size: 4", "dp_size", "dp_size: 0\nworld_size: 0"] {
            assert!(JobMeta::parse(wrong).is_err(), "{wrong}");
        }
    }
}
