//! Ranks for tests, as drawings: one column is one ns, `#` is busy. Each unbroken run of `#` is a row.

pub(crate) use fixtures::timeline::bars;
use trace::{CollectiveRow, StepRow};

use crate::ingest::run::sort_rows;
use crate::model::steps::assign_steps;
use crate::model::{Collective, Kind, NO_PARENT, NO_STEP, NONE, RankData};
use trace::name_rules::NameClass;

/// Builder of a rank from drawings.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    data: RankData,
}

impl Drawn {
    pub(crate) fn rank(rank: i32) -> Self {
        let mut drawn = Self::default();
        drawn.data.outline.info.rank = rank;
        drawn
    }

    /// Active steps, numbered from 1.
    pub(crate) fn steps(mut self, line: &str) -> Self {
        for (step, (start_ns, end_ns)) in (1..).zip(bars(line)) {
            let rank = self.data.outline.info.rank;
            self.data.outline.steps.push(StepRow {
                rank,
                step,
                phase: "active".into(),
                start_ns,
                end_ns,
                loss: None,
                window: None,
            });
        }
        self
    }

    /// Rows of a host thread.
    pub(crate) fn host(self, kind: Kind, name: &str, thread: i64, line: &str) -> Self {
        self.rows(kind, name, line, |data, _| {
            data.events.thread.push(thread);
            data.events.device.push(NONE);
            data.events.stream.push(NONE);
            data.events.correlation.push(NONE);
        })
    }

    /// Rows of a device stream. Their correlation ids count up from `correlation`.
    pub(crate) fn device(
        self,
        kind: Kind,
        name: &str,
        (device, stream): (i64, i64),
        correlation: i64,
        line: &str,
    ) -> Self {
        self.rows(kind, name, line, |data, i| {
            data.events.thread.push(NONE);
            data.events.device.push(device);
            data.events.stream.push(stream);
            data.events.correlation.push(correlation + i);
        })
    }

    /// Calls that launch device work. Their correlation ids count up from `correlation`.
    pub(crate) fn launches(self, correlation: i64, line: &str) -> Self {
        self.rows(Kind::Runtime, "cudaLaunchKernel", line, |data, i| {
            data.events.thread.push(1);
            data.events.device.push(NONE);
            data.events.stream.push(NONE);
            data.events.correlation.push(correlation + i);
        })
    }

    /// Collectives, without event rows.
    pub(crate) fn collectives(mut self, line: &str) -> Self {
        for (seq, (start, end)) in (0..).zip(bars(line)) {
            self.data.outline.collectives.push(Collective::from(CollectiveRow {
                rank: self.data.outline.info.rank,
                comm_size: Some(2),
                seq: Some(seq),
                op: "allreduce".into(),
                start_ns: Some(start),
                end_ns: Some(end),
                state: "done".into(),
                timing_source: "host".into(),
                ..CollectiveRow::default()
            }));
        }
        self
    }

    fn rows(mut self, kind: Kind, name: &str, line: &str, place: impl Fn(&mut RankData, i64)) -> Self {
        let name_id = self.data.names.iter().position(|n| &**n == name).unwrap_or_else(|| {
            self.data.names.push(name.into());
            self.data.names.len() - 1
        });
        for (i, (start, end)) in (0_i64..).zip(bars(line)) {
            place(&mut self.data, i);
            let id = self.data.events.len() as i64;
            let events = &mut self.data.events;
            events.kind.push(kind);
            events.name.push(name_id as u32);
            events.ts_ns.push(start);
            events.dur_ns.push(end - start);
            events.id.push(id);
            events.step.push(NO_STEP);
            events.external.push(NONE);
            events.parent.push(NO_PARENT);
            events.is_comm.push(NameClass::of(name).is_comm(kind));
            events.bytes.push(NONE);
            events.flops.push(NONE);
        }
        self
    }

    /// Builds the rank: rows are sorted, assigned to steps, and nested by time within their thread.
    pub(crate) fn data(mut self) -> RankData {
        sort_rows(&mut self.data.events);
        if !self.data.outline.steps.is_empty() {
            assign_steps(&mut self.data);
        }
        let events = &mut self.data.events;
        for row in 0..events.len() {
            let encloses = |outer: &usize| {
                let outer = *outer;
                events.thread[outer] == events.thread[row]
                    && events.thread[row] != NONE
                    && events.end_ns(outer) >= events.end_ns(row)
            };
            if let Some(parent) = (0..row).rev().find(encloses) {
                events.parent[row] = parent as u32;
            }
        }
        self.data
    }
}
