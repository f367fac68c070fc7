//! NVTX ranges: CUPTI reports each as two records with a common id.

use recorder::{Kind, NONE, Shared, SourceEvent};
use rustc_hash::FxHashMap;
use trace::Text;

use super::record::{Marker, MarkerData};

/// `CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS`, `…_START`, `…_END`.
const INSTANTANEOUS: u32 = 1;
const START: u32 = 2;
const END: u32 = 4;
/// `CUPTI_ACTIVITY_OBJECT_THREAD`.
const OBJECT_THREAD: u32 = 2;
/// The most open ranges. More of them are a leak of the program.
const MAX_OPEN: usize = 1 << 16;

/// A range, or an instantaneous marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    name: String,
    domain: Option<String>,
    category: u32,
    start_ns: i64,
    end_ns: i64,
    thread_id: i64,
    open: bool,
}

impl Range {
    /// The range as a row.
    pub(crate) fn event(self, shared: &Shared) -> SourceEvent {
        let name = shared.intern(&self.name);
        let event = SourceEvent::new(shared.next_id(), Kind::UserAnnotation, name, self.start_ns, self.end_ns);
        SourceEvent { thread_id: self.thread_id, open: self.open, args: self.args(), ..event }
    }

    fn args(&self) -> Option<Text> {
        let mut args = serde_json::Map::new();
        if let Some(domain) = &self.domain {
            args.insert("domain".into(), domain.as_str().into());
        }
        if self.category != 0 {
            args.insert("category".into(), self.category.into());
        }
        (!args.is_empty()).then(|| serde_json::Value::Object(args).to_string().into())
    }
}

/// The open ranges, by id.
#[derive(Debug, Default)]
pub(crate) struct Markers(FxHashMap<u32, Range>);

impl Markers {
    /// Takes a record with time `ns`. Returns the range that it ends, or the instantaneous marker.
    pub(crate) fn take(&mut self, marker: &Marker, ns: i64, text: impl Fn(u64) -> Option<String>) -> Option<Range> {
        if marker.flags & END != 0 {
            // A range without a start began before the session.
            let range = self.0.remove(&marker.id)?;
            return Some(Range { end_ns: ns.max(range.start_ns), open: false, ..range });
        }
        let on_thread = marker.object_kind == OBJECT_THREAD;
        let range = Range {
            name: text(marker.name).unwrap_or_else(|| "(range without a name)".into()),
            domain: text(marker.domain).filter(|domain| !domain.is_empty()),
            category: 0,
            start_ns: ns,
            end_ns: ns,
            thread_id: if on_thread { marker.thread_id.into() } else { NONE },
            open: false,
        };
        if marker.flags & INSTANTANEOUS != 0 {
            return Some(range);
        }
        if marker.flags & START != 0 && self.0.len() < MAX_OPEN {
            self.0.insert(marker.id, Range { open: true, ..range });
        }
        None
    }

    /// Adds the category to an open range.
    pub(crate) fn describe(&mut self, data: &MarkerData) {
        if let Some(range) = self.0.get_mut(&data.id) {
            range.category = data.category;
        }
    }

    /// Removes the ranges that have not ended, ordered by start.
    pub(crate) fn drain(&mut self, now_ns: i64) -> Vec<Range> {
        let mut open: Vec<Range> =
            self.0.drain().map(|(_, range)| Range { end_ns: now_ns.max(range.start_ns), ..range }).collect();
        open.sort_by(|a, b| (a.start_ns, &a.name).cmp(&(b.start_ns, &b.name)));
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cupti::layout::Version;

    fn marker(flags: u32, id: u32, name: u64) -> Marker {
        let zero = Marker::read(&[0; 56], Version::OLDEST).unwrap();
        Marker { flags, id, name, object_kind: OBJECT_THREAD, thread_id: 77, ..zero }
    }

    /// ```text
    ///  id 1   [=====]          ended
    ///  id 2       [=======     never ended
    ///  id 3         |          instantaneous
    ///  id 4 ===]               began before the session
    /// ```
    #[test]
    fn start_and_end_records_become_one_range() {
        let names = |address: u64| (address != 0).then(|| format!("range {address}"));
        let mut markers = Markers::default();
        assert_eq!(markers.take(&marker(END, 4, 0), 15, names), None);
        assert_eq!(markers.take(&marker(START, 1, 1), 10, names), None);
        assert_eq!(markers.take(&marker(START, 2, 2), 20, names), None);
        let moment = markers.take(&marker(INSTANTANEOUS, 3, 3), 25, names).unwrap();
        assert_eq!((moment.name.as_str(), moment.start_ns, moment.end_ns), ("range 3", 25, 25));
        let ended = markers.take(&marker(END, 1, 0), 40, names).unwrap();
        assert_eq!((ended.name.as_str(), ended.start_ns, ended.end_ns, ended.thread_id), ("range 1", 10, 40, 77));
        let open = markers.drain(90);
        assert_eq!(open.iter().map(|r| (r.start_ns, r.end_ns, r.open)).collect::<Vec<_>>(), [(20, 90, true)]);
    }
}
