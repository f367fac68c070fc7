//! Reads the details of a run's rows (inputs, stacks, modules, launch parameters) on request.

use arrow_array::RecordBatch;
use rustc_hash::FxHashMap;
use serde_json::Value;
use trace::{Cell, Error, EventRow, OmissionRow, Row, Run, TextColumn, column};

use crate::paths::relative;
use model::RankData;
use trace::rank::{Detail, Details, Written};

const TABLE: &str = "events";
const COLUMNS: [&str; 11] =
    ["rank", "kind", "id", "name", "input_dims", "input_types", "stack", "module", "grid", "block", "args"];
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

/// The columns that decide the details of a row: its texts as positions in the dictionaries of the batch, and the sides of
/// its grid and block.
type Key = ([Option<usize>; 4], [Option<Vec<i32>>; 2]);

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
    let [dims, types, stack, module] = [text("input_dims")?, text("input_types")?, text("stack")?, text("module")?];
    let args = text("args")?;
    let sides = |name: &str| match batch.column_by_name(name) {
        None => Ok(None),
        Some(_) => column::<Option<Vec<i32>>>(batch, TABLE, name).map(Some),
    };
    let [grid, block] = [sides("grid")?, sides("block")?];
    details.is_xpu |= kinds.values().iter().any(|kind| kind.starts_with("xpu_"));
    let value = |column: &Option<TextColumn>, row: usize| {
        let column = column.as_ref()?;
        column.values().get(column.key(row)?).cloned()
    };
    // Rows share few texts, so each combination is parsed once per batch.
    let mut parsed: FxHashMap<Key, Detail> = FxHashMap::default();
    for row in 0..batch.num_rows() {
        let Some(at) = rows.get(&ids.value(row)).map(|at| *at as usize) else { continue };
        let texts = [&dims, &types, &stack, &module];
        let key: Key = (
            texts.map(|c| c.as_ref().and_then(|c| c.key(row))),
            [&grid, &block].map(|column| <Option<Vec<i32>> as Cell>::get(column.as_ref()?, row)),
        );
        if key == Key::default() {
            continue;
        }
        let [dims, types, stack, module] = texts.map(|column| value(column, row));
        let [grid, block] = [&key.1[0], &key.1[1]].map(|sides| sides.as_ref().map(|sides| format!("{sides:?}")));
        let written = Written {
            dims: dims.as_deref(),
            types: types.as_deref(),
            stack: stack.as_deref(),
            module: module.as_deref(),
            grid: grid.as_deref(),
            block: block.as_deref(),
            ..Written::default()
        };
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
