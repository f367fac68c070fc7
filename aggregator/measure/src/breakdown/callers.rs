//! The FSDP units and modules that call collectives.

use trace::Text;

use model::{Collective, Kind, RankData};

/// Ranges of FSDP, such as `FSDP::all_gather (layers.0)`, which name the unit in parentheses.
const FSDP: &str = "FSDP::";
/// Frames of modules, as torch.profiler records them with the Python stack.
const MODULE: &str = "nn.Module: ";
/// The ranges before a call that are looked at. They nest only a few deep.
const MAX_LOOKED_AT: usize = 64;

/// The ranges of units and modules, by start.
pub(super) struct Callers {
    units: Vec<(i64, i64, Text)>,
    modules: Vec<(i64, i64, Text)>,
}

impl Callers {
    pub(super) fn of(data: &RankData) -> Self {
        let unit = |name: &Text| {
            let (_, unit) = name.strip_prefix(FSDP)?.split_once('(')?;
            Some(Text::from(unit.strip_suffix(')')?))
        };
        let of_kind = |kind: Kind, named: &dyn Fn(&Text) -> Option<Text>| {
            let names: Vec<Option<Text>> = data.names.iter().map(named).collect();
            let events = &data.events;
            let rows = (0..events.len()).filter(|row| events.kind[*row] == kind);
            let range =
                |row: usize| Some((events.ts_ns[row], events.end_ns(row), names[events.name[row] as usize].clone()?));
            let mut ranges: Vec<(i64, i64, Text)> = rows.filter_map(range).collect();
            ranges.sort_by_key(|(start_ns, end_ns, _)| (*start_ns, *end_ns));
            ranges
        };
        let module = |name: &Text| name.strip_prefix(MODULE).map(Text::from);
        Self { units: of_kind(Kind::UserAnnotation, &unit), modules: of_kind(Kind::PythonFunction, &module) }
    }

    /// The unit that called a collective, or else the innermost module, and whether it is a unit.
    pub(super) fn of_collective(&self, row: &Collective) -> Option<(Text, bool)> {
        let unit = innermost(&self.units, row);
        let name = unit.or_else(|| innermost(&self.modules, row))?;
        Some((name.clone(), unit.is_some()))
    }
}

/// The name of the innermost range in which a collective was called.
fn innermost<'a>(ranges: &'a [(i64, i64, Text)], row: &Collective) -> Option<&'a Text> {
    let at_ns = row.enqueue_ns().or(row.start_ns())?;
    let before = &ranges[..ranges.partition_point(|(start_ns, ..)| *start_ns <= at_ns)];
    let around = before.iter().rev().take(MAX_LOOKED_AT).find(|(_, end_ns, _)| at_ns < *end_ns);
    around.map(|(.., name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    #[test]
    fn a_unit_is_named_before_a_module() {
        let data = Drawn::rank(0)
            .host(Kind::PythonFunction, "nn.Module: Model_0", 1, "####################")
            .host(Kind::PythonFunction, "nn.Module: Linear_0", 1, "..........#####.....")
            .host(Kind::UserAnnotation, "FSDP::all_gather (layers.0)", 1, ".####...............")
            .host(Kind::UserAnnotation, "FSDP::finalize_backward", 1, "..##................")
            .data();
        let callers = Callers::of(&data);
        let at = |enqueue_ns: i64| {
            let mut row = Collective::default();
            row.set_enqueue_ns(Some(enqueue_ns));
            row.set_start_ns(Some(99));
            callers.of_collective(&row).map(|(name, is_unit)| (name.to_string(), is_unit))
        };
        assert_eq!(at(3), Some(("layers.0".into(), true)));
        assert_eq!(at(12), Some(("Linear_0".into(), false)));
        assert_eq!(at(17), Some(("Model_0".into(), false)));
        assert_eq!(at(20), None);
        assert_eq!(callers.of_collective(&Collective::default()), None);
    }
}
