//! The groups of rows with one name: by shape, module or stack.

use rustc_hash::FxHashMap;
use trace::name_rules::{evaluates, module_name};
use trace::{FlowKind, Text};

use crate::model::{Kind, NO_PARENT, RankData};
use crate::torch::table::{Functions, GroupBy, TableOptions};
use trace::rank::Details;

/// Frames that torch filters out of stacks (`_filter_stack_entry`): those that contain both words.
const LEFT_OUT: [(&str, &str); 6] = [
    ("autograd/__init__", "_make_grads"),
    ("autograd/__init__", "backward"),
    ("torch/tensor", "backward"),
    ("_internal/common_utils", "prof_callable"),
    ("_internal/common_utils", "prof_func_call"),
    ("_internal/common_utils", "prof_meth_call"),
];

/// Assigns a group number to each row; 0 is the empty group.
pub(super) struct Groups<'a> {
    data: &'a RankData,
    details: &'a Details,
    functions: &'a Functions,
    by: GroupBy,
    frames: usize,
    /// The forward operator of each backward operator's row.
    forward: FxHashMap<u32, u32>,
    texts: Vec<Text>,
    numbers: FxHashMap<Text, u32>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(
        data: &'a RankData,
        details: &'a Details,
        functions: &'a Functions,
        options: &TableOptions,
    ) -> Self {
        let by = options.group_by;
        let forward =
            if matches!(by, GroupBy::Stack | GroupBy::Module) { forward_rows(data) } else { FxHashMap::default() };
        let numbers = FxHashMap::from_iter([("".into(), 0)]);
        let frames = options.stack_frames;
        Self { data, details, functions, by, frames, forward, texts: vec!["".into()], numbers }
    }

    pub(super) fn text(&self, number: u32) -> Text {
        self.texts[number as usize].clone()
    }

    pub(super) fn of(&mut self, row: usize) -> u32 {
        let text: Text = match self.by {
            GroupBy::Name => return 0,
            GroupBy::InputShape => self.details.shape(row).cloned().unwrap_or_default(),
            GroupBy::Module => self.caller(row).map(|row| self.module(row)).unwrap_or_default().into(),
            GroupBy::Stack => self.caller(row).map(|row| self.stack(row)).unwrap_or_default().into(),
        };
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    /// The row whose Python frames count. For a device row it is the operator. For a backward function and the rows
    /// inside it, it is the forward operator (torch's `_set_backward_stacktraces`). A backward function without a
    /// forward operator, for example the accumulation of a gradient, has no frames.
    fn caller(&self, row: usize) -> Option<usize> {
        let row = if self.functions.operator[row] == NO_PARENT { row } else { self.functions.operator[row] as usize };
        match self.ancestors(row).find(|at| self.is_backward(*at)) {
            Some(backward) => self.forward.get(&(backward as u32)).map(|at| *at as usize),
            None => Some(row),
        }
    }

    fn is_backward(&self, row: usize) -> bool {
        let name = |row: usize| &*self.data.names[self.data.events.name[row] as usize];
        let parent = self.functions.parent[row];
        parent != NO_PARENT && evaluates(name(parent as usize), name(row))
    }

    /// The row and its enclosing rows, innermost first.
    fn ancestors(&self, row: usize) -> impl Iterator<Item = usize> {
        let parent = |at: &usize| Some(self.functions.parent[*at]).filter(|p| *p != NO_PARENT).map(|p| p as usize);
        std::iter::successors(Some(row), parent)
    }

    fn python_frames(&self, row: usize) -> impl Iterator<Item = &str> {
        let events = &self.data.events;
        let frames = self.ancestors(row).skip(1).filter(|at| events.kind[*at] == Kind::PythonFunction);
        frames.map(|at| &*self.data.names[events.name[at] as usize])
    }

    /// The innermost frames, from the recorded stack; without one, from the Python functions around the row.
    fn stack(&self, row: usize) -> String {
        let recorded: Vec<&str> = self.details.stack(row).map(|stack| stack.rsplit(';').collect()).unwrap_or_default();
        let frames = if recorded.is_empty() { self.python_frames(row).collect() } else { recorded };
        let shown = frames.into_iter().filter(|f| !LEFT_OUT.iter().any(|(a, b)| f.contains(a) && f.contains(b)));
        shown.take(self.frames).collect::<Vec<_>>().join(";")
    }

    /// The modules around the row, outermost first, separated by dots.
    fn module(&self, row: usize) -> String {
        if let Some(module) = self.details.module(row) {
            return module.to_string();
        }
        let recorded: Vec<&str> = self.details.stack(row).map(|stack| stack.rsplit(';').collect()).unwrap_or_default();
        let frames = if recorded.is_empty() { self.python_frames(row).collect() } else { recorded };
        let mut modules: Vec<&str> = frames.into_iter().filter_map(module_name).collect();
        modules.reverse();
        modules.join(".")
    }
}

/// Maps backward operators to their forward operators, by the arrows of the trace.
fn forward_rows(data: &RankData) -> FxHashMap<u32, u32> {
    let arrows = || data.flows.iter().filter(|flow| flow.kind == FlowKind::Fwdbwd);
    let mut rows: FxHashMap<i64, u32> =
        arrows().flat_map(|flow| [(flow.src_id, NO_PARENT), (flow.dst_id, NO_PARENT)]).collect();
    for (id, row) in data.events.id.iter().zip(0..) {
        if let Some(slot) = rows.get_mut(id) {
            *slot = row;
        }
    }
    let row = |id: i64| rows.get(&id).copied().filter(|row| *row != NO_PARENT);
    arrows().filter_map(|flow| Some((row(flow.dst_id)?, row(flow.src_id)?))).collect()
}
