//! The groups of rows with one name: by shape, module or stack.

use rustc_hash::FxHashMap;
use trace::name_rules::{evaluates, module_name};
use trace::{FlowKind, Text};

use crate::table::average::{GroupBy, TableOptions};
use crate::table::functions::Functions;
use model::{Kind, NO_PARENT, RankData};
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

/// Innermost modules of a group. The modules of models are nested a few dozen deep; of deeper ones, the text would take
/// the square of the rows.
const MODULES_MAX: usize = 256;

/// Assigns a group number to each row; 0 is the empty group.
pub(super) struct Groups<'a> {
    data: &'a RankData,
    details: &'a Details,
    functions: &'a Functions,
    by: GroupBy,
    frames: usize,
    /// The forward operator of each backward operator's row.
    forward: FxHashMap<u32, u32>,
    /// For each row, the innermost backward function and the innermost Python frame that counts, itself included, or
    /// [`NO_PARENT`]. Empty unless rows are grouped by stack or module.
    in_backward: Vec<u32>,
    in_frame: Vec<u32>,
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
        let numbers = FxHashMap::from_iter([("".into(), 0)]);
        let frames = options.stack_frames;
        let (forward, in_backward, in_frame) = (FxHashMap::default(), Vec::new(), Vec::new());
        let mut groups = Self {
            data,
            details,
            functions,
            by,
            frames,
            forward,
            in_backward,
            in_frame,
            texts: vec!["".into()],
            numbers,
        };
        if matches!(by, GroupBy::Stack | GroupBy::Module) {
            let counts: Vec<bool> = data.names.iter().map(|name| groups.counts(name)).collect();
            let events = &data.events;
            let is_frame = |row: usize| events.kind[row] == Kind::PythonFunction && counts[events.name[row] as usize];
            groups.forward = forward_rows(data);
            groups.in_backward = groups.innermost(|row| groups.is_backward(row));
            groups.in_frame = groups.innermost(is_frame);
        }
        groups
    }

    /// Whether a Python frame with this name is part of a group's text.
    fn counts(&self, name: &str) -> bool {
        match self.by {
            GroupBy::Module => module_name(name).is_some(),
            _ => !is_left_out(name),
        }
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
        match place(self.in_backward[row]) {
            Some(backward) => self.forward.get(&(backward as u32)).map(|at| *at as usize),
            None => Some(row),
        }
    }

    fn is_backward(&self, row: usize) -> bool {
        let name = |row: usize| &*self.data.names[self.data.events.name[row] as usize];
        let parent = self.functions.parent[row];
        parent != NO_PARENT && evaluates(name(parent as usize), name(row))
    }

    /// For each row, the innermost row for which `holds`, itself included, or [`NO_PARENT`].
    fn innermost(&self, holds: impl Fn(usize) -> bool) -> Vec<u32> {
        let mut innermost = vec![NO_PARENT; self.data.events.len()];
        // Children follow their parents.
        for row in 0..innermost.len() {
            let around = place(self.functions.parent[row]).map_or(NO_PARENT, |parent| innermost[parent]);
            innermost[row] = if holds(row) { row as u32 } else { around };
        }
        innermost
    }

    /// The Python frames around a row that count, innermost first.
    fn python_frames(&self, row: usize) -> impl Iterator<Item = &str> {
        let around = |row: usize| place(self.functions.parent[row]).and_then(|parent| place(self.in_frame[parent]));
        let frames = std::iter::successors(around(row), move |at| around(*at));
        frames.map(|at| &*self.data.names[self.data.events.name[at] as usize])
    }

    /// The innermost frames, from the recorded stack; without one, from the Python functions around the row.
    fn stack(&self, row: usize) -> String {
        let frames: Vec<&str> = match self.details.stack(row) {
            Some(stack) => stack.rsplit(';').filter(|frame| !is_left_out(frame)).take(self.frames).collect(),
            None => self.python_frames(row).take(self.frames).collect(),
        };
        frames.join(";")
    }

    /// The modules around the row, outermost first, separated by dots.
    fn module(&self, row: usize) -> String {
        if let Some(module) = self.details.module(row) {
            return module.to_string();
        }
        let mut modules: Vec<&str> = match self.details.stack(row) {
            Some(stack) => stack.rsplit(';').filter_map(module_name).take(MODULES_MAX + 1).collect(),
            None => self.python_frames(row).filter_map(module_name).take(MODULES_MAX + 1).collect(),
        };
        if modules.len() > MODULES_MAX {
            modules[MODULES_MAX] = "…";
        }
        modules.reverse();
        modules.join(".")
    }
}

/// Whether torch filters a frame out of stacks.
fn is_left_out(frame: &str) -> bool {
    LEFT_OUT.iter().any(|(a, b)| frame.contains(a) && frame.contains(b))
}

/// A row, unless it is [`NO_PARENT`].
fn place(row: u32) -> Option<usize> {
    (row != NO_PARENT).then_some(row as usize)
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
