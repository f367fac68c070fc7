//! Reads the details of a run's rows (inputs, stacks, modules) on request.

use arrow_array::RecordBatch;
use rustc_hash::FxHashMap;
use serde_json::Value;
use trace::{Error, EventRow, OmissionRow, Row, Run, TextColumn, column};

use crate::ingest::run::relative;
use crate::model::RankData;
use trace::rank::{Detail, Details, Written};

const TABLE: &str = "events";
const COLUMNS: [&str; 9] = ["rank", "kind", "id", "name", "input_dims", "input_types", "stack", "module", "args"];
/// The operator whose FLOPs depend on inputs other than tensors. Those inputs are in `args`.
const CONVOLUTION: &str = "aten::conv2d";

/// Reads the details of all rows of a loaded rank. If a shard fails half-way, the rows read so far are kept.
pub(super) fn load_details(run: &Run, rank: i32, data: &mut RankData) -> Details {
    let table = EventRow::table();
    let rows: FxHashMap<i64, u32> = data.events.id.iter().zip(0..).map(|(id, row)| (*id, row)).collect();
    let mut details = Details::default();
    for shard in run.shards(rank, TABLE) {
        let read = shard.read(&table, Some(&COLUMNS), |batch| append(batch, &rows, data, &mut details));
        if let Err(error) = read {
            data.omissions.push(
                OmissionRow::lost("shapes, stacks and modules", error.to_string())
                    .rank(rank)
                    .file(relative(&shard.path, &run.path)),
            );
        }
    }
    details
}

fn append(
    batch: &RecordBatch,
    rows: &FxHashMap<i64, u32>,
    data: &mut RankData,
    details: &mut Details,
) -> Result<(), Error> {
    let text = |name: &str| match batch.column_by_name(name) {
        None => Ok(None),
        Some(_) => column::<Option<trace::Text>>(batch, TABLE, name).map(Some),
    };
    let (kinds, ids) = (column::<trace::Text>(batch, TABLE, "kind")?, column::<i64>(batch, TABLE, "id")?);
    let names = column::<trace::Text>(batch, TABLE, "name")?;
    let [dims, types, args] = [text("input_dims")?, text("input_types")?, text("args")?];
    let [stack, module] = [text("stack")?, text("module")?];
    details.is_xpu |= kinds.values().iter().any(|kind| kind.starts_with("xpu_"));
    let value = |column: &Option<TextColumn>, row: usize| {
        let column = column.as_ref()?;
        column.values().get(column.key(row)?).cloned()
    };
    // Rows share few texts, so each combination is parsed once per batch.
    let mut parsed: FxHashMap<[Option<usize>; 4], Detail> = FxHashMap::default();
    for row in 0..batch.num_rows() {
        let Some(at) = rows.get(&ids.value(row)).map(|at| *at as usize) else { continue };
        let key = [&dims, &types, &stack, &module].map(|c| c.as_ref().and_then(|c| c.key(row)));
        if key == [None; 4] {
            continue;
        }
        let [dims, types, stack, module] = [&dims, &types, &stack, &module].map(|column| value(column, row));
        let mut written = Written { dims: dims.as_deref(), stack: stack.as_deref(), ..Written::default() };
        (written.types, written.module) = (types.as_deref(), module.as_deref());
        let name = names.key(row).map(|key| names.values()[key].clone()).unwrap_or_default();
        if &*name == CONVOLUTION {
            let concrete = value(&args, row).and_then(|args| concrete_inputs(&args));
            let detail = details.read(Written { concrete: concrete.as_deref(), ..written });
            details.put(at, &detail, &name, &mut data.events);
            continue;
        }
        let detail = parsed.entry(key).or_insert_with(|| details.read(written));
        details.put(at, detail, &name, &mut data.events);
    }
    Ok(())
}

fn concrete_inputs(args: &str) -> Option<String> {
    let args: Value = serde_json::from_str(args).ok()?;
    args.get("Concrete Inputs").map(Value::to_string)
}
