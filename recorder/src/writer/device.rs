//! The writer's part in rows that come from a device rather than from a thread of the program.

use std::sync::Arc;

use crate::Kind;
use crate::buffers::collective_key;
use crate::device::{DeviceBatch, Missing};
use crate::thread::ThreadShared;
use crate::writer::{Source, Writer};

/// What the source is called in `counters`.
const SOURCE: &str = "cupti";

impl Writer {
    /// Takes what was handed over.
    pub(super) fn take_device(&mut self, batch: DeviceBatch) {
        self.shared.handed_over.leave(batch.rows() as u64);
        let source = self.device_source();
        // A collective was reported as enqueued before its kernel was launched: take that report before this one.
        for index in 0..self.sources.len() {
            self.drain_rare(index);
        }
        let DeviceBatch { events, memory, collectives, missing } = batch;
        for event in events {
            self.device.push(event);
            self.close_if_full();
        }
        self.memory.extend(memory.into_iter().map(|record| (source, record)));
        for collective in collectives {
            self.in_flight.remove(&collective_key(&collective));
            self.collectives.push((source, collective));
        }
        self.close_if_full();
        for Missing { source, dropped, omitted, why } in missing {
            if dropped > 0 {
                self.lose(&source, dropped, &why);
            }
            if omitted > 0 {
                self.counts.omit(&source, omitted, &why);
            }
        }
        // A part is due even if nothing but a count came.
        self.part_began.get_or_insert_with(std::time::Instant::now);
    }

    fn device_source(&mut self) -> u32 {
        let next = self.sources.len() as u32;
        *self.device_source.get_or_insert_with(|| {
            let own = Arc::new(ThreadShared::new(SOURCE));
            self.sources.push(Source { own, queues: None, counted: [0; 3] });
            next
        })
    }

    /// Counts the device rows of a part that was written, and forgets them.
    pub(super) fn record_device(&mut self) {
        for kind in Kind::ALL {
            let rows = self.device.iter().filter(|event| event.kind == *kind).count() as u64;
            self.counts.record(&format!("{SOURCE}:{}", kind.as_str()), rows);
        }
        self.summary().recorded += self.device.len() as u64;
        self.device.clear();
    }
}
