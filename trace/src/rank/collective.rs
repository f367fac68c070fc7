//! A collective of a rank in memory.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{CollectiveRow, Dtype, Maybe, Op, State, Text, TimingSource, Word};

macro_rules! collective {
    ( $( $( #[doc = $doc:literal] )+ $number:ident $set:ident: $type:ty, )+ ) => {
        /// A collective of one rank, with the key that joins it to other ranks: a row of `collectives`, whose fields have the
        /// same names here. The reduction holds those of all ranks, so numbers that may be unknown take no more memory than
        /// others, and collectives share the fields that repeat.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Collective {
            /// Global rank.
            pub rank: i32,
            /// Id of the communicator.
            pub comm_id: i64,
            $( $number: Maybe<$type>, )+
            /// The other fields, which are read and changed through the collective.
            pub shape: Arc<CollectiveShape>,
        }

        impl Collective {
            $(
                $( #[doc = $doc] )+
                pub fn $number(&self) -> Option<$type> {
                    self.$number.get()
                }

                $( #[doc = $doc] )+
                pub fn $set(&mut self, value: Option<$type>) {
                    self.$number = Maybe::of(value);
                }
            )+
        }
    };
}

collective! {
    /// Other side of a send or receive.
    peer set_peer: i32,
    /// Training step.
    step set_step: i32,
    /// Gradient bucket that the collective reduces.
    bucket set_bucket: i32,
    /// Sequence number on the communicator.
    seq set_seq: i64,
    /// Time when the bucket's last gradient was produced.
    ready_ns set_ready_ns: i64,
    /// Time when the program handed it to the library.
    enqueue_ns set_enqueue_ns: i64,
    /// Time when it began.
    start_ns set_start_ns: i64,
    /// Time when it ended.
    end_ns set_end_ns: i64,
    /// `id` of the collective's row in `events`.
    event_id set_event_id: i64,
    /// Kineto's `Comms Id`, where the trace has it.
    comms_id set_comms_id: u64,
    /// |[start, end) \ K|, the part that no compute of its device hides. `None` before the map, and where the row has no
    /// start or end.
    exposed_ns set_exposed_ns: i64,
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
    /// Bytes of an all-to-all for each rank, if shares are unequal; empty if their sizes are unknown.
    pub sent_bytes: Option<Vec<i64>>,
    /// Bytes of an all-to-all from each rank, likewise.
    pub received_bytes: Option<Vec<i64>>,
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
    (own: $( $own:ident )+, numbers: $( $number:ident )+, shared: $( $shared:ident )+) => {
        impl CollectiveShapes {
            /// The collective of a row.
            pub fn collective(&mut self, row: CollectiveRow) -> Collective {
                // Every column is named, so that none is forgotten.
                let CollectiveRow { $( $own, )+ $( $number, )+ $( $shared, )+ } = row;
                let shape = self.shared(CollectiveShape { $( $shared, )+ });
                let (comms_id, exposed_ns) = (Maybe::UNKNOWN, Maybe::UNKNOWN);
                Collective { $( $own, )+ $( $number: Maybe::of($number), )+ comms_id, exposed_ns, shape }
            }
        }

        impl Collective {
            /// The row of `collectives`.
            pub fn row(&self) -> CollectiveRow {
                let CollectiveShape { $( $shared, )+ } = (*self.shape).clone();
                CollectiveRow { $( $own: self.$own, )+ $( $number: self.$number(), )+ $( $shared, )+ }
            }
        }
    };
}

split! {
    own: rank comm_id,
    numbers: peer step bucket seq ready_ns enqueue_ns start_ns end_ns event_id,
    shared: comm_name comm_size op dtype count bytes sent_bytes received_bytes root state stream_id device_id algo proto channels timing_source fused
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

/// Begin (or call), end, communicator and number of a collective.
type CollectiveOrder = (Option<i64>, Option<i64>, i64, Option<i64>);

impl CollectiveRow {
    /// As [`Collective::order`].
    pub fn order(&self) -> CollectiveOrder {
        (self.start_ns.or(self.enqueue_ns), self.end_ns, self.comm_id, self.seq)
    }
}

impl Collective {
    /// The order of a rank's collectives. It is the same for every format, because a rank's time is charged to its collectives in
    /// their order.
    pub fn order(&self) -> CollectiveOrder {
        (self.start_ns().or(self.enqueue_ns()), self.end_ns(), self.comm_id, self.seq())
    }

    /// Changes each of its known times.
    pub fn map_times(&mut self, changed: impl Fn(i64) -> i64) {
        for time in [&mut self.ready_ns, &mut self.enqueue_ns, &mut self.start_ns, &mut self.end_ns] {
            *time = Maybe::of(time.get().map(&changed));
        }
    }

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
