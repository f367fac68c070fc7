//! What a training program records beside its profiler: the agent of its rank, and the writer of its windows, which works in
//! another process.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use agent::exec::{Agent, AgentOptions};
use kineto::write::{Comparison, RankPlace, WindowFile, WindowWriter};
use launch::{Identity, Launcher};
use model::Error;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::{PyErr, PyResult, Python, pyclass, pymethods};
use trace::{ShardMeta, lock};

use crate::errors::exception;

/// The agent of this process's rank. Calls do not wait, except `finish`.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeAgent(Agent);

/// Run, run id, session, host, boot id, clock domain.
type Place = (PathBuf, String, String, String, String, String);

#[pymethods]
impl NativeAgent {
    #[new]
    #[pyo3(signature = (out, rank, world_size, local_rank, rendezvous, join_timeout_s, recorded_by))]
    fn start(
        out: PathBuf,
        rank: i32,
        world_size: i32,
        local_rank: Option<i32>,
        rendezvous: Option<String>,
        join_timeout_s: f64,
        recorded_by: String,
    ) -> PyResult<Self> {
        let wrong = |why: &str| PyValueError::new_err(why.to_string());
        if world_size < 1 || !(0..world_size).contains(&rank) {
            return Err(wrong("the rank must be below the number of ranks"));
        }
        let join_timeout = Duration::try_from_secs_f64(join_timeout_s).map_err(|error| wrong(&error.to_string()))?;
        let found = Identity::from_env(&|name| std::env::var(name).ok()).unwrap_or(Identity::ALONE);
        // Ranks that their program numbers by itself have no launcher that is known.
        let launcher = if found.world_size == world_size { found.launcher } else { Launcher::Env };
        let identity = Identity { rank, world_size, local_rank: local_rank.or(found.local_rank), launcher };
        let options = AgentOptions { out, identity, rendezvous, join_timeout, recorded_by };
        Agent::start(options).map(Self).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The run, once the ranks have met; an error with the reason if there will be none.
    fn place(&self) -> PyResult<Option<Place>> {
        let place = self.0.place().map_err(PyRuntimeError::new_err)?;
        Ok(place.map(|p| (p.run, p.run_id, p.session, p.host, p.boot_id, p.clock_domain)))
    }

    fn take_problems(&self) -> Vec<String> {
        self.0.take_problems()
    }

    fn step(&self, step: u64) {
        self.0.step(step);
    }

    fn records(&self, records: bool) {
        self.0.records(records);
    }

    fn compare(&self) {
        self.0.compare();
    }

    fn opens(&self) -> Option<u64> {
        self.0.opens()
    }

    fn open(&self) {
        self.0.open();
    }

    fn opened(&self) {
        self.0.opened();
    }

    fn wall_clock(&self) -> Vec<(i64, i64, i64)> {
        self.0.wall_clock()
    }

    fn omit(&self, what: &str, amount: u64, why: &str) {
        self.0.omit(what, amount, why);
    }

    fn finish(&self, py: Python<'_>, failed: bool, patience_s: f64) {
        let patience = Duration::try_from_secs_f64(patience_s).unwrap_or_default();
        py.detach(|| self.0.finish(failed, patience));
    }
}

/// Writes windows of a rank into its run.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeWindowWriter(Mutex<Option<WindowWriter>>);

#[pymethods]
impl NativeWindowWriter {
    #[new]
    fn open(place: Place, rank: i32, world_size: i32, max_memory_bytes: u64) -> Self {
        let (run, run_id, session, host, boot_id, clock_domain) = place;
        let pid = i64::from(std::process::id());
        let meta = ShardMeta { run_id, rank, host, pid, boot_id, clock_domain, session };
        Self(Mutex::new(Some(WindowWriter::new(RankPlace { run, meta, world_size, max_memory_bytes }))))
    }

    /// Writes a window; returns rows, bytes, the largest error of the times in ns, and the number of losses.
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        flight_recorder: Option<PathBuf>,
        number: i32,
        step_shift: i32,
        comparisons: Vec<(i64, i64, i64)>,
    ) -> PyResult<(u64, u64, i64, usize)> {
        let window = WindowFile { path, flight_recorder, number, step_shift };
        let comparison = |(local_ns, utc_ns, rtt_ns)| Comparison { local_ns, utc_ns, rtt_ns };
        let comparisons: Vec<Comparison> = comparisons.into_iter().map(comparison).collect();
        let written = py.detach(|| {
            let mut writer = lock(&self.0);
            writer.as_mut().map(|writer| writer.write(&window, &comparisons))
        });
        let written = written.ok_or_else(ended)?.map_err(|error| exception(py, &Error::from(error)))?;
        Ok((written.rows, written.bytes, written.error_ns, written.lost))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let finished = py.detach(|| {
            let writer = lock(&self.0).take();
            writer.map(WindowWriter::finish)
        });
        finished.ok_or_else(ended)?.map_err(|error| exception(py, &Error::from(error)))
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("the writer has ended")
}
