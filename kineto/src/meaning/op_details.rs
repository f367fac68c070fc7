//! Inputs, stacks, modules and launch parameters of a trace's rows.

use trace::rank::RankData;
use trace::rank::{Detail, Details, Written};

use crate::bytes::value::Value;
use crate::columns::args::{Argument, Template};
use crate::columns::rows::Extras;
/// Reads the details of every row from its arguments. Rows that share a template are read once.
pub(crate) fn details_of(data: &mut RankData, extras: &Extras) -> Details {
    let mut details = Details::default();
    details.is_xpu = extras.categories.iter().any(|word| word.starts_with("xpu_"));
    let read: Vec<Option<Detail>> = extras.templates.iter().map(|template| read(template, &mut details)).collect();
    for row in 0..data.events.len() {
        let place = data.events.id[row] as usize;
        let template = extras.template.get(place).and_then(|id| id.checked_sub(1));
        let Some(Some(detail)) = template.and_then(|id| read.get(id as usize)) else { continue };
        let name = data.names[data.events.name[row] as usize].clone();
        details.put(row, detail, &name, &mut data.events);
    }
    details
}

/// The detail of all rows that share these arguments; `None` if it is empty.
fn read(template: &Template, details: &mut Details) -> Option<Detail> {
    let (mut dims, mut types, mut concrete, mut stack, mut module) = (None, None, None, None, None);
    let (mut grid, mut block) = (None, None);
    for (key, value) in template.arguments(&[]) {
        let Argument::Json(raw) = value else { continue };
        let json = || String::from_utf8_lossy(raw).into_owned();
        let text = || Value::parse(&[raw, b","].concat()).as_ref().and_then(Value::text).map(String::from);
        match key {
            "Input Dims" => dims = Some(json()),
            "Input type" => types = Some(json()),
            "Concrete Inputs" => concrete = Some(json()),
            "Call stack" => stack = text().map(|frames| outermost_first(&frames)),
            "Module Hierarchy" => module = text(),
            "grid" => grid = Some(json()),
            "block" => block = Some(json()),
            _ => {}
        }
    }
    let written = Written {
        dims: dims.as_deref(),
        types: types.as_deref(),
        concrete: concrete.as_deref(),
        stack: stack.as_deref(),
        module: module.as_deref(),
        grid: grid.as_deref(),
        block: block.as_deref(),
    };
    let detail = details.read(written);
    (detail != Detail::default()).then_some(detail)
}

/// Reverses Kineto's list of frames, which has the innermost frame first and ends with a separator.
pub(crate) fn outermost_first(frames: &str) -> String {
    frames.split(';').rev().filter(|frame| !frame.is_empty()).collect::<Vec<_>>().join(";")
}
