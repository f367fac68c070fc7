//! The options of the table, and its rows.

use std::ops::Range;

use serde::Serialize;
use trace::Text;

/// The property that rows are grouped by, besides their name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum GroupBy {
    /// Name only.
    #[default]
    Name,
    /// Shapes of the inputs (recorded with `record_shapes=True`).
    InputShape,
    /// The nn.Module whose call contains the row (`with_stack=True` or `with_modules=True`).
    Module,
    /// The innermost Python frames (`with_stack=True`).
    Stack,
}

/// Options of the table.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The property that rows are grouped by, besides their name.
    pub group_by: GroupBy,
    /// Number of innermost frames that distinguish stacks.
    pub stack_frames: usize,
    /// Count only rows of these steps.
    pub steps: Option<Range<i32>>,
    /// Whether Python functions are rows too.
    pub python_functions: bool,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { group_by: GroupBy::Name, stack_frames: 5, steps: None, python_functions: false }
    }
}

/// Sums over all calls of one name and group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Average {
    /// Name of the operator, range or kernel; `ProfilerStep*` for all steps.
    pub name: Text,
    /// Whether the rows are on a device.
    pub on_device: bool,
    /// Whether the rows are user ranges.
    pub is_user_annotation: bool,
    /// Whether the calls begin and end on different threads. They have a duration but no self time.
    pub is_async: bool,
    /// Shapes, module, or frames separated by `;` with the innermost first. Empty: unknown or not requested.
    pub group: Text,
    /// Number of calls.
    pub calls: i64,
    /// Total time on the host.
    pub cpu_time_total_ns: i64,
    /// Host time without the calls inside.
    pub self_cpu_time_total_ns: i64,
    /// Time of the device work that the calls and their children launched. For a device row: its own duration.
    pub device_time_total_ns: i64,
    /// Time of the device work that the calls launched themselves.
    pub self_device_time_total_ns: i64,
    /// Host memory allocated minus released; null if no memory was recorded.
    pub cpu_memory_usage_bytes: Option<i64>,
    /// Host memory without the calls inside.
    pub self_cpu_memory_usage_bytes: Option<i64>,
    /// Device memory allocated minus released; null if no memory was recorded.
    pub device_memory_usage_bytes: Option<i64>,
    /// Device memory without the calls inside.
    pub self_device_memory_usage_bytes: Option<i64>,
    /// Merges each only child with its parent's name into the parent, then sums over the children. The sums come last,
    /// because a merged child hands its own children on.
    pub flops: Option<i64>,
}

/// The table of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyAverages {
    /// Global rank.
    pub rank: i32,
    /// `CUDA` or `XPU`, as torch names the columns; null without device rows.
    pub device: Option<&'static str>,
    /// The property that rows are grouped by, besides their name.
    pub group_by: GroupBy,
    /// Selected steps, as start and exclusive end; null: everything.
    pub steps: Option<(i32, i32)>,
    /// Sum of the self times on the host: the base of the percentages.
    pub self_cpu_time_total_ns: i64,
    /// Sum of the durations of device rows that are not ranges.
    pub self_device_time_total_ns: i64,
    /// Rows in the order of their first call.
    pub rows: Vec<Average>,
}
