//! A collective of a rank in memory.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{CollectiveRow, Dtype, Op, State, Text, TimingSource, Word};

/// A collective of one rank, with the key that joins it to other ranks: a row of `collectives`, whose fields have the same
/// names here. The reduction holds those of all ranks, so collectives share the fields that repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collective {
    /// Global rank.
    pub rank: i32,
    /// Other side of a send or receive.
    pub peer: Option<i32>,
    /// Training step.
    pub step: Option<i32>,
    /// Gradient bucket that the collective reduces.
    pub bucket: Option<i32>,
    /// Id of the communicator.
    pub comm_id: i64,
    /// Sequence number on the communicator.
    pub seq: Option<i64>,
    /// Time when the bucket's last gradient was produced.
    pub ready_ns: Option<i64>,
    /// Time when the program handed it to the library.
    pub enqueue_ns: Option<i64>,
    /// Time when it began.
    pub start_ns: Option<i64>,
    /// Time when it ended.
    pub end_ns: Option<i64>,
    /// `id` of the collective's row in `events`.
    pub event_id: Option<i64>,
    /// Kineto's `Comms Id`, where the trace has it.
    pub comms_id: Option<u64>,
    /// |[start, end) \ K|, the part that no compute of its device hides. `None` before the map, and where the row has no
    /// start or end.
    pub exposed_ns: Option<i64>,
    /// The other fields, which are read and changed through the collective.
    pub shape: Arc<CollectiveShape>,
}

/// The fields of a row of `collectives` that repeat from step to step and from rank to rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CollectiveShape {
    /// Name of the communicator.
    pub comm_name: Option<Text>,
    /// Number of ranks in the communicator.
    pub comm_size: Option<i32>,
    /// Operation.
    pub op: Word<Op>,
    /// Element type.
    pub dtype: Option<Word<Dtype>>,
    /// Number of elements.
    pub count: Option<i64>,
    /// Size of the whole array.
    pub bytes: Option<i64>,
    /// Root of a rooted operation.
    pub root: Option<i32>,
    /// Progress.
    pub state: Word<State>,
    /// Stream of the collective.
    pub stream_id: Option<i64>,
    /// Device of the collective.
    pub device_id: Option<i64>,
    /// Algorithm of the library.
    pub algo: Option<Text>,
    /// Protocol of the library.
    pub proto: Option<Text>,
    /// Number of channels.
    pub channels: Option<i32>,
    /// Origin of the times.
    pub timing_source: Word<TimingSource>,
    /// Whether NCCL carried it out together with others of its group.
    pub fused: Option<bool>,
}

impl std::ops::Deref for Collective {
    type Target = CollectiveShape;

    fn deref(&self) -> &CollectiveShape {
        &self.shape
    }
}

impl std::ops::DerefMut for Collective {
    /// The shape of this collective, which it shares with no other from now on.
    fn deref_mut(&mut self) -> &mut CollectiveShape {
        Arc::make_mut(&mut self.shape)
    }
}

impl From<CollectiveRow> for Collective {
    fn from(row: CollectiveRow) -> Self {
        CollectiveShapes::default().collective(row)
    }
}

/// Makes collectives of rows. Those with equal shapes share them.
#[derive(Debug, Default)]
pub struct CollectiveShapes(FxHashSet<Arc<CollectiveShape>>);

macro_rules! split {
    (own: $( $own:ident )+, shared: $( $shared:ident )+) => {
        impl CollectiveShapes {
            /// The collective of a row.
            pub fn collective(&mut self, row: CollectiveRow) -> Collective {
                // Every column is named, so that none is forgotten.
                let CollectiveRow { $( $own, )+ $( $shared, )+ } = row;
                let shape = self.shared(CollectiveShape { $( $shared, )+ });
                Collective { $( $own, )+ comms_id: None, exposed_ns: None, shape }
            }
        }

        impl Collective {
            /// The row of `collectives`.
            pub fn row(&self) -> CollectiveRow {
                let CollectiveShape { $( $shared, )+ } = (*self.shape).clone();
                CollectiveRow { $( $own: self.$own, )+ $( $shared, )+ }
            }
        }
    };
}

split! {
    own: rank peer step bucket comm_id seq ready_ns enqueue_ns start_ns end_ns event_id,
    shared: comm_name comm_size op dtype count bytes root state stream_id device_id algo proto channels timing_source fused
}

impl CollectiveShapes {
    fn shared(&mut self, shape: CollectiveShape) -> Arc<CollectiveShape> {
        if let Some(shared) = self.0.get(&shape) {
            return shared.clone();
        }
        let shared = Arc::new(shape);
        self.0.insert(shared.clone());
        shared
    }
}

impl Collective {
    /// The collectives of rows.
    pub fn list(rows: impl IntoIterator<Item = CollectiveRow>) -> Vec<Self> {
        let mut shapes = CollectiveShapes::default();
        rows.into_iter().map(|row| shapes.collective(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seq: i64) -> CollectiveRow {
        CollectiveRow {
            rank: 3,
            seq: Some(seq),
            op: Op::AllReduce.into(),
            bytes: Some(8),
            start_ns: Some(10 * seq),
            algo: Some("RING".into()),
            ..CollectiveRow::default()
        }
    }

    #[test]
    fn a_collective_gives_its_row_back_and_shares_its_shape() {
        let rows = [row(1), row(2), CollectiveRow { bytes: Some(9), ..row(3) }];
        let mut all = Collective::list(rows.clone());
        assert_eq!(all.iter().map(Collective::row).collect::<Vec<_>>(), rows);
        assert!(Arc::ptr_eq(&all[0].shape, &all[1].shape) && !Arc::ptr_eq(&all[1].shape, &all[2].shape));
        all[1].bytes = Some(7);
        assert_eq!((all[0].bytes, all[1].bytes), (Some(8), Some(7)));
    }
}
