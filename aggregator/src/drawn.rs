//! Ranks for tests, drawn: one column is one ns, `#` is busy. Every unbroken `#` is a row.

use trace::{CollectiveRow, StepRow};

use crate::load::sort_rows;
use crate::model::{Kind, NO_PARENT, NO_STEP, NONE, RankData};
use crate::names::NameClass;
use crate::steps::assign_steps;

/// A rank that is being drawn.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    data: RankData,
}

/// Starts and ends of the unbroken runs of `#`.
pub(crate) fn bars(line: &str) -> Vec<(i64, i64)> {
    let mut bars: Vec<(i64, i64)> = Vec::new();
    for (t, c) in (0_i64..).zip(line.chars()) {
        match bars.last_mut() {
            Some((_, end)) if c == '#' && *end == t => *end = t + 1,
            _ if c == '#' => bars.push((t, t + 1)),
            _ => {}
        }
    }
    bars
}

impl Drawn {
    pub(crate) fn rank(rank: i32) -> Self {
        let mut drawn = Self::default();
        drawn.data.info.rank = rank;
        drawn
    }

    /// Active steps, numbered from 1.
    pub(crate) fn steps(mut self, line: &str) -> Self {
        for (step, (start_ns, end_ns)) in (1..).zip(bars(line)) {
            let rank = self.data.info.rank;
            self.data.steps.push(StepRow { rank, step, phase: "active".into(), start_ns, end_ns, loss: None });
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

    /// Rows of a device's stream; their correlations count up from `correlation`.
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

    /// Calls that launch device work; their correlations count up from `correlation`.
    pub(crate) fn launches(self, correlation: i64, line: &str) -> Self {
        self.rows(Kind::Runtime, "cudaLaunchKernel", line, |data, i| {
            data.events.thread.push(1);
            data.events.device.push(NONE);
            data.events.stream.push(NONE);
            data.events.correlation.push(correlation + i);
        })
    }

    /// Collectives, without rows of their own.
    pub(crate) fn collectives(mut self, line: &str) -> Self {
        for (seq, (start, end)) in (0..).zip(bars(line)) {
            self.data.collectives.push(CollectiveRow {
                rank: self.data.info.rank,
                comm_size: Some(2),
                seq: Some(seq),
                op: "allreduce".into(),
                start_ns: Some(start),
                end_ns: Some(end),
                state: "done".into(),
                timing_source: "host".into(),
                ..CollectiveRow::default()
            });
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

    /// The rank: rows sorted, each in its step, and nested by time within its thread.
    pub(crate) fn data(mut self) -> RankData {
        sort_rows(&mut self.data.events);
        if !self.data.steps.is_empty() {
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
