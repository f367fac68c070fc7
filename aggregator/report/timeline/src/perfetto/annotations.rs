//! The annotations of a slice, which Perfetto shows on a click: the numbers of its row, and the texts of operators and kernels.

use trace::rank::{Details, Field, KernelUse};

use crate::perfetto::packets::{Annotation, Sequence, Value};
use model::{NO_STEP, NONE, RankData};

/// Annotations of one slice; unknown values are `None`.
pub(super) type Annotations = Vec<(Annotation, Option<Value>)>;

/// The annotations of the rows of a rank. Each text is written once.
pub(super) struct Annotator<'a> {
    data: &'a RankData,
    details: &'a Details,
    /// The texts of `details` that were written.
    texts: Vec<Option<Value>>,
}

impl<'a> Annotator<'a> {
    pub(super) fn of(data: &'a RankData, details: &'a Details) -> Self {
        Self { data, details, texts: vec![None; details.texts()] }
    }

    /// Replaces `annotations` by those of a row.
    pub(super) fn fill(&mut self, row: usize, annotations: &mut Annotations, out: &mut Sequence) {
        let events = &self.data.events;
        let some = |value: i64| Some(value).filter(|value| *value != NONE).map(Value::Number);
        let step = Some(i64::from(events.step[row])).filter(|_| events.step[row] != NO_STEP);
        annotations.clear();
        annotations.extend([
            (Annotation::Id, some(events.id[row])),
            (Annotation::Step, step.map(Value::Number)),
            (Annotation::Bytes, some(events.bytes[row])),
            (Annotation::Flops, some(events.flops[row])),
            (Annotation::Correlation, some(events.correlation[row])),
            (Annotation::ExternalId, some(events.external[row])),
        ]);
        for field in Field::ALL {
            if let Some((id, text)) = self.details.text(field, row) {
                let value = *self.texts[id as usize].get_or_insert_with(|| out.text(text));
                annotations.push((annotation(field), Some(value)));
            }
        }
        if events.kind[row].is_device_work()
            && let Ok(at) = self.data.kernel_use.binary_search_by_key(&events.id[row], |used| used.id)
        {
            annotations.extend(launch(&self.data.kernel_use[at]));
        }
    }
}

fn annotation(field: Field) -> Annotation {
    match field {
        Field::Shape => Annotation::InputDims,
        Field::Types => Annotation::InputTypes,
        Field::Values => Annotation::InputValues,
        Field::Stack => Annotation::Stack,
        Field::Module => Annotation::Module,
        Field::Grid => Annotation::Grid,
        Field::Block => Annotation::Block,
    }
}

fn launch(used: &KernelUse) -> [(Annotation, Option<Value>); 3] {
    let number = |value: Option<i64>| value.map(Value::Number);
    [
        (Annotation::Registers, number(used.registers.map(i64::from))),
        (Annotation::SharedMemBytes, number(used.shared_mem_bytes.map(i64::from))),
        (
            Annotation::OccupancyPct,
            used.occupancy_pct.map(|pct| Value::Share((f64::from(pct) * 100.0).round() / 100.0)),
        ),
    ]
}
